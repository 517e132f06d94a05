"""Windows and joins over partitions that are idle, come back, end and crash, against the definition, step by step."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch
from runtime.ports.streams import END, Append
from samza_dsl import (
    App,
    collect,
    counted,
    daily,
    dead_letter,
    hopping,
    session,
    sliding,
    testing,
    tumbling,
    whole,
)
from tests.scale import examples

SECOND = 1_000
IDLE_S = 30
LENGTH, GAP, LOW, HIGH = 10, 7, -6, 4


@dataclass(frozen=True)
class Lasting:
    """As long as a value says."""

    merges: bool

    def assign(self, key, timestamp, value):
        return [(timestamp, timestamp + (2 + value % 5) * SECOND)]


WINDOWS = {
    "tumbling": tumbling(seconds=LENGTH),
    "hopping": hopping(seconds=2 * LENGTH, every_ms=LENGTH * SECOND),
    "session": session(seconds=GAP),
    "sliding": sliding(seconds=LENGTH),
    "daily": daily(),
    "counted": counted(3),
    "whole": whole(),
    "own": Lasting(merges=False),
    "merging": Lasting(merges=True),
}
LATENESS = 8
"""Of the windows whose name says that late values are allowed."""
KINDS = [*WINDOWS, "late sliding", "by windows", "as of then", "inner", "left", "right", "outer"]
UNITS = {"daily": 3_600 * SECOND}
"""What a number is, where it is not seconds."""
DAY = 24
TIMELESS = ("counted", "whole")
"""To which nothing is late."""

steps = st.lists(
    st.tuples(st.sampled_from((0, 1)), st.integers(0, 60))
    | st.tuples(st.just("wait"), st.sampled_from((7, 40)))
    | st.tuples(st.just("crash"), st.just(0))
    | st.tuples(st.just("end"), st.sampled_from((0, 1))),
    max_size=25,
)


def app_of(kind):
    """Return an application that gathers numbers, whose time they are in seconds, after a stage that reads them."""
    app = App("idle")
    unit = UNITS.get(kind, SECOND)
    if kind == "as of then":
        return joining_versions(app)
    numbers = app.input("in", value=int, partitions=2, timestamp=lambda n: n * unit, key=lambda n: 0)
    keyed = numbers.partition_by(lambda n: 0, partitions=1, op_id="gathered")
    name = kind.removeprefix("late ")
    if name in WINDOWS:
        how = {} if name in TIMELESS else {"late": dead_letter("late")}
        how |= {"allowed_lateness_ms": LATENESS * SECOND} if name != kind else {}
        found = keyed.window(WINDOWS[name], collect(), op_id="panes", **how)
        told = found.map(lambda pane: sorted(pane.value))
    else:
        sides = keyed.branch(lambda n: "even" if n % 2 == 0 else "odd", into=("even", "odd"))
        how = {"late": dead_letter("late"), "op_id": "met"}
        if kind == "by windows":
            panes = sides["even"].join_windows(sides["odd"], tumbling(seconds=LENGTH), list_of, **how)
            told = panes.flat_map(lambda pane: pane.value)
        else:
            how |= {"how": kind, "within": (LOW * SECOND, HIGH * SECOND)}
            told = sides["even"].join(sides["odd"], list_of, **how)
    told.send_to(app.output("out", value=list))
    return app


def joining_versions(app):
    """Join numbers with the rows of a table as of their time, that of one partition with that of the other."""
    how = {"value": int, "key": lambda n: 0, "partitions": 1, "timestamp": lambda n: n * SECOND}
    rows = app.table("rows", partitioned_by_key=True, retention_ms=LATENESS * SECOND, **how)
    numbers = app.input("in", partitioned_by_key=True, **how)
    joined = numbers.join(rows, list_of, how="left", late=dead_letter("late"), op_id="met")
    joined.send_to(app.output("out", value=list))
    return app


def list_of(one, two):
    return [one, two]


class EventTime:
    """How far event time has come over two partitions, step by step, and the stamps of what came, in seconds."""

    def __init__(self, fires_late=False):
        self.fires_late = fires_late
        self.now = 0
        self.reached = MIN_TIMESTAMP
        self.highest = {0: MIN_TIMESTAMP, 1: MIN_TIMESTAMP}
        self.last = {0: 0, 1: 0}
        self.ended = set()
        self.stamped = []
        self.sources = []
        """From where each of these came."""

    def step(self, what, number):
        if what == "wait":
            self.now += number
        elif what == "crash":
            self.last = dict.fromkeys(self.last, self.now)
        elif what == "end":
            self.ended.add(number)
        elif what not in self.ended:
            self.stamped.append((number, max(self.highest[what], self.reached)))
            self.sources.append(what)
            self.highest[what] = max(self.highest[what], number)
            self.last[what] = self.now
        going = {0, 1} - self.ended
        active = [self.highest[one] for one in going if self.now - self.last[one] < IDLE_S]
        idle = [self.highest[one] for one in going if self.now - self.last[one] >= IDLE_S]
        self.reached = max(self.reached, min(active) if active else max(idle) if idle else MAX_TIMESTAMP)
        counting = (max(number, stamp) for number, stamp in self.stamped if number >= stamp - LATENESS)
        if self.fires_late and idle and not active and self.reached in counting:
            self.reached += 0.001  # else what waits for just that would wait for the next record


def expected(kind, time):
    """Return what should have come by now, and how many were late for all that they could have been in."""
    if kind in ("tumbling", "hopping", "daily", "own"):
        return of_windows(kind, time)
    if kind in TIMELESS:
        return counted_off(kind, time), 0
    if kind == "by windows":
        panes, late = of_windows("tumbling", time)
        pairs = [[one, two] for pane in panes for one in pane for two in pane if one % 2 == 0 and two % 2 == 1]
        return pairs, late
    if kind == "as of then":
        return as_of_then(time)
    if kind == "late sliding":
        return sliding_again(time)
    in_time = sorted(number for number, stamp in time.stamped if number >= stamp)
    late = len(time.stamped) - len(in_time)
    if kind == "sliding":
        ends = {number for number in in_time if number + 0.001 <= time.reached}
        return [[one for one in in_time if end - LENGTH < one <= end] for end in ends], late
    if kind in WINDOWS:
        return [numbers for numbers, end in merged(kind, in_time) if end <= time.reached], late
    even, odd = ([one for one in in_time if one % 2 == side] for side in (0, 1))
    met = [[one, two] for one in even for two in odd if LOW <= two - one <= HIGH]
    if kind in ("left", "outer"):
        alone = [one for one in even if not any(LOW <= two - one <= HIGH for two in odd)]
        met += [[one, None] for one in alone if one + HIGH + 0.001 <= time.reached]
    if kind in ("right", "outer"):
        alone = [two for two in odd if not any(LOW <= two - one <= HIGH for one in even)]
        met += [[None, two] for two in alone if two - LOW + 0.001 <= time.reached]
    return met, late


def of_windows(kind, time):
    held, late = {}, 0
    for number, stamp in time.stamped:
        first = number // LENGTH * LENGTH
        windows = {
            "tumbling": [(first, first + LENGTH)],
            "daily": [(number // DAY * DAY, number // DAY * DAY + DAY)],
            "hopping": [(first - LENGTH, first + LENGTH), (first, first + 2 * LENGTH)],
            "own": [(number, number + 2 + number % 5)],
        }[kind]
        awaited = [window for window in windows if window[1] > stamp]
        late += not awaited
        for window in awaited:
            held.setdefault(window, []).append(number)
    return [sorted(numbers) for (_, end), numbers in held.items() if end <= time.reached], late


def counted_off(kind, time):
    """Cut what came into threes, or leave it whole; what is not complete comes when all has ended."""
    numbers = [number for number, _ in time.stamped]
    size = 3 if kind == "counted" else max(len(numbers), 1)
    panes = [sorted(numbers[start : start + size]) for start in range(0, len(numbers), size)]
    has_ended = time.reached == MAX_TIMESTAMP
    return [pane for pane in panes if has_ended or (kind == "counted" and len(pane) == size)]


def as_of_then(time):
    """Look, for each message in time, through the versions that are."""
    sides = {0: [], 1: []}
    for source, (number, stamp) in zip(time.sources, time.stamped, strict=True):
        if number >= stamp - (LATENESS if source == 0 else 0):
            sides[source].append(number)
    found = []
    for number in sides[0]:
        if number + 0.001 <= time.reached:
            found.append([number, max((version for version in sides[1] if version <= number), default=None)])
    return found, len(time.stamped) - len(sides[0]) - len(sides[1])


def sliding_again(time):
    known = [(number, max(number, stamp)) for number, stamp in time.stamped if number >= stamp - LATENESS]
    panes = []
    for end in {number for number, _ in known}:
        inside = [(number, counts) for number, counts in known if end - LENGTH < number <= end]
        begins = min(counts for number, counts in inside if number == end)
        for now in {max(counts, begins) for _, counts in inside}:
            if now + 0.001 <= time.reached:
                panes.append(sorted(number for number, counts in inside if counts <= now))
    return panes, len(time.stamped) - len(known)


def place_of(kind, number):
    """Return where the records of one of the two sources lie."""
    return ("in", number) if kind != "as of then" else (("in", "rows")[number], 0)


def merged(kind, numbers):
    """Return what overlaps, and its end."""
    found = []
    for number in numbers:
        end = number + (GAP if kind == "session" else 2 + number % 5)
        if found and number < found[-1][1]:
            found[-1] = [*found[-1][0], number], max(found[-1][1], end)
        else:
            found.append(([number], end))
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(steps)
@example([(1, 5), (0, 5), ("wait", 40), ("crash", 0), (0, 10)])
@example([(0, 0), ("wait", 40), ("crash", 0), (0, 10)])
@example([(0, 1), ("wait", 40), ("end", 0), (1, 0)])
@settings(max_examples=examples(10, 2_000))
def test_what_is_due_comes_with_event_time_and_once(kind, steps):
    time = EventTime(fires_late=kind.startswith("late"))
    committed, told = MIN_TIMESTAMP, 0
    """How far event time had come in the last commit: what was told to no stage, and fired nothing, is in none."""
    with testing.running(app_of(kind)) as run:
        for what, number in steps:
            if what == "wait":
                run.advance_time(seconds=number)
            elif what == "crash" and not run.ended:
                run.crash()
                run.restart()
                if kind == "as of then":
                    time.reached = committed
            elif what == "end" and number not in time.ended:
                run._process.environment.append([Append(*place_of(kind, number), Batch([]), END)])
                run._process.proceed()
            elif what in (0, 1) and what not in time.ended:
                stream, partition = place_of(kind, what)
                run.send_bytes(stream, str(number).encode(), partition=partition)
            time.step(what, number)
            found, late = expected(kind, time)
            assert Counter(map(tuple, run.received("out"))) == Counter(map(tuple, found))
            assert kind in TIMELESS or len(run.dead_letters("late")) == late
            if what in (0, 1) or len(found) > told:
                committed, told = time.reached, len(found)
