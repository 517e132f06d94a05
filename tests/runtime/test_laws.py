"""Whatever the pipeline, the batches, the schedule and the crashes: what a run comes to is what its records say."""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.serdes import Tagged
from samza_dsl import Options
from tests.scale import scale
from tests.simulation.crash import CrashPoint, Row, fill, memory, rows_of, run_through
from tests.simulation.reference import Effects, Record, Reference
from tests.strategies import LETTERS, SOURCE, Event, Pipeline, build, pipelines, records, stored, tables

NEVER = -(2**62)
decode_event = msgspec.json.Decoder(Event).decode


@dataclass
class World:
    """A drawn pipeline, its records, and the environment in which it runs."""

    pipeline: Pipeline
    parts: list[list[Event]]
    seed: int
    options: Options
    passed: defaultdict[tuple[str, int], list[tuple[int, Row]]] = field(
        init=False, default_factory=lambda: defaultdict(list)
    )
    """What was ever committed to each partition, with offsets: intermediate streams do not keep what is consumed."""
    ends: Counter[tuple[str, int]] = field(init=False, default_factory=Counter)

    def __post_init__(self):
        self.environment = memory()
        fill(self.environment, SOURCE, stored(self.parts), random.Random(self.seed))
        for stream, rows in tables(self.pipeline).items():
            fill(self.environment, stream, rows)

    def run(self, crashes=(), on_commit=None):
        def app():
            return build(self.pipeline, self.options, self.seed)

        def note(commit):
            for stream, partition, batch, control in commit.appends:
                self._note((stream, partition), batch, control)
            if on_commit is not None:
                on_commit(commit)

        return run_through(app, self.environment, crashes, self.seed, note)

    def rows_between(self, stream, ends=None):
        """Return all rows that each partition of an intermediate stream ever had, below the offsets in `ends`."""
        if stream not in self.environment.streams():
            return []
        return [
            [row for offset, row in self.passed[stream, place] if ends is None or offset < ends.get(place, 0)]
            for place in range(self.environment.streams()[stream].partitions)
        ]

    def _note(self, place, batch, control):
        none = [None] * len(batch)
        rows = zip(batch.keys or none, batch.values, batch.timestamps or none, strict=True)
        self.passed[place] += enumerate(rows, self.ends[place])
        self.ends[place] += max(len(batch), 1) if batch.values or control else 0

    def outputs(self):
        return {
            name: Counter(decode_event(value) for part in rows_of(self.environment, name) for _, value, _ in part)
            for name in self.pipeline.outputs()
        }

    def letters(self):
        return sum(map(len, rows_of(self.environment, LETTERS)))

    def counts(self):
        """Return how many messages of each key every process has seen, by (operator, task, key)."""
        return Counter(
            {
                (int(store.removeprefix("process-")), task, Tagged().decode(key[1:])): Tagged().decode(value)
                for store, task in self.environment.state_stats("law")
                if store.startswith("process-")
                for key, value in self.environment.state_range("law", store, task)
                if key[:1] == b"s"
            }
        )

    def positions(self, stream):
        """Return the next offset of every partition of a stream, as the last commit has it."""
        return {
            position.partition: position.offset
            for checkpoint in self.environment.checkpoints("law").values()
            for position in checkpoint.positions
            if position.stream == stream
        }


@st.composite
def worlds(draw, kinds=(), guarantee="exactly_once"):
    pipeline = draw(pipelines(kinds=kinds))
    options = Options(
        guarantee=guarantee,
        batch_records=draw(st.sampled_from((1, 3, 2_000))),
        max_uncommitted=draw(st.sampled_from((1, 5, 100_000))),
        max_in_flight=draw(st.sampled_from((1, 4, 1_000))),
        commit_interval_ms=draw(st.sampled_from((5, 1_000))),
        cache_entries=draw(st.sampled_from((0, 1, 100))),
    )
    return World(pipeline, draw(records(pipeline.partitions, nulls=pipeline.nulls)), draw(st.integers(0, 999)), options)


crash_points = st.builds(CrashPoint, st.sampled_from(("before", "after", "turn")), st.integers(1, 12)) | st.builds(
    CrashPoint, st.just("turn"), st.integers(10, 200)
)


def sent(pipeline, effects: Effects):
    found = {name: Counter() for name in pipeline.outputs()}
    for (place, event), number in effects.sent.items():
        found[f"out-{place}"][event] += number
    return found


def check_end(world):
    """Compare everything that a run has left with what the records say."""
    expected = Reference(world.pipeline).run(world.parts)
    assert world.outputs() == sent(world.pipeline, expected)
    assert world.counts() == expected.counts
    assert world.letters() == (expected.dropped if world.pipeline.policy == "dead_letter" else 0)
    ends = {p: world.environment.offsets(SOURCE, p).end for p, part in enumerate(world.parts)}
    assert world.positions(SOURCE) == ends
    for stream, config in world.environment.streams().items():
        assert not config.intermediate or world.environment.stream_stats(stream) == (0, 0), f"{stream} was consumed"
    left = [place for place in world.environment.state_stats("law") if place[0].startswith("window-")]
    assert left == [], "windows are open after the end of all streams"


def check_cut(world):
    """Compare what is committed with what the records before the committed positions bring about."""
    pipeline, reference = world.pipeline, Reference(world.pipeline)
    expected, fired = Effects(), fired_in(pipeline)
    for entry, node in enumerate(pipeline.nodes):
        if node.kind in ("input", "partition_by"):
            stream = SOURCE if entry == 0 else f"law-partition_by-{entry}"
            between = world.rows_between if entry else partial(rows_of, world.environment)
            parts = between(stream, world.positions(stream))
            for task, rows in enumerate(parts):
                reference.take(expected, entry, task, [taken_in(entry, row) for row in rows])
    actual, due = world.outputs(), sent(pipeline, expected)
    for place, node in enumerate(pipeline.nodes):
        if place in fired:
            continue
        if pipeline.is_sent(place):
            assert actual[f"out-{place}"] == due[f"out-{place}"], f"output of {place}"
        if node.kind == "partition_by":
            passed = world.rows_between(f"law-partition_by-{place}")
            events = Counter(Tagged().decode(value) for part in passed for _, value, _ in part)
            assert events == Counter(record.event for _, record in expected.passed[place]), f"stream of {place}"
    seen = {place for place, node in enumerate(pipeline.nodes) if not sees(pipeline, node, fired)}
    counts = {where: number for where, number in expected.counts.items() if where[0] in seen}
    assert {where: number for where, number in world.counts().items() if where[0] in seen} == counts


def taken_in(entry, row):
    key, value, at = row
    if entry == 0:
        event = decode_event(value)
        return Record(event, event.key, event.at, NEVER)
    return Record(Tagged().decode(value), None if key is None else Tagged().decode(key), at, NEVER)


def fired_in(pipeline):
    """Return the operators that emit panes and what timers emit, or see them in the stage where these are fired."""
    found = set()
    for place, node in enumerate(pipeline.nodes):
        if node.kind in ("window", "process") or sees(pipeline, node, found):
            found.add(place)
    return found


def sees(pipeline, node, fired):
    return any(parent in fired and pipeline.nodes[parent].kind != "partition_by" for parent in node.parents)


@given(worlds())
def test_a_run_comes_to_what_its_records_say_whatever_the_batches_and_the_schedule(world):
    assert world.run() == 0
    check_end(world)


@given(worlds(), st.lists(crash_points, min_size=1, max_size=4))
@settings(max_examples=scale(60, 500, 20_000))
def test_a_restart_after_crashes_gives_what_an_undisturbed_run_gives(world, crashes):
    world.run(crashes)
    check_end(world)


@given(worlds(), st.lists(crash_points, max_size=3))
@settings(max_examples=scale(60, 500, 20_000))
def test_no_commit_holds_an_effect_of_what_lies_beyond_its_cut_nor_lacks_one_before_it(world, crashes):
    world.run(crashes, lambda commit: check_cut(world))


@given(
    worlds(("filter", "flat_map", "async", "async", "branch", "partition_by", "process"), "at_least_once"), crash_points
)
def test_at_least_once_loses_nothing(world, crash):
    world.run([crash])
    expected = sent(world.pipeline, Reference(world.pipeline).run(world.parts))
    for name, events in world.outputs().items():
        assert events >= expected[name]


@given(worlds(), st.integers(1, 40))
@settings(max_examples=scale(20, 100, 2_000))
def test_a_seed_replays_a_run_exactly(world, turn):
    def ends(crashes):
        again = replace(world)
        commits = []
        again.run(crashes, commits.append)
        return [(commit.generation, commit.checkpoints, commit.state) for commit in commits]

    crashes = [CrashPoint("turn", turn)]
    assert ends(crashes) == ends(crashes)


@pytest.mark.parametrize("kinds", [("window",), ("partition_by", "window"), ("window", "async"), ("process", "async")])
@given(data=st.data())
@settings(max_examples=scale(15, 100, 2_000))
def test_the_end_of_the_streams_fires_everything(kinds, data):
    world = data.draw(worlds(kinds))
    world.run()
    check_end(world)


@given(worlds(("process", "async", "async"), "at_least_once"), st.lists(crash_points, min_size=1, max_size=3))
def test_at_least_once_loses_nothing_that_is_in_flight_below_a_stateful_operator(world, crashes):
    world.run(crashes)
    expected = sent(world.pipeline, Reference(world.pipeline).run(world.parts))
    for name, events in world.outputs().items():
        assert events >= expected[name]
