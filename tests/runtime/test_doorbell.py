"""The doorbell of a data directory: an idle run hears of what another process appends, and never depends on it."""

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack
from select import select

import pytest

from operators.core.base import Batch
from runtime.commit import schedule
from runtime.loop import waiting
from runtime.ports.commits import Commit
from runtime.ports.environment import AudibleEnvironment
from runtime.ports.streams import Append, StreamConfig
from runtime.run.run import running
from runtime.run.settings import RunSettings
from runtime.systems.host.doorbell import Doorbell
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, produce

HOUR_MS = 3_600_000.0
FOR_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")


@pytest.fixture
def bell(tmp_path):
    return Doorbell(tmp_path / "doorbell")


def is_heard(ear):
    return select([ear], [], [], 0)[0] == [ear]


def numbers_of(heard, data):
    """Return the application that calls `heard` with each number, and doubles it."""
    app = App("doubling")

    def double(number):
        heard(number)
        return number * 2

    numbers = app.input("numbers", value=int, idle_after_ms=None)
    numbers.map(double).send_to(app.output("doubled", value=int))
    produce("numbers", [0], data=data)
    return app.pipeline()


def append_elsewhere(data, *numbers):
    """Append in a process of its own."""
    program = "import sys; from samza_dsl import produce; produce('numbers', map(int, sys.argv[2:]), data=sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(data), *map(str, numbers)], check=True)


@FOR_LINUX
def test_every_ear_hears_each_ring_until_it_has_taken_it(bell):
    with ExitStack() as ears:
        one, other = bell.listener(), bell.listener()
        ears.callback(one.close)
        ears.callback(other.close)
        assert not is_heard(one) and not is_heard(other)
        bell.ring()
        assert is_heard(one) and is_heard(other)
        one.take()
        assert not is_heard(one) and is_heard(other)
        one.take()  # there may be nothing to take
        bell.ring()
        assert is_heard(one)


@FOR_LINUX
def test_many_rings_are_taken_at_once(bell):
    ear = bell.listener()
    for _ in range(10_000):
        bell.ring()
    ear.take()
    assert not is_heard(ear)
    ear.close()


@FOR_LINUX
def test_a_ring_of_another_process_is_heard(bell, tmp_path):
    ear = bell.listener()
    program = (
        "import sys, pathlib; from runtime.systems.host.doorbell import Doorbell; Doorbell(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", f"{program}.ring()", str(tmp_path / "doorbell")], check=True)
    assert is_heard(ear)
    ear.close()


def test_a_bell_that_is_gone_is_rung_for_nobody(bell, tmp_path):
    (tmp_path / "doorbell").unlink()
    bell.ring()
    assert bell.listener() is None
    assert not (tmp_path / "doorbell").exists()


def test_a_directory_that_takes_no_file_has_a_bell_that_nobody_hears(tmp_path):
    bell = Doorbell(tmp_path / "nowhere" / "doorbell")
    bell.ring()
    assert bell.listener() is None


@pytest.mark.parametrize("refused", ["instance", "watch", "library", "function"])
def test_without_inotify_nobody_listens_and_no_descriptor_is_left(bell, monkeypatch, refused):
    made = []

    class Library:
        def inotify_init1(self, flags):
            made.append(os.dup(0) if refused == "watch" else -1)
            return made[-1]

        def inotify_add_watch(self, *watch):
            return -1

    def load(name, use_errno):
        if refused == "library":
            raise OSError("no library")
        return object() if refused == "function" else Library()

    monkeypatch.setattr("ctypes.CDLL", load)
    assert bell.listener() is None
    for descriptor in made:
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(descriptor)


def test_other_systems_look_from_time_to_time(bell, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert bell.listener() is None


@FOR_LINUX
def test_the_log_rings_for_all_that_can_be_read_and_for_nothing_else(tmp_path):
    log = LogEnvironment(tmp_path)
    assert isinstance(log, AudibleEnvironment)
    log.create_stream("numbers", StreamConfig())
    log.create_stream("filled", StreamConfig())
    generation = log.own("app")
    ear = log.listener()

    def rings(write):
        write()
        heard = is_heard(ear)
        ear.take()
        return heard

    one = Append("numbers", 0, Batch([b"1"]))
    assert not rings(lambda: log.append([]))
    assert rings(lambda: log.append([one]))
    assert rings(lambda: log.commit(Commit("app", generation, [one], [], {})))
    assert not rings(lambda: log.commit(Commit("app", generation, [], [], {})))
    assert not rings(lambda: log.stage("app", generation, [one._replace(stream="filled")]))
    assert rings(lambda: log.publish("app", generation))
    assert rings(lambda: log.end_stream("numbers"))
    ear.close()
    log.close()


@FOR_LINUX
def test_what_a_ring_tells_of_can_be_read(tmp_path, monkeypatch):
    log = LogEnvironment(tmp_path)
    log.create_stream("numbers", StreamConfig())
    seen = []
    monkeypatch.setattr(Doorbell, "ring", lambda bell: seen.append(log.offsets("numbers", 0).end))
    log.append([Append("numbers", 0, Batch([b"1", b"2"]))])
    log.append([Append("numbers", 0, Batch([b"3"]))])
    assert seen == [2, 3]
    log.close()


@FOR_LINUX
def test_an_idle_run_that_never_looks_hears_of_what_another_process_appends(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "LOOK_MS", HOUR_MS)

    async def play():
        heard = asyncio.Queue()
        pipeline = numbers_of(heard.put_nowait, tmp_path)
        async with running(pipeline, tmp_path, RunSettings(poll_ms=HOUR_MS)) as run:
            await run.settled()
            for number in (1, 2, 3):
                await asyncio.to_thread(append_elsewhere, tmp_path, number)
                while await heard.get() != number:
                    pass
            await run.settled()
            return run.received("doubled")

    assert asyncio.run(play()) == [0, 2, 4, 6]


@FOR_LINUX
def test_every_run_of_a_directory_hears(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "LOOK_MS", HOUR_MS)

    async def play():
        first, last = asyncio.Queue(), asyncio.Queue()
        app = App("adding")
        doubled = app.input("doubled", value=int, idle_after_ms=None)
        doubled.map(lambda number: last.put_nowait(number) or number + 1).send_to(app.output("added", value=int))
        produce("doubled", [], data=tmp_path)
        settings = RunSettings(poll_ms=HOUR_MS)
        async with (
            running(numbers_of(first.put_nowait, tmp_path), tmp_path, settings) as run,
            running(app.pipeline(), tmp_path, settings) as other,
        ):
            await run.settled()
            await other.settled()
            await asyncio.to_thread(append_elsewhere, tmp_path, 5)
            # By the commit of the first, which rings as well.
            while await last.get() != 10:
                pass

    asyncio.run(play())


def test_a_run_sees_what_nobody_has_rung_for(tmp_path, monkeypatch):
    """As where the writer dies between its commit and the ring."""

    async def play():
        heard = asyncio.Queue()
        async with running(numbers_of(heard.put_nowait, tmp_path), tmp_path) as run:
            await run.settled()
            monkeypatch.setattr(Doorbell, "ring", lambda bell: None)
            produce("numbers", [7], data=tmp_path)
            while await heard.get() != 7:
                pass

    asyncio.run(play())


def test_a_run_without_ears_looks_as_before(tmp_path, monkeypatch):
    monkeypatch.setattr(Doorbell, "listener", lambda bell: None)

    async def play():
        heard = asyncio.Queue()
        async with running(numbers_of(heard.put_nowait, tmp_path), tmp_path) as run:
            await run.settled()
            await asyncio.to_thread(append_elsewhere, tmp_path, 7)
            while await heard.get() != 7:
                pass

    asyncio.run(play())


@FOR_LINUX
@pytest.mark.parametrize("end", ["in order", "by an error"])
def test_a_run_leaves_no_ear_open(tmp_path, end):
    def descriptors():
        return sorted(
            link
            for name in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{name}") and "inotify" in (link := os.readlink(f"/proc/self/fd/{name}"))
        )

    before = descriptors()

    async def play():
        def heard(number):
            if number == 1 and end == "by an error":
                raise ValueError("no ones")

        async with running(numbers_of(heard, tmp_path), tmp_path) as run:
            await run.settled()
            assert len(descriptors()) == len(before) + 1
            await run.send("numbers", 1)
            await run.settled()

    if end == "by an error":
        with pytest.raises(Exception, match="no ones"):
            asyncio.run(play())
    else:
        asyncio.run(play())
    assert descriptors() == before


@FOR_LINUX
def test_nobody_who_waits_for_a_commit_waits_for_a_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "MOST_REST_MS", HOUR_MS)
    monkeypatch.setattr(schedule, "RESTS", HOUR_MS)

    async def play():
        async with running(numbers_of(lambda number: None, tmp_path), tmp_path) as run:
            for number in (1, 2, 3):
                await run.send("numbers", number)
                await run.settled()
            return run.received("doubled")

    # The last of them is committed as the run is stopped, or before.
    assert asyncio.run(play()) == [0, 2, 4, 6]


@FOR_LINUX
def test_a_run_that_ends_does_not_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "MOST_REST_MS", HOUR_MS)
    monkeypatch.setattr(schedule, "RESTS", HOUR_MS)
    app = App("counting")
    numbers = app.input("numbers", value=int, key=lambda number: number % 3)
    halves = numbers.partition_by(lambda number: number // 2, partitions=2, op_id="by-half")
    halves.scan(lambda seen, number: seen + number, init=int, op_id="sum").send_to(app.output("sums"))
    produce("numbers", range(100), data=tmp_path)
    assert len(app.run(tmp_path, until_now=True).received("sums")) == 100


@FOR_LINUX
def test_what_comes_in_a_rest_is_committed_after_it_or_when_the_interval_is_over(tmp_path, monkeypatch):
    # Far longer than the interval of commits, which so bounds it.
    monkeypatch.setattr(schedule, "MOST_REST_MS", HOUR_MS)
    monkeypatch.setattr(schedule, "RESTS", HOUR_MS)

    async def play():
        async with running(numbers_of(lambda number: None, tmp_path), tmp_path) as run:
            await run.settled()
            produce("numbers", [9], data=tmp_path)
            ear = LogEnvironment(tmp_path)
            listening = ear.listener()
            rung = asyncio.Event()
            asyncio.get_running_loop().add_reader(listening.fileno(), lambda: (listening.take(), rung.set()))
            while ear.offsets("doubled", 0).end < 2:
                await rung.wait()
                rung.clear()
            asyncio.get_running_loop().remove_reader(listening.fileno())
            listening.close()
            ear.close()

    asyncio.run(play())
