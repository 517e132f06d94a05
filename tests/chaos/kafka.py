"""Tries containers on a real Kafka broker against what can happen: python -m tests.chaos.kafka --minutes N --seed S."""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import Event

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from benchmarks.memory import anonymous_mib
from operators.core.base import Batch
from runtime.job.job_model import Job, job_of
from runtime.model.errors import EnvironmentFault
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.kafka.coordination.group import SESSION_MS
from runtime.systems.kafka.environment import KafkaEnvironment
from runtime.systems.kafka.state.task_state import MOST_APART
from tests.chaos.pipeline import PARTITIONS, UNKNOWN, WINDOW_MS
from tests.faults.processes import wait_until
from tests.kafka.brokers import Brokers, small_disks
from tests.kafka.topics import configure, consume, delete, group_offsets, names, remove_all
from tests.scale import positive
from tests.source import ROOT

APP, WORDS, RATE = "chaos", 40, 300
CALM_S = 3.0, 8.0
"""How long nothing happens between two faults."""
PATIENCE_S = 300
LAST = "last"
"""The word of the records that close the windows of all others."""
STARTERS = 0.2
"""Of how many kills around a cut the process is meant that has started the containers."""
LEFT = "left"
"""The word of the records of a transaction that somebody leaves open, and that is rolled back."""
BAD = 0.01
"""The part of what is written that becomes a dead letter."""
MOST_TOLD = 4_000
"""How much of what a process has printed is shown of a trial that fails."""
LARGEST_BYTES = 900_000
"""A record of that size is still taken everywhere."""
THROTTLED_BYTES = 20_000
"""How much a second brokers take from a writer that they throttle, from each of them."""
DISK_MIB = 512
"""How large the disk of a broker is, which is filled now and then."""
FACTORS = (1, 2, 4)
"""Into how many parts tasks are split, or merged again, where they are no more than some."""
MOST_MIB = 400 + 4 * PARTITIONS * (FACTORS[-1] if PARTITIONS <= MOST_APART else 1)
"""The most anonymous memory that a container may come to, which may take over all tasks, at some 3 MiB for each."""


class Chaos:
    """One application that runs in containers, its broker, and those who write its input."""

    def __init__(self, folder: Path, seed: int, brokers: int = 1) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.commit_by = "task" if seed % 2 else "container"
        self.cuts = seed // 2 % 2 == 1
        """Whether the end of the trial cuts changelogs."""
        self.stamps = seed % 3 == 0
        """Whether brokers give records their own time where topics do not say otherwise."""
        said = {"log.message.timestamp.type": "LogAppendTime"} if self.stamps else {}
        self.brokers = Brokers(folder / "brokers", brokers, said)
        self._disks = ExitStack()
        self.has_disks = os.geteuid() == 0
        if self.has_disks:
            self._disks.enter_context(small_disks(self.brokers, DISK_MIB))
        self.brokers.start()
        self.cluster = KafkaCluster(f"kafka://{self.brokers.bootstrap}")
        self.struck: Counter[str] = Counter()
        self.longest_s = self.most_mib = 0.0
        self.written = 0
        self._environment: KafkaEnvironment | None = None
        try:
            with closing(KafkaEnvironment(self.cluster, folder / "writer")) as environment:
                environment.create_stream(f"{APP}-records", StreamConfig(partitions=PARTITIONS))
        except BaseException:
            self.brokers.stop()
            self._disks.close()
            raise
        self.starter = self.start()
        wait_until(self.containers)

    def start(self, *how: str, data: str = "data") -> "subprocess.Popen[str]":
        """Start the application in containers."""
        number = str(self.chance.randint(2, 3))
        program = [Path(sys.executable).with_name("samza-dsl"), "run", str(ROOT / "tests/chaos/pipeline.py")]
        where = ["--environment", self.cluster.address, "--data", str(self.folder / data), "--containers", number]
        told = {"CHAOS_APP": APP, "CHAOS_COMMIT_BY": self.commit_by}
        environment = {**os.environ, **told, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        with (self.folder / "told.txt").open("a") as file:
            return subprocess.Popen([*program, *where, *how], env=environment, stdout=file, stderr=file, text=True)

    def write(self, until: float) -> None:
        """Write records, as many a second as it goes, until a time; a broker that is away is waited for."""
        most = RATE // 20
        while time.time() < until:
            partitions = range(PARTITIONS) if most >= PARTITIONS else self.chance.sample(range(PARTITIONS), most)
            each = range(max(most // PARTITIONS, 1))
            self._append([Append(f"{APP}-records", one, Batch([self._record() for _ in each])) for one in partitions])
            time.sleep(0.05)

    def _record(self, word: str = "", at_ms: int | None = None, pad: str = "") -> bytes:
        self.written += 1
        named: str | None = word or f"w{self.chance.randrange(WORDS)}"
        if not word and self.chance.random() < BAD:
            named = self.chance.choice((UNKNOWN, None, "no record"))
        if named == "no record":
            return b"no record %d" % self.written
        at_ms = _now_ms() if at_ms is None else at_ms
        return msgspec.json.encode({"word": named, "number": self.written, "at": at_ms, "pad": pad})

    def _append(self, appends: list[Append]) -> None:
        """Write records; where nobody knows whether they were, others come in their place."""
        with suppress(EnvironmentFault):
            if self._environment is None:
                self._environment = KafkaEnvironment(self.cluster, self.folder / "writer")
            self._environment.append(appends)

    def containers(self) -> list[int]:
        """Return the processes of the containers that live."""
        with suppress(FileNotFoundError, ProcessLookupError):
            children = Path(f"/proc/{self.starter.pid}/task/{self.starter.pid}/children").read_text()
            return [*map(int, children.split())]
        return []

    def kill_container(self) -> None:
        """Kill a container with kill -9."""
        with suppress(IndexError, ProcessLookupError):
            os.kill(self.chance.choice(self.containers()), signal.SIGKILL)

    def stop_container(self) -> None:
        """Stop a container for longer than its session lasts, so that it wakes up beside those who have its tasks."""
        with suppress(IndexError, ProcessLookupError):
            container = self.chance.choice(self.containers())
            os.kill(container, signal.SIGSTOP)
            self.write(time.time() + SESSION_MS / 1_000 + self.chance.uniform(1, 4))
            os.kill(container, signal.SIGCONT)

    def kill_broker(self) -> None:
        """Kill a broker with kill -9, where there are several one that leads, and start it again."""
        number = self._leader()
        self.brokers.stop(number)
        until = time.time() + self.chance.uniform(0, 2 if self.brokers.count == 1 else 6)
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(self.write, until)  # for as long as it takes until a broker answers
            time.sleep(max(until - time.time(), 0))
            self.brokers.start(number)
            writing.result()

    def restart_broker(self) -> None:
        """Stop a broker cleanly, and start it again."""
        number = self.chance.randint(1, self.brokers.count)
        self.brokers.stop(number, kill=False)
        self.brokers.start(number)

    def fill_disk(self) -> None:
        """Fill the disk of a broker while records are written, of which it stops, and start it again with room."""
        number, is_over = self._leader(), Event()

        def write() -> None:
            while not is_over.is_set():
                self.write(time.time() + 0.5)

        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(write)  # who is given nothing to write does not notice
            try:
                self.brokers.fill_disk(number)
                self.brokers.start(number)
            finally:
                is_over.set()
            writing.result()

    def stop_broker(self) -> None:
        """Have a broker answer nobody for a while, as one that collects garbage or waits for its disk."""
        stopped = self.brokers.nodes[self._leader() - 1].process
        assert stopped is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        time.sleep(self.chance.uniform(1, SESSION_MS / 1_000 + 2))
        os.kill(stopped.pid, signal.SIGCONT)

    def lose_in_sync(self) -> None:
        """Kill two of three brokers, so that fewer replicas are left than have to be in sync, and start them again.

        Before that all are in sync: brokers that die at once with all in-sync replicas promise nothing.
        """
        wait_until(self.brokers.are_in_sync)
        numbers = self.chance.sample(range(1, self.brokers.count + 1), 2)
        self.brokers.stop(*numbers)
        time.sleep(self.chance.uniform(1, 6))
        self.brokers.start(*numbers)

    def throttle(self) -> None:
        """Have the brokers take little from whoever writes, for a while."""
        everybody = "--entity-type", "clients", "--entity-default"
        self.brokers.tell("--add-config", f"producer_byte_rate={THROTTLED_BYTES}", *everybody)
        try:
            self.write(time.time() + self.chance.uniform(3, 8))
        finally:
            self.brokers.tell("--delete-config", "producer_byte_rate", *everybody)

    def leave_open(self) -> None:
        """Have somebody leave a transaction open on the input for a while, and write on; it is then rolled back."""

        async def work() -> None:
            id = f"others-{self.chance.randrange(1 << 30)}"
            async with AIOKafkaProducer(bootstrap_servers=self.brokers.bootstrap, transactional_id=id) as producer:
                await producer.begin_transaction()
                for partition in range(PARTITIONS):
                    await producer.send(f"{APP}-records", self._record(LEFT), partition=partition)
                await producer.flush()
                await asyncio.to_thread(self.write, time.time() + self.chance.uniform(3, 12))
                await producer.abort_transaction()

        with suppress(KafkaError):  # a broker that is not yet ready again: it rolls it back by itself
            asyncio.run(work())

    def _leader(self) -> int:
        """Return the broker that leads a partition of the input, or any."""
        try:
            return self.brokers.leader(f"{APP}-records", self.chance.randrange(PARTITIONS)) or 1
        except KafkaError:
            return self.chance.randint(1, self.brokers.count)

    def write_large(self) -> None:
        """Write records as large as topics take, and one that is larger, of which nothing may be there."""
        for size in (LARGEST_BYTES, LARGEST_BYTES, 2 * LARGEST_BYTES):
            record = self._record(f"w{self.chance.randrange(WORDS)}", pad="." * size)
            self._append([Append(f"{APP}-records", self.chance.randrange(PARTITIONS), Batch([record]))])

    def kill_starter(self) -> None:
        """Kill who has started the containers, which then end by themselves, and start others."""
        self.starter.kill()
        self.starter.wait()
        self.starter = self.start()
        wait_until(self.containers)  # who can't reach the brokers when it begins says so, and ends

    def rescale(self) -> None:
        """Ask for another size: tasks are split or merged, containers come and go, while records come in."""
        self._rescale(kills=False)

    def rescale_and_kill(self) -> None:
        """Ask for another size, and kill a container, or who has started them, around the cut."""
        self._rescale(kills=True)

    def _rescale(self, kills: bool) -> None:
        factor = self.chance.choice([one for one in FACTORS if one != self.factor])
        size = "--factor", str(factor), "--containers", str(self.chance.randint(2, 3))
        failed, said = self._asked(*size, kills=kills)
        if failed and kills:  # nothing runs for a moment where who has started the containers was killed
            failed, said = self._asked(*size, kills=False)
        assert not failed and self.factor == factor, f"not split into {factor}: {said}; {self.told()}"

    def _asked(self, *size: str, kills: bool) -> tuple[bool, str]:
        """Ask for a size by the command, and write until that ends; return whether it failed, and what it said."""
        asked = [Path(sys.executable).with_name("samza-dsl"), "scale", APP, "--environment", self.cluster.address]
        with (
            tempfile.TemporaryFile("w+") as told,
            subprocess.Popen([*asked, *size], stdout=told, stderr=told) as scaling,
        ):
            try:
                if kills:
                    self.write(time.time() + self.chance.uniform(0, 4))
                    (self.kill_starter if self.chance.random() < STARTERS else self.kill_container)()
                until = time.time() + PATIENCE_S
                while scaling.poll() is None:
                    assert time.time() < until, f"the command does not end: {self.told()}"
                    self.write(time.time() + 0.2)
            finally:
                scaling.kill()
            told.seek(0)
            return scaling.returncode != 0, told.read()

    @property
    def factor(self) -> int:
        """The number of parts into which each task is split now, as the job model has it."""
        return self._job().factor

    def _job(self) -> Job:
        until = time.time() + PATIENCE_S
        while True:
            try:
                with closing(KafkaEnvironment(self.cluster, self.folder / "writer")) as environment:
                    return job_of(environment, APP)
            except EnvironmentFault:  # brokers that are not yet ready
                if time.time() > until:
                    raise

    def run(self, minutes: float) -> None:
        """Have what can happen happen, one after the other, in an order of the seed's."""
        until, faults = time.time() + 60 * minutes, []
        while time.time() < until:
            self.write(time.time() + self.chance.uniform(*CALM_S))
            if self.starter.poll() is not None:
                raise AssertionError(f"the run ended by itself: {self.told()}")
            if not faults:
                faults = [self.kill_container, self.kill_container, self.stop_container, self.kill_broker]
                faults += [self.restart_broker, self.stop_broker, self.kill_starter, self.write_large, self.throttle]
                faults += [self.leave_open]
                if PARTITIONS <= MOST_APART:
                    faults += [self.rescale, self.rescale_and_kill, self.rescale_and_kill]
                if self.has_disks:
                    faults += [self.fill_disk]
                if self.brokers.count > 2:
                    faults += [self.kill_broker, self.lose_in_sync]
                self.chance.shuffle(faults)
            fault = faults.pop()
            print(f"{time.strftime('%H:%M:%S')} {fault.__name__}", flush=True)
            fault()
            self.struck[fault.__name__.replace("_", " ")] += 1
            self.catch_up()

    def catch_up(self) -> None:
        """Wait until all that was written before is processed, and every task has one owner; writing goes on."""
        began = time.time()
        wanted = {partition: self._end(partition) for partition in range(PARTITIONS)}
        while True:
            self.write(time.time() + 0.5)
            self.most_mib = max([self.most_mib, *(anonymous_mib(one) or 0 for one in self.containers())])
            assert self.most_mib < MOST_MIB, f"memory is bounded: {self.most_mib:.0f} MiB"
            done = group_offsets(self.brokers, APP)
            if all(done.get((f"{APP}-records", partition), 0) >= end for partition, end in wanted.items()):
                break
            assert time.time() - began < PATIENCE_S, f"a task has no owner: {done} of {wanted}; {self.told()}"
        self.longest_s = max(self.longest_s, time.time() - began)
        until = time.time() + PATIENCE_S
        # Of more than these it does not show.
        tasks = [one.name for one in self._job().tasks] if PARTITIONS <= MOST_APART else []
        while tasks and {len(self.owners().get(task, ())) for task in tasks} != {1}:
            assert time.time() < until, f"a task has none or two that have it: {self.owners()}; {self.told()}"
            self.write(time.time() + 0.1)

    def owners(self) -> dict[str, set[int]]:
        """Return the containers that have the state of each task open."""
        states, found = (self.folder / "data" / "state" / APP).resolve(), defaultdict[str, set[int]](set)
        for container in self.containers():
            with suppress(FileNotFoundError, ProcessLookupError):
                for descriptor in Path(f"/proc/{container}/fd").iterdir():
                    with suppress(FileNotFoundError):
                        path = descriptor.readlink()
                        if path.is_relative_to(states):
                            found[path.relative_to(states).parts[0].partition(".")[0]].add(container)
        return found

    def finish(self) -> None:
        """Stop the run as a user does, close all windows, and run on to the end of the input."""
        self.starter.send_signal(signal.SIGTERM)
        self._ends_well("stopped as a user does")
        if self.cuts:
            self.cut_changelogs()
        last_ms = _now_ms() + 10 * WINDOW_MS  # one time for all, so that none of them closes the window of another
        for partition in range(PARTITIONS):
            before = self._end(partition)
            while self._end(partition) == before:
                self._append([Append(f"{APP}-records", partition, Batch([self._record(LAST, last_ms)]))])
        if self._environment is not None:
            self._environment.close()
        with closing(KafkaEnvironment(self.cluster, self.folder / "writer")) as environment:
            wait_until(lambda: not environment.runs(APP).is_alive())  # also of the dead this is known by then
        self.starter = self.start("--until-now")
        self._ends_well("run on to the end of the input")

    def _ends_well(self, how: str) -> None:
        try:
            code: object = self.starter.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = f"nothing in {PATIENCE_S} s"
        assert code == 0, f"{how}, the run ends with {code}: {self.told()}"

    def cut_changelogs(self) -> None:
        """Remove all that changelogs hold: who has no state says what is lost; who has it goes on, right."""
        self.write(time.time() + 1)
        for name in sorted(one for one in names(self.brokers) if one.endswith("-changelog")):
            configure(self.brokers, name, **{"cleanup.policy": "delete"})
            remove_all(self.brokers, name)
        self._refused("elsewhere", "-changelog' begins at offset")
        self.struck["cut changelogs"] += 1

    def delete_checkpoints(self) -> None:
        """Delete the topic of checkpoints: a run says so, and writes nothing again."""
        before = {stream: len(values(self, stream)) for stream in ("counts", "panes", "letters")}
        delete(self.brokers, f"{APP}-checkpoints")
        for data in ("data", "elsewhere"):
            self._refused(data, f"{APP}-checkpoints' has no checkpoint of what the group")
        assert {stream: len(values(self, stream)) for stream in before} == before, "nothing is written again"
        self.struck["delete checkpoints"] += 1

    def _refused(self, data: str, because: str) -> None:
        """Start the application on a machine, and see that it ends with our error."""
        start = len(self.all_told())
        assert self.start("--until-now", data=data).wait(PATIENCE_S) != 0, (
            f"it goes on without what is lost: {self.told()}"
        )
        told = " ".join(self.all_told()[start:].split())
        assert because in told and f"samza-dsl reset {APP}" in told, f"it does not say what is lost: {self.told()}"

    def _end(self, partition: int) -> int:
        """Return where a partition of the input ends; a broker that is not yet ready is waited for."""
        until = time.time() + PATIENCE_S
        while True:
            try:
                with closing(KafkaEnvironment(self.cluster, self.folder / "writer")) as environment:
                    return environment.offsets(f"{APP}-records", partition).end
            except EnvironmentFault:
                if time.time() > until:
                    raise

    def told(self) -> str:
        """Return the end of what the containers have printed, but for what clients say of brokers that are away."""
        said = [line for line in self.all_told().splitlines() if "logger=aiokafka" not in line]
        return "\n".join(said)[-MOST_TOLD:]

    def told_by_brokers(self) -> str:
        """Return the end of what each broker has logged: a cluster's folder is gone with its trial."""
        logs = [(node.number, node.directory / "kafka.log") for node in self.brokers.nodes]
        return "\n".join(f"broker {number}:\n{log.read_text(errors='replace')[-MOST_TOLD:]}" for number, log in logs)

    def all_told(self) -> str:
        """Return all that they have printed."""
        return (self.folder / "told.txt").read_text()

    def close(self) -> None:
        """Leave no process."""
        if self.starter.poll() is None:
            self.starter.kill()
            self.starter.wait()
        self.brokers.stop()
        self._disks.close()


def _now_ms() -> int:
    return int(time.time() * 1_000)


def check(chaos: Chaos) -> int:
    """Check that all that was written counts exactly once, and state is what changelogs say; return how much it was."""
    read = [value if value.startswith(b"no") else msgspec.json.decode(value) for value in values(chaos, "records")]
    records = [record for record in read if type(record) is dict and record["word"] not in (None, UNKNOWN)]
    counts = [tuple(msgspec.json.decode(value)) for value in values(chaos, "counts")]
    words = Counter(record["word"] for record in records)
    told = Counter((word, total) for word, total, _ in counts)
    assert told == Counter((word, total + 1) for word, count in words.items() for total in range(count)), "each count"
    assert sorted(number for *_, number in counts) == sorted(record["number"] for record in records), "each record once"
    windows = Counter((one["word"], one["at"] - one["at"] % WINDOW_MS) for one in records if one["word"] != LAST)
    panes = Counter(tuple(msgspec.json.decode(value)) for value in values(chaos, "panes"))
    due = Counter((word, start, count) for (word, start), count in windows.items())
    assert panes == due, f"each window once: {panes - due} came, and {due - panes} were to come"
    letters = Counter(
        letter if letter.startswith(b"no") else msgspec.json.decode(letter)["number"]
        for letter in values(chaos, "letters")
    )
    bad = Counter(one if type(one) is bytes else one["number"] for one in read if one not in records)
    assert letters == bad, "each bad record is one dead letter"
    if not chaos.cuts:
        here, anew = state_of(chaos, "data"), state_of(chaos, "anew")
        assert here == anew, "state is what its changelogs say"
    return len(records)


def values(chaos: Chaos, stream: str) -> list[bytes]:
    """Return what is committed in a stream."""
    found = consume(chaos.brokers, f"{APP}-{stream}")
    return [record.value for partition in found.values() for record in partition]


def state_of(chaos: Chaos, data: str) -> dict[tuple[str, int], dict[bytes, bytes]]:
    """Return all state, as a directory has it that was brought up to date."""
    with closing(KafkaEnvironment(chaos.cluster, chaos.folder / data)) as environment:
        environment.own(APP)
        places = environment.state_stats(APP)
        return {(store, task): dict(environment.state_range(APP, store, task)) for store, task in places}


def trial(folder: Path, minutes: float, seed: int, brokers: int = 1) -> Chaos:
    """Make one trial; raises AssertionError where anything is not as it should be."""
    chaos = Chaos(folder, seed, brokers)
    try:
        chaos.run(minutes)
        chaos.finish()
        records = check(chaos)
        chaos.delete_checkpoints()
        counted = f"{records:,} records counted once, after {dict(chaos.struck)}"
        most = f"caught up within {chaos.longest_s:.0f} s, in at most {chaos.most_mib:.0f} MiB"
        by = f"{chaos.commit_by}, times by {'brokers' if chaos.stamps else 'writers'}"
        print(f"seed {seed}, by {by}: {counted}; {most}", flush=True)
    except BaseException:
        print(chaos.told_by_brokers(), flush=True)
        raise
    finally:
        chaos.close()
    return chaos


def main() -> None:
    """Make a trial as the command line says."""
    parser = argparse.ArgumentParser(description="Try containers on Kafka, of CHAOS_TASKS tasks, against what happens.")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=positive, default=1)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trial(Path(folder), told.minutes, told.seed, told.brokers)


if __name__ == "__main__":
    main()
