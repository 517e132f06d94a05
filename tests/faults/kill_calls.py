"""Kills a run that asks a service which counts, and compares the calls with its messages and those in the air."""

import asyncio
import mmap
import random
import time
from contextlib import closing, suppress
from pathlib import Path

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, retry
from tests.faults import broken
from tests.faults.kill_database import wait
from tests.faults.processes import child
from tests.faults.trials import Missed, Order, Verdict, one_by_one

SAFEGUARD = "answers that are remembered"
NUMBERS, MOST = 400, 16
KILLS = 4
"""The kills of one trial."""
SLOWEST_S = 0.02
PATIENCE_S = 120.0


class Counting:
    """A service that gives every number back in a while, and counts how often it was asked for each.

    It runs in a process of its own, which shares the counts, and the port behind them.
    """

    def __init__(self, seed: int) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 8 * (NUMBERS + 1))).cast("q")
        self._pace = random.Random(seed)

    @property
    def port(self) -> int:
        return self._numbers[NUMBERS]

    def total(self) -> int:
        return sum(self._numbers[:NUMBERS])

    def serve(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self._numbers[NUMBERS] = server.sockets[0].getsockname()[1]
        await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError), closing(writer):  # who asks may be killed
            while line := await reader.readline():
                number = int(line)
                self._numbers[number] += 1
                await asyncio.sleep(self._pace.uniform(0, SLOWEST_S))
                writer.write(b"%d\n" % number)
                await writer.drain()


def questions(port: int, interval_ms: int, remember: bool) -> App:
    app = App("questions", Options(commit_interval_ms=interval_ms))

    async def ask(number: int) -> list[int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(b"%d\n" % number)
            return [int(await reader.readline())]

    asked = app.input("numbers", value=int).async_flat_map(
        ask, remember=remember, max_in_flight=MOST, order="none", on_error=retry(3, backoff_ms=5), op_id="ask"
    )
    asked.send_to(app.output("answers", value=int))
    return app


def run(data: Path, port: int, interval_ms: int, without: str | None) -> None:
    broken.switch_off(without)
    questions(port, interval_ms, remember=True).run(data)


def fill(data: Path) -> None:
    with closing(LogEnvironment(data, sync=False)) as log:
        log.create_stream("numbers", StreamConfig())
        log.append([Append("numbers", 0, Batch([b"%d" % number for number in range(NUMBERS)]))])
        log.end_stream("numbers")


def written(data: Path) -> list[int]:
    """Return the numbers that are written, in order."""
    found: list[int] = []
    with closing(LogEnvironment(data)) as log:
        offset = 0
        while (read := log.read("answers", 0, offset)) is not None:
            found += map(int, read.batch.values)
            offset = read.next_offset
    return sorted(found)


def killed(service: Counting, data: Path, chance: random.Random, without: str | None) -> bool:
    """Start a run, and kill it when it has asked for some more numbers; return whether it was alive."""
    more = service.total() + chance.randint(1, 2 * NUMBERS // KILLS)
    with child(run, data, service.port, chance.choice((30, 300, 60_000)), without) as process:
        until = time.monotonic() + PATIENCE_S
        while service.total() < more and process.poll() is None:
            assert time.monotonic() < until, "the run asks for nothing"
            time.sleep(0.0005)
        if process.poll() is not None:
            return False
        process.kill()
    return True


def trial(without: str | None, seed: int, work: Path) -> dict[str, int]:
    """Kill a run some times, then let it come to its end; each kill may cost the calls that were in the air."""
    data, chance, kills = work / "data", random.Random(seed), 0
    fill(data)
    service = Counting(seed)
    with child(service.serve) as serving:
        while not service.port:
            assert serving.poll() is None, serving.errors()
            time.sleep(0.001)
        while kills < KILLS and killed(service, data, chance, without):
            kills += 1
        with child(run, data, service.port, 300, without) as process:
            assert wait(process, PATIENCE_S), "the last run does not end"
            process.result()
        if not kills:
            raise Missed("it ended before it was killed")
        most = NUMBERS + kills * MOST
        assert service.total() <= most, f"{service.total()} calls for {NUMBERS} messages, and {most} were the most"
    assert written(data) == [*range(NUMBERS)], "the answers are not those to the numbers"
    return {"kills": kills, "calls again": service.total() - NUMBERS}


def campaign(order: Order) -> Verdict:
    """Kill so many runs."""
    without = SAFEGUARD if order.broken else None
    return one_by_one(order, lambda seed, work: trial(without, seed, work))
