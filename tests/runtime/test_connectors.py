"""Connectors of a user's own in runs: sources that are polled, and each kind of sink, through failures."""

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.containers.protocol import places
from runtime.model.errors import Damaged, EnvironmentFault, Fenced, RowRefused, Unavailable
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.connectors import outbox, tries
from runtime.systems.connectors.outbox import Outbox, Refusals
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink
from samza_dsl import App, Options, SamzaError, connectors, dead_letter, skip
from samza_dsl.connectors import (
    AtLeastOnceSink,
    ConnectedSource,
    IdempotentSink,
    Offsets,
    PositionedSink,
    SinkOwner,
    SinkRow,
    SourceRecord,
    TransactionalSink,
)
from tests.runtime.test_laws import crash_points
from tests.scale import examples
from tests.simulation.crash import Crash, Watched, fill, run_once
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import Cluster


class Shelf:
    """A place with partitions by name, that can grow; it notes the threads by which it is read."""

    def __init__(self, partitions: dict[str, list[Any]], ended: bool = True) -> None:
        self.partitions, self.ended = partitions, ended
        self.threads: set[int] = set()
        self.closed = 0

    def source(self, **said: Any) -> ConnectedSource:
        functions = {"partitions": self.names, "offsets": self.offsets, "read": self.read, "close": self.close}
        return ConnectedSource("shelf", **{**functions, "poll_ms": 1, **said})

    def names(self) -> Sequence[str]:
        self.threads.add(threading.get_ident())
        return [*self.partitions]

    def offsets(self, name: str) -> Offsets:
        self.threads.add(threading.get_ident())
        return Offsets(0, len(self.partitions[name]), self.ended)

    def read(self, name: str, offset: int, most: int) -> Sequence[SourceRecord]:
        self.threads.add(threading.get_ident())
        found = self.partitions[name][offset : offset + most]
        return [SourceRecord(n, value, b"key", n) for n, value in enumerate(found, offset)]

    def close(self) -> None:
        self.closed += 1


class Place:
    """A place that rows are written to, which fails where it is told to."""

    def __init__(self) -> None:
        self.rows: list[SinkRow] = []
        self.owners: dict[int, SinkOwner] = {}
        self.positions: dict[int, int] = {}
        self.failures: list[Exception | None] = []
        self.emptied = 0
        self.has_three = threading.Event()

    def _may_fail(self) -> None:
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure

    def claim(self, owner: SinkOwner) -> int:
        before = self.owners.get(owner.partition)
        if before is None or owner.identity != before.identity:
            self.positions[owner.partition] = 0
        elif owner.generation < before.generation:
            raise Fenced("another run has the place")
        self.owners[owner.partition] = owner
        return self.positions[owner.partition]

    def write(self, owner: SinkOwner, rows: Sequence[SinkRow], position: int, following: int) -> None:
        assert position == self.positions[owner.partition] and owner == self.owners[owner.partition]
        self._may_fail()
        self.rows += rows
        self.positions[owner.partition] = following
        if len(self.rows) >= 3:
            self.has_three.set()

    def take(self, rows: Sequence[SinkRow]) -> None:
        self._may_fail()
        self.rows += rows

    def empty(self, owner: SinkOwner) -> None:
        self.emptied += 1
        self.rows, self.positions[owner.partition] = [], 0

    def recover(self, position: int) -> None:
        del self.rows[position:]

    def flush(self) -> int:
        self._may_fail()
        return len(self.rows)

    def positioned(self) -> PositionedSink:
        return PositionedSink("place", self.claim, self.write, self.empty)

    def transactional(self) -> TransactionalSink:
        return TransactionalSink("place", self.recover, self.rows.extend, self.flush)

    def idempotent(self) -> IdempotentSink:
        return IdempotentSink("place", self.take)

    def at_least_once(self) -> AtLeastOnceSink:
        return AtLeastOnceSink("place", self.take)


KINDS: list[Callable[[Place], Any]] = [Place.positioned, Place.transactional, Place.idempotent, Place.at_least_once]


class Doubled(msgspec.Struct):
    n: int


def doubling(partitions: int | None = None) -> App:
    app = App("doubling")
    numbers = app.input("numbers", value=int, key=lambda n: 2 * n % 3)
    doubled = app.output("doubled", value=Doubled, key=int, partitions=partitions)
    numbers.map(lambda n: Doubled(2 * n)).send_to(doubled)
    return app


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "FIRST_PAUSE_S", 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_reach_a_sink_of_each_kind_once_where_nothing_fails(tmp_path: Path, kind: Callable[[Place], Any]) -> None:
    place, shelf = Place(), Shelf({"a": [1, 2, 3], "b": [b"4", 5]})
    for numbers in ([], [6], [7, 8]):
        shelf.partitions["b"] += numbers
        doubling().run(tmp_path, bind={"numbers": shelf.source(), "doubled": kind(place)})
    assert sorted(row.value.n for row in place.rows) == [2, 4, 6, 8, 10, 12, 14, 16]
    assert all(row.key == row.value.n % 3 for row in place.rows)
    assert shelf.closed == 3


@given(
    numbers=st.lists(st.integers(0, 99), max_size=30),
    failures=st.lists(st.booleans(), max_size=6),
    kind=st.sampled_from([Place.positioned, Place.idempotent, Place.at_least_once]),
    partitions=st.integers(1, 3),
)
@settings(deadline=None, max_examples=examples(20, 400))
def test_what_fails_comes_again_in_a_later_run(
    numbers: list[int], failures: list[bool], kind: Callable[[Place], Any], partitions: int
) -> None:
    place, environment = Place(), MemoryEnvironment()
    place.failures = [Fenced("for good") if fails else None for fails in failures]
    shelf = Shelf({"a": numbers})
    for _ in range(len(failures) + 1):
        try:
            doubling(partitions).run(environment, bind={"numbers": shelf.source(), "doubled": kind(place)})
        except Fenced:
            continue
        break
    assert [row.value.n for row in place.rows if partitions == 1] == [2 * n for n in numbers if partitions == 1]
    found, wanted = Counter(row.value.n for row in place.rows), Counter(2 * n for n in numbers)
    # What one partition was given before another one failed is written again, where the place does not know of it.
    assert found == wanted if kind is Place.positioned else found >= wanted and found.keys() == wanted.keys()


def wrong_for(number: int, wrong: dict[int, Any]) -> Any:
    return wrong.get(number, Doubled(2 * number))


WRONG: list[Any] = [Doubled("x"), (1,), {"m": 1}, 7, {"n": None}]  # type: ignore[arg-type]  # they are wrong


@given(
    kind=st.sampled_from(KINDS),
    numbers=st.lists(st.integers(0, 20), max_size=20, unique=True),
    wrong=st.dictionaries(st.integers(0, 20), st.sampled_from(WRONG), max_size=4),
    policy=st.sampled_from([skip, dead_letter("letters")]),
)
@settings(deadline=None, max_examples=examples(20, 200))
def test_a_value_of_another_type_is_for_the_policy_and_holds_up_no_others(
    kind: Callable[[Place], Any], numbers: list[int], wrong: dict[int, Any], policy: Any
) -> None:
    place, app = Place(), App("wrong")
    mapped = app.input("numbers", value=int, key=lambda n: n).map(lambda n: wrong_for(n, wrong))
    mapped.send_to(app.output("doubled", value=Doubled), on_error=policy)
    app.run(MemoryEnvironment(), bind={"numbers": numbers, "doubled": kind(place)})
    assert [row.value for row in place.rows] == [Doubled(2 * n) for n in numbers if n not in wrong]


@given(
    keys=st.lists(st.none() | st.text(max_size=3), max_size=9), is_declared=st.booleans(), kind=st.sampled_from(KINDS)
)
@settings(deadline=None, max_examples=examples(20, 200))
def test_a_row_has_the_key_of_its_record_whether_the_output_declares_it_or_not(
    keys: list[str | None], is_declared: bool, kind: Callable[[Place], Any]
) -> None:
    """Of all sinks: without `key=` of the output it is the bytes that are stored."""
    app, place, environment = App("keyed"), Place(), MemoryEnvironment()
    stored = [None if key is None else key.encode() for key in keys]
    environment.create_stream("numbers", StreamConfig())
    environment.append([Append("numbers", 0, Batch([b"%d" % n for n in range(len(keys))], stored))])
    output = app.output("doubled", value=Doubled, key=str) if is_declared else app.output("doubled", value=Doubled)
    app.input("numbers", value=int, key=str).map(Doubled).send_to(output, on_error=skip)
    app.run(environment, bind={"doubled": kind(place)}, until_now=True)
    wanted = [*enumerate(keys if is_declared else stored)]
    if kind is Place.idempotent:
        wanted = [(n, key) for n, key in wanted if key is not None]
    assert [(row.value.n, row.key) for row in place.rows] == wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", WRONG)
def test_a_value_of_another_type_is_told_before_it_is_committed(
    tmp_path: Path, kind: Callable[[Place], Any], value: Any
) -> None:
    place = Place()

    def mapping(wrong: dict[int, Any]) -> App:
        app = App("wrong")
        mapped = app.input("numbers", value=int, key=lambda n: n).map(lambda n: wrong_for(n, wrong))
        mapped.send_to(app.output("doubled", value=Doubled))
        return app

    bind = {"numbers": [1, 2, 3], "doubled": kind(place)}
    with pytest.raises(SamzaError, match=r"send_to .* at .*test_connectors\.py:\d+: .* on numbers/0 at 1"):
        mapping({2: value}).run(tmp_path, bind=bind)
    mapping({}).run(tmp_path, bind=bind)
    assert [row.value.n for row in place.rows] == [2, 4, 6]


@given(numbers=st.lists(st.integers(0, 9), max_size=12), gone=st.sets(st.integers(0, 9), max_size=4))
@settings(deadline=None, max_examples=examples(15, 100))
def test_a_record_without_a_value_is_for_the_policy_where_rows_are_appended(numbers: list[int], gone: set[int]) -> None:
    place, app = Place(), App("appending")
    mapped = app.input("numbers", value=int).map(lambda n: wrong_for(n, dict.fromkeys(gone)))
    mapped.send_to(app.output("doubled", value=Doubled), on_error=skip)
    app.run(MemoryEnvironment(), bind={"numbers": numbers, "doubled": replace(place.positioned(), deletes=False)})
    assert [row.value for row in place.rows] == [Doubled(2 * n) for n in numbers if n not in gone]


@given(
    numbers=st.lists(st.integers(0, 9), max_size=12),
    keys=st.dictionaries(st.integers(0, 9), st.integers(0, 2)),
    policy=st.sampled_from([skip, dead_letter("letters")]),
    keyless=st.booleans(),
)
@settings(deadline=None, max_examples=examples(20, 200))
def test_a_record_without_a_key_is_for_the_policy_where_rows_replace_each_other(
    numbers: list[int], keys: dict[int, int], policy: Any, keyless: bool
) -> None:
    place, app = Place(), App("unkeyed")
    # An input has a key for each record, or for none: both kinds come together here.
    keyed = app.input("keyed", value=int, key=keys.__getitem__).map(Doubled)
    keyed.merge(app.input("unkeyed", value=int).map(Doubled)).send_to(
        app.output("doubled", value=Doubled), on_error=policy
    )
    bind = {"keyed": [n for n in numbers if n in keys], "unkeyed": [n for n in numbers if n not in keys]}
    app.run(MemoryEnvironment(), bind={**bind, "doubled": replace(place.idempotent(), keyless=keyless)})
    wanted = bind["keyed"] + (bind["unkeyed"] if keyless else [])
    assert sorted(row.value.n for row in place.rows) == sorted(wanted)


def test_a_record_without_a_key_is_told_before_it_is_committed(tmp_path: Path) -> None:
    place = Place()

    def copying(**said: Any) -> App:
        app = App("unkeyed")
        app.input("numbers", value=int, **said).map(Doubled).send_to(app.output("doubled", value=Doubled))
        return app

    bind = {"numbers": [1, 2, 3], "doubled": place.idempotent()}
    with pytest.raises(SamzaError, match=r"send_to .* at .*test_connectors\.py:\d+: .*without a key .*keyless=True"):
        copying().run(tmp_path, bind=bind)
    copying(key=lambda n: n).run(tmp_path, bind=bind)
    assert [row.value.n for row in place.rows] == [1, 2, 3]


@given(
    keys=st.lists(st.none() | st.integers(0, 3), max_size=20),
    batch_rows=st.integers(1, 9),
    policy=st.sampled_from([skip, dead_letter("bad")]),
)
@settings(deadline=None, max_examples=examples(30, 300))
def test_rows_without_a_key_that_others_wrote_are_passed_over_as_they_are_delivered(
    keys: list[int | None], batch_rows: int, policy: Any
) -> None:
    """As of containers, and of Spark, which know the stream alone."""
    place, kept, app = Place(), list[Append](), App("writing")
    app.input("in", value=int).send_to(app.output("rows", value=int, key=int))
    output = next(one for spec in app.graph().specs.values() for one in spec.outputs)
    environment, sink = MemoryEnvironment(), replace(place.idempotent(), batch_rows=batch_rows)
    refusals = Refusals("send", policy, lambda _, letters: kept.extend(letters))
    waiting = Outbox(environment, "writing", output, sink, refusals)
    environment.create_stream(waiting.stream, StreamConfig())
    waiting.open(1, 1, {})
    written = [None if key is None else b"%d" % key for key in keys]
    environment.append([Append(waiting.stream, 0, Batch([b"%d" % n for n in range(len(keys))], written))])
    waiting.deliver()
    assert [row.value for row in place.rows] == [n for n, key in enumerate(keys) if key is not None]
    lacking = [b"%d" % n for n, key in enumerate(keys) if key is None]
    assert [one.batch.values for one in kept] == ([] if policy == skip else [[value] for value in lacking])
    assert waiting.positions == {0: len(keys)} and waiting.refused == len(lacking)


def test_a_record_without_a_value_is_told_before_it_is_committed(tmp_path: Path) -> None:
    def copying(gone: dict[int, None]) -> App:
        app = App("appending")
        mapped = app.input("numbers", value=int).map(lambda n: wrong_for(n, gone))
        mapped.send_to(app.output("doubled", value=Doubled))
        return app

    bind = {"numbers": [1, 2, 3], "doubled": connectors.sqlite(tmp_path / "place.db", "doubled")}
    with pytest.raises(SamzaError, match=r"send_to .* at .*test_connectors\.py:\d+: .*rows are appended to sqlite:"):
        copying({2: None}).run(tmp_path / "data", bind=bind)
    copying({}).run(tmp_path / "data", bind=bind)
    with closing(sqlite3.connect(tmp_path / "place.db")) as found:
        assert found.execute("SELECT n FROM doubled").fetchall() == [(2,), (4,), (6,)]


def test_a_container_refuses_what_its_starter_could_not_deliver(tmp_path: Path) -> None:
    app = App("wrong")
    app.input("numbers", value=int).map(lambda n: wrong_for(n, {2: (1,)})).send_to(app.output("doubled", value=Doubled))
    bind = {"numbers": [1, 2, 3], **places(app.graph(), {"doubled": Place().positioned()})}
    with pytest.raises(SamzaError, match=r"send_to .* on numbers/0 at 1"):
        app.run(tmp_path, bind=bind)


def test_a_failure_that_passes_is_waited_for(tmp_path: Path) -> None:
    place = Place()
    place.failures = [OSError("down"), Unavailable("still down")]
    doubling().run(tmp_path, bind={"numbers": Shelf({"a": [1]}).source(), "doubled": place.positioned()})
    assert [row.value.n for row in place.rows] == [2]


def test_rows_wait_for_a_sink_that_fails_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "TRIES", 2)
    place = Place()
    place.failures = [OSError("down")] * 2
    bind = {"numbers": Shelf({"a": [1]}).source(), "doubled": place.at_least_once()}
    # The run itself goes on from its checkpoint: what waited for the sink is delivered first.
    doubling().run(tmp_path, bind=bind)
    assert [row.value.n for row in place.rows] == [2]


@pytest.mark.parametrize("kind", [Place.positioned, Place.idempotent, Place.at_least_once])
def test_a_sink_is_given_as_many_rows_at_a_time_as_it_says(tmp_path: Path, kind: Callable[[Place], Any]) -> None:
    place, sizes = Place(), list[int]()
    sink = kind(place)

    def write(*given: Any) -> None:
        sizes.extend(len(one) for one in given if isinstance(one, list))
        sink.write(*given)

    bound = replace(sink, write=write, batch_rows=3, rows_per_second=1e9)
    doubling().run(tmp_path, bind={"numbers": Shelf({"a": [*range(10)]}).source(), "doubled": bound})
    assert [row.value.n for row in place.rows] == [2 * n for n in range(10)]
    assert sizes == [3, 3, 3, 1]


def test_rows_that_are_paced_wait_for_the_next_run(tmp_path: Path) -> None:
    place = Place()

    async def main() -> None:
        def write(rows: Sequence[SinkRow]) -> None:
            place.take(rows)
            run.stop()

        bound = replace(place.at_least_once(), write=write, batch_rows=2, rows_per_second=0.001)
        bind = {"numbers": Shelf({"a": [*range(10)]}).source(), "doubled": bound}
        async with doubling().running(tmp_path, bind=bind) as run:
            await run.ended()

    asyncio.run(main())
    assert len(place.rows) == 1
    doubling().run(tmp_path, bind={"numbers": Shelf({"a": [*range(10)]}).source(), "doubled": place.at_least_once()})
    assert Counter(row.value.n for row in place.rows) == Counter(2 * n for n in range(10))


def test_an_application_that_begins_anew_empties_what_it_wrote(tmp_path: Path) -> None:
    place, shelf = Place(), Shelf({"a": [1, 2]})
    bind = {"numbers": shelf.source(), "doubled": place.positioned()}
    doubling().run(tmp_path, bind=bind)
    first = place.owners[0]
    doubling().run(tmp_path, bind=bind, from_start=True, state="reset")
    assert [row.value.n for row in place.rows] == [2, 4]
    assert place.emptied == 1
    assert place.owners[0].identity != first.identity and first.value_type is Doubled


@pytest.mark.parametrize("kind", ["positioned", "at_least_once"])
def test_a_place_gets_nothing_of_a_life_before_the_application_began_anew(kind: str, tmp_path: Path) -> None:
    shelf, first, later = Shelf({"a": [1]}), Place(), Place()
    numbers = shelf.source()
    doubling().run(tmp_path, bind={"numbers": numbers, "doubled": getattr(first, kind)()})
    doubling().run(tmp_path, bind={"numbers": numbers, "doubled": ListSink()}, from_start=True, state="reset")
    shelf.partitions["a"] += [2]
    # As one that was emptied by hand: `place` is its name, as the first's.
    doubling().run(tmp_path, bind={"numbers": numbers, "doubled": getattr(later, kind)()})
    assert [[row.value.n for row in place.rows] for place in (first, later)] == [[2], [4]]


def test_a_sink_of_another_time_is_refused(tmp_path: Path) -> None:
    place, shelf = Place(), Shelf({"a": [1, 2]})
    bind = {"numbers": shelf.source(), "doubled": place.positioned()}
    doubling().run(tmp_path, bind=bind)
    shelf.partitions["a"] += [3]
    doubling().run(tmp_path, bind=bind)
    for position in (0, 99):
        place.positions[0] = position
        with pytest.raises(Damaged, match="restored from a copy of another time"):
            doubling().run(tmp_path, bind=bind)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), lost=st.integers(1, 99), comes=st.booleans())
@settings(deadline=None, max_examples=examples(10, 200))
def test_rows_that_a_sink_has_lost_which_is_cut_back_are_told(sizes: list[int], lost: int, comes: bool) -> None:
    place, shelf = Place(), Shelf({"a": []})
    with TemporaryDirectory() as folder:
        bind = {"numbers": shelf.source(), "doubled": place.transactional()}
        for size in sizes:
            shelf.partitions["a"] += [*range(size)]
            doubling().run(folder, bind=bind)
        whole = [*place.rows]
        del place.rows[-min(lost, len(whole)) :]
        shelf.partitions["a"] += [7] * comes
        left = [*place.rows]
        with pytest.raises(Damaged, match=rf"up to position {len(left)}, and the last commit those up to {len(whole)}"):
            doubling().run(folder, bind=bind)
        assert place.rows == left
        # Restored from the same time it goes on.
        place.rows += whole[len(left) :]
        doubling().run(folder, bind=bind)
        assert len(place.rows) == len(whole) + comes


def test_a_position_that_is_no_number_is_told(tmp_path: Path) -> None:
    place, shelf = Place(), Shelf({"a": [1, 2]})
    bind = {"numbers": shelf.source(), "doubled": replace(place.transactional(), flush=lambda: None)}
    with pytest.raises(SamzaError, match=r"place: flush\(\) returned None, and a position is a whole number"):
        doubling().run(tmp_path, bind=bind)


@pytest.mark.parametrize("named", [[-1], [9], [2, 0], [1, 1], [None], [0, True], [1.0]])
def test_rows_that_a_sink_refuses_and_was_not_given_are_told(named: list[Any], tmp_path: Path) -> None:
    """The place in front of the first row was taken for one, and nothing was ever handed over again."""
    place, shelf = Place(), Shelf({"a": [1, 2, 3]})
    first, *others = [RowRefused("not these", row) for row in named]
    place.failures = [RowRefused("not these", first.row, others)]
    app = App("doubling")
    numbers = app.input("numbers", value=int)
    doubled = numbers.map(lambda n: Doubled(2 * n))
    doubled.send_to(app.output("doubled", value=Doubled), on_error=dead_letter("refused"))
    bind = {"numbers": shelf.source(), "doubled": place.at_least_once()}
    with pytest.raises(SamzaError, match=r"not these: the sink refuses the rows \[.*\] of 3: name each once, in order"):
        app.run(tmp_path, bind=bind)
    app.run(tmp_path, bind=bind)
    assert [row.value.n for row in place.rows] == [2, 4, 6]


@pytest.mark.parametrize("kind", ["positioned", "at_least_once", "idempotent"])
@pytest.mark.parametrize("are_waiting", [True, False])
def test_rows_that_waited_in_a_stream_that_is_gone_are_told(kind: str, are_waiting: bool, tmp_path: Path) -> None:
    place, shelf = Place(), Shelf({"a": [1, 2]})
    bind = {"numbers": shelf.source(), "doubled": getattr(place, kind)()}
    if are_waiting:
        place.failures = [RowRefused("not today")]
        with pytest.raises(SamzaError, match="not today"):
            doubling().run(tmp_path, bind=bind)
        assert not place.rows
    else:
        doubling().run(tmp_path, bind=bind)
    with closing(LogEnvironment(tmp_path)) as environment:
        (stream,) = [name for name in environment.streams() if ".outbox." in name]
        config = environment.streams()[stream]
        environment.delete_stream(stream)
        environment.create_stream(stream, config)
    shelf.partitions["a"] += [3]
    before = [*place.rows]
    for _ in range(2):
        with pytest.raises(Damaged, match=r"deleted and made anew. In it rows of the output 'doubled' at .*reset"):
            doubling().run(tmp_path, bind=bind)
    assert place.rows == before
    elsewhere = Place()
    doubling().run(tmp_path, bind=bind | {"doubled": replace(getattr(elsewhere, kind)(), name="elsewhere")})
    assert [row.value.n for row in elsewhere.rows] == [6]
    doubling().run(tmp_path, bind=bind, from_start=True, state="reset")
    assert [row.value.n for row in place.rows][-3:] == [2, 4, 6]


def test_another_place_begins_with_what_is_new(tmp_path: Path) -> None:
    first, second, shelf = Place(), Place(), Shelf({"a": [1, 2]})
    doubling().run(tmp_path, bind={"numbers": shelf.source(), "doubled": first.positioned()})
    shelf.partitions["a"] += [3]
    other = PositionedSink("elsewhere", second.claim, second.write, second.empty)
    doubling().run(tmp_path, bind={"numbers": shelf.source(), "doubled": other})
    assert [row.value.n for row in second.rows] == [6]


def test_what_was_bound_to_a_sink_is_read_there(tmp_path: Path) -> None:
    bind = {"numbers": Shelf({"a": [1]}).source(), "doubled": Place().positioned()}
    run = doubling().run(tmp_path, bind=bind)
    with pytest.raises(SamzaError, match="is bound to place; read it there"):
        run.received("doubled")


def test_a_source_is_called_in_one_thread_of_its_own(tmp_path: Path) -> None:
    shelf = Shelf({"a": [*range(30_000)], "b": [1]})
    place = Place()
    doubling().run(tmp_path, bind={"numbers": shelf.source(), "doubled": place.positioned()})
    assert len(place.rows) == 30_001
    assert len(shelf.threads) == 1 and threading.get_ident() not in shelf.threads


def test_a_source_that_grows_is_followed(tmp_path: Path) -> None:
    place, shelf = Place(), Shelf({"a": [1]}, ended=False)

    async def main() -> None:
        app = doubling()
        async with app.running(tmp_path, bind={"numbers": shelf.source(), "doubled": place.positioned()}) as run:
            await run.settled()
            shelf.partitions["a"] += [2, 3]
            await asyncio.get_running_loop().run_in_executor(None, place.has_three.wait)
            shelf.ended = True
            await run.ended()

    asyncio.run(main())
    assert [row.value.n for row in place.rows] == [2, 4, 6]


def test_a_partition_that_comes_is_found(tmp_path: Path) -> None:
    place, shelf = Place(), Shelf({"a": [1]}, ended=False)
    source = shelf.source()

    def taken(rows: Sequence[SinkRow]) -> None:
        place.rows.extend(rows)
        shelf.partitions["b"] = [2]
        shelf.ended = len(place.rows) == 2

    doubling().run(tmp_path, bind={"numbers": source, "doubled": AtLeastOnceSink("place", taken)})
    assert [row.value.n for row in place.rows] == [2, 4]


def other_names(shelf: Shelf) -> None:
    shelf.partitions = {"z": [1, 2]}


def shorter(shelf: Shelf) -> None:
    shelf.partitions["a"].clear()


@pytest.mark.parametrize(("change", "error"), [(other_names, "made anew"), (shorter, "another source than then")])
def test_another_source_in_its_place_is_noticed(tmp_path: Path, change: Any, error: str) -> None:
    shelf = Shelf({"a": [1, 2]})
    doubling().run(tmp_path, bind={"numbers": shelf.source()})
    change(shelf)
    with pytest.raises(Damaged, match=error):
        doubling().run(tmp_path, bind={"numbers": shelf.source()})


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"partitions": list}, "returns names, each once"),
        ({"partitions": lambda: ["a", "a"]}, "returns names, each once"),
        ({"offsets": lambda name: Offsets(2, 1, True)}, "0 <= start <= end"),
        ({"read": lambda name, offset, most: []}, "returned nothing"),
        ({"read": lambda name, offset, most: [SourceRecord(0, 1), SourceRecord(0, 1)]}, "offsets rise"),
        ({"read": lambda name, offset, most: 1 / 0}, r"read\(\) of the source failed: ZeroDivisionError"),
        ({"read": 3}, "write a function: read=my_read"),
        ({"poll_ms": 0}, "whole number of ms"),
    ],
)
def test_what_is_wrong_with_a_source_is_told(tmp_path: Path, said: dict[str, Any], error: str) -> None:
    with pytest.raises(SamzaError, match=error):
        doubling().run(tmp_path, bind={"numbers": Shelf({"a": [1, 2]}).source(**said)})


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (iter(()), "returned a .*iterator: write a list of SourceRecords"),
        ([(0, 1)], "returned a tuple: write SourceRecord"),
        ([SourceRecord(0, 1, key="a")], "the key 'a': a key is bytes"),  # type: ignore[arg-type]
        ([SourceRecord(0, 1, headers={"a": "b"})], "the headers .* their values are bytes"),  # type: ignore[dict-item]
    ],
)
def test_what_is_no_record_is_told(tmp_path: Path, records: Any, error: str) -> None:
    source = Shelf({"a": [1]}).source(read=lambda name, offset, most: records)
    with pytest.raises(SamzaError, match=rf"shelf: read\('a', 0\) returned.*{error.removeprefix('returned ')}"):
        doubling().run(tmp_path, bind={"numbers": source, "doubled": Place().at_least_once()})


def test_a_value_of_another_type_is_a_malformed_record(tmp_path: Path) -> None:
    with pytest.raises(SamzaError, match="Expected `int`, got `str`"):
        doubling().run(tmp_path, bind={"numbers": Shelf({"a": ["x"]}).source()})


def test_tasks_do_not_commit_alone_to_a_sink(tmp_path: Path) -> None:
    from samza_dsl import Options

    app = App("alone", Options(commit_by="task"))
    app.input("numbers", value=int).send_to(app.output("doubled", value=int))
    with pytest.raises(SamzaError, match="by all tasks together"):
        app.run(tmp_path, bind={"doubled": Place().positioned()})


def test_several_containers_share_no_sink_that_is_cut_back() -> None:
    with pytest.raises(SamzaError, match="one process writes a bound output"):
        places(doubling().graph(), {"doubled": Place().transactional()})


def test_containers_write_to_an_outbox_what_their_starter_delivers() -> None:
    found = places(doubling().graph(), {"doubled": Place().positioned()})
    assert found == {"doubled": f"stream:{outbox.outbox_of('doubling', 'doubled', 'place')}"}


def by_number(partitions: int | None) -> App:
    app = App("by-number", Options(batch_records=3, max_uncommitted=4))
    numbers = app.input("in", value=int).partition_by(lambda n: n % 3, op_id="by", partitions=2)
    numbers.map(Doubled).send_to(app.output("doubled", value=Doubled, partitions=partitions))
    return app


@given(
    numbers=st.lists(st.integers(0, 99), max_size=20),
    crashes=st.lists(crash_points, max_size=3),
    fails=st.lists(st.booleans(), max_size=4),
    kind=st.sampled_from([Place.positioned, Place.idempotent, Place.at_least_once]),
    partitions=st.sampled_from([None, 1, 3]),
)
@settings(deadline=None, max_examples=examples(40, 1_000))
def test_on_kafka_rows_take_effect_as_a_sink_promises(
    tmp_path_factory: pytest.TempPathFactory,
    numbers: list[int],
    crashes: list[Any],
    fails: list[bool],
    kind: Callable[[Place], Any],
    partitions: int | None,
) -> None:
    place, folder = Place(), tmp_path_factory.mktemp("kafka")
    place.failures = [Fenced("for good") if one else None for one in fails]
    with simulated(Cluster()):
        with closing(opened(folder)) as environment:
            fill(environment, "in", [[(b"k", b"%d" % n, 0) for n in numbers]])
        # Each life opens its connections anew, and takes up what an earlier one has left.
        for crash in [*crashes, *[None] * (len(fails) + 1)]:
            with closing(opened(folder)) as environment:
                try:
                    run_once(by_number(partitions), Watched(environment, crash), bind={"doubled": kind(place)})
                except (Crash, Fenced):
                    continue
                if crash is None:
                    break
    found, wanted = Counter(row.value.n for row in place.rows), Counter(numbers)
    assert found == wanted if kind is Place.positioned else found >= wanted and found.keys() == wanted.keys()


def test_a_letter_that_could_not_be_kept_is_not_said_to_be_there() -> None:
    written: list[int] = []
    kept: list[Append] = []
    fails = [True, False]

    def write(rows: Sequence[SinkRow]) -> None:
        bad = next((number for number, row in enumerate(rows) if row.value == 1), None)
        if bad is not None:
            raise RowRefused("no ones", row=bad)
        written.extend(row.value for row in rows)

    def keep(generation: int, letters: list[Append]) -> None:
        if fails.pop(0):
            raise EnvironmentFault("the disk is full")
        assert waiting.passed, "the commit of a letter says which it is"
        kept.extend(letters)

    app = App("writing")
    app.input("in", value=int).send_to(app.output("rows", value=int))
    output = next(one for spec in app.graph().specs.values() for one in spec.outputs)
    environment = MemoryEnvironment()
    sink = connectors.AtLeastOnceSink("list", write)
    waiting = Outbox(environment, "writing", output, sink, Refusals("send", dead_letter("bad"), keep))
    environment.create_stream(waiting.stream, StreamConfig())
    waiting.open(1, 1, {})
    environment.append([Append(waiting.stream, 0, Batch([b"0", b"1", b"2"]))])
    with pytest.raises(EnvironmentFault, match="disk is full"):
        waiting.deliver()
    assert not waiting.passed and waiting.positions == {0: 0}
    waiting.deliver()
    assert written == [0, 2] and len(kept) == 1 and waiting.positions == {0: 3}
