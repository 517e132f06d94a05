"""Watermarks of a reader: of a source partition from its records' times, and the minimum over producers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from math import isfinite
from numbers import Integral
from typing import Any

from operators.core.base import EARLIEST_MS, LATEST_MS, MAX_TIMESTAMP, MIN_TIMESTAMP
from operators.core.wording import shown
from runtime.ports.streams import Control
from runtime.reading.event_times import PER_SECOND, meant_by

_EPOCH, _MS = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def is_constant(column: Sequence[Any]) -> bool:
    """Whether all rows have the same, as the times of records have that were appended together.

    >>> is_constant([7, 7, 7]), is_constant([7, 8, 7])
    (True, False)
    """
    # The ends are compared first, which settles most columns; `count` then runs in C.
    return not column or (column[0] == column[-1] and column.count(column[0]) == len(column))


class SourceWatermark:
    """The watermark of one source partition: the highest timestamp seen, less the disorder allowed.

    >>> SourceWatermark(10, watermark=100).stamp([120, 150, 130])
    [100, 110, 140, 140]
    """

    __slots__ = ("_disorder_ms", "value")

    def __init__(self, disorder_ms: int, watermark: int = MIN_TIMESTAMP) -> None:
        self._disorder_ms = disorder_ms
        self.value = watermark

    @property
    def highest(self) -> int:
        """The highest timestamp seen, or what the watermark says of it."""
        return self.value + self._disorder_ms

    def stamp_by(self, told: Iterable[int | None]) -> list[int]:
        """Return the watermark just before each record, and after the last one, where records tell it themselves.

        >>> SourceWatermark(0, watermark=100).stamp_by([None, 120, 110, None])
        [100, 100, 120, 120, 120]
        """
        stamps = [watermark := self.value]
        stamps += [watermark := watermark if at is None else max(watermark, at) for at in told]
        return stamps

    def stamp(self, timestamps: list[int]) -> list[int]:
        """Return the watermark just before each record, were these to come next, and after the last one."""
        disorder, watermark = self._disorder_ms, self.value
        highest = watermark + disorder
        # Records that were appended together have one time: then all but the first have one stamp, and no loop
        # is needed.
        if is_constant(timestamps):
            after = max(watermark, timestamps[0] - disorder) if timestamps else watermark
            return [watermark, *repeat(after, len(timestamps))]
        following = [watermark if at <= highest else (watermark := (highest := at) - disorder) for at in timestamps]
        assert not following or following[-1] >= self.value, "a watermark never goes back"
        return [self.value, *following]


def event_time(watermarks: Iterable[tuple[int, bool]]) -> int:
    """Return how far event time has come over several inputs, given of each its watermark and whether it is idle.

    It is the least watermark of those that are not idle. Where only idle ones are left, which may go on, it is their
    largest; MAX_TIMESTAMP when all have ended.

    >>> event_time([(70, False), (20, True), (50, False)]), event_time([(70, True), (20, True), (MAX_TIMESTAMP, False)])
    (50, 70)
    """
    watermarks = [*watermarks]
    active = min((at for at, is_idle in watermarks if not is_idle), default=MAX_TIMESTAMP)
    # An idle input holds nobody back. Where only idle ones are left they may still go on, so event time is as far
    # as the furthest of them, and not at its end.
    if active < MAX_TIMESTAMP:
        return active
    return max((at for at, is_idle in watermarks if is_idle), default=MAX_TIMESTAMP)


Mark = tuple[dict[str, int], frozenset[str], int]
"""The watermark of each producer, those that are idle, and the floor that they have left."""


class ProducerWatermarks:
    """The watermark of one partition of an intermediate stream: the minimum over all that write to it.

    An idle producer holds nobody back; event time has then come to `floor` without it, also for what it sends when it
    is back.
    """

    __slots__ = ("_least", "by_producer", "floor", "idle")

    def __init__(
        self,
        expected: Iterable[str],
        known: Mapping[str, int],
        idle: Iterable[str] = (),
        floor: int = MIN_TIMESTAMP,
    ) -> None:
        self.by_producer = {producer: known.get(producer, MIN_TIMESTAMP) for producer in expected}
        self.idle = frozenset(idle) & self.by_producer.keys()
        self.floor = floor
        self._least: int | None = None
        """How far event time has come by what each says; None where that is not known yet."""

    @property
    def value(self) -> int:
        """The watermark; MAX_TIMESTAMP when all have ended."""
        return max(self.floor, self.least)

    @property
    def least(self) -> int:
        """The watermark by what each producer says now, whatever idle ones have left behind."""
        # Asked for at each step, and changed only by what is heard.
        if self._least is None:
            if self.idle:
                self._least = event_time((at, one in self.idle) for one, at in self.by_producer.items())
            else:
                self._least = min(self.by_producer.values(), default=MAX_TIMESTAMP)
        return self._least

    @property
    def is_idle(self) -> bool:
        """Whether all that may still send something are idle."""
        return bool(self.idle) and all(one in self.idle for one, at in self.by_producer.items() if at < MAX_TIMESTAMP)

    def take(self, control: Control) -> None:
        """Take in what a control says: how far event time is, or who goes on in the place of a producer.

        >>> watermarks = ProducerWatermarks("ab", {})
        >>> watermarks.take(Control("a", 5, beside=(Control("b", 7),)))
        >>> watermarks.value
        5
        """
        for one in control.words:
            if one.heirs:
                self.hand_over(one.producer, one.heirs)
        told = [(one.producer, one.watermark, one.idle) for one in control.words if not one.heirs]
        if told:
            self.hear_all(told)

    def hand_over(self, producer: str, heirs: Collection[str]) -> None:
        """Put those that go on with what a producer did in its place: each is as far as it was, or the last of several.

        Event time stays where it is: who takes over from several is as far as the one that is furthest behind.
        """
        if not heirs or producer not in self.by_producer:
            return
        known, before = {**self.by_producer}, self.value
        reached, was_idle = known.pop(producer), producer in self.idle
        for heir in heirs:
            known[heir] = min(reached, known.get(heir, reached))
        # An heir of several is idle where all of them are.
        idle = self.idle - {producer}
        awake = {heir for heir in heirs if not was_idle or (heir in self.by_producer and heir not in self.idle)}
        self.by_producer, self.idle, self._least = known, (idle | {*heirs}) - awake, None
        if self.value < before:
            self.floor = before

    def hear_all(self, told: Iterable[tuple[str, int, bool]]) -> None:
        """Take the watermarks of several producers in, one after the other, each with whether it is idle.

        None goes back, and strangers are not listened to.
        What `by_producer` was before stays as it is, for whoever remembers it.
        """
        # A new dict each time: the marks in flight and in checkpoints share the old one, and are not to change
        # behind their offsets.
        self.by_producer = {**self.by_producer}
        for producer, watermark, idle in told:
            self._hear(producer, watermark, idle)

    def _hear(self, producer: str, watermark: int, idle: bool) -> None:
        known = self.by_producer.get(producer)
        if known is None or (watermark <= known and idle == (producer in self.idle)):
            return
        self.by_producer[producer], self._least = max(known, watermark), None
        self.idle = self.idle | {producer} if idle else self.idle - {producer}
        # How far event time came without the idle ones is kept as a floor: when one is back with an old
        # watermark, the minimum would fall behind what has fired.
        if self.idle and (reached := self.value) < MAX_TIMESTAMP:
            self.floor = reached

    @property
    def mark(self) -> Mark:
        """Everything that is known, to be remembered."""
        return self.by_producer, self.idle, self.floor

    def know(self, mark: Mark, least: int) -> None:
        """Know what another one does, and how far event time has come by what each producer says."""
        self.by_producer, self.idle, self.floor = mark
        self._least = least

    def raise_stamps(self, stamps: list[int]) -> list[int]:
        """Return the stamps of records as event time has come while their producers were idle."""
        floor = self.floor
        return stamps if floor == MIN_TIMESTAMP else [max(stamp, floor) for stamp in stamps]


class News:
    """The words of producers that many readers hear at once: those that knew the same before know the same after it.

    >>> one, other = ProducerWatermarks("ab", {}), ProducerWatermarks("ab", {})
    >>> news = News([("a", 5, False), ("b", 7, False)])
    >>> news.tell(one)
    >>> news.tell(other)
    >>> other.value, other.mark[0] is one.mark[0]
    (5, True)
    """

    def __init__(self, told: Iterable[tuple[str, int, bool]]) -> None:
        self.told = [*told]
        self._heard: list[tuple[Mark, Mark, int]] = []
        """What was known before, and after, with the least of it: of as many kinds as there were."""

    def tell(self, reader: ProducerWatermarks) -> None:
        """Let one reader hear it."""
        before = reader.mark
        for known, after, least in self._heard:
            if known == before:
                reader.know(after, least)
                return
        reader.hear_all(self.told)
        # Looked for once, and not by each reader among all producers.
        self._heard.append((before, reader.mark, reader.least))


RECORDS = "the record has"
"""The words of an error about a time that no function of the user's has returned."""


def to_ms(found: list[Any], said: str = "timestamp= returned", unit: str | None = None) -> list[int]:
    """Return what functions of an input gave, in a unit, as ms since the epoch; raises ValueError for what is no time.

    >>> from datetime import timezone
    >>> to_ms([1_000, datetime(1970, 1, 1, 0, 0, 2, tzinfo=timezone.utc)])
    [1000, 2000]
    >>> to_ms([1, 2.5], unit="s"), to_ms([1_500_000], unit="us")
    ([1000, 2500], [1500])
    """
    given, per_second = found, PER_SECOND[unit or "ms"]
    if per_second != 1_000 or not set(map(type, found)) <= {int}:
        found = [_one_to_ms(at, said, per_second) for at in found]
    # Equal times are judged once.
    some = found[:1] if is_constant(found) else found
    if some and not (min(some) >= EARLIEST_MS and max(some) <= LATEST_MS):
        wrong = next(one for one, at in zip(given, found, strict=True) if not EARLIEST_MS <= at <= LATEST_MS)
        raise ValueError(
            f"{said} {wrong!r}, a time that is not in the years 1 to 9999; return ms since the epoch" + meant_by(wrong)
        )
    return found


def _one_to_ms(at: Any, said: str, per_second: int) -> int:
    if isinstance(at, Integral) and not isinstance(at, bool):  # an int, or one of NumPy's
        return int(at) * 1_000 // per_second
    if isinstance(at, float) and per_second == 1 and isfinite(at):
        return round(at * 1_000_000) // 1_000  # to microseconds first, as floats are near 0.123 and seldom just that
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(f"{said} {shown(at)} without a time zone; write e.g. .replace(tzinfo=timezone.utc)")
        # The ms that it lies in, and never the next one: what is of the last moment of a day is of that day's window.
        # Not by the class's own -, which of some libraries' datetimes returns what can't be divided so.
        return datetime.__sub__(at, _EPOCH) // _MS
    raise ValueError(
        f"{said} {shown(at)}; return ms since the epoch as an int, or an aware datetime; or say another unit= on the "
        f"input{meant_by(at)}"
    )
