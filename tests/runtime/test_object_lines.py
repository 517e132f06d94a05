"""Lines of JSON that are decoded together come to what each by itself comes to, whatever lies in the file."""

import tempfile
import tracemalloc
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.encoding.lines import ObjectLines
from runtime.encoding.serdes import Bytes, Json
from runtime.job.pipeline import Pipeline
from runtime.model.errors import OperatorFailure
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.files.jsonl import lines_in, split_lines
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, Options, dead_letter, skip
from tests.scale import examples


class Reading(msgspec.Struct):
    a: int = 0


class Held(msgspec.Struct):
    a: msgspec.Raw


KINDS = [Any, dict[str, int], Reading, list[int], Held]
PIECES = [b"{", b"}", b'{"', b'"', b'"a"', b":", b",", b"1", b"[", b"]", b" ", b"\\", b"\r", b"\n", b"}\n{", b"\xff"]
WHOLE = [b'{"a": 1}', b'{"a": 2}\n', b'{"a": {}}', b'{"a": "}\\n{"}', b"{}", b"[1]\n", b'{"b": [{}]}\n{"a": 3}\n', b""]
files = st.lists(st.sampled_from(WHOLE) | st.sampled_from(PIECES), max_size=12).map(b"".join)
objects = st.lists(st.sampled_from([*WHOLE, b'{"a": 1} {"a": 2}', b'{"a":', b'{"a": {"a":']), max_size=8).map(
    b"\n".join
)


def alone(serde, line):
    try:
        return serde.decode(line)
    except Exception as error:
        return type(error)


def rows_of(environment, stream):
    read = environment.read(stream, 0, 0)
    return [] if read is None else read.batch.values


@given(files | objects, st.booleans())
@settings(max_examples=examples(600, 200_000))
@example(b'{"a": 1}\n\n{"a": 2}', True)
@example(b'\n{"a": 1}', True)
@example(b'{"a": 1}\r', True)
def test_lines_are_the_same_whether_or_not_they_stay_together(data, last):
    together, used = lines_in(data, last)
    assert ([*together], used) == split_lines(data, last)
    stop = len(together) + 1
    for place in (slice(start, end) for start, end in product(range(stop), range(stop))):
        assert [*together[place]] == [*together][place]


@given(files | objects, st.sampled_from(KINDS))
@settings(max_examples=examples(1_000, 300_000))
@example(b'{"a": {}}\n{"a": 1} {"a": 2}\n{"a": {\n}}', Any)
@example(b"[{}\n]{}", Any)
@example(b'{"a": 1,"b":{}\n{"a":2}}\n{"a": 3} {"a": 4}', Any)
def test_values_are_those_that_each_line_by_itself_has(data, kind):
    lines = ObjectLines.of(data)
    if lines is None:
        return
    serde = Json(kind)
    expected = [alone(serde, line) for line in lines]
    try:
        values = serde.decode_lines(lines)
    except Exception:
        values = [alone(serde, line) for line in lines]  # as a reader does where not all can be decoded at once
        assert any(isinstance(value, type) for value in expected)
    assert values == expected


@given(
    st.lists(st.sampled_from([b'{"a": 1}', b'{"a": 2}', b'{"a": 1} {"a": 2}', b'{"a": {}', b"[1]"]), max_size=6),
    st.sampled_from([1, 4, 1_000]),
)
@settings(max_examples=examples(80, 5_000))
@pytest.mark.parametrize("policy", ["fail", "skip", "dead_letter"])
def test_a_line_that_is_no_value_meets_its_policy_and_no_other_line_does(policy, lines, batch_records):
    good = {b'{"a": 1}': 1, b'{"a": 2}': 2}
    bad = [(place, line) for place, line in enumerate(lines) if line not in good]
    policies = {"fail": {}, "skip": {"on_error": skip}, "dead_letter": {"on_error": dead_letter("bad")}}
    app, environment, failed = App("lines", Options(batch_records=batch_records)), MemoryEnvironment(), None
    app.input("readings", value=Reading, **policies[policy]).map(lambda one: one.a).send_to(
        app.output("out", value=int)
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "readings.jsonl").write_bytes(b"\n".join(lines))
        bind = {"readings": Path(folder, "readings.jsonl")}
        try:
            run_blocking(Pipeline(app.graph(), app.options), environment, RunSettings(bind=bind))
        except OperatorFailure as error:
            failed = str(error)
    if policy == "fail" and bad:
        assert f"at {bad[0][0]}" in failed
        return
    assert failed is None
    assert rows_of(environment, "out") == [b"%d" % good[line] for line in lines if line in good]
    if policy == "dead_letter":
        assert rows_of(environment, "bad") == [line for _, line in bad]


def test_bytes_of_a_line_are_had_as_they_are_stored():
    lines = lines_in(b'{"a": 1}\n{"a": 2}\n', last=True)[0]
    assert isinstance(lines, ObjectLines)
    assert [*map(Bytes().decode, lines)] == [b'{"a": 1}', b'{"a": 2}']


def test_a_value_that_is_kept_keeps_no_other_line():
    data = b"\n".join([b'{"a": "%s"}' % (b"x" * 100)] * 10_000)
    tracemalloc.start()
    try:
        kept = Json(list[Held] | Held).decode_lines(ObjectLines.of(bytes(bytearray(data))))[7]
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()
    assert bytes(kept.a) == b'"%s"' % (b"x" * 100)
