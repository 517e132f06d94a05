"""B4s and B4r: a slow service, a thousand calls in flight, every result stored exactly once, or remembered as well."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.async_calls import IN_FLIGHT
from benchmarks.durable import NUMBER, open_by_hand, pack, records_by_hand, records_in_log, sealed
from benchmarks.messages import Message, look_up_slowly, plain_messages
from benchmarks.workload import Description, Workload
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.lists import ListSource
from samza_dsl import App

COMMIT_SECONDS = 1.0
"""How often both sides commit, unless ours finds another interval better."""

encode_json = msgspec.json.Encoder().encode


class SlowService(Workload):
    """Calls of 100 ms. The hand loop writes the results that it has once a second, and need not drain for that."""

    description = Description(
        name="B4s",
        title="async calls of 100 ms, 1,000 in flight, results in the embedded log exactly once",
        messages=100_000,
        quick_scale=0.02,
        bar=1.15,
        pairs=3,
    )

    def prepare(self, messages: int) -> None:
        self.messages = plain_messages(messages)
        self.times = [0] * messages  # records carry a time, as all that are stored do

    def ready(self) -> None:
        shutil.rmtree(self.scratch / "data", ignore_errors=True)

    def baseline(self) -> Path:
        path = self.scratch / "data" / "hand"
        environment, (table,) = open_by_hand(path, b"results")
        results: list[bytes] = []
        end = 0

        def commit() -> None:
            nonlocal end
            with environment.begin(write=True) as transaction:
                transaction.put(NUMBER.pack(end), sealed(pack(results)), db=table)
            end += len(results)
            results.clear()

        async def work(messages: Iterator[Message]) -> None:
            for message in messages:
                results.extend(map(encode_json, await look_up_slowly(message)))

        async def commit_often() -> None:
            while True:
                await asyncio.sleep(COMMIT_SECONDS)
                commit()

        async def work_all() -> None:
            committing = asyncio.create_task(commit_often())
            messages = iter(self.messages)
            await asyncio.gather(*(work(messages) for _ in range(IN_FLIGHT)))
            committing.cancel()

        asyncio.run(work_all())
        commit()
        environment.close()
        return path

    def ours(self) -> Path:
        return self.piped("ours", remember=False)

    def piped(self, name: str, remember: bool) -> Path:
        path = self.scratch / "data" / name
        app = App("slow-service")
        how = {"max_in_flight": IN_FLIGHT, "remember": remember}
        app.input("messages").async_flat_map(look_up_slowly, order="none", **how).send_to(app.output("results"))
        bind = {"messages": ListSource(self.messages, self.times)}
        run_blocking(app.pipeline(), path, RunSettings(bind=bind, levers=self.levers))
        return path

    def outcome(self, result: Path) -> list[Any]:
        """Return the stored results by id."""
        by_hand = result.name == "hand"
        return sorted(records_by_hand(result, b"results") if by_hand else records_in_log(result, "results"))


class RememberedAnswers(SlowService):
    """B4s with answers that are kept as they come, beside the same pipeline without."""

    description = Description(
        name="B4r",
        title="the calls of B4s with their answers remembered, beside the same pipeline without",
        messages=100_000,
        quick_scale=0.02,
        bar=1.1,
        pairs=3,
    )

    def baseline(self) -> Path:
        return self.piped("forgetful", remember=False)

    def ours(self) -> Path:
        return self.piped("ours", remember=True)
