"""JSON lines that are decoded and encoded many at once are what they are one by one, whatever they hold."""

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.errors import OperatorFailure, SerdeError
from runtime.lines import ReadLines
from runtime.serdes import Bytes, Json
from runtime.systems import jsonl, record_files
from runtime.systems.files import open_source
from runtime.systems.lists import ListSource
from samza_dsl import App, Options, dead_letter, fail, skip
from tests.scale import scale
from tests.simulation.crash import memory, rows_of, run_once


class Row(msgspec.Struct):
    n: int
    text: str = ""


KINDS = [Any, Row, int, str, list[int], dict[str, int], list[Row], msgspec.Raw]
GOOD = [b'{"n":1}', b'{"n":2,"text":"}{"}', b"[]", b"[1,2]", b'"a"', b'"\\n"', b"1", b"-2.5", b"null", b'[{"n":3}]']
ODD = [
    b"",
    b" ",
    b"\t",
    b"\r",
    b"\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b'"',
    b"\xff",
    b"x",
    b"\xef\xbb\xbf",
    b"\x00",
    b"\x0b",
]
LINES = st.lists(st.sampled_from([b"%s\n" % good for good in GOOD]), max_size=8).map(b"".join)
PIECES = st.lists(st.sampled_from([*GOOD, *ODD, b"\n", b"\r\n"]), max_size=12).map(b"".join)
ALIKE = st.sampled_from(GOOD).flatmap(lambda one: st.lists(st.sampled_from([one, one, b"\n"])).map(b"".join))
DATA = st.lists(LINES | PIECES | ALIKE | st.binary(max_size=20), max_size=6).map(b"".join)


@contextmanager
def blocks_of(size):
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.multiple(record_files, BLOCK=size, LARGE_BLOCK=size),
    ):
        yield Path(directory)


def shown(value):
    return bytes(value) if isinstance(value, msgspec.Raw) else repr(value)


def tried(decode, line):
    try:
        return shown(decode(line))
    except Exception as error:
        return type(error), str(error)


@settings(max_examples=scale(300, 2_000, 50_000))
@given(DATA, st.sampled_from(KINDS), st.integers(1, 100), st.integers(1, 5), st.integers(0, 4))
@example(b"1 2\n\n", Any, 100, 5, 0)
@example(b'{"n":1}{"n":2}\n\n', Row, 100, 5, 0)
@example(b"[1,\n2]\n[3] [4]\n", Any, 100, 5, 0)
@example(b'"a" "b"\n\n', str, 100, 5, 0)
@example(b'{"n":1}\n{"n":2} {"n":3}\n{"n"\n:4}', Row, 100, 5, 0)
def test_what_is_decoded_at_once_is_what_each_line_is_by_itself(data, kind, size, most, skipped):
    expected, _ = jsonl.split_lines(data.removeprefix(record_files.BYTE_ORDER_MARK), last=True)
    with blocks_of(size) as directory:
        path = directory / "in.jsonl"
        path.write_bytes(data)
        source = open_source(path)
        serde = source.serde(Json(kind))
        offset, lines, values = min(skipped, len(expected)), [], []
        while read := source.read(0, offset, most):
            found = read.batch.values
            made = found.decoded(serde) if isinstance(found, ReadLines) else None
            lines += found
            values += [tried(serde.decode, line) for line in found] if made is None else map(shown, made)
            offset = read.next_offset
        assert lines == expected[min(skipped, len(expected)) :]
        assert values == [tried(serde.decode, line) for line in lines]
        assert source.offsets(0) == (0, len(expected), True)
        source.close()


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


def reading(kind, policy, options):
    app = App("reading", options)
    app.input("in", value=kind, on_error=policy).map(changed).send_to(app.output("out"))
    return app


def changed(value):
    """Change what can be changed, as functions do that take a value for their own."""
    if isinstance(value, Row):
        value.n += 1
    if isinstance(value, list):
        value.append(7)
    return value


@settings(max_examples=scale(60, 400, 5_000), deadline=None)
@given(DATA, st.sampled_from(KINDS[:-1]), st.integers(1, 100), POLICIES, st.integers(1, 5), st.integers(1, 5))
def test_a_run_over_lines_decoded_at_once_is_one_over_each_line(data, kind, size, policy, records, uncommitted):
    options = Options(batch_records=records, max_uncommitted=uncommitted)
    with blocks_of(size) as directory:
        path = directory / "in.jsonl"
        path.write_bytes(data)
        at_once = outcome(reading(kind, policy, options), directory, {"in": path})
        with mock.patch.dict(jsonl.BETWEEN, clear=True):
            assert outcome(reading(kind, policy, options), directory, {"in": path}) == at_once


def test_two_who_read_the_same_lines_have_values_of_their_own(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"[1]\n[2]\n")
    source = open_source(path)
    serde = source.serde(Json(list[int]))
    read, again = source.read(0, 0), source.read(0, 1)
    assert read is not None and again is not None
    assert read.batch.values.decoded(Json(int)) is None
    first = read.batch.values.decoded(serde)
    first[1].append(3)
    assert (first, again.batch.values.decoded(serde), [*again.batch.values]) == ([[1], [2, 3]], None, [b"[2]"])


def test_bytes_are_read_as_they_are_and_lines_alike_at_once(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"[1]\n[2]\n")
    source = open_source(path)
    source.serde(Json(list[int]))
    assert isinstance(source.read(0, 0).batch.values, ReadLines)
    source.serde(Bytes())
    source.close()
    assert source.read(0, 0).batch.values == [b"[1]", b"[2]"]


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
