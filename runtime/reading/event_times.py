"""Judges the event times of a source partition: in another unit, too far ahead of the clock, or far from the last."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, islice
from numbers import Integral, Real
from operator import sub
from typing import NamedTuple

from operators.core.base import MIN_TIMESTAMP
from operators.core.durations import FIRST_REAL_MS, FIRST_REAL_S, LAST_REAL_S
from operators.io import Input
from planner.model.errors import refuse
from runtime.model.clock import Clock, utc
from runtime.model.errors import command

DAY_MS = 86_400_000
FAR_MS = 300_000
"""The ms by which one record has to move event time before those that follow it are looked at."""
FOLLOWING, BEHIND = 10, 5
"""The records that are looked at after such a one, and those of them that make it a jump as they lie behind it."""
SPARSE = 5
"""The records of a batch that each move event time far, from which on its stream is taken to go so."""
MISPLACED_MS = LAST_REAL_S
"""The ms below which times of the first weeks of 1970 are those of our time in a larger unit, or a 0 that is none."""
CALENDAR = (
    (2001_01_01, 2099_12_31),
    (2001_01_01_00_00, 2099_12_31_23_59),
    (2001_01_01_00_00_00, 2099_12_31_23_59_59),
)
"""Days, minutes and seconds of the calendar as numbers: 20250615 is a day. As ms they are 1970, 1976 and after 2600."""
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
IF_MEANT = "unit='ms' on the input, if such ms are meant"
NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}

LOOKED_AT = 16
"""The times of a batch, about, that are looked at for another unit once that of the first is known."""
AHEAD_MS = (3_600_000, 600_000)
"""The limits that are proposed for records from clocks that are ahead: the first that is at most half of that."""

COUNTED = {"days": 86_400, "hours": 3_600, "minutes": 60}
"""Other counts since 1970, with their seconds. They are told, not refused: as ms a test may mean 20_000 to 40_000."""

_log = logging.getLogger("samza_dsl")


class Misread(NamedTuple):
    """Times that are probably no ms: what they are taken as and probably are, and what to write in their place."""

    wrong: str
    instead: str


class Rise(NamedTuple):
    """The event time (ms) that a batch's first record has reached, and the most ms by which a later one moves it."""

    first: int
    most_ms: int


def rise_of(times: Sequence[int], highest: int) -> Rise | None:
    """Return how records move event time, which their source has had up to the `highest` time; None without any.

    >>> rise_of([3, 7, 5, 16], 5)
    Rise(first=5, most_ms=9)
    """
    reached = [*accumulate(times, max, initial=highest)][1:]
    return Rise(reached[0], max(map(sub, reached[1:], reached), default=0)) if reached else None


def may_be_misread(lowest: int, highest: int, unit: str = "ms") -> bool:
    """Whether numbers in a unit lie where those of a smaller one do for our time, or days written as one number.

    >>> may_be_misread(1_750_000_000, 1_750_000_300), may_be_misread(20250615, 20250616), may_be_misread(0, 5_000)
    (True, True, False)
    >>> may_be_misread(1_750_000_000_000, 1_750_000_000_000, "us")
    True
    """
    return _unit_of(lowest, highest, unit) is not None or any(
        least <= lowest and highest <= most for least, most in CALENDAR
    )


def _unit_of(lowest: int, highest: int, unit: str) -> str | None:
    """Return the unit in which numbers are of our time that are taken in a smaller one."""
    for other, per_second in PER_SECOND.items():
        if other == unit:
            break
        if FIRST_REAL_S * per_second <= lowest and highest < LAST_REAL_S * per_second:
            return other
    return None


def misread(times: Sequence[int], unit: str = "ms") -> Misread | None:
    """Return as what numbers were probably meant that are taken in a unit, with the words of an error; else None.

    >>> misread([1_750_000_000]).wrong
    '1_750_000_000, which as ms is 1970-01-21 06:06:40, and as seconds 2025-06-15 15:06:40'
    >>> misread([1_750_000_000_000], "us").instead
    "unit='ms'"
    >>> misread([20250615, 20250616]).wrong, misread([20250615, 20250699])
    ('20_250_615, which as ms is 1970-01-01 05:37:30.615, and as a date 2025-06-15 00:00:00', None)
    """
    lowest, highest = min(times), max(times)
    if not may_be_misread(lowest, highest, unit):
        return None
    first = times[0]
    taken = f"{first:_}, which as {_name(unit)} is {_shown_in(first, unit)}"
    if (meant := _unit_of(lowest, highest, unit)) is not None:
        return Misread(f"{taken}, and as {NAMES[meant]} {_shown_in(first, meant)}", f"unit={meant!r}")
    # A number of ms that only happens to lie there is, among some of them, soon one without such a month or hour.
    dates = [_date_of(at) for at in {*times}]
    if None in dates:
        return None
    as_date = f"{taken}, and as a date {_date_of(first)}"
    return Misread(as_date, "an aware datetime as what timestamp= returns, datetime.strptime(...).replace(tzinfo=UTC)")


def as_given(times: Sequence[int], unit: str) -> list[int]:
    """Return times in ms as numbers of a unit.

    >>> as_given([1_500], "us")
    [1500000]
    """
    return [at * PER_SECOND[unit] // 1_000 for at in times]


def _name(unit: str) -> str:
    return unit if unit == "ms" else NAMES[unit]


def _shown_in(number: int, unit: str) -> str:
    return utc(number * 1_000 // PER_SECOND[unit])


def _date_of(number: int) -> datetime | None:
    """Return the day, or the day and time, that a number reads as from left to right."""
    digits = str(number)
    try:
        return datetime.strptime(digits, "%Y%m%d%H%M%S"[: len(digits) - 2])
    except ValueError:
        return None


def _counted(times: Sequence[int]) -> str:
    """Return as what the first of some numbers of 1970 is one of ours, "days" or less; "" where it is no such number.

    >>> _counted([20_254, 20_255]), _counted([29_166_666]), _counted([0, 20_254])
    ('as days since 1970 it is 2025-06-15 00:00:00', 'as minutes since 1970 it is 2025-06-15 15:06:00', '')
    """
    lowest, highest = min(times), max(times)
    for name, seconds in COUNTED.items():
        if lowest * seconds >= FIRST_REAL_S and highest * seconds < LAST_REAL_S:
            return f"as {name} since 1970 it is {utc(times[0] * seconds * 1_000)}"
    return ""


def meant_by(at: object) -> str:
    """Return what a number probably is that is no time in the unit it was taken in, as a hint; "" where nobody knows.

    >>> meant_by(1_750_000_000_000_000)
    "; as microseconds it is 2025-06-15 15:06:40: unit='us' on the input"
    """
    if not isinstance(at, Real) or isinstance(at, bool):
        return ""
    number = int(at) if isinstance(at, Integral) else float(at)  # those of NumPy overflow
    for unit, per_second in PER_SECOND.items():
        if FIRST_REAL_S * per_second <= number < LAST_REAL_S * per_second:
            shown = utc(int(number * 1_000 // per_second))
            return f"; as {NAMES[unit]} it is {shown}: unit={unit!r} on the input"
    return ""


@dataclass
class Jump:
    """A record that alone moved event time far, and those that came next: looked at, and far behind it."""

    before: int
    after: int
    offset: int | None
    following: int = 0
    behind: int = 0
    is_first: bool = False
    """Whether it is the first of all: where event time was before, those that come next say."""


class EventTimes:
    """Judges the event times of one source partition; its task's thread alone uses it.

    `jumps` counts the records of which each alone moved event time by more than a day, and so that something may be
    late, or by minutes or hours where most that came next lay behind it, by more than the `lateness_ms` that all of the
    plan allows. The first of a stream, in this process, is told in the log, and in `warning`.
    """

    def __init__(
        self,
        spec: Input,
        app: str,
        place: tuple[str, int],
        clock: Clock,
        told: set[str],
        lateness_ms: int = 0,
    ) -> None:
        self.jumps = 0
        self.warning = ""
        self._spec, self._app, self._clock, self._told = spec, app, clock, told
        """The options of a command about the environment."""
        self._stream, self._partition = place
        self._unit = spec.unit or "ms"
        self._unit_is_known = False
        self._is_of_our_time = self._is_misplaced_told = False
        """Whether some time is of our time as it was taken, and whether one of early 1970 among such was told."""
        self._lateness_ms = lateness_ms
        self._far_ms = self._most_ms = FAR_MS
        """The ms by which a record, and a batch, has to move event time before what they do is looked at."""
        self._pauses = 0
        """The records that moved event time far, and that others went on from."""
        self._jump: Jump | None = None
        """The newest record that moved event time far, while those that follow it are looked at."""

    @property
    def is_limited(self) -> bool:
        """Whether a record may be too far ahead."""
        return self._spec.max_ahead_ms is not None

    def are_unusual(self, highest: int, first: int, after: int) -> bool:
        """Whether the records of a batch are to be looked at one by one.

        Given is its highest time, and the watermarks before it, or where there was none after its first record, and
        after its last.
        """
        self._is_of_our_time = self._is_of_our_time or highest >= FIRST_REAL_MS
        return self._jump is not None or self._is_doubtful(highest) or after - first > self._most_ms

    def are_of_history(self, highest: int, before: int, rise: Rise | None) -> bool:
        """Whether records move event time far only as they are many: none does by itself, and no time is doubtful.

        Given is their highest time, the highest before them, and how they move it; None where that is not known.
        """
        if rise is None or self._jump is not None or self._is_doubtful(highest):
            return False
        if max(rise.most_ms, rise.first - before) > self._far_ms:
            return False
        self._most_ms = max(self._most_ms, 2 * (highest - before))
        return True

    def _is_doubtful(self, highest: int) -> bool:
        if not self._unit_is_known:
            (number,) = as_given([highest], self._unit)
            if may_be_misread(number, number, self._unit) or _counted([number]):
                return True
            # What tells another unit tells it of the highest of some times, too. So it is known by the first ones, as
            # where these are read one by one: of those that come later some are ever like numbers of another unit.
            self._unit_is_known = highest > 0 or self._clock.now_ms() < FIRST_REAL_MS
        return self._is_ahead(highest)

    def _steps(self, stamps: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the watermarks before each record and after it; of the first record of all from where it begins."""
        first = stamps[0] if stamps[0] > MIN_TIMESTAMP else self.begun(stamps[1])
        return [first, *islice(stamps, 1, len(stamps) - 1)], [*islice(stamps, 1, len(stamps))]

    def check_unit(self, times: Sequence[int]) -> None:
        """Look at the first times that come; raises PlanError where these are probably of another unit, or dates.

        Of those that come later some are looked at: what is of a larger unit from there on is told.
        """
        if not times:
            return
        if not self._is_of_our_time:
            some = times if not self._unit_is_known else (*times[:: max(len(times) // LOOKED_AT, 1)], times[-1])
            self._is_of_our_time = max(some) >= FIRST_REAL_MS
        # Of all of them, in C: one among thousands is late, and nobody would know why. One that becomes smaller moves
        # event time far, which `too_far` and `note` tell.
        if self._is_of_our_time and not self._is_misplaced_told and self.is_misplaced(lowest := min(times)):
            self._tell_misplaced(lowest)
        if self._unit_is_known:
            return
        # A 0 or -1 stands for no time, but in tests: what the unit is, those that come with it say, or after it.
        is_a_tests = self._clock.now_ms() < FIRST_REAL_MS
        if not is_a_tests and not (times := [at for at in times if at > 0]):
            return
        self._unit_is_known = True
        if self._spec.timestamp_of is None and is_a_tests:
            return  # a test's clock gave the records their times
        by = "timestamp= returned" if self._spec.timestamp_of is not None else "the records' own times begin with"
        numbers = as_given(times, self._unit)
        if (found := misread(numbers, self._unit)) is not None:
            self._refuse(by, found, is_a_tests)
        elif not is_a_tests and self._spec.unit != "ms" and (guess := _counted(numbers)):
            at = numbers[0]
            wrong = f"{by} {at:_}, which as {_name(self._unit)} is {utc(times[0])}; {guess}"
            meant = "" if self._spec.unit is not None else f"; or say {IF_MEANT}"
            self._warn(f"{wrong}. Return {_name(self._unit)}{meant}")

    def is_misplaced(self, at: int) -> bool:
        """Whether a time (ms) is of the first weeks of 1970, where those of a larger unit are, by others of our time.

        It is False where that was told.
        """
        return self._is_of_our_time and not self._is_misplaced_told and -DAY_MS <= at < MISPLACED_MS

    def _tell_misplaced(self, at: int) -> None:
        """Tell a time (ms) that is probably in a larger unit, or stands for none: as what it is, its record is late."""
        self._is_misplaced_told = True
        by = "timestamp= returned" if self._spec.timestamp_of is not None else "the time of a record is"
        found = misread(as_given([at], self._unit), self._unit)
        what = f"{at:_}, which as ms is {utc(at)}" if found is None else found.wrong
        others = f"other times are of our time in {NAMES[self._unit]}"
        self._warn(
            f"{by} {what}, and {others}: what is of another unit, or of none, is late. Have timestamp= return one unit "
            "for all, or raise, so that such a record meets on_error=",
            f"{self._stream}, misplaced",
        )

    def _refuse(self, by: str, found: Misread, is_a_tests: bool) -> None:
        """Raise PlanError for times that are probably of another unit; a warning does where ms are what was said."""
        unit = self._spec.unit
        if unit is None:
            raise refuse(self._spec, f"{by} {found.wrong}", f"{found.instead}; or {IF_MEANT}")
        if unit != "ms":
            raise refuse(self._spec, f"{by} {found.wrong}", f"{found.instead} in the place of unit={unit!r}")
        if not is_a_tests:
            self._warn(f"{by} {found.wrong}. If these are not ms, write {found.instead} in the place of unit='ms'")

    def check_told(self, told: Sequence[int | None]) -> None:
        """Look at how far records say that event time has come; raises PlanError where that is of another unit."""
        known = as_given([at for at in told if at is not None], self._unit)
        if known and (found := misread(known, self._unit)) is not None:
            self._refuse("watermark= returned", found, self._clock.now_ms() < FIRST_REAL_MS)

    def too_far(self, times: Sequence[int | None]) -> dict[int, Exception]:
        """Return, by row, what is wrong with times that are too far ahead of the clock."""
        known = [at for at in times if at is not None]
        if not known or not self._is_ahead(max(known)):
            return {}
        now, most = self._clock.now_ms(), self._spec.max_ahead_ms or 0
        clock = f"the clock, which is {utc(now)}" + (
            " (a test's begins at its start_ms=)" if now < FIRST_REAL_MS else ""
        )
        return {
            row: ValueError(f"its event time {utc(at)} is more than max_ahead_ms={most:_} ahead of {clock}")
            for row, at in enumerate(times)
            if at is not None and at - now > most
        }

    def note(self, stamps: Sequence[int], offsets: Sequence[int] | None, times: Sequence[int | None] = ()) -> None:
        """Note which records alone moved event time far, given the watermark before each and after the last."""
        if len(stamps) < 2:
            return
        if self._jump is not None:
            self._follow(self._jump, times)
        first = stamps[0] if stamps[0] > MIN_TIMESTAMP else self.begun(stamps[1])
        # One that is ahead of the clock moves event time from there, as any other does.
        if times and stamps[0] == MIN_TIMESTAMP and first == stamps[1]:
            self._jump = Jump(first - 2 * FAR_MS, first, None if offsets is None else offsets[0], is_first=True)
            self._follow(self._jump, times[1:])
        moved_ms = stamps[-1] - first
        if moved_ms <= self._most_ms:
            return
        before, after = self._steps(stamps)
        # In C over the whole batch first: the rows are looked for one by one only where one of them really
        # jumped.
        if max(map(sub, after, before)) <= self._far_ms:
            self._most_ms = 2 * moved_ms  # a history of which each batch is long: to look at all of it takes time
            return
        steps = [*map(sub, after, before)]
        far = [row for row, step in enumerate(steps) if step > self._far_ms]
        jumps = [Jump(before[row], after[row], None if offsets is None else offsets[row]) for row in far]
        # What lies within the disorder that the input takes, and the lateness of all below, makes nothing late.
        most_ms = max(DAY_MS, self._spec.max_disorder_ms + self._lateness_ms)
        if days := [jump for jump in jumps if jump.after - jump.before > most_ms]:
            self.jumps += len(days)
            self._tell(days[0])
        if len(far) > SPARSE:
            # Its records are so far apart: none is a jump that moves event time as far as others do.
            self._note_sparse(max((step for step in steps if step <= DAY_MS), default=DAY_MS))
            self._most_ms = max(self._most_ms, 2 * moved_ms)
            return
        for row, jump in zip(far, jumps, strict=True):
            if jump.after - jump.before <= most_ms:
                self._jump = jump
                self._follow(jump, times[row + 1 :])

    def _follow(self, jump: Jump, times: Sequence[int | None]) -> None:
        """Look at the records after one that moved event time far, and tell it where most go on from before it."""
        disorder_ms = self._spec.max_disorder_ms
        middle = (jump.after - FAR_MS if jump.is_first else (jump.before + jump.after) // 2) + disorder_ms
        for at in times:
            if at is None:
                continue
            jump.following += 1
            if at < min(middle, jump.after - self._lateness_ms):
                jump.behind += 1
                if jump.is_first:
                    jump.before = at - disorder_ms if jump.behind == 1 else max(jump.before, at - disorder_ms)
            if jump.behind == BEHIND:
                self.jumps += 1
                self._tell(jump)
            if jump.behind == BEHIND or jump.following == FOLLOWING:
                self._jump = None
                self._pauses += jump.behind < BEHIND and not jump.is_first
                if self._pauses > SPARSE:
                    # Whoever rests each night would have all of its batches looked at, record by record.
                    self._note_sparse(jump.after - jump.before)
                return

    def _note_sparse(self, step_ms: int) -> None:
        """Take note that event time moves so far as a rule."""
        self._far_ms = min(max(self._far_ms, 2 * step_ms), DAY_MS)

    def may_be_told(self, before: int, told: int) -> bool:
        """Whether a producer's own word for how far event time is holds; one that jumps is noted like a record."""
        if self._is_ahead(told):
            self.jumps += 1
            most = f"max_ahead_ms={self._spec.max_ahead_ms:_} ahead of the clock, and is not heeded"
            self._warn(f"its producer says that event time has come to {utc(told)}, which is more than {most}")
            return False
        self.note([before, told], None)
        return True

    def _is_ahead(self, at: int) -> bool:
        most = self._spec.max_ahead_ms
        return most is not None and at - self._clock.now_ms() > most

    def begun(self, first: int) -> int:
        """Return from where the first record of all moves event time: from the clock where it is ahead of that."""
        now = self._clock.now_ms()
        return now if FIRST_REAL_MS <= now < first else first

    def _tell(self, jump: Jump) -> None:
        place = f"{self._stream}/{self._partition} at {jump.offset}"
        where = f"one record, {place}," if jump.offset is not None else "its producer"
        moved = f"moved event time from {utc(jump.before)} to {utc(jump.after)}"
        if jump.is_first:
            where = f"the first record, {place}," if jump.offset is not None else "the first record"
            moved = f"began event time with {utc(jump.after)}"
        behind = f", and {jump.behind} of the {jump.following} that came next lie before that" if jump.behind else ""
        if jump.is_first:
            behind += f", up to {utc(jump.before + self._spec.max_disorder_ms)}"
        ahead_ms = next((one for one in AHEAD_MS if 2 * one <= jump.after - jump.before), FAR_MS // 2)
        takes_none = f"max_ahead_ms={ahead_ms:_} on the input takes no such record"
        if jump.after + self._spec.max_disorder_ms <= self._clock.now_ms():
            # Of a history: what was ahead when it was written is behind the clock of today.
            takes_none = "a timestamp= that raises for such a record has it meet on_error="
        before = str(utc(jump.before))
        self._warn(
            f"{where} {moved}{behind}. If its clock is ahead, all that follows is late: {takes_none}, and "
            f"{command(f'checkpoint set {self._app} {self._stream}:{self._partition} --watermark {before!r}')} sets "
            "event time back"
        )

    def _warn(self, what: str, mark: str = "") -> None:
        """Tell once for each stream in this process, or for each `mark`."""
        mark = mark or self._stream
        # A stream with a wrong clock has thousands of such records, and one line in the log tells as much. The
        # metric counts all of them.
        if mark in self._told:
            return
        self._told.add(mark)
        self.warning = (
            f"{self._spec.kind} {self._spec.op_id!r} at {self._spec.site}: {what}. Told once for {self._stream!r}"
        )
        if self.jumps:
            self.warning += "; metrics count all as jumps"
        _log.warning("%s", self.warning)


@dataclass(frozen=True)
class Pacing:
    """The options of an input for event time: its disorder, when a partition is idle, and how far it may be ahead."""

    max_disorder_ms: int = 0
    idle_after_ms: int | None = None
    close_on_idle: bool = False
    max_drift_ms: int | None = None
    times: EventTimes | None = None
    """The judge of event times in this partition, where an input has one."""


UNPACED = Pacing()
"""Nothing is said of event time."""
