"""Suites that a connector of the user's own has to pass: reads from anywhere, and the promise of a sink."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any

from operators.core.base import Serde
from runtime.encoding.serdes import Json
from runtime.model.errors import Fenced, SamzaError
from runtime.ports.connectors import (
    AtLeastOnceSink,
    ConnectedSink,
    ConnectedSource,
    IdempotentSink,
    Intake,
    PositionedSink,
    PulledSource,
    PushedRecord,
    PushedSource,
    SinkOwner,
    SinkRow,
    SourceRecord,
    TransactionalSink,
    wrong_in_pull,
)
from samza_dsl.testing.deaths import DyingLines, DyingRows, HashOfLives, PlayedDeath, apart, is_of_death

Content = Callable[[], Sequence[object]]
"""Returns the values that somebody else finds in a place now, in any order."""
MOST_AT_ONCE = 7
MANY = 1 << 60
GROWTHS = 5
"""How often a place gets more, where a suite can have that."""
PATIENCE_S = 0.3
"""How long the next owner is waited for, which the lock of one that stands in its transaction may hold up."""
Following = tuple[PositionedSink, SinkOwner, int, Sequence[SinkRow]]
"""The sink of an owner that follows, itself, the position that it has found, and the rows that it has written."""
HELD_UP = 2
"""How often the next owner is held up before nothing else is expected."""


def check_source(
    make: Callable[[], ConnectedSource | PushedSource],
    content: Content | None = None,
    *,
    grows: Callable[[], object] | None = None,
    times: int = 100,
    seed: int = 0,
) -> None:
    """Check that a source of one's own can be read again from anywhere, also when it is opened anew.

    `make` opens the source, whose content must not change meanwhile. One that pushes has to go on where it was after a
    death at any point; it is asked for what there is now. `content` returns the values that it has to give, in any
    order: without that, a record that never comes is not missed. `grows` adds records to the place, or a partition: it
    is called a few times, and the source, open or opened anew, has to give what is there then. Functions are called in
    another thread than `make`, as a run calls them. Raises AssertionError for what a run would lose, double or mix up
    by.

    >>> from samza_dsl.connectors import ConnectedSource, Offsets, SourceRecord
    >>> def numbers() -> ConnectedSource:
    ...     def read(partition: str, offset: int, most: int) -> list[SourceRecord]:
    ...         return [SourceRecord(n, n * n) for n in range(offset, min(offset + most, 50))]
    ...
    ...     return ConnectedSource("squares", lambda: ["all"], lambda partition: Offsets(0, 50, True), read)
    >>> check_source(numbers, lambda: [n * n for n in range(50)])
    """
    chance, source = random.Random(seed), make()
    if isinstance(source, PushedSource):
        _check_pushed(make, content, grows, times, chance)
    else:
        apart(_check_read, make, source, _Grown(content, grows), times, chance)


def _check_read(
    make: Callable[[], object],
    source: ConnectedSource,
    grown: _Grown,
    times: int,
    chance: random.Random,
) -> None:
    whole = grown.looked_at(source)
    for number in range(times):
        if number % max(1, times // GROWTHS) == 0:
            whole = grown.more(source)
        if chance.random() < 0.2:
            source.close()
            again = make()
            assert isinstance(again, ConnectedSource), "a source is of one kind"
            source = again
            found = [*source.partitions()]
            assert found == [*whole], f"opened anew, partitions() returned {found} after {[*whole]}"
        name = chance.choice([*whole])
        start, end, _ = source.offsets(name)
        assert (start, end) == _range_of(source, name), f"offsets({name!r}) is another one at a second look"
        if end == start:
            continue
        offset, most = chance.randrange(start, end), chance.randint(1, MOST_AT_ONCE)
        found_records = _read(source, name, offset, most)
        expected = [record for record in whole[name] if record.offset >= offset][: len(found_records)]
        assert 1 <= len(found_records) <= most, (
            f"read({name!r}, {offset}, {most}) returned {len(found_records)} records"
        )
        # As text: NaN is no other value at a second look, and 1 is another one than True.
        assert repr([*found_records]) == repr(expected), (
            f"read({name!r}, {offset}, {most}) returned {found_records}, and the partition has {expected} there"
        )
    source.close()


class _Grown:
    """The records that a source has given of a place, which may get more while the source is open."""

    def __init__(self, content: Content | None, grows: Callable[[], object] | None) -> None:
        self._content, self._grows = content, grows
        self._whole: dict[str, list[SourceRecord]] = {}
        self._ended: dict[str, int] = {}
        """The ends of partitions that have said that they have ended."""

    def more(self, source: ConnectedSource) -> dict[str, list[SourceRecord]]:
        """Let the place get more, and return all records by partition."""
        if self._grows is None:
            return self._whole
        self._grows()
        return self.looked_at(source)

    def looked_at(self, source: ConnectedSource) -> dict[str, list[SourceRecord]]:
        """Return all records by partition; what was there before lies where it was, and each other one is behind it."""
        names, known = [*source.partitions()], [*self._whole]
        assert names and len({*names}) == len(names), f"partitions() returns names, each once, and returned {names}"
        assert names[: len(known)] == known, f"partitions() returned {names} after {known}: new ones come at the end"
        for name in names:
            _, end, is_ended = source.offsets(name)
            assert self._ended.get(name, end) == end, (
                f"offsets({name!r}) has said that the partition had ended at {self._ended[name]}, and now it ends at "
                f"{end}: nobody reads that any more"
            )
            if is_ended:
                self._ended[name] = end
            records, before = _whole(source, name), self._whole.get(name, [])
            assert repr(records[: len(before)]) == repr(before), (
                f"behind more, {name!r} has {records[: len(before)][:5]} where it had {before[:5]}"
            )
            self._whole[name] = records
        _check_given([record.value for records in self._whole.values() for record in records], self._content)
        return self._whole


def _check_given(values: Sequence[object], content: Content | None) -> None:
    """Check what a source has given against what it has to give, where that is known."""
    if content is None:
        return
    wanted, found = Counter(map(repr, content())), Counter(map(repr, values))
    lost, more = wanted - found, found - wanted
    assert not lost, f"the source never gives {[*lost.elements()][:5]}, which it has"
    assert not more, f"the source gives {[*more.elements()][:5]}, which it has not, or more often than it has it"


class _PlayedIntake(Intake):
    """A stream that a source pushes to, which dies at one of its pushes: before it has that, or behind it."""

    until_now = True

    def __init__(self, records: list[PushedRecord], notes: dict[str, bytes], alive: int, keeps: bool) -> None:
        self._records, self._notes, self._alive, self._keeps = records, notes, alive, keeps

    @property
    def serde(self) -> Serde:
        return Json()

    @property
    def noted(self) -> Mapping[str, bytes]:
        return dict(self._notes)

    def push(self, records: Sequence[PushedRecord], notes: Mapping[str, bytes] | None = None) -> None:
        self._alive -= 1
        if self._alive >= 0 or self._keeps:
            self._records += records
            self._notes |= notes or {}
        if self._alive < 0:
            raise PlayedDeath

    def end(self) -> None:
        """Do nothing: a source ends once more where it has died behind that."""

    def wait(self, seconds: float | None = None) -> bool:
        return False


def _check_pushed(
    make: Callable[[], object],
    content: Content | None,
    grows: Callable[[], object] | None,
    times: int,
    chance: random.Random,
) -> None:
    def pushed(records: list[PushedRecord], notes: dict[str, bytes], alive: int) -> bool:
        source = make()
        assert isinstance(source, PushedSource), "a source is of one kind"
        try:
            apart(source.push, _PlayedIntake(records, notes, alive, chance.random() < 0.5))
        except PlayedDeath:
            return False
        return True

    whole: list[PushedRecord] = []
    notes: dict[str, bytes] = {}
    assert pushed(whole, notes, MANY), "a source returns once it has pushed what is there, where it is asked for that"
    _check_given([record.value for record in whole], content)
    for _ in range(0 if grows is None else GROWTHS):
        assert grows is not None
        grows()
        assert pushed(whole, notes, MANY), (
            "a source returns once it has pushed what is there, where it is asked for that"
        )
        _check_given([record.value for record in whole], content)
    size = len(whole)
    assert pushed(whole, notes, MANY) and len(whole) == size, (
        f"run again, the source has pushed {whole[size]} once more: note how far it has come beside what is pushed"
    )
    for _ in range(times):
        found: list[PushedRecord] = []
        notes = {}
        while not pushed(found, notes, chance.randrange(MOST_AT_ONCE)):
            pass
        lost, more = Counter(map(repr, whole)), Counter(map(repr, found))
        lost, more = lost - more, more - lost
        assert not lost, f"through deaths, the source has never pushed {[*lost][:5]}"
        assert not more, f"through deaths, the source has pushed {[*more][:5]} more often than without"
        for key, records in _by_key(whole).items():
            again = _by_key(found)[key]
            assert again == records, (
                f"through deaths, the source has pushed {again[:5]} for {key!r}, and {records[:5]} without: records of "
                "a key keep their order"
            )


def _by_key(records: Sequence[PushedRecord]) -> dict[bytes, list[str]]:
    """Return the texts of records that have a key, in the order in which they came."""
    found: dict[bytes, list[str]] = {}
    for record in records:
        if record.key is not None:
            found.setdefault(record.key, []).append(repr(record))
    return found


def _range_of(source: ConnectedSource, name: str) -> tuple[int, int]:
    start, end, _ = source.offsets(name)
    return start, end


def _read(source: ConnectedSource, name: str, offset: int, most: int) -> Sequence[SourceRecord]:
    """Return what a source reads; raises AssertionError for what is none that a run takes."""
    records = source.read(name, offset, most)
    assert isinstance(records, Sequence), f"read() returned a {type(records).__name__}: write a list of SourceRecords"
    for record in records:
        assert isinstance(record, SourceRecord), f"read() returned a {type(record).__name__}, and no SourceRecord"
        assert record.key is None or isinstance(record.key, bytes), f"a key is bytes, and {record.key!r} came"
        at = record.timestamp_ms
        assert at is None or type(at) is int, f"a time is whole ms since the epoch, and {at!r} came"
        assert all(
            isinstance(header, str) and isinstance(value, bytes | None)
            for header, value in (record.headers or {}).items()
        ), f"headers are bytes or None by name, and {record.headers!r} came"
    return records


def _whole(source: ConnectedSource, name: str) -> list[SourceRecord]:
    """Return all records of a partition, read one piece after the other."""
    start, end, _ = source.offsets(name)
    assert 0 <= start <= end, f"offsets({name!r}) returned {start} to {end}"
    found: list[SourceRecord] = []
    offset = start
    while offset < end:
        records = _read(source, name, offset, MOST_AT_ONCE)
        assert records, f"read({name!r}, {offset}) returned nothing, and offsets() says that there are records to {end}"
        for record in records:
            assert offset <= record.offset < end, f"offset {record.offset} came where {offset} to {end} may come"
            offset = record.offset + 1
        found += records
    return found


def check_pulled(
    make: Callable[[], PulledSource], content: Callable[[], Sequence[object]], *, times: int = 100, seed: int = 0
) -> None:
    """Check that a source of one's own that forgets gives each record once, whenever the run dies.

    `make` opens the source, and `content` returns the values that it has to give, in order, of a place that nobody else
    writes to meanwhile. Raises AssertionError for what a run would lose or double.

    >>> from samza_dsl.connectors import Pulled, PulledRecord, PulledSource
    >>> def numbers() -> PulledSource:
    ...     def pull(reader: str, position: bytes) -> Pulled:
    ...         found = range(int(position or 0), min(int(position or 0) + 3, 50))
    ...         return Pulled([PulledRecord(n) for n in found], b"%d" % (found.stop), found.stop < 50)
    ...
    ...     return PulledSource("numbers", pull)
    >>> check_pulled(numbers, lambda: range(50))
    """
    chance, source, position, kept = random.Random(seed), make(), b"", list[object]()
    wanted, left = [*content()], times
    while True:
        # Before what was pulled is kept, before it is confirmed, or after that.
        dies = chance.choice(("pulled", "kept", "confirmed", "", "", "")) if left > 0 else ""
        left -= 1
        found = source.pull("check", position)
        wrong = wrong_in_pull(found)
        assert wrong is None, wrong
        if dies != "pulled":
            moves = found.position != position or not found.more
            assert moves, f"all in all there is more, and the position stays at {position!r}"
            kept += [record.value for record in found.records]
            came = f"the place has {wanted[:5]}, in all {len(wanted)}, and {kept[:5]} came, in all {len(kept)}"
            assert kept == wanted[: len(kept)], came
            assert found.more or kept == wanted, (
                f"pull() says that there is no more, and {wanted[len(kept)]!r} is to come: a run of what there is now "
                "ends there"
            )
            is_behind, position = found.position != position, found.position
            if dies != "kept" and is_behind:
                source.confirm("check", position)
                if dies != "confirmed" and chance.random() < 0.3:
                    source.confirm("check", position)  # as a run does where the answer was lost
        if dies:
            source.close()
            source = make()
        elif not found.more and left <= 0:
            break
    source.close()
    assert kept == wanted, f"the place has {wanted[:5]}, in all {len(wanted)}, and {kept[:5]} came, in all {len(kept)}"


def check_sink(
    make: Callable[[], ConnectedSink],
    content: Content,
    rows: Sequence[SinkRow],
    *,
    by_key: bool = False,
    times: int = 100,
    seed: int = 0,
) -> None:
    """Check that a sink of one's own keeps what its kind promises, through crashes at any point.

    `make` opens the sink, which is empty at first, `content` returns the values that are in it, and `rows` are written
    again and again. Where a row replaces that of its key, say `by_key`. The sink dies at rows, and at any line of the
    files of its functions, which are called in other threads than `make`, as a run calls them; there the next owner
    overtakes it, too. `hash` is another one for each sink that is made. Raises AssertionError for what is lost, double,
    or not fenced.

    >>> from samza_dsl.connectors import IdempotentSink, SinkRow
    >>> kept: dict[str, int] = {}
    >>> def sink() -> IdempotentSink:
    ...     return IdempotentSink("kept", lambda rows: kept.update((row.key, row.value) for row in rows))
    >>> check_sink(sink, lambda: [*kept.values()], [SinkRow(n, key=f"key {n % 5}") for n in range(20)])
    """
    assert len(rows) > 1, "give some rows, so that one of them can be lost"
    sink, chance = make(), random.Random(seed)
    if isinstance(sink, TransactionalSink):
        trial = _SinkTrial(make, content, rows, chance, by_key, (sink.write, sink.flush, sink.recover))
        play: Callable[[], None] = partial(trial.cut_back, sink, times)
    elif isinstance(sink, PositionedSink):
        trial = _SinkTrial(make, content, rows, chance, by_key, (sink.write, sink.claim))
        play = partial(trial.positioned, sink, times)
    else:
        assert isinstance(sink, IdempotentSink | AtLeastOnceSink), f"{sink!r} is no sink of samza_dsl.connectors"
        trial = _SinkTrial(make, content, rows, chance, by_key, (sink.write,))
        play = partial(trial.delivered, sink, times)
    with trial.hashes:
        play()


class _SinkTrial:
    """Writes rows to a sink, dies now and then, and knows what has to be there."""

    def __init__(
        self,
        make: Callable[[], Any],
        content: Content,
        rows: Sequence[SinkRow],
        chance: random.Random,
        by_key: bool,
        functions: Sequence[Callable[..., Any]],
    ) -> None:
        self._making, self._content, self._rows, self._chance, self._by_key = make, content, rows, chance, by_key
        self._lines, self.hashes = DyingLines(functions), HashOfLives(functions)
        self._given: list[SinkRow] = []
        """All rows that have to be there."""

    def _make(self) -> Any:
        """Return the sink of the next life."""
        self.hashes.life += 1
        return self._making()

    def cut_back(self, sink: TransactionalSink, times: int) -> None:
        """Try a sink that is cut back to positions."""
        self._lines.call(sink.recover, 0)
        marks = [(0, 0)]
        for _ in range(times):
            rows = self._some()
            dies, closed = self._chance.random() < 0.3, self._chance.random() < 0.5
            if dies:
                if self._chance.random() < 0.5:
                    self._dies(sink.write, self._dying(rows))
                else:
                    self._dies_at_a_line(sink.write, rows)
                    self._dies_at_a_line(sink.flush)
                    closed = True
            else:
                self._lines.call(sink.write, rows)
                self._given += rows
                position = self._lines.call(sink.flush)
                assert type(position) is int, f"flush() returned {position!r}, and a position is a whole number"
                assert position >= marks[-1][0], f"flush() returned {position} after {marks[-1][0]}"
                marks.append((position, len(self._given)))
            if dies or self._chance.random() < 0.3:
                if closed:
                    self._let_go(sink)
                sink = self._make()
                del marks[max(1, len(marks) - self._chance.randrange(3)) :]
                position, number = marks[-1]
                del self._given[number:]
                self._dies_at_a_line(sink.recover, position)
                self._let_go(sink)
                sink = self._make()
                self._lines.call(sink.recover, position)
            self._compare("exactly once")
        self._check_lost(sink, marks[-1][0])

    def _check_lost(self, sink: TransactionalSink, position: int) -> None:
        """Empty the place, as where it was restored from an older copy, and ask for what was committed."""
        if position:
            apart(sink.recover, 0)
        apart(sink.close)
        if not position:
            return  # nothing was committed, so that nothing can be lost
        sink = self._make()
        try:
            apart(sink.recover, position)
            found = apart(sink.flush)
        except Exception:  # whatever it is, it ends a run
            found = 0
        self._let_go(sink)
        assert found < position, (
            f"the place has lost its rows, and flush() returned {found} behind recover({position}), as if they were "
            "there: return the position that the place has, or raise"
        )

    def positioned(self, sink: PositionedSink, times: int) -> None:
        """Try a sink with positions: crashes, answers that are lost, owners of the past."""
        owner = SinkOwner("check", "rows", 0, 1, self._chance.getrandbits(60), type(self._rows[0].value))
        position, past = self._lines.call(sink.claim, owner), list[tuple[PositionedSink, SinkOwner]]()
        assert position == 0, f"a sink that nobody has written to has position 0, and claim() returned {position}"
        for _ in range(times):
            rows, following = self._some(), position + self._chance.randint(1, 9)
            may_be = {position}
            """The positions that the next owner may find."""
            end = self._chance.choice(("answered", "answered", "lost", "dies at a row", "dies at a line"))
            if end == "answered" and self._chance.random() < 0.1:
                rows = []  # all of them were refused: the position alone moves on
            if end == "dies at a row":
                self._dies(sink.write, owner, self._dying(rows), position, following)
            elif end == "dies at a line":
                self._dies_at_a_line(sink.write, owner, rows, position, following)
                may_be = {position, following}
            else:
                self._lines.call(sink.write, owner, rows, position, following)
                self._given += rows
                if end == "lost":
                    self._write_again(sink, owner, rows, position, following)
                position, may_be = following, {following}
                if not rows:
                    owner = owner._replace(generation=owner.generation + 1)
                    found = self._lines.call(sink.claim, owner)
                    assert found == following, (
                        f"claim() returned {found} behind a write of no rows up to {following}: it leads on, too, as "
                        "where all rows were refused"
                    )
            if end != "dies at a line":
                self._compare("exactly once")
            if end != "answered":
                if end == "dies at a line":
                    self._let_go(sink)
                else:
                    past.append((sink, owner))
                sink, owner = self._claimed_anew(owner)
                found = self._lines.call(sink.claim, owner)
                assert found in may_be, f"claim() returned {found} where the rows are there up to {max(may_be)}"
                if found > position:
                    self._given += rows
                    position = found
                self._compare("exactly once")
                if past:
                    self._check_fenced(*past.pop(self._chance.randrange(len(past))), position)
        for zombie, _ in past:
            apart(zombie.close)
        sink, owner = self._check_gap(sink, owner, position)
        sink, owner, position = self._overtaken(sink, owner, position, times // 2)
        self._check_partitions(sink, owner, position)
        self._check_others(*self._begun_anew(sink, owner, position))

    def _write_again(
        self, sink: PositionedSink, owner: SinkOwner, rows: Sequence[SinkRow], position: int, following: int
    ) -> None:
        """Write rows again whose answer was lost, as a run does behind `Unavailable`; it may as well end of it."""
        with suppress(SamzaError):
            self._lines.call(sink.write, owner, rows, position, following)
        again = ", as rows whose answer was lost were written again: take none where the position behind is there"
        self._compare("exactly once", again)

    def _claimed_anew(self, owner: SinkOwner) -> tuple[PositionedSink, SinkOwner]:
        """Return the next owner with its sink; another one before may have died as it claimed."""
        sink, owner = self._make(), owner._replace(generation=owner.generation + 1)
        if self._chance.random() < 0.3:
            self._dies_at_a_line(sink.claim, owner)
            self._let_go(sink)
            sink, owner = self._make(), owner._replace(generation=owner.generation + 1)
        return sink, owner

    @staticmethod
    def _let_go(sink: ConnectedSink) -> None:
        """Close a sink that has died at a line, as the system does with what a killed process had open.

        It may have died between the beginning of a transaction and the lines that would roll that back.
        """
        with suppress(Exception):
            apart(sink.close)

    def _check_fenced(self, sink: PositionedSink, owner: SinkOwner, position: int) -> None:
        """Let an owner of the past write, which must be refused."""
        for function in (lambda: sink.write(owner, self._some(), position, position + 1), lambda: sink.claim(owner)):
            try:
                apart(function)
            except Fenced:
                pass
            else:
                raise AssertionError(f"generation {owner.generation} has written after a later one: raise Fenced")
        apart(sink.close)
        self._compare("exactly once")

    def _check_gap(self, sink: PositionedSink, owner: SinkOwner, position: int) -> tuple[PositionedSink, SinkOwner]:
        """Let the owner write rows from another position than the sink has, as its copy would; return the next one."""
        try:
            apart(sink.write, owner, self._some(), position + 1, position + 2)
        except SamzaError:  # as Damaged, where the sink takes it for the one that has lost rows
            apart(sink.close)
        else:
            raise AssertionError(
                f"write() took rows from position {position + 1} on, and the sink has those up to {position}, as where "
                "one of the two was restored: raise Fenced where the position before is another one"
            )
        self._compare("exactly once", ", as rows were written from another position than it has")
        sink, owner = self._claimed_anew(owner)
        assert apart(sink.claim, owner) == position
        return sink, owner

    def _overtaken(
        self, sink: PositionedSink, owner: SinkOwner, position: int, times: int
    ) -> tuple[PositionedSink, SinkOwner, int]:
        """Let the next owner claim and write while this one stands at a line of its write; return the last one.

        Where a lock holds the next one up, this one goes on meanwhile: whichever is first, the rows of both are there
        once, or this one was refused.
        """
        held_up, lines = 0, self._lines.lines
        for line in range(0, lines + 1, lines // max(times, 1) + 1):
            late = self._some()
            write = partial(sink.write, owner, late, position, position + 1)
            is_held_up, refusal, following = self._stands(write, line, owner)
            self._let_go(sink)
            held_up += is_held_up
            if isinstance(following, Exception):
                # What the one that stood has held may have failed it, which a run tries again.
                following = apart(self._follows, owner._replace(generation=owner.generation + 2))
            sink, owner, found, rows = following
            stood = f", as an owner of the past stood at {self._lines.place} while the next one claimed and wrote"
            if found > position:
                self._given += late
            else:
                assert refusal is not None, f"write() has returned{stood}: raise Fenced"
            self._given += rows
            position = found + 2
            advice = f"{stood}: look at the owner within the transaction of the rows, and lock it there"
            self._compare("exactly once", advice)
            found = apart(sink.claim, owner)
            assert found == position, f"claim() returned {found}, and {position} was written to{advice}"
            if held_up == HELD_UP:
                break
        return sink, owner, position

    def _stands(
        self, write: Callable[[], None], line: int, owner: SinkOwner
    ) -> tuple[bool, BaseException | None, Following | Exception]:
        """Let the next owner follow while one stands at a line of its write, or as long as no lock holds it up.

        Return whether one does, what the write has raised, and the owner that followed, or what that has raised.
        """
        stands, goes_on = Event(), Event()

        def stand() -> None:
            stands.set()
            goes_on.wait()

        with ThreadPoolExecutor(2, thread_name_prefix="samza-dsl-suite") as pool:
            written = pool.submit(self._lines.call, write, alive=line, then=stand)
            written.add_done_callback(lambda _: stands.set())
            stands.wait()
            following = pool.submit(self._follows, owner._replace(generation=owner.generation + 1))
            is_held_up = bool(wait([following], PATIENCE_S).not_done)
            goes_on.set()
        raised = following.exception()
        return is_held_up, written.exception(), raised if isinstance(raised, Exception) else following.result()

    def _follows(self, owner: SinkOwner) -> Following:
        """Claim and write as the next owner; return its sink, itself, the position that it has found, and its rows."""
        sink, rows = self._make(), self._some()
        try:
            found = sink.claim(owner)
            sink.write(owner, rows, found, found + 2)
        except BaseException:
            with suppress(Exception):
                sink.close()
            raise
        return sink, owner, found, rows

    def _check_partitions(self, sink: PositionedSink, owner: SinkOwner, position: int) -> None:
        """Let the owner of another partition of the output write beside this one: each has a position of its own."""
        other = owner._replace(partition=1)
        found = apart(sink.claim, other)
        assert found == 0, (
            f"claim() returned {found} for another partition, which has no rows yet: keep a position of each"
        )
        for one, at in ((other, 0), (owner, position), (other, 5)):
            self._write_beside(sink, one, (at, at + 5), f"the owner of partition {one.partition}", "partition")
        apart(sink.empty, other)

    def _write_beside(
        self, sink: PositionedSink, owner: SinkOwner, positions: tuple[int, int], who: str, what: str
    ) -> None:
        """Write some rows where the owner of another one writes, too, which must fence nobody."""
        rows = self._some()
        try:
            apart(sink.write, owner, rows, *positions)
        except Fenced as error:
            raise AssertionError(
                f"{who} was fenced by that of another {what}: keep owner and position of each"
            ) from error
        self._given += rows
        self._compare("exactly once")

    def _check_others(self, sink: PositionedSink, owner: SinkOwner) -> None:
        """Let another output, and another application, write to the place: each has a position of its own.

        A place that takes one output alone may refuse others as they claim it.
        """
        position = 1
        for what, other in (
            ("output", owner._replace(output="others")),
            ("application", owner._replace(app="another", identity=owner.identity + 7)),
        ):
            beside = self._make()
            with suppress(SamzaError):
                found = apart(beside.claim, other)
                assert found == 0, f"claim() returned {found} for another {what}: keep a position of each"
                own = self._some()
                apart(beside.write, other, own, 0, 5)
                self._given += own
            self._compare("exactly once")
            self._write_beside(sink, owner, (position, position + 1), "the owner", what)
            position += 1
            found = apart(sink.claim, owner)
            assert found == position, f"claim() returned {found} behind another {what}, and {position} was written to"
            apart(beside.close)
        apart(sink.close)

    def _begun_anew(self, sink: PositionedSink, owner: SinkOwner, position: int) -> tuple[PositionedSink, SinkOwner]:
        apart(sink.empty, owner)
        apart(sink.close)
        anew = owner._replace(identity=owner.identity + 1, generation=1)
        sink = self._make()
        found = apart(sink.claim, anew)
        assert found == 0, f"claim() returned {found} for an application that has begun anew, and {position} before"
        self._given = []
        rows = self._some()
        apart(sink.write, anew, rows, 0, 1)
        self._given += rows
        self._compare("exactly once")
        return sink, anew

    def delivered(self, sink: IdempotentSink | AtLeastOnceSink, times: int) -> None:
        """Try a sink that is given rows again after a crash."""
        if isinstance(sink, IdempotentSink):
            self._by_key = True
            keyless = [row for row in self._rows if row.key is None]
            assert sink.keyless or not keyless, f"{keyless[:1]} has no key: a run hands such to keyless=True alone"
        for _ in range(times):
            rows = self._some()
            if self._chance.random() < 0.3:
                if self._chance.random() < 0.5:
                    self._dies(sink.write, self._dying(rows))
                else:
                    self._dies_at_a_line(sink.write, rows)
                self._let_go(sink)
                sink = self._make()
            self._lines.call(sink.write, rows)
            self._given += rows
            self._compare("the newest of each key" if self._by_key else "at least once")
        apart(sink.close)

    def _some(self) -> list[SinkRow]:
        return [self._chance.choice(self._rows) for _ in range(self._chance.randint(1, MOST_AT_ONCE))]

    def _dying(self, rows: Sequence[SinkRow]) -> Sequence[SinkRow]:
        return DyingRows(rows, self._chance.randrange(len(rows)))

    def _dies(self, write: Callable[..., object], *arguments: object) -> None:
        try:
            apart(write, *arguments)
        except Exception as error:
            if not is_of_death(error):
                raise
            return
        raise AssertionError("write() has not read all rows, or has not let an error of theirs through")

    def _dies_at_a_line(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function that dies at one of its lines, or right behind the last."""
        try:
            self._lines.call(function, *arguments, alive=self._chance.randint(0, self._lines.lines))
        except Exception as error:
            if not is_of_death(error):
                raise

    def _compare(self, promise: str, behind: str = "") -> None:
        given = self._given
        if self._by_key:
            newest = {(repr(row.key), row.key is None and (row.id or repr(row.value))): row.value for row in given}
            given = [SinkRow(value) for value in newest.values() if value is not None]
        wanted = Counter(repr(row.value) for row in given)
        found = Counter(map(repr, self._content()))
        lost, more = wanted - found, found - wanted
        place = self._lines.place
        behind = behind or (f", after a death at {place}" if place else "")
        if self.hashes.is_asked:
            behind += ", and hash() of text, which each process has another one of, was asked for: zlib.crc32 lasts"
        assert not lost, f"promised is {promise}, and the sink lacks {[*lost.elements()][:5]}{behind}"
        if promise != "at least once":
            assert not more, f"promised is {promise}, and the sink has {[*more.elements()][:5]} beside{behind}"
