"""The suites for connectors notice each kind of mistake that they are there for."""

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samza_dsl.connectors import (
    AtLeastOnceSink,
    ConnectedSource,
    Fenced,
    IdempotentSink,
    Intake,
    Offsets,
    PositionedSink,
    Pulled,
    PulledRecord,
    PulledSource,
    PushedRecord,
    PushedSource,
    SinkOwner,
    SinkRow,
    SourceRecord,
    TransactionalSink,
)
from samza_dsl.testing import check_pulled, check_sink, check_source, conformance

ROWS = [SinkRow(n, key=f"key {n % 5}") for n in range(20)]


class Kept:
    """A sink in memory, without a mistake unless it is told to make one."""

    def __init__(self, mistake: str = "") -> None:
        self.mistake = mistake
        self.at = 0
        self.lock = threading.Lock()
        """Held by whoever is in a transaction."""
        self.values: list[Any] = []
        self.by_key: dict[Any, Any] = {}
        self.owners: dict[object, SinkOwner] = {}
        self.positions: dict[object, int] = {}

    def content(self) -> list[Any]:
        return [*self.values, *self.by_key.values()]

    def claim(self, owner: SinkOwner) -> int:
        with self.lock:
            return self.claimed(owner)

    def claimed(self, owner: SinkOwner) -> int:
        part, known = self.part_of(owner), self.owners.get(self.part_of(owner))
        self.owners[part] = owner
        if known is None or owner.identity != known.identity:
            self.positions[part] = 0
        elif owner.generation < known.generation and self.mistake != "claims again":
            self.owners[part] = known
            raise Fenced("there is a later one")
        return self.positions[part] + (self.mistake == "another position" and self.positions[part] > 5)

    def part_of(self, owner: SinkOwner) -> object:
        if self.mistake.startswith("one position for all "):
            return owner._replace(**{self.mistake.rpartition(" ")[2]: 0}).place
        return owner.place

    def write(self, owner: SinkOwner, rows: Sequence[SinkRow], position: int, following: int) -> None:
        if self.mistake == "looks before the transaction":
            self.look(owner, position, following)
        with self.lock:
            if self.mistake != "looks before the transaction":
                self.look(owner, position, following)
            self.keep(self.part_of(owner), rows, following)

    def look(self, owner: SinkOwner, position: int, following: int) -> None:
        part = self.part_of(owner)
        known = self.owners[part]
        is_mine = (owner.identity, owner.generation) == (known.identity, known.generation)
        if is_mine and self.mistake == "takes rows again" and self.positions[part] == following:
            return
        looks_not = self.mistake == "a copy writes" and self.positions[part] != following
        is_next = position == self.positions[part] or looks_not
        if not (is_mine and is_next) and self.mistake != "zombies write":
            raise Fenced("there is another one")

    def keep(self, part: object, rows: Sequence[SinkRow], following: int) -> None:
        if not rows and self.mistake == "nothing to do":
            return
        found = self.taken(rows)
        if self.mistake == "the position first":
            self.positions[part] = following
            self.values = [*self.values, *found]
        elif self.mistake == "two commits":
            self.values = [*self.values, *found]
            self.positions[part] = following
        else:
            # In one step, as a transaction has it.
            self.values, self.positions[part] = [*self.values, *found], following

    def taken(self, rows: Sequence[SinkRow]) -> list[Any]:
        if self.mistake == "half of it":
            for row in rows:
                self.values.append(row.value)
            return []
        found = [row.value for row in rows]
        if self.mistake == "loses one" and len(self.values) > 20:
            found.pop()
        return found * (2 if self.mistake == "doubles" else 1)

    def empty(self, owner: SinkOwner) -> None:
        if self.mistake != "keeps":
            self.values = []

    def positioned(self) -> PositionedSink:
        return PositionedSink("kept", self.claim, self.write, self.empty, self.close)

    def close(self) -> None:
        # As a database does for who has died in a transaction.
        if self.lock.locked():
            self.lock.release()

    def transactional(self) -> TransactionalSink:
        def recover(position: int) -> None:
            if self.mistake != "never cut back":
                del self.values[position:]
            self.at = position

        flush = (lambda: max(self.at, self.length())) if self.mistake == "knows by itself" else self.length
        return TransactionalSink("kept", recover, lambda rows: self.values.extend(self.taken(rows)), flush)

    def length(self) -> int:
        return len(self.values)

    def idempotent(self) -> IdempotentSink:
        def write(rows: Sequence[SinkRow]) -> None:
            for row in rows:
                if self.mistake == "never replaced":
                    self.by_key.setdefault(row.key, row.value)
                elif self.mistake == "hash":
                    self.by_key[hash(row.key)] = row.value
                else:
                    self.by_key[row.key] = row.value

        return IdempotentSink("kept", write)

    def at_least_once(self) -> AtLeastOnceSink:
        return AtLeastOnceSink("kept", lambda rows: self.values.extend(self.taken(rows)))


KINDS: list[Callable[[Kept], Any]] = [Kept.positioned, Kept.transactional, Kept.idempotent, Kept.at_least_once]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_a_sink_that_keeps_its_promise_passes(kind: Callable[[Kept], Any], seed: int) -> None:
    kept = Kept()
    check_sink(lambda: kind(kept), kept.content, ROWS, seed=seed)


@pytest.mark.parametrize(
    ("kind", "mistake", "said"),
    [
        (Kept.positioned, "loses one", "lacks"),
        (Kept.positioned, "doubles", "beside"),
        (Kept.positioned, "half of it", "beside"),
        (Kept.positioned, "two commits", r"beside, after a death at test_conformance\.py:\d+"),
        (Kept.positioned, "the position first", r"lacks .*, after a death at test_conformance\.py:\d+"),
        (Kept.positioned, "takes rows again", "beside, as rows whose answer was lost were written again"),
        (Kept.positioned, "zombies write", "raise Fenced|whose answer was lost"),
        (Kept.positioned, "claims again", "raise Fenced"),
        (Kept.positioned, "a copy writes", "raise Fenced where the position before is another one"),
        (
            Kept.positioned,
            "looks before the transaction",
            r"stood at test_conformance\.py:\d+ while the next",
        ),
        (Kept.positioned, "another position", "claim"),
        (Kept.positioned, "keeps", "beside"),
        (
            Kept.positioned,
            "one position for all partition",
            "keep (owner and )?position of each|keep a position of each",
        ),
        (Kept.positioned, "one position for all output", "another output: keep a position of each"),
        (Kept.positioned, "one position for all app", "another application: keep owner and position of each"),
        (Kept.positioned, "nothing to do", "a write of no rows"),
        (Kept.transactional, "never cut back", "beside"),
        (Kept.transactional, "loses one", "lacks"),
        (Kept.transactional, "knows by itself", "the place has lost its rows, and flush"),
        (Kept.idempotent, "never replaced", "lacks"),
        (Kept.idempotent, "hash", r"beside.*hash\(\) of text"),
        (Kept.at_least_once, "loses one", "lacks"),
    ],
)
def test_a_mistake_of_a_sink_is_noticed(
    kind: Callable[[Kept], Any], mistake: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "transaction" in mistake:
        monkeypatch.setattr(conformance, "PATIENCE_S", 60)  # it is noticed before somebody stands within one
    kept = Kept(mistake)
    with pytest.raises(AssertionError, match=said):
        check_sink(lambda: kind(kept), kept.content, ROWS, times=300)


def reading(read: Callable[[int, int], list[int]], names: Sequence[str] = ("all",)) -> ConnectedSource:
    return ConnectedSource(
        "numbers",
        lambda: names,
        lambda name: Offsets(0, 30, True),
        lambda name, offset, most: [SourceRecord(n, n * n) for n in read(offset, most)],
    )


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda offset, most: range(offset, min(offset + most, 29)), "returned nothing"),
        (lambda offset, most: range(offset, offset + most), "may come"),
        (lambda offset, most: range(max(offset - 1, 0), min(offset + most, 30)), "may come"),
        (lambda offset, most: range(offset, min(offset + 9, 30)), "returned 9 records"),
        (lambda offset, most: range(offset + (offset % 7 == 3), min(offset + most, 30)), "has"),
    ],
)
def test_a_mistake_of_a_source_is_noticed(read: Callable[[int, int], list[int]], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_source(lambda: reading(read))


def given(**said: Any) -> ConnectedSource:
    return ConnectedSource(
        "numbers",
        lambda: ["all"],
        lambda name: Offsets(0, 30, True),
        lambda name, offset, most: [SourceRecord(n, n, **said) for n in range(offset, min(offset + most, 30))],
    )


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"key": "a"}, "a key is bytes"),
        ({"timestamp_ms": 1.5}, "a time is whole ms"),
        ({"timestamp_ms": True}, "a time is whole ms"),
        ({"headers": {"a": "b"}}, "headers are bytes"),
    ],
)
def test_what_no_run_takes_is_noticed(said: dict[str, Any], error: str) -> None:
    with pytest.raises(AssertionError, match=error):
        check_source(lambda: given(**said))


def test_no_list_of_records_is_told() -> None:
    source = replace(given(), read=lambda name, offset, most: iter(()))
    with pytest.raises(AssertionError, match="write a list of SourceRecords"):
        check_source(lambda: source)


@pytest.mark.parametrize(
    ("content", "said"),
    [([*range(30)], ""), ([*range(31)], r"never gives \['30'\]"), ([*range(29)], r"gives \['29'\], which it has not")],
)
def test_what_a_source_has_and_never_gives_is_noticed(content: list[int], said: str) -> None:
    with pytest.raises(AssertionError, match=said) if said else nullcontext():
        check_source(given, lambda: content)


def test_a_number_that_is_none_is_the_same_at_a_second_look() -> None:
    nan = ConnectedSource(
        "nan",
        lambda: ["all"],
        lambda name: Offsets(0, 9, True),
        lambda name, offset, most: [SourceRecord(n, float("nan")) for n in range(offset, min(offset + most, 9))],
    )
    check_source(lambda: nan)


class Growing:
    """A place to which records and partitions come, and a source of it; `wrong` says what that does not do well."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong, self.partitions, self.known = wrong, {"a": [0, 1, 2]}, ["a"]

    def grow(self) -> None:
        size = sum(map(len, self.partitions.values()))
        self.partitions["a"].append(size)
        self.partitions[f"new {size}"] = [size + 1, size + 2]

    def content(self) -> list[int]:
        return [number for one in self.partitions.values() for number in one]

    def names(self) -> list[str]:
        if self.wrong == "looks once":
            return self.known
        return [*self.partitions] if self.wrong != "new ones first" else [*self.partitions][::-1]

    def offsets(self, name: str) -> Offsets:
        lacks = self.wrong == "loses the last of a new one" and name != "a"
        return Offsets(0, len(self.partitions[name]) - lacks, self.wrong == "ends too early")

    def read(self, name: str, offset: int, most: int) -> list[SourceRecord]:
        found = self.partitions[name]
        if self.wrong == "moves" and len(found) > 4:
            found = found[1:] + found[:1]
        return [SourceRecord(n, found[n]) for n in range(offset, min(offset + most, self.offsets(name).end))]

    def source(self) -> ConnectedSource:
        return ConnectedSource("growing", self.names, self.offsets, self.read)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("", ""),
        ("looks once", "never gives"),
        ("new ones first", "new ones come at the end"),
        ("loses the last of a new one", r"never gives \['5'\]"),
        ("ends too early", "had ended at 3, and now it ends at 4"),
        ("moves", "behind more, 'a' has"),
    ],
)
def test_a_source_of_a_place_that_grows_gives_what_comes(wrong: str, said: str) -> None:
    place = Growing(wrong)
    with pytest.raises(AssertionError, match=said) if said else nullcontext():
        check_source(place.source, place.content, grows=place.grow)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("", ""), ("backwards", "records of a key keep their order"), ("loses what comes", "never gives")],
)
def test_a_source_that_pushes_keeps_the_order_of_a_key_and_gives_what_comes(wrong: str, said: str) -> None:
    numbers = [*range(20)]

    def push(intake: Intake) -> None:
        start = int(intake.noted.get("next", b"0"))
        left = numbers[start : 20 if wrong == "loses what comes" else None]
        if start and wrong == "backwards":
            intake.push([PushedRecord(number, b"key") for number in left[::-1]], {"next": b"%d" % len(numbers)})
            return
        for number in left:
            intake.push([PushedRecord(number, b"key")], {"next": b"%d" % (number + 1)})

    def grow() -> None:
        numbers.append(len(numbers))

    with pytest.raises(AssertionError, match=said) if said else nullcontext():
        check_source(
            lambda: PushedSource("numbers", push), lambda: numbers, grows=None if wrong == "backwards" else grow
        )


def test_functions_are_called_in_another_thread_than_who_makes_them() -> None:
    def of_a_thread() -> ConnectedSource:
        lines = sqlite3.connect(":memory:")
        return replace(given(), partitions=lambda: [name for (name,) in lines.execute("SELECT 'all'")])

    with pytest.raises(sqlite3.ProgrammingError, match="thread"):
        check_source(of_a_thread)


def test_names_that_change_are_noticed() -> None:
    names = iter([["a", "b"], ["b", "a"]] * 99)
    with pytest.raises(AssertionError, match="opened anew"):
        check_source(lambda: reading(lambda offset, most: [*range(offset, min(offset + most, 30))], next(names)))


class Queue:
    """A place that hands numbers out, and forgets what was confirmed; `wrong` says what it does not do well."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong, self.forgotten, self.handed = wrong, 0, 0

    def source(self) -> PulledSource:
        return PulledSource("queue", self.pull, self.confirm)

    def pull(self, reader: str, position: bytes) -> Pulled:
        start = self.handed if self.wrong == "hands each out once" else int(position or 0)
        if self.wrong == "forgets the position":
            start = self.forgotten
        start = max(start, self.forgotten)
        end = min(start + 3, 50)
        self.handed = end
        if self.wrong == "forgets early":
            self.forgotten = end
        records: list[Any] = [PulledRecord(n, None, 1.5 if self.wrong == "float" else 1) for n in range(start, end)]
        position_: Any = str(end) if self.wrong == "text" else b"%d" % end
        if self.wrong == "values":
            records = [*range(start, end)]
        return Pulled(records, position_, end < 50 and self.wrong != "no more")

    def confirm(self, reader: str, position: bytes) -> None:
        if self.wrong == "confirmed once" and self.forgotten == int(position):
            raise AssertionError("confirmed twice")
        self.forgotten = int(position)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("", ""),
        ("hands each out once", "in all"),
        ("forgets early", "in all"),
        ("forgets the position", "in all"),
        ("no more", "a run of what there is now ends there"),
        ("text", "a position is bytes"),
        ("float", "a time is whole ms"),
        ("values", "no PulledRecord"),
        ("confirmed once", "confirmed twice"),
    ],
)
def test_a_source_that_forgets_too_early_or_too_late_is_told(wrong: str, told: str) -> None:
    queue = Queue(wrong)
    if not wrong:
        check_pulled(queue.source, lambda: range(50))
        return
    with pytest.raises(AssertionError, match=told):
        check_pulled(queue.source, lambda: range(50))


def test_a_position_that_is_no_number_is_told() -> None:
    kept = Kept()

    def sink() -> TransactionalSink:
        return replace(kept.transactional(), flush=lambda: float(kept.length()))

    with pytest.raises(AssertionError, match="a position is a whole number"):
        check_sink(sink, kept.content, ROWS)


@pytest.mark.parametrize("seed", range(20))
def test_a_sink_that_is_tried_once_has_lost_nothing(seed: int) -> None:
    kept = Kept()
    check_sink(kept.transactional, kept.content, ROWS, times=1, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_connection_of_a_sink_that_died_holds_no_lock(tmp_path: Path, seed: int) -> None:
    """The end of a process lets go of its locks; a sink that trusts in that keeps its promise."""
    path = tmp_path / "rows.db"

    def write(rows: Sequence[SinkRow]) -> None:
        database = sqlite3.connect(path, timeout=0.01)
        database.execute("CREATE TABLE IF NOT EXISTS found (key TEXT PRIMARY KEY, n INTEGER)")
        for row in rows:
            database.execute("INSERT OR REPLACE INTO found VALUES (?, ?)", (row.key, row.value))
        database.commit()
        database.close()

    def content() -> list[int]:
        with closing(sqlite3.connect(path)) as database:
            known = database.execute("SELECT name FROM sqlite_master").fetchall()
            return [n for (n,) in database.execute("SELECT n FROM found")] if known else []

    rows = [SinkRow(n, key=f"key-{n % 4}") for n in range(20)]
    check_sink(lambda: IdempotentSink("sqlite by hand", write), content, rows, seed=seed)
