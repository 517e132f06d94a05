"""The plan tells of each operator how Spark runs it; most of those that use plain expressions cost little there."""

import re

import msgspec
import pytest

from benchmarks.programs import PROGRAMS
from operators.aggregations.aggregation import Aggregation
from operators.windows.window import Window
from planner.codegen.inlining import why_called
from planner.columnar.combining import combined
from planner.columnar.spark_ways import WAYS
from runtime.encoding.formats.rows import type_of_rows
from samza_dsl import App, collect, count, session, tumbling
from samza_dsl.cli.plan import on_spark
from tests.spark.combining import ways_of

LEAST = 0.7
"""The share of the operators of the programs that use plain expressions and are native, or folded."""


def test_most_operators_of_whole_programs_that_use_plain_expressions_are_native_or_folded(tmp_path):
    found = []
    for name, program in PROGRAMS.items():
        app = program.pipeline(tmp_path)
        graph = combined(app.graph())
        kinds = {spec.op_id: type_of_rows(spec.value) for spec in graph.flowing}
        for id, words in ways_of(app, **kinds).items():
            assert words.startswith(WAYS), words
            spec = graph.specs[id]
            functions = [one for one in spec.functions().values() if not isinstance(one, Aggregation)]
            functions += spec.aggregation.functions if isinstance(spec, Window) else []
            if (functions or isinstance(spec, Window)) and not any(map(why_called, functions)):
                found.append((name, id, words))
    cheap = [one for one in found if one[2].startswith(("native", "folded"))]
    assert len(cheap) / len(found) >= LEAST, [one for one in found if one not in cheap]
    assert len(found) > 40


class Tick(msgspec.Struct):
    key: str
    at: int


def app_of(make):
    app = App("ways")
    make(app.input("ticks", value=Tick, timestamp=lambda tick: tick.at)).map(repr).send_to(app.output("out"))
    return app


def keyed(ticks):
    return ticks.partition_by(lambda tick: tick.key, op_id="by-key")


def called(tick):
    print(tick)
    return True


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda ticks: keyed(ticks.filter(lambda tick: tick.at > 0, op_id="some")).window(
                tumbling(seconds=1), count(), op_id="counting"
            ),
            {
                "ticks": "native where",
                "some": "native where",
                "by-key": "native where",
                "counting": "folded: it merges",
            },
        ),
        (
            lambda ticks: keyed(ticks.filter(called, op_id="some")).window(tumbling(seconds=1), count()),
            {
                "ticks": "folded: one loop .*called is no expression",
                "some": "called: called: it does more",
                "by-key": "folded: a task sends",
            },
        ),
        (
            lambda ticks: keyed(
                ticks.filter(lambda tick: tick.at > 0, op_id="some").filter(called, op_id="other")
            ).window(session(seconds=1), collect(), op_id="gathering"),
            {
                "ticks": "native where .*the rest is run on records: by-key sends messages one by one",
                "some": "native where",
                "other": "called: called: it does more than return an expression",
                "by-key": "compiled; it sends messages one by one: what parts of the values",
                "gathering": "row by row: ",
            },
        ),
        (lambda ticks: ticks.flat_map(lambda tick: [tick]), {"ticks": "native where .*: flat_map-ticks is no"}),
    ],
)
def test_each_operator_says_how_it_runs_and_why_not_better(make, told):
    found = ways_of(app_of(make), ticks=Tick)
    for id, words in told.items():
        assert re.match(words, found[id]), found[id]


def test_functions_that_are_wrapped_are_never_native():
    app = app_of(lambda ticks: ticks.filter(lambda tick: tick.at > 0))
    app.wrap(lambda function, operator: function)
    assert set(ways_of(app, ticks=Tick).values()) == {
        "row by row: app.wrap(...) is to see each call of a function",
        *(words for words in ways_of(app, ticks=Tick).values() if words.startswith("called")),
    }


def test_what_goes_by_an_order_is_told_with_the_order_that_there_is():
    app = app_of(lambda ticks: keyed(ticks).scan(lambda n, tick: n + tick.at, init=int, op_id="summing"))
    told = on_spark(app.plan({"ticks": 2}), app)
    assert "  by the order in which several tasks, or sides, write: by event time, block by block\n    summing" in told
