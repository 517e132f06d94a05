"""Sources that push: each record takes effect once through crashes, from a stream that others may read as well."""

import asyncio
import re
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.containers.protocol import shared_out
from runtime.model.errors import Fenced, Owned
from runtime.ports.commits import Commit
from runtime.systems.connectors import inbox
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink
from runtime.units.driver.connected import refuse_connectors
from samza_dsl import App, PlanError, SamzaError, dead_letter
from samza_dsl.connectors import Intake, Pulled, PulledRecord, PulledSource, PushedRecord, PushedSource
from samza_dsl.testing import check_source
from tests.real_time import until
from tests.scale import examples


class DyingEnvironment(MemoryEnvironment):
    """An environment of which a commit dies, before it is made or behind it."""

    dies_at = -1
    keeps = False

    def commit(self, commit: Commit) -> None:
        self.dies_at -= 1
        if self.dies_at != 0 or self.keeps:
            super().commit(commit)
        if self.dies_at == 0:
            raise SamzaError("the machine is gone")


def counting(end: int, at_once: int = 1, ends: bool = False) -> PushedSource:
    """Return a source of the numbers up to an end, which notes the number that is next."""

    def push(intake: Intake) -> None:
        start = int(intake.noted.get("next", b"0"))
        for first in range(start, end, at_once):
            numbers = range(first, min(first + at_once, end))
            records = [PushedRecord(n, b"%d" % (n % 3), 1_000 * n) for n in numbers]
            intake.push(records, {"next": b"%d" % numbers.stop})
        if ends:
            intake.end()
        elif not intake.until_now:
            intake.wait()

    return PushedSource("numbers from somewhere", push)


def pulled(end: int, at_once: int = 1) -> PulledSource:
    """Return a source of the numbers up to an end, which has forgotten what was confirmed."""

    def pull(reader: str, position: bytes) -> Pulled:
        numbers = range(int(position or b"0"), end)[:at_once]
        records = [PulledRecord(n, f"{n % 3}", 1_000 * n) for n in numbers]
        return Pulled(records, b"%d" % max(numbers.stop, int(position or b"0")), numbers.stop < end)

    return PulledSource("numbers of a queue", pull)


def copying(partitions: int | None = None, **how: Any) -> App:
    app = App("copying")
    numbers = app.input("numbers", value=int, key=str, partitions=partitions, **how)
    numbers.send_to(app.output("copies", value=int, key=str))
    return app


@given(
    ends=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    at_once=st.integers(1, 5),
    deaths=st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=5),
    partitions=st.integers(1, 3),
    kind=st.sampled_from([counting, pulled]),
)
@settings(deadline=None, max_examples=examples(25, 400))
def test_each_record_takes_effect_once_through_deaths_at_any_commit(
    ends: list[int], at_once: int, deaths: list[tuple[int, bool]], partitions: int, kind: Any
) -> None:
    environment = DyingEnvironment()
    app = copying(partitions)
    for number in range(len(ends) + len(deaths)):
        source = kind(max(ends[: number + 1]), at_once)
        environment.dies_at, environment.keeps = deaths[number] if number < len(deaths) else (-1, False)
        try:
            app.run(environment, bind={"numbers": source}, until_now=True)
        except SamzaError:
            continue
    environment.dies_at = -1
    run = app.run(environment, bind={"numbers": kind(max(ends), at_once)}, until_now=True)
    assert sorted(run.received("copies")) == [*range(max(ends))]


def test_a_source_that_ends_ends_the_run(tmp_path: Path) -> None:
    for _ in range(2):
        run = copying(2).run(tmp_path, bind={"numbers": counting(10, ends=True)})
        assert sorted(run.received("copies")) == [*range(10)]


def test_what_was_pushed_is_a_stream_that_others_read(tmp_path: Path) -> None:
    copying().run(tmp_path, bind={"numbers": counting(10, ends=True)})
    other = App("other")
    other.input("numbers", value=int).send_to(other.output("seen", value=int))
    assert other.run(tmp_path).received("seen") == [*range(10)]


def test_the_suite_for_sources_passes() -> None:
    check_source(lambda: counting(20, 3), times=20)


def test_a_live_run_takes_in_what_comes(tmp_path: Path) -> None:
    came = threading.Semaphore(0)

    def push(intake: Intake) -> None:
        for n in range(int(intake.noted.get("n", b"0")), 10):
            while not came.acquire(timeout=0.01):
                if intake.wait(0):
                    return
            intake.push([PushedRecord(n)], {"n": b"%d" % (n + 1)})
        intake.end()

    async def run(number: int) -> list[int]:
        async with copying().running(tmp_path, bind={"numbers": PushedSource("doors", push)}) as live:
            came.release(number)
            await until(lambda: len(live.received("copies")) == number)
            return live.received("copies")

    assert asyncio.run(run(5)) == [*range(5)]
    came.release(5)
    assert copying().run(tmp_path, bind={"numbers": PushedSource("doors", push)}).received("copies") == [*range(10)]


def test_what_goes_wrong_in_a_source_ends_the_run(tmp_path: Path) -> None:
    def push(intake: Intake) -> None:
        intake.push([PushedRecord(1)])
        raise ValueError("too much")

    with pytest.raises(SamzaError, match=r"wild: push\(\) of the source failed: ValueError\('too much'\)"):
        copying().run(tmp_path, bind={"numbers": PushedSource("wild", push)})


@pytest.mark.parametrize(
    "headers",
    [{"a": "text"}, {1: b"bytes"}, {"fine": b"bytes", "a": 1}],
    ids=["text", "name", "int"],
)
def test_headers_that_are_no_bytes_are_refused_and_harm_no_stream(tmp_path: Path, headers: Any) -> None:
    def push(intake: Intake) -> None:
        intake.push([PushedRecord(b"1", headers=headers)])

    with pytest.raises(SamzaError, match="Headers are bytes by names of text"):
        copying().run(tmp_path, bind={"numbers": PushedSource("odd", push)}, until_now=True)
    with pytest.raises(SamzaError, match="Headers are bytes by names of text"):
        copying().run(MemoryEnvironment(), bind={"numbers": PushedSource("odd", push)}, until_now=True)
    run = copying().run(tmp_path, bind={"numbers": counting(3)}, until_now=True)
    assert len(run.received("copies")) == 3


def test_a_header_without_a_value_comes_back_as_from_kafka(tmp_path: Path) -> None:
    headers: Any = {"a": None, "b": b""}
    source = PushedSource("null", lambda intake: intake.push([PushedRecord(b"1", headers=headers)]))
    copying().run(tmp_path, bind={"numbers": source}, until_now=True)
    with closing(LogEnvironment(tmp_path)) as log:
        read = log.read("numbers", 0, 0)
        assert read is not None and read.batch.headers == [headers]


def test_bytes_that_are_no_value_are_for_the_policy_of_the_input(tmp_path: Path) -> None:
    def push(intake: Intake) -> None:
        intake.push([PushedRecord(b"x"), PushedRecord(b"7"), PushedRecord(8)])
        intake.end()

    run = copying(on_error=dead_letter("bad")).run(tmp_path, bind={"numbers": PushedSource("mixed", push)})
    assert run.received("copies") == [7, 8]
    assert len(run.received("bad")) == 1


def test_a_stream_that_is_made_anew_is_filled_anew(tmp_path: Path) -> None:
    bind = {"numbers": counting(5)}
    copying().run(tmp_path, bind=bind, until_now=True)
    log = LogEnvironment(tmp_path)
    log.delete_stream("numbers")
    log.close()
    run = copying().run(tmp_path, bind=bind, until_now=True, from_start=True, state="reset")
    assert run.received("copies") == [*range(5)] * 2


def test_a_second_run_takes_in_nothing(tmp_path: Path) -> None:
    other = App("other")
    other.input("numbers", value=int).send_to(other.output("seen", value=int))

    async def main() -> None:
        async with copying().running(tmp_path, bind={"numbers": counting(5)}) as first:
            await until(lambda: len(first.received("copies")) == 5)
            with pytest.raises(Owned, match="by another run: end that first"):
                await asyncio.to_thread(other.run, tmp_path, bind={"numbers": counting(5)}, until_now=True)

    asyncio.run(main())


def test_a_run_that_was_taken_over_pushes_nothing() -> None:
    environment, app = MemoryEnvironment(), copying()
    may_go_on, has_tried = threading.Event(), threading.Event()
    failures: list[Exception] = []

    def push(intake: Intake) -> None:
        may_go_on.wait()
        try:
            intake.push([PushedRecord(99)], {"next": b"99"})
        except SamzaError as error:
            failures.append(error)
            raise
        finally:
            has_tried.set()

    def taking_over() -> None:
        app.run(environment, bind={"numbers": counting(5)}, until_now=True)
        may_go_on.set()

    async def main() -> None:
        async with app.running(environment, bind={"numbers": PushedSource("numbers from somewhere", push)}) as run:
            # The run may notice by itself that it was taken over, and end, before the source does.
            await asyncio.to_thread(taking_over)
            await run.ended()

    with pytest.raises(Fenced):
        asyncio.run(main())
    assert has_tried.wait(60) and len(failures) == 1
    run = app.run(environment, bind={"numbers": counting(5)}, until_now=True)
    assert run.received("copies") == [*range(5)]


def test_a_source_that_does_not_return_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inbox, "PATIENCE_S", 0.01)
    later, refused = threading.Event(), threading.Event()

    def push(intake: Intake) -> None:
        later.wait()
        try:
            intake.push([PushedRecord(1)])
        except SamzaError:
            refused.set()

    async def main() -> None:
        async with copying().running(tmp_path, bind={"numbers": PushedSource("deaf", push)}):
            pass

    asyncio.run(main())
    later.set()
    assert refused.wait(60)
    assert "deaf has not returned as the run ended" in caplog.text


@pytest.mark.parametrize("source", [counting(1), "listen://:8080/numbers"], ids=["object", "URL"])
def test_containers_read_the_stream_and_their_starter_takes_in(source: Any) -> None:
    assert shared_out(copying().graph(), {"numbers": source}) == ({}, {"numbers": source})


def test_containers_need_the_url_of_what_is_pulled() -> None:
    with pytest.raises(SamzaError, match="can't open queue of this process; write instead: its URL"):
        shared_out(copying().graph(), {"numbers": PulledSource("queue", lambda reader, position: Pulled([], b"1"))})


def test_a_run_on_spark_that_goes_on_refuses_it() -> None:
    with pytest.raises(SamzaError, match="a run on Spark that goes on reads and writes no connectors"):
        refuse_connectors({"numbers": counting(1)})


def test_a_pattern_is_no_place_to_push_to(tmp_path: Path) -> None:
    app = App("copying")
    app.input("numbers-*", value=int).send_to(app.output("copies", value=int))
    with pytest.raises(PlanError, match="pushes to one stream"):
        app.run(tmp_path, bind={"numbers-*": counting(1)})


@pytest.mark.parametrize("gives", [0, 3])
def test_a_source_that_has_more_for_ever_and_gives_nothing_is_asked_at_its_pace_and_told(
    gives: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "STILL_S", 0.05)
    asked = list[bytes]()

    def pull(reader: str, position: bytes) -> Pulled:
        asked.append(position)
        number = int(position or b"0")
        return Pulled(
            [PulledRecord(number)] * (number < gives), b"%d" % (number + 1) if number < gives else position, True
        )

    with pytest.raises(SamzaError, match=r"a queue: pull\(\) has said for 0 s that more is there"):
        copying().run(tmp_path, bind={"numbers": PulledSource("a queue", pull, poll_ms=10)}, until_now=True)
    assert len(asked) == gives + 6


def test_a_source_that_has_more_in_a_moment_is_asked_again(tmp_path: Path) -> None:
    pulls = iter([Pulled([], b"", True)] * 3 + [Pulled([PulledRecord(7, "7")], b"1", False)])
    copies = ListSink()
    source = PulledSource("a queue", lambda reader, position: next(pulls), poll_ms=1)
    copying().run(tmp_path, bind={"numbers": source, "copies": copies}, until_now=True)
    assert copies.values == [7]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "pull() returned a NoneType, and no Pulled"),
        (([], b"1"), "pull() returned a tuple, and no Pulled"),
        (Pulled([PulledRecord(1)], "1"), "pull() returned the position '1', and a position is bytes"),
        (Pulled(iter([PulledRecord(1)]), b"1"), "pull() returned a list_iterator of records, and no list"),
        (Pulled([PulledRecord(2), 1], b"1"), "pull() gave a int, and no PulledRecord"),
        (Pulled([PulledRecord(1, None, 2.5)], b"1"), "pull() gave the time 2.5, and a time is whole ms"),
        (Pulled([PulledRecord(1, None, 10**30)], b"1"), "pull() of the source failed: OverflowError"),
    ],
)
def test_what_no_pull_may_return_is_told(found: Any, told: str, tmp_path: Path) -> None:
    source = PulledSource("a queue of ours", lambda reader, position: found)
    with pytest.raises(SamzaError, match=re.escape(f"a queue of ours: {told}")):
        copying().run(tmp_path, bind={"numbers": source}, until_now=True)
    with closing(LogEnvironment(tmp_path)) as log:
        assert not any(log.offsets(name, 0).end for name in log.streams() if not name.endswith(".position"))
