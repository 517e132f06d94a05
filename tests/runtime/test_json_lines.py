"""JSON lines that are encoded many at once are what they are one by one, whatever they hold."""

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.base import Batch
from runtime.errors import OperatorFailure, SerdeError
from runtime.exits import SendToExit
from runtime.keys import KeySerde
from runtime.outputs import Destination, Outputs
from runtime.serdes import Json
from runtime.systems import jsonl
from runtime.systems.lists import ListSource
from samza_dsl import App, Options, dead_letter, fail, skip
from tests.scale import scale
from tests.simulation.crash import memory, rows_of, run_once


class Row(msgspec.Struct):
    n: int
    text: str = ""


def outcome(app, directory, bind):
    """Return all that is to be seen of a run: what it wrote, counted and said."""
    environment, out, said = memory(), directory / "out.jsonl", ""
    metrics: Any = ()
    try:
        run = run_once(app, environment, bind={"out": out, **bind})
    except OperatorFailure as failure:
        said = str(failure)
    except SerdeError as error:
        said = str(error)
    else:
        numbers = [
            (one.operator, one.received, one.emitted, one.skipped, one.dead_lettered) for one in run.metrics().operators
        ]
        metrics = (run.metrics().commits, numbers)
    written = out.read_bytes() if out.exists() else None
    out.unlink(missing_ok=True)
    return written, rows_of(environment, "bad"), metrics, said


POLICIES = st.sampled_from([fail, skip, dead_letter("bad")])


MADE = [1, "a", "a\nb", None, [1], {"a": 1}, 2.5, Row(1), {1, 2}]
REFUSED = [object(), 2**70, "\ud800", {(1, 2): 3}, msgspec.Raw(b"1\n2")]
"""What JSON has not, and what is JSON on more than one line."""
values = st.lists(st.sampled_from([*range(len(MADE))] * 3 + [-1 - n for n in range(len(REFUSED))]), max_size=40)


def made(number):
    return MADE[number] if number >= 0 else REFUSED[-1 - number]


def straight(stream, _):
    return stream.map(made)


def filtered(stream, _):
    return stream.filter(lambda number: number != 3).map(made).filter(lambda value: value != 1)


def several(stream, _):
    return stream.flat_map(lambda number: [made(number)] * 2)


def twice(stream, app):
    """Change in place what has gone out already, and send it out again."""
    found = stream.map(lambda number: [made(number)])
    return found.merge(found.map(lambda value: value.append(1) or value))


def beside(stream, app):
    found = stream.map(lambda number: [made(number)])
    found.map(lambda value: value.append(1) or value).sink(lambda value: None)
    return found


def reused(stream, _):
    """Yield one object, changed each time."""

    def each(number):
        found = []
        for _ in range(2):
            found.append(made(number))
            yield found

    return stream.flat_map(each)


SHAPES = [straight, filtered, several, twice, beside, reused]


def writing(shape, policy, options):
    app = App("writing", options)
    out = app.output("out")
    shape(app.input("in", value=int), app).send_to(out, on_error=policy)
    return app


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=scale(40, 300, 5_000), deadline=None)
@given(values, POLICIES, st.integers(1, 15), st.integers(1, 15))
def test_lines_that_are_encoded_at_once_are_those_of_each_value(shape, numbers, policy, records, uncommitted):
    options = Options(batch_records=records, max_uncommitted=uncommitted)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        at_once = outcome(writing(shape, policy, options), directory, {"in": ListSource(numbers)})
        with mock.patch.object(jsonl, "JsonLines", Json):
            assert outcome(writing(shape, policy, options), directory, {"in": ListSource(numbers)}) == at_once


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(1, 10))
def test_a_function_is_called_once_for_each_record_though_a_value_can_not_be_encoded(goods, records):
    calls = []

    def kept(record):
        calls.append(record)
        return True

    app = App("calling", Options(batch_records=records))
    stream = app.input("in", value=list).filter(kept).map(lambda record: object() if record[1] else record[0])
    stream.filter(lambda value: value != 0).send_to(app.output("out"))
    numbered = [[number, not good] for number, good in enumerate(goods)]
    with tempfile.TemporaryDirectory() as scratch:
        *_, said = outcome(app, Path(scratch), {"in": ListSource(numbered)})
    first = goods.index(False) if False in goods else len(goods)
    assert calls == numbered[: (first // records + 1) * records]
    assert (f"on in/0 at {first};" in said) == (False in goods)


def test_lines_that_are_taken_back_are_not_pending():
    outputs = Outputs(0)
    to = SendToExit(outputs, Destination("out", 1, Json()), KeySerde(Json()))
    to.take(Batch([jsonl.JsonLines().encode_together([1, 2])]))
    outputs.savepoint()
    to.take(Batch([jsonl.JsonLines().encode_together([3, 4, 5])]))
    assert outputs.count == 5
    outputs.rollback()
    assert outputs.count == 2
