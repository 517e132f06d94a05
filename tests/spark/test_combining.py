"""What is folded before the shuffle comes to what a live run comes to, and what can't be so is told."""

import random
from collections import Counter
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.windows.partials import Partials
from operators.windows.window_groups import Slot
from planner.columnar.combining import combined, why_not_combined
from runtime.model.errors import OperatorFailure
from runtime.ports.stream_values import values_of
from runtime.ports.streams import Append, StreamConfig
from runtime.units.shuffle_rows import IN_COLUMNS, PartialsSerde
from samza_dsl import App, Options, collect, count, dead_letter, fold, session, skip, total, tumbling, whole
from tests.scale import examples
from tests.simulation.crash import fill, memory, run_once
from tests.spark.combining import Seen, app_of, choices
from tests.spark.shuffling import run_here
from tests.spark.streaming import StandingClock, one_batch, opened, stream_here


def filled(parts):
    environment = memory()
    fill(environment, "seen", [[(None, msgspec.json.encode(seen), seen.at) for seen in part] for part in parts])
    return environment


def run_all(streamed, seed):
    while (batch := streamed.next()) is not None:
        one_batch(streamed, batch, seed)


def numbers_of(run):
    """Return how many messages came to the windows, how many of these were late, and how many panes they made."""
    found = [one for one in run.metrics().operators if one.operator == "windows"]
    return [sum(getattr(one, name) for one in found) for name in ("received", "late", "emitted")]


@given(choices(), st.integers(1, 3), st.integers(0, 999))
@settings(max_examples=examples(60, 30_000))
def test_windows_that_are_folded_in_parts_come_to_what_a_live_run_comes_to(one, at_once, seed):
    app, live, other = app_of(one), filled(one.parts), filled(one.parts)
    app.options = Options(batch_records=at_once, max_uncommitted=seed % 7 + 1)
    assert why_not_combined(app.graph(), "by-key") is None
    with patch("operators.windows.window.MOST_HELD", seed % 3):
        run = run_here(app, other, seed=seed)
    expected = run_once(app, live)
    assert sorted(values_of(other, "panes", None)) == sorted(values_of(live, "panes", None))
    assert numbers_of(run) == numbers_of(expected)


SECONDS, COUNT = tumbling(seconds=1), count()


def windowed(windows=SECONDS, aggregation=COUNT, by=None, key=lambda seen: seen.key, **how):
    app = App("windowed")
    seen = app.input("seen", value=Seen, timestamp=lambda seen: seen.at)
    keyed = seen.partition_by(key, op_id="by-key", **({"by": by} if by else {}))
    keyed.window(windows, aggregation, op_id="windows", **how).map(repr).send_to(app.output("panes", value=str))
    return app


class Opened:
    def open(self, context):
        self.factor = 2

    def __call__(self, seen):
        return seen.number * self.factor


LATE = {"allowed_lateness_ms": 5}


@pytest.mark.parametrize(
    ("app", "why"),
    [
        (windowed(session(seconds=1), **LATE), "only windows that lie fixed"),
        (windowed(session(seconds=1), late=dead_letter("late")), "windows tells of single values"),
        (windowed(panes="retracting", **LATE), "only windows that lie fixed"),
        (windowed(aggregation=collect()), "what parts of the values come to in collect is not known to merge"),
        (windowed(aggregation=fold(int, lambda a, b: a, lambda a, b: a)), "fold is not known to merge"),
        (windowed(aggregation=total(lambda seen: seen.number), **LATE), "values that come late are kept"),
        (windowed(late=dead_letter("late")), "windows tells of single values"),
        (windowed(on_error=skip), "windows tells of single values"),
        (windowed(by=lambda key, partitions: 0), "a function of yours chooses the partition"),
        (windowed(aggregation=total(Opened())), "has an object of yours"),
    ],
)
def test_what_is_not_known_to_be_the_same_goes_on_one_by_one(app, why):
    assert why in why_not_combined(app.graph(), "by-key")
    graph = app.graph()
    assert combined(graph).specs == graph.specs


def test_sessions_go_on_one_by_one_where_a_run_goes_on():
    graph = windowed(session(seconds=1)).graph()
    assert why_not_combined(graph, "by-key") is None
    assert "an idle input's values may be late one by one" in why_not_combined(graph, "by-key", goes_on=True)
    assert combined(graph, goes_on=True).specs == graph.specs


def test_what_more_reads_than_a_window_goes_on_one_by_one():
    app = App("more")
    seen = app.input("seen", value=Seen, timestamp=lambda seen: seen.at)
    keyed = seen.partition_by(lambda seen: seen.key, op_id="by-key")
    keyed.window(tumbling(seconds=1), count()).send_to(app.output("panes"))
    keyed.send_to(app.output("all"))
    assert why_not_combined(app.graph(), "by-key") == "more reads it than one window"
    assert why_not_combined(windowed().graph(), "by-key") is None


@given(choices(), st.integers(0, 999))
@settings(max_examples=examples(30, 5_000))
def test_functions_that_are_wrapped_are_those_of_their_operators(one, seed):
    calls = []
    for run in (lambda app, environment: run_here(app, environment, seed=seed), run_once):
        app, environment, called = app_of(one), filled(one.parts), Counter()
        app.wrap(
            lambda function, operator, called=called: lambda *given: (called.update([operator]), function(*given))[1]
        )
        run(app, environment)
        calls.append((sorted(values_of(environment, "panes", None)), set(called)))
    assert calls[0] == calls[1]


def test_functions_that_are_wrapped_are_called_once_for_each_value():
    app, other = windowed(aggregation=total(lambda seen: seen.number)), filled([[Seen("a", 0, 1), Seen("a", 1, 2)]])
    called = []
    app.wrap(lambda function, operator: lambda *given: (called.append(operator), function(*given))[1])
    run_here(app, other)
    assert called.count("windows") == 2


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("checkpoint")


@given(choices(), st.integers(0, 999))
@settings(max_examples=examples(16, 5_000))
def test_windows_that_are_folded_in_parts_go_on_through_micro_batches(directories, one, seed):
    live, other = filled(one.parts), filled(one.parts)
    with patch("operators.windows.window.MOST_HELD", seed % 3):
        stream_here(lambda: app_of(one), other, directories(), seed=seed)
    run_once(app_of(one), live)
    assert sorted(values_of(other, "panes", None)) == sorted(values_of(live, "panes", None))


@given(choices(), st.integers(0, 999))
@settings(max_examples=examples(10, 5_000))
def test_what_an_idle_input_sends_later_is_late_where_windows_are_folded_in_parts_too(directories, one, seed):
    found = []
    for graph_of in (combined, lambda graph, goes_on: graph):
        environment, clock, directory, chance = memory(), StandingClock(), directories(), random.Random(seed)
        environment.create_stream("seen", StreamConfig(partitions=len(one.parts)))
        rows = [[msgspec.json.encode(seen) for seen in part] for part in one.parts]
        with (
            patch("tests.spark.streaming.LoopClock", lambda start_ms, clock=clock: clock),
            patch("runtime.units.driver.micro_batch_application.combined", graph_of),
        ):
            running = opened(app_of(one), environment, directory, clock=clock)
            while any(rows):
                clock.ms += chance.choice([0, 10_000, 31_000])
                for number, part in enumerate(rows):
                    more = chance.choice([0, 0, 1, 3])
                    environment.append([Append("seen", number, Batch(part[:more]))] if part[:more] else [])
                    del part[:more]
                run_all(running, seed)
            running.close()
            run_all(opened(app_of(one), environment, directory, clock=clock, ends=True), seed)
        found.append(sorted(values_of(environment, "panes", None)))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("seen", "app", "told"),
    [
        (Seen(None, 0, 1), windowed(), "^window 'windows' at .*a record has no key"),
        (
            Seen("a", 0, None),
            windowed(aggregation=total(lambda seen: seen.number + 1)),
            "^window 'windows' at .*unsupported operand",
        ),
        (Seen("a", 0, None), windowed(key=lambda seen: object()), "^partition_by 'by-key' at .*object"),
    ],
)
def test_what_fails_is_told_of_its_operator(seen, app, told):
    with pytest.raises(OperatorFailure, match=told):
        run_here(app, filled([[seen]]))


def untimed(windows):
    app = App("untimed")
    keyed = app.input("seen", value=str).partition_by(lambda seen: seen, op_id="by-key")
    panes = keyed.window(windows, count(), op_id="windows")
    panes.map(lambda pane: f"{pane.key} {pane.value}").send_to(app.output("panes", value=str))
    return app


def test_records_without_a_time_are_folded_where_no_window_asks_for_it(tmp_path):
    (tmp_path / "seen.jsonl").write_text('"a"\n"b"\n"a"\n')
    environment = memory()
    run_here(untimed(whole()), environment, {"seen": tmp_path / "seen.jsonl"})
    assert sorted(values_of(environment, "panes", None)) == [b"a 2", b"b 1"]
    with pytest.raises(OperatorFailure, match="the records have no timestamps"):
        run_here(untimed(SECONDS), memory(), {"seen": tmp_path / "seen.jsonl"})


scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=3)
accumulators = st.recursive(
    scalars, lambda parts: st.lists(parts, max_size=3) | st.lists(parts, max_size=4).map(tuple), max_leaves=8
)
columns = st.lists(accumulators, max_size=5) | st.lists(
    st.tuples(st.integers(), st.tuples(st.floats(allow_nan=False), st.text(max_size=2))), max_size=5
)


@given(columns, st.lists(scalars | st.tuples(st.text(max_size=2)), min_size=5, max_size=5))
def test_partial_results_come_out_of_the_shuffle_as_they_went_in(found, keys):
    partials = Partials([Slot(10, 0, 10), Slot(12, 2, 12)], keys[: len(found)], found, len(found), 3)
    read = PartialsSerde().decode(PartialsSerde().encode(partials))
    assert repr(read) == repr(partials), "types are to come back as well, and not only what is equal"


def test_accumulators_of_one_shape_lie_in_columns():
    mean = [(2, 0, 1, 0, 0, 0, 0.5), (3, 0, 2, 0, 0, 0, 0.5, 1e-20)]
    for found in ([1, 2], mean, [(1, (2, "a")), (2, (3, "b"))]):
        data = PartialsSerde().encode(Partials([Slot(10, 0, 10)], ["a", "b"], found, 2))
        assert data.startswith(IN_COLUMNS)
