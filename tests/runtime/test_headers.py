"""Headers go with their messages, whatever stateless operators and repartitionings lie up to an output."""

import logging
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, Options, dead_letter, skip
from samza_dsl.data.records import records_from
from samza_dsl.testing import Record, running
from tests.scale import examples
from tests.spark.shuffling import run_here


def _kept(value):
    return value % 5 != 0


async def _twice(value):
    return [value, value]


def _tagged(value, context):
    assert context.headers.get("at", b"-1") in (b"-1", b"%d" % value)
    return [value]


STEPS = {
    "filter": lambda stream, id: stream.filter(_kept, op_id=id),
    "map": lambda stream, id: stream.map(lambda value: value, op_id=id),
    "flat_map": lambda stream, id: stream.flat_map(lambda value: [value] * (value % 3), op_id=id),
    "async": lambda stream, id: stream.async_flat_map(_twice, op_id=id),
    "partition_by": lambda stream, id: stream.partition_by(lambda value: value % 7, partitions=2, op_id=id),
    "broadcast": lambda stream, id: stream.broadcast(partitions=2, op_id=id),
    "merge": lambda stream, id: stream.filter(_kept, op_id=f"{id}-l").merge(stream, op_id=id),
    "branch": lambda stream, id: stream.branch(lambda v: "a" if v % 2 else "b", into=("a", "b"), op_id=id)["a"],
    "scan": lambda stream, id: stream.partition_by(lambda v: v % 3, op_id=f"{id}-by").scan(
        lambda state, value: value, op_id=id
    ),
    "deduplicate": lambda stream, id: stream.deduplicate(lambda value: value, within_ms=1, op_id=id),
    "process": lambda stream, id: stream.partition_by(lambda v: v % 3, op_id=f"{id}-by").process(_tagged, op_id=id),
    "timed": lambda stream, id: stream.partition_by(lambda v: v % 3, op_id=f"{id}-by").process(
        _tagged, on_timer=lambda at, context: [], op_id=id
    ),
}


def _app(steps, read, options=None, **sent):
    app = App("headed", options)
    stream = app.input("numbers", value=int, headers=read, partitions=2)
    for number, step in enumerate(steps):
        stream = STEPS[step](stream, f"s{number}")
    stream.send_to(app.output("out", value=int), **sent)
    return app


def _said(n):
    return {"at": b"%d" % n, "\N{SNOWMAN}": b"\0\xff", "null": None}


def _given(values, plain):
    """Return records of which all but the `plain` ones say in a header what their value is, which tells them apart."""
    headers = [{} if n in plain else _said(n) for n in values]
    rows = [Record(n, timestamp=n, headers=one) for n, one in zip(values, headers, strict=True)]
    return [rows[::2], rows[1::2]]


def records(app, given, out="out"):
    with running(app, {"numbers": given}) as live:
        return live.records(out)


histories = st.integers(0, 30).map(lambda size: [*range(1, size + 1)])


@settings(max_examples=examples(60, 600))
@given(steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=4), values=histories, data=st.data())
def test_headers_go_with_their_messages(steps, values, data):
    plain = data.draw(st.sets(st.sampled_from(values))) if values else set()
    options = Options(batch_records=data.draw(st.sampled_from([1, 3, 500])))
    received = records(_app(steps, True, options), _given(values, plain))
    without = records(_app(steps, False, options), _given(values, plain))
    assert sorted(one.value for one in received) == sorted(one.value for one in without)
    assert not any(one.headers for one in without), "where nobody asks there are none"
    for one in received:
        expected = {} if one.value in plain else _said(one.value)
        assert one.headers == expected


def _fails(value):
    raise ValueError(value)


@settings(max_examples=examples(40, 400))
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
    last=st.sampled_from(["map", "async_flat_map"]),
    values=histories,
)
def test_a_dead_letter_has_the_headers_of_its_record_beside_its_own(steps, last, values):
    app = App("failing")
    stream = app.input("numbers", value=int, headers=True, partitions=2)
    for number, step in enumerate(steps):
        stream = STEPS[step](stream, f"s{number}")

    async def fails(value):
        _fails(value)

    failing = {"map": _fails, "async_flat_map": fails}[last]
    failed = getattr(stream, last)(failing, on_error=dead_letter("bad"), op_id="last")
    failed.send_to(app.output("out", value=int))
    with running(app, {"numbers": _given(values, ())}) as live:
        letters = live.records("bad")
    for one in letters:
        n = one.headers["error"].decode().removeprefix("ValueError: ").encode()
        assert {name: one.headers[f"record.{name}"] for name in _said(int(n))} == _said(int(n))
        assert one.headers["operator"] == b"last" and "at" not in one.headers
    if not steps:
        assert len(letters) == len(values)


def test_headers_are_computed_of_value_and_headers():
    app = _app(["map"], True, headers=lambda value, headers: {**headers, "half": b"%d" % (value // 2)})
    (record,) = records(app, [[Record(9, timestamp=0, headers={"a": b"1", "b": None})], []])
    assert record.headers == {"a": b"1", "b": None, "half": b"4"}


def test_one_output_takes_what_has_headers_of_its_own_and_what_has_not():
    app = App("both")
    numbers = app.input("numbers", value=int, headers=True)
    out = app.output("out", value=int)
    numbers.filter(lambda n: n % 2).send_to(out, headers=lambda value, headers: {})
    numbers.filter(lambda n: n % 2 == 0).send_to(out)
    found = records(app, [Record(n, timestamp=0, headers={"a": b"%d" % n}) for n in (1, 2)])
    assert {one.value: one.headers for one in found} == {1: {}, 2: {"a": b"2"}}


def test_a_map_takes_headers_into_the_value():
    app = App("into")
    numbers = app.input("numbers", value=int, headers=True)
    numbers.map(lambda n, headers: (n, headers.get("a", b"").decode()), headers=True).send_to(app.output("out"))
    found = records(app, [Record(1, timestamp=0, headers={"a": b"x"}), 2])
    assert [one.value for one in found] == [(1, "x"), (2, "")]


@pytest.mark.parametrize("form", ["plain", "async"])
def test_a_task_reads_headers_and_writes_them(form):
    app = App("task")
    out = app.output("out", value=int)

    def plain(message, context):
        context.send(out, message.value)
        context.send(out, message.value, headers={**message.headers, "seen": b"yes"})

    async def awaited(message, context):
        plain(message, context)

    numbers = app.input("numbers", value=int, headers=True)
    app.task(numbers, plain if form == "plain" else awaited, outputs=[out], op_id="t")
    found = records(app, [Record(1, timestamp=0, headers={"a": b"x", "b": None}), 2])
    assert [one.headers for one in found] == [{}, {"a": b"x", "b": None, "seen": b"yes"}, {}, {"seen": b"yes"}]


@pytest.mark.parametrize("made", [{"a": "text"}, {1: b""}, None, {"a": bytearray()}])
def test_what_are_no_headers_is_an_error_of_the_record(made):
    app = _app([], False, headers=lambda value, headers: made if value == 2 else {}, on_error=skip)
    received = records(app, [[1, 2, 3], []])
    assert [one.value for one in received] == [1, 3]


def test_a_place_that_keeps_no_headers_says_so(tmp_path, caplog):
    data, app = tmp_path / "data", _app([], True)
    with closing(LogEnvironment(data)) as log:
        log.create_stream("numbers", StreamConfig(partitions=2))
        log.append([Append("numbers", 0, Batch([b"1"], headers=[{"a": b"1"}]))])
    with caplog.at_level(logging.WARNING, "samza_dsl"):
        app.run(data, bind={"out": tmp_path / "out.jsonl"}, until_now=True)
    assert "send_to 'send_to-out'" in caplog.text and "keeps none" in caplog.text
    assert (tmp_path / "out.jsonl").read_text() == "1\n"


@pytest.mark.parametrize("step", sorted(STEPS))
def test_the_log_keeps_headers_from_run_to_run(tmp_path, step):
    data, app = tmp_path / "data", _app([step], True)
    with closing(LogEnvironment(data)) as log:
        log.create_stream("numbers", StreamConfig(partitions=2))
        log.append([Append("numbers", 0, Batch([b"1"], headers=[{"a": b"\xff", "b": None}]))])
    app.run(data, until_now=True)
    with closing(LogEnvironment(data)) as log:
        found = [one for part in range(log.streams()["out"].partitions) for one in records_from(log, "out", part, 0)]
    assert found and all(one.headers == {"a": b"\xff", "b": None} for one in found)


@settings(max_examples=examples(20, 200), deadline=None)
@given(steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=3), values=histories, seed=st.integers(0, 99))
def test_a_batch_engine_carries_them_as_well(steps, values, seed):
    environment = MemoryEnvironment()
    environment.create_stream("numbers", StreamConfig(partitions=2))
    for partition, part in enumerate(_given(values, set())):
        rows = Batch([b"%d" % one.value for one in part], headers=[one.headers for one in part])
        rows.timestamps = [one.timestamp for one in part]
        environment.append([Append("numbers", partition, rows)])
    environment.end_stream("numbers")
    run_here(_app(steps, True), environment, seed=seed)
    counts = range(environment.streams()["out"].partitions)
    found = [one for part in counts for one in records_from(environment, "out", part, 0)]
    assert [one.headers for one in found] == [_said(int(one.value)) for one in found]
    expected = records(_app(steps, False), _given(values, set()))
    assert sorted(int(one.value) for one in found) == sorted(one.value for one in expected)
