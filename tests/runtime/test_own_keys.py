"""Values that are their own keys: a loop makes one column of both, and what comes of them is the same."""

from enum import StrEnum

from hypothesis import given
from hypothesis import strategies as st

from planner.model.levers import Levers
from runtime.job.pipeline import Pipeline
from runtime.model.errors import SamzaError
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink
from samza_dsl import App, Options, count, counted, dead_letter, fail


class Name(StrEnum):
    """Values that equal plain strings and are not held as these are."""

    A = "a"


VALUES = st.one_of(
    st.lists(st.sampled_from(["a", "b", "ab"]), max_size=12),
    st.lists(st.integers(-2, 2), max_size=12),
    st.lists(st.sampled_from(["a", Name.A, 1, True, 1.0, None, b"a", (1, "a")]), max_size=12),
)


def outcome(values, shape, batch_records, partitions, policy, **levers):
    app = App("own-keys", Options(batch_records=batch_records))
    stream = app.input("values")
    if "filter" in shape:
        stream = stream.filter(lambda value: value != "ab")
    if "twice" in shape:
        stream = stream.flat_map(lambda value: (value, value))
    if "merge" in shape:
        stream = stream.merge(stream.filter(lambda value: value != 2))
    keyed = stream.partition_by(lambda value: value, partitions=partitions, op_id="by-itself")
    if "window" in shape:
        found = keyed.window(counted(2), count(), on_error=policy).map(lambda pane: (pane.key, pane.value))
    else:
        found = keyed.scan(
            lambda n, value: n + 1, init=int, emit=lambda key, n: (key, n), on_error=policy, op_id="counting"
        )
    found.send_to(app.output("found"))
    keyed.send_to(app.output("same"))
    sinks = {name: ListSink() for name in ("found", "same")}
    failure, environment = None, MemoryEnvironment()
    try:
        bind = {"values": values, **sinks}
        run_blocking(Pipeline(app.graph(), app.options), environment, RunSettings(bind=bind, levers=Levers(**levers)))
    except SamzaError as error:
        failure = str(error)
    bad = environment.read("bad", 0, 0) if "bad" in environment.streams() else None
    told = {name: [*map(repr, sink.values)] for name, sink in sinks.items()}
    return failure, told, bad and (bad.batch.values, bad.batch.keys, bad.batch.headers)


@given(
    VALUES,
    st.sets(st.sampled_from(["filter", "twice", "merge", "window"])),
    st.sampled_from([1, 3, 100]),
    st.sampled_from([1, 2]),
    st.sampled_from([fail, dead_letter("bad")]),
    st.booleans(),
)
def test_values_that_are_their_own_keys_come_to_what_others_come_to(
    values, shape, batch_records, partitions, policy, relays
):
    case = values, shape, batch_records, partitions, policy
    assert outcome(*case, relays=relays) == outcome(*case, relays=relays, inlining=False)


def test_one_column_is_made_of_both():
    app = App("own-keys")
    words = app.input("lines", value=str).flat_map(lambda line: line.split())
    words.partition_by(lambda word: word, op_id="by-word").scan(lambda n, _: n + 1, init=int, op_id="counting").send_to(
        app.output("counts")
    )
    source = app.plan().source("stage-1")
    assert "x0_keys" not in source and "return ((x0, x0_rows, x0), (), )" in source
    lengths = App("lengths")
    lengths.input("words", value=str).partition_by(lambda word: word[0], op_id="by-first").send_to(
        lengths.output("found")
    )
    assert "x0_keys.append(value[0])" in lengths.plan().source("stage-1")
