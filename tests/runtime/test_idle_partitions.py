"""Windows and joins over partitions that are idle, come back, end and crash, against the definition, step by step."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch
from runtime.systems.base import END, Append
from samza_dsl import App, collect, dead_letter, hopping, session, sliding, testing, tumbling
from tests.scale import scale

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
    "own": Lasting(merges=False),
    "merging": Lasting(merges=True),
}
LATENESS = 8
"""Of the windows whose name says that late values are allowed."""
KINDS = [*WINDOWS, "late sliding", "inner", "left", "right", "outer"]

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
    numbers = app.input("in", value=int, partitions=2, timestamp=lambda n: n * SECOND, key=lambda n: 0)
    keyed = numbers.partition_by(lambda n: 0, partitions=1, op_id="gathered")
    name = kind.removeprefix("late ")
    if name in WINDOWS:
        how = {"allowed_lateness_ms": LATENESS * SECOND if name != kind else 0, "late": dead_letter("late")}
        found = keyed.window(WINDOWS[name], collect(), op_id="panes", **how)
        told = found.map(lambda pane: sorted(pane.value))
    else:
        sides = keyed.branch(lambda n: "even" if n % 2 == 0 else "odd", into=("even", "odd"))
        within = (LOW * SECOND, HIGH * SECOND)
        how = {"how": kind, "within": within, "late": dead_letter("late"), "op_id": "met"}
        told = sides["even"].join(sides["odd"], lambda one, two: [one, two], **how)
    told.send_to(app.output("out", value=list))
    return app


class EventTime:
    """How far event time has come over two partitions, step by step, and the stamps of what came, in seconds."""

    def __init__(self):
        self.now = 0
        self.reached = MIN_TIMESTAMP
        self.highest = {0: MIN_TIMESTAMP, 1: MIN_TIMESTAMP}
        self.last = {0: 0, 1: 0}
        self.ended = set()
        self.stamped = []

    def step(self, what, number):
        if what == "wait":
            self.now += number
        elif what == "crash":
            self.last = dict.fromkeys(self.last, self.now)
        elif what == "end":
            self.ended.add(number)
        elif what not in self.ended:
            self.stamped.append((number, max(self.highest[what], self.reached)))
            self.highest[what] = max(self.highest[what], number)
            self.last[what] = self.now
        going = {0, 1} - self.ended
        active = [self.highest[one] for one in going if self.now - self.last[one] < IDLE_S]
        idle = [self.highest[one] for one in going if self.now - self.last[one] >= IDLE_S]
        self.reached = max(self.reached, min(active) if active else max(idle) if idle else MAX_TIMESTAMP)


def expected(kind, time):
    """Return what should have come by now, and how many were late for all that they could have been in."""
    if kind in ("tumbling", "hopping", "own"):
        return of_windows(kind, time)
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
            "hopping": [(first - LENGTH, first + LENGTH), (first, first + 2 * LENGTH)],
            "own": [(number, number + 2 + number % 5)],
        }[kind]
        awaited = [window for window in windows if window[1] > stamp]
        late += not awaited
        for window in awaited:
            held.setdefault(window, []).append(number)
    return [sorted(numbers) for (_, end), numbers in held.items() if end <= time.reached], late


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
@settings(max_examples=scale(15, 200, 2_000))
def test_what_is_due_comes_with_event_time_and_once(kind, steps):
    time = EventTime()
    with testing.running(app_of(kind)) as run:
        for what, number in steps:
            if what == "wait":
                run.advance_time(seconds=number)
            elif what == "crash" and not run.ended:
                run.crash()
                run.restart()
            elif what == "end" and number not in time.ended:
                run._process.environment.append([Append("in", number, Batch([]), END)])
                run._process.proceed()
            elif what in (0, 1) and what not in time.ended:
                run.send_bytes("in", str(number).encode(), partition=what)
            time.step(what, number)
            found, late = expected(kind, time)
            assert Counter(map(tuple, run.received("out"))) == Counter(map(tuple, found))
            assert len(run.dead_letters("late")) == late
