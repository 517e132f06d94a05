"""What is folded before the shuffle comes to what a live run comes to, and what can't be so is told."""

from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.combining import combined, why_not_combined
from runtime.errors import OperatorFailure
from runtime.received import values_of
from samza_dsl import App, Options, collect, count, dead_letter, fold, session, skip, total, tumbling, whole
from tests.scale import scale
from tests.simulation.crash import fill, memory, run_once
from tests.spark.combining import Seen, app_of, choices
from tests.spark.shuffling import run_here


def filled(parts):
    environment = memory()
    fill(environment, "seen", [[(None, msgspec.json.encode(seen), seen.at) for seen in part] for part in parts])
    return environment


def numbers_of(run):
    """Return how many messages came to the windows, how many of these were late, and how many panes they made."""
    found = [one for one in run.metrics().operators if one.operator == "windows"]
    return [sum(getattr(one, name) for one in found) for name in ("received", "late", "emitted")]


@given(choices(), st.integers(1, 3), st.integers(0, 999))
@settings(max_examples=scale(100, 1_000, 30_000))
def test_windows_that_are_folded_in_parts_come_to_what_a_live_run_comes_to(one, at_once, seed):
    app, live, other = app_of(one), filled(one.parts), filled(one.parts)
    app.options = Options(batch_records=at_once, max_uncommitted=seed % 7 + 1)
    assert why_not_combined(app.graph(), "by-key") is None
    with patch("operators.window.MOST_HELD", seed % 3):
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
        (windowed(session(seconds=1)), "only windows that lie fixed"),
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


def test_what_more_reads_than_a_window_goes_on_one_by_one():
    app = App("more")
    seen = app.input("seen", value=Seen, timestamp=lambda seen: seen.at)
    keyed = seen.partition_by(lambda seen: seen.key, op_id="by-key")
    keyed.window(tumbling(seconds=1), count()).send_to(app.output("panes"))
    keyed.send_to(app.output("all"))
    assert why_not_combined(app.graph(), "by-key") == "more reads it than one window"
    assert why_not_combined(windowed().graph(), "by-key") is None


def test_functions_that_are_wrapped_are_called_where_they_belong():
    app, other = windowed(aggregation=total(lambda seen: seen.number)), filled([[Seen("a", 0, 1), Seen("a", 1, 2)]])
    called = []
    app.wrap(lambda function, operator: lambda *given: (called.append(operator), function(*given))[1])
    run_here(app, other)
    assert called.count("windows") == 2


@pytest.mark.parametrize(
    ("seen", "app", "told"),
    [
        (Seen(None, 0, 1), windowed(), "windows.*\n*.*a record has no key"),
        (
            Seen("a", 0, None),
            windowed(aggregation=total(lambda seen: seen.number + 1)),
            "windows.*\n*.*unsupported operand",
        ),
        (Seen("a", 0, None), windowed(key=lambda seen: object()), "by-key.*\n*.*object"),
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
