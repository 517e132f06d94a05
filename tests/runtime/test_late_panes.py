"""Late values within the allowed lateness, end to end: which pane they are in is decided at their source."""

from collections import defaultdict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import App, Options, Pane, collect, count, dead_letter, hopping, tumbling
from samza_dsl.testing import Record, run
from tests.runtime.test_event_time import crashes, numbers_in
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through
from tests.strategies import Event, records, stored

SIZE_MS, EVERY_MS = 50, 25
LOWEST = -(2**62)


def stamped(parts, disorder):
    """Yield each record with its source partition and its stamp."""
    for number, part in enumerate(parts):
        watermark = LOWEST
        for event in part:
            yield number, event, watermark
            watermark = max(watermark, event.at - disorder)


def expected(parts, disorder, lateness, panes, repartitioned):
    """Return what panes there are, and how many records are late for all of their windows."""
    groups, dropped = defaultdict(lambda: defaultdict(list)), 0
    for number, event, stamp in stamped(parts, disorder):
        ends = [end for end in range(-1_000, 2_000, EVERY_MS) if end - SIZE_MS <= event.at < end]
        taken = [end for end in ends if stamp < end + lateness]
        for end in taken:
            place = None if repartitioned else number, event.key, end
            groups[place][max(stamp, end - 1)].append(event.number)
        dropped += not taken
    found = []
    for (_, key, end), by_stamp in groups.items():
        so_far = []
        for index, stamp in enumerate(sorted(by_stamp)):
            so_far = [*so_far, *by_stamp[stamp]] if panes == "accumulating" else by_stamp[stamp]
            found.append([key, end - SIZE_MS, index, "on_time" if stamp < end else "late", sorted(so_far)])
    return sorted(found, key=repr), dropped


@given(
    records(2),
    crashes,
    st.integers(0, 60),
    st.sampled_from((1, 3, 2_000)),
    st.booleans(),
    st.sampled_from((0, 1, 30, 500)),
    st.sampled_from(("accumulating", "discarding")),
)
@settings(max_examples=examples(80, 20_000))
def test_panes_are_those_of_the_stamps(parts, crashes, disorder, batch_records, repartition, lateness, panes):
    def app():
        app = App("late", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
        stream = app.input("in", value=Event, key=lambda e: e.key, **how)
        if repartition:
            stream = stream.partition_by(lambda event: event.key, partitions=3)
        windows = hopping(milliseconds=SIZE_MS, every_ms=EVERY_MS)
        how = {"allowed_lateness_ms": lateness, "panes": panes, "late": dead_letter("late")}
        fired = stream.window(windows, collect(), **how)
        told = fired.map(lambda p: [p.key, p.start, p.index, p.timing, sorted(event.number for event in p.value)])
        told.send_to(app.output("out", value=list))
        return app

    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes)
    found, dropped = expected(parts, disorder, lateness, panes, repartition)
    assert sorted(numbers_in(environment), key=repr) == found
    assert sum(len(part) for part in rows_of(environment, "late")) == dropped
    assert environment.state_stats("late") == {}, "nothing is kept once all inputs have ended"


def counting(**how):
    app = App("counting")
    visits = app.input("visits", value=int, key=str, max_disorder_ms=0)
    panes = visits.window(tumbling(milliseconds=10), count(), op_id="visits-counted", **how)
    panes.send_to(app.output("counts", value=Pane[str, int]))
    return app


LATE = [Record(1, "a", 1), Record(1, "a", 15), Record(1, "a", 2), Record(1, "a", 3), Record(1, "a", 99)]


def test_a_late_value_makes_a_pane_of_its_own_that_says_so():
    counts = run(counting(allowed_lateness_ms=10), {"visits": LATE})["counts"]
    shown = [(pane.start, pane.value, pane.index, pane.timing) for pane in counts]
    assert shown[:2] == [(0, 1, 0, "on_time"), (0, 3, 1, "late")], "2 and 3 have one stamp, and so one pane"


def test_discarding_panes_have_what_came_since_the_last():
    counts = run(counting(allowed_lateness_ms=10, panes="discarding"), {"visits": LATE})["counts"]
    assert [(pane.start, pane.value) for pane in counts][:2] == [(0, 1), (0, 2)]


def test_a_pane_of_the_first_firing_is_stored_without_its_number():
    counts = run(counting(), {"visits": LATE[:1]})["counts"]
    assert msgspec.json.encode(counts[0]) == b'{"key":"a","start":0,"end":10,"value":1}'


@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        ({"allowed_lateness_ms": -1}, "allowed_lateness_ms=-1 is not a whole number of at least 0"),
        ({"allowed_lateness_ms": 1.5}, "allowed_lateness_ms=1.5 is not a whole number"),
        ({"panes": "newest"}, "panes='newest' is not what panes can be"),
    ],
)
def test_mistakes_are_told(how, wrong):
    with pytest.raises(Exception, match=wrong):
        counting(**how)
