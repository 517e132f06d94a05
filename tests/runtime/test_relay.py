"""What a stage hands to the next in memory: the same as if it had been stored, and only what a cut leaves is."""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from operators.core.base import Batch
from runtime.encoding.keys import KeySerde
from runtime.encoding.ownership import OwnValues
from runtime.encoding.serdes import Declared, Evolving, Json, Tagged
from runtime.model.errors import OperatorFailure, SerdeError
from runtime.reading.relay import Relay
from runtime.stage.outputs import Outputs
from runtime.systems.memory.lists import ListSink
from samza_dsl import App, Options, dead_letter, testing
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_once, run_through

VALUES = st.integers() | st.text(max_size=3) | st.none() | st.binary(max_size=3) | st.lists(st.integers(), max_size=2)
STEPS = st.lists(st.lists(VALUES, min_size=1, max_size=5) | st.integers(1, 7), max_size=20)


@given(STEPS)
def test_rows_come_in_order_as_the_stream_would_have_kept_them(steps):
    values, keys = KeySerde(Tagged()), KeySerde(Tagged())
    relay, expected = Relay(values, keys), []
    outputs = Outputs(task=0)
    outputs.relays = {("words", 0): relay}
    for step in steps:
        if isinstance(step, list):
            held = Batch(step, keys.hold([len(step)] * len(step)), [7] * len(step))
            outputs.hand(("words", 0), held, OwnValues(Tagged()), keys)
            outputs.hand_on()
            expected += [(value, len(step)) for value in step]
        elif relay:
            taken, relayed = relay.take(step)
            assert list(zip(taken.values, taken.keys, strict=True)) == expected[: len(taken)]
            assert [relayed.row(row).values[0] for row in range(len(taken))] == [
                None if value is None else Tagged().encode(value) for value in taken.values
            ]
            del expected[: len(taken)]
        stored = relay.stored()
        assert len(relay) == len(stored) == len(expected)
        assert bool(relay) == bool(expected)
        assert stored.values == [None if value is None else Tagged().encode(value) for value, _ in expected]
        assert (stored.keys or []) == [Tagged().encode(key) for _, key in expected]
    relay.clear()
    assert not relay


def counting(options=None, stage=lambda words: words, **how):
    app = App("counting", options or Options())
    lines = app.input("lines", value=str).flat_map(str.split)
    words = stage(lines.partition_by(lambda word: word, op_id="by-word", **how))
    counts = words.scan(lambda count, word: count + 1, init=int, emit=lambda word, count: [word, count])
    counts.send_to(app.output("counts", value=list))
    return app


LINES = [[(None, line, 0) for line in [b"a b a", b"c a", b"b b d"] * 30]]
LAST = {"a": 90, "b": 90, "c": 30, "d": 30}


def last_counts(environment):
    found = {}
    for part in rows_of(environment, "counts"):
        for _, data, _ in part:
            word, number = Json(list).decode(data)
            assert number == found.get(word, 0) + 1
            found[word] = number
    return found


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_is_consumed_by_the_cut_is_never_written(partitions):
    environment, commits = memory(), []
    fill(environment, "lines", LINES)
    run_through(lambda: counting(partitions=partitions), environment, on_commit=commits.append)
    between = [append for commit in commits for append in commit.appends if append.stream == "counting-by-word"]
    assert sum(len(append.batch) for append in between) == 0
    assert not between  # of event time the readers are told in memory
    assert last_counts(environment) == LAST


def test_a_stage_that_calls_a_sink_reads_what_is_committed():
    environment, commits, seen = memory(), [], []
    fill(environment, "lines", LINES)

    def sinking(words):
        words.sink(seen.append)
        return words

    run_through(lambda: counting(stage=sinking), environment, on_commit=commits.append)
    between = [append for commit in commits for append in commit.appends if append.stream == "counting-by-word"]
    assert sum(len(append.batch) for append in between) == len(seen) == sum(LAST.values())
    assert last_counts(environment) == LAST


@given(st.integers(1, 50), st.integers(1, 30), st.integers(1, 3))
@settings(max_examples=examples(30, 2_000))
def test_batches_and_commits_in_any_number_come_to_the_same(batch, uncommitted, partitions):
    environment = memory()
    fill(environment, "lines", LINES)
    options = Options(batch_records=batch, max_uncommitted=uncommitted)
    run_through(lambda: counting(options, partitions=partitions), environment)
    assert last_counts(environment) == LAST


def test_what_a_stage_changes_in_place_is_its_own():
    app = App("aliases")
    numbers = app.input("numbers", value=int).map(lambda n: [n])
    numbers.partition_by(len, op_id="first").map(lambda one: one.append(0) or one).send_to(app.output("changed"))
    numbers.partition_by(len, op_id="second").send_to(app.output("kept"))
    sinks = {"changed": ListSink(), "kept": ListSink()}
    # As it runs, since the testing kit refuses a function that changes what it is given.
    run_once(app, memory(), bind={"numbers": [1, 2], **sinks})
    assert {name: sink.values for name, sink in sinks.items()} == {"changed": [[1, 0], [2, 0]], "kept": [[1], [2]]}


def test_a_declared_type_is_what_the_next_stage_gets():
    app = App("declared")
    pairs = app.input("numbers", value=int).map(lambda n: (n, n))
    again = pairs.partition_by(len, value=list, op_id="first")
    again.map(lambda pair: type(pair).__name__).send_to(app.output("types"))
    assert testing.run(app, {"numbers": [1]})["types"] == ["list"]


class Reading(Struct, frozen=True):
    at: int
    name: str | None = None
    parts: tuple[int, ...] | list[int] = ()


class Changeable(Struct):
    at: int = 0


class Point(Struct, frozen=True):
    km: float
    at: int | None = None


READINGS = st.builds(
    Reading,
    st.integers(-9, 9),
    st.none() | st.text(max_size=2),
    st.lists(st.integers(), max_size=2).map(tuple) | st.lists(st.integers(), max_size=2),
)
CHANGEABLE = st.builds(Changeable, st.integers(0, 9))
NUMBERS = st.integers(-9, 9) | st.floats(-9, 9)
POINTS = st.builds(Point, NUMBERS, st.none() | st.integers(0, 9))
AMISS = st.builds(Point, NUMBERS, st.lists(st.integers(0, 9), max_size=1))
WRITTEN = POINTS | READINGS | CHANGEABLE | st.none() | st.floats(0, 1) | st.integers(0, 9) | st.lists(st.integers(0, 9))


@given(
    st.lists(READINGS, max_size=5)
    | st.lists(CHANGEABLE, max_size=5)
    | st.lists(POINTS | AMISS, max_size=5)
    | st.lists(WRITTEN, max_size=5),
    st.sampled_from([Reading, Changeable, Point, float, list, list[int], Reading | None]),
    st.sampled_from(["all", "unchangeable"]),
)
@example([Point(1.0, [1])], Point, "unchangeable")
def test_declared_values_go_on_as_the_stream_would_have_kept_them(values, declared, as_it_is):
    def by(way):
        try:
            return way()
        except SerdeError:
            return "refused"

    def shown(found):
        return [(type(one), one) for one in found] if found != "refused" else found

    stored = by(lambda: OwnValues(Declared(declared)).own([*values]))
    own = by(lambda: OwnValues(Declared(declared), as_it_is).own([*values]))
    assert shown(own) == shown(stored)
    if as_it_is == "unchangeable" and own != "refused":
        for before, after in zip(values, own, strict=True):
            parts = getattr(before, "parts", 0), getattr(before, "at", 0)
            is_shared = isinstance(before, list | Changeable) or any(isinstance(part, list) for part in parts)
            assert not is_shared or before is not after


class Leg(NamedTuple):
    km: float


@dataclass(frozen=True)
class Stop:
    hours: float | None = None


class Trip(msgspec.Struct, frozen=True):
    km: float
    legs: Leg | None = None
    stop: Stop = Stop()
    either: int | float = 0


TRIPS = st.builds(
    Trip, NUMBERS, st.none() | st.builds(Leg, NUMBERS), st.builds(Stop, st.none() | NUMBERS), st.integers(0, 9)
)


@given(
    st.lists(TRIPS, max_size=4)
    | st.lists(POINTS)
    | st.lists(st.builds(Leg, NUMBERS))
    | st.lists(st.builds(Stop, NUMBERS)),
    st.sampled_from(["all", "unchangeable"]),
    st.booleans(),
)
@example([Point(1)], "unchangeable", False)
def test_a_number_goes_on_as_a_float_where_its_class_says_so(values, as_it_is, is_declared):
    serde = Declared(type(values[0])) if is_declared and values else Evolving()
    assert repr(OwnValues(serde, as_it_is).own([*values])) == repr(OwnValues(serde).own([*values]))


def test_values_of_the_declared_class_are_not_encoded_where_nobody_else_has_them():
    readings, changeable = [Reading(1, "a"), None, Reading(2, None, (3,))], [Changeable(1)]
    assert OwnValues(Declared(Reading), "unchangeable").own(readings) is readings
    assert OwnValues(Declared(Changeable), "all").own(changeable) is changeable
    assert OwnValues(Declared(Changeable), "unchangeable").own(changeable)[0] is not changeable[0]


def test_a_record_that_fails_there_says_where_it_came_from():
    app = counting(stage=lambda words: words.map(lambda word: word[5], op_id="sixth"))
    with pytest.raises(OperatorFailure, match=r"map 'sixth' at .* IndexError: .* on a message to counting-by-word/0; "):
        testing.run(app, {"lines": ["short"]})


def test_a_dead_letter_has_a_value_as_it_came_whatever_was_done_to_it_since():
    def spoilt(words):
        return words.append("spoilt") or words[7]

    app = App("spoiling")
    lists = app.input("lines", value=str).map(str.split).partition_by(len, op_id="by-length")
    lists.map(spoilt, on_error=dead_letter("bad")).send_to(app.output("out"))
    environment = memory()
    fill(environment, "lines", [[(None, b"a b", 0), (None, b"c", 0)]])
    run_through(lambda: app, environment)
    letters = [Evolving().decode(value) for _, value, _ in rows_of(environment, "bad")[0]]
    assert sorted(letters) == [["a", "b"], ["c"]]


def test_a_dead_letter_has_the_bytes_that_the_stream_would_have():
    app = counting(stage=lambda words: words.map(lambda word: word[5], on_error=dead_letter("bad")))
    with testing.running(app, {"lines": ["short lengthy"]}) as run:
        run.end("lines")
        (letter,) = run.dead_letters("bad")
        assert Tagged().decode(letter.value) == "short"
        assert run.received("counts") == [["lengthy", 1]]
