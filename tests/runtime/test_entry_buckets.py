"""Each entry of state tells the key that it goes with: parts of a task have, between them, the entries of the whole."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch, Spec
from operators.partition_by import EVERY_BUCKET, bucket_of, entry_bucket
from planner.checks.splitting import splittable
from runtime.encoding.serdes import Tagged
from runtime.ports.streams import Append, StreamConfig
from samza_dsl import (
    App,
    after_count,
    after_delay,
    any_of,
    by_clock,
    collect,
    count,
    counted,
    hopping,
    session,
    sliding,
    total,
    tumbling,
    windows_by,
)
from tests.building import build
from tests.scale import examples
from tests.simulation.crash import append_rows, memory, run_once
from tests.specs import specs
from tests.strategies import APP, any_records, pipelines, stored, tables

FAR_MS = 10_000
SHORT = tumbling(milliseconds=40)
TABLE = {"key": lambda row: row[0], "partitioned_by_key": True}


@dataclass(frozen=True)
class Given:
    """What there is to make a step of: an app, the streams of two inputs, and the part of their messages to keep."""

    app: App
    part: tuple[int, int]

    def keeps(self, row):
        """Whether the key of a row is in the part."""
        return bucket_of(Tagged().encode(row[0]), 0, self.part[1]) == self.part[0]

    def stream(self, name="in", key=lambda row: row[0]):
        numbers = self.app.input(
            name,
            value=list,
            key=key,
            partitioned_by_key=True,
            timestamp=lambda row: row[1],
            max_disorder_ms=30,
        )
        return numbers.filter(self.keeps, op_id=f"part-{name}")

    @property
    def streams(self):
        return self.stream(), self.stream("other")


def all_kinds(row, context):
    """Use all that the state of a key has."""
    context.state = [row[2]]
    context.list("values").append(row[2])
    context.list("more").extend([row[1]] * (row[2] % 3))
    context.map("seen")[row[2]] = row[1]
    context.set_timer(row[1] + FAR_MS)
    context.set_alarm(9_000_000_000_000 + row[2])
    return [row]


def timer(at_ms, context):
    return []


async def awaited(row, context):
    context.state = (context.state or 0) + row[2]
    return [row]


def first_of(row):
    return row[0]


@dataclass(frozen=True)
class Lasting:
    """A window from each value on, as long as its value says."""

    merges: bool

    def assign(self, key, timestamp, value):
        return [(timestamp, timestamp + 20 + value[2] % 50)]


def windowed(windows, aggregation=None, **how):
    return lambda given: given.stream().window(windows, aggregation or collect(), op_id="it", **how)


def joined(**how):
    def step(given):
        left, right = given.streams
        return left.join(right, pair, within=(-50, 80), op_id="it", **how)

    return step


def nearest(**how):
    def step(given):
        left, right = given.streams
        return left.join_asof(right, pair, op_id="it", **how)

    return step


def pair(one, other):
    return [one, other]


def as_of(given):
    table = given.app.table("other", value=list, timestamp=lambda row: row[1], retention_ms=20, **TABLE)
    return given.stream().join(table, pair, how="left", op_id="it")


def of_tables(**how):
    def step(given):
        left, right = (given.app.table(name, value=list, **TABLE) for name in ("in", "other"))
        return left.join(right, pair, how="left", op_id="it", **how).changes()

    return step


def looked_into(given):
    table = given.app.table("other", value=list, **TABLE)
    return given.stream().join(table, pair, how="left")


def joined_with_own(given):
    left, right = given.streams
    return left.join(right.to_table("rows"), pair, how="left", op_id="it")


def by_row(given):
    table = given.app.table("other", value=list, **TABLE)
    lengths = windows_by(table, lambda row: tumbling(milliseconds=90 if row is None else 50))
    return given.stream().window(lengths, collect(), op_id="it")


def in_windows(given):
    left, right = given.streams
    return left.join_windows(right, hopping(milliseconds=60, every_ms=20), pair, allowed_lateness_ms=40, op_id="it")


def own(given):
    def process(message, context):
        context.put(message.key, (context.get(message.key) or 0) + message.value[2])

    given.app.task(given.stream(), process, keyed=True, op_id="it")


def one(make):
    return lambda given: make(given.stream())


BY_CLOCK = any_of(after_count(3), after_delay(milliseconds=10, by_clock=True))
STEPS = {
    "scan": one(lambda s: s.scan(lambda state, row: [*(state or []), row], op_id="it")),
    "process": one(lambda s: s.process(all_kinds, on_timer=timer, on_alarm=timer, op_id="it")),
    "process, ttl": one(
        lambda s: s.process(all_kinds, on_timer=timer, on_alarm=timer, ttl_ms=FAR_MS // 100, op_id="it")
    ),
    "async": one(lambda s: s.async_flat_map(awaited, op_id="it")),
    "deduplicate": one(lambda s: s.deduplicate(lambda row: row[0], within_ms=70, op_id="it")),
    "task": own,
    "tumbling": windowed(SHORT),
    "hopping": windowed(hopping(milliseconds=90, every_ms=30), total(lambda row: row[2])),
    "late": windowed(SHORT, allowed_lateness_ms=300),
    "discarding": windowed(SHORT, allowed_lateness_ms=300, panes="discarding"),
    "final": windowed(SHORT, allowed_lateness_ms=300, emit="final"),
    "counts": windowed(SHORT, count()),
    "by row": by_row,
    "assigned": windowed(Lasting(False)),
    "assigned, early": windowed(Lasting(False), early=after_count(2)),
    "merging": windowed(Lasting(True)),
    "merging, late": windowed(Lasting(True), allowed_lateness_ms=300),
    "session": windowed(session(milliseconds=60)),
    "session, late": windowed(session(milliseconds=60), allowed_lateness_ms=300),
    "triggered": lambda given: windowed(SHORT, early=after_count(2), allowed_lateness_ms=300, panes="retracting")(
        given
    ).revisions(),
    "triggered by the clock": windowed(SHORT, early=BY_CLOCK),
    "sliding": windowed(sliding(milliseconds=100)),
    "sliding, removing": windowed(sliding(milliseconds=100), total(lambda row: row[2])),
    "sliding, late": windowed(sliding(milliseconds=100), allowed_lateness_ms=300),
    "counted": windowed(counted(3)),
    "counted, early": windowed(counted(50), early=BY_CLOCK),
    "by clock": windowed(by_clock(tumbling(hours=5))),
    "by clock, sliding": windowed(by_clock(sliding(hours=5))),
    "by clock, session": windowed(by_clock(session(hours=5))),
    "by clock, early": windowed(by_clock(tumbling(hours=5)), early=after_count(50)),
    "join": joined(),
    "join, outer": joined(how="outer"),
    "join, latest": joined(keep="latest"),
    "as of": as_of,
    "last before": nearest(),
    "nearest": nearest(direction="nearest", tolerance=50),
    "tables": of_tables(),
    "foreign key": of_tables(on=lambda row: row[0]),
    "own table": one(lambda s: s.to_table("it").changes()),
    "own table's join": joined_with_own,
    "table": looked_into,
    "windows": in_windows,
}
OF_TABLES = ("tables", "foreign key")
"""The steps whose messages pass no filter: of these each key's entries are those of a run in which it is alone."""
KEEPS_NOTHING = {"remote_join"}

KEYS = st.sampled_from(["", "a", "aa", "a" * 40, "é", 0, 1, -1, 300, 2**40, True, 1.5, "s", "0", 127])
ROWS = st.lists(st.tuples(KEYS, st.integers(0, 60), st.integers(0, 99)), min_size=1, max_size=40)


def entries_of(step, rows, others, part=(0, 1)):
    """Return the specs, and the entries of all state by operator and place, after a run over rows without an end."""
    app = App("parts")
    made = STEPS[step](Given(app, part))
    if made is not None:
        made.send_to(app.output("out"))
    assert bool(splittable(app.plan())) == (step in EVERYWHERE), "what has an entry of no key is not split"
    environment = memory()
    for name, values in (("in", rows), ("other", others)):
        environment.create_stream(name, StreamConfig())
        if values:
            data = [encoded(*value) for value in values]
            environment.append([Append(name, 0, Batch(data, timestamps=[0] * len(data)))])
    run_once(app, environment, until_now=True)
    stores = environment.stores("parts")
    found = {(id, at): value for id in stores for at, value in environment.state_range("parts", id, 0)}
    return app.graph().specs, found


def encoded(key, at, n):
    return json.dumps([key, at, n]).encode()


def in_time(rows):
    """Return rows whose times go on, with some that are late."""
    now, found = 0, []
    for key, step, n in rows:
        now += step
        found.append((key, max(now - (200 if n % 11 == 0 else n % 25), 0), n))
    return found


def keys_in(specs, entries):
    return {(id, place): specs[id].key_at(place) for id, place in entries}


EVERYWHERE = {"foreign key": {b"r"}}
"""The first bytes of the entries that are of no key, by step: there are no others."""
BY_CHANCE = {"by clock, sliding"}
"""The steps of which it depends on the machine's clock how far windows have fired as a run ends."""


@pytest.mark.parametrize("step", [step for step in STEPS if step not in {*EVERYWHERE, *BY_CHANCE}])
@given(rows=ROWS, others=ROWS, factor=st.sampled_from([2, 4]))
@settings(max_examples=examples(12, 200), deadline=None)
def test_parts_have_between_them_the_entries_of_the_whole(step, rows, others, factor):
    rows, others = in_time(rows), in_time(others)
    specs, whole = entries_of(step, rows, others)
    known = {Tagged().encode(key) for key, *_ in (*rows, *others)}
    buckets = {(id, place): entry_bucket(specs[id], place, factor) for id, place in whole}
    for one, key in keys_in(specs, whole).items():
        assert key in known or (key is None and buckets[one] == EVERY_BUCKET)
    for bucket in range(factor):
        _, part = entries_of(step, rows, others, (bucket, factor))
        # Tables are read by all.
        own = {one: value for one, value in part.items() if entry_bucket(specs[one[0]], one[1], factor) == bucket}
        assert own == {one: value for one, value in whole.items() if buckets[one] == bucket}
        for one in part.keys() - own.keys():
            assert buckets[one] == EVERY_BUCKET or step in OF_TABLES or one[0] != "it" or one[1][:1] in (b"v", b"b")


@pytest.mark.parametrize("step", OF_TABLES)
@given(rows=ROWS, others=ROWS)
@settings(max_examples=examples(12, 200), deadline=None)
def test_the_entries_of_a_key_are_those_where_it_is_alone(step, rows, others):
    specs, whole = entries_of(step, rows, others)
    for key in {Tagged().encode(key) for key, *_ in rows}:
        mine, theirs = ([row for row in one if Tagged().encode(row[0]) == key] for one in (rows, others))
        _, alone = entries_of(step, mine, theirs if step == "tables" else others)
        for one in ({*whole, *alone} - {*whole} & {*alone}) | {*whole}:
            if specs[one[0]].key_at(one[1]) == key:
                assert whole.get(one) == alone.get(one)


@pytest.mark.parametrize("step", STEPS)
def test_few_entries_are_of_no_key(step):
    rows = [
        (key, at, n)
        for n, (key, at) in enumerate([("a", 5), ("b", 7), ("a", 60), ("c", 120), ("b", 150), ("c", 210)] * 2)
    ]
    specs, whole = entries_of(step, rows, rows)
    assert whole, "the step has left state to look at"
    first = {place[:1] for (_, place), key in keys_in(specs, whole).items() if key is None}
    known = EVERYWHERE.get(step, set())
    assert first == known


@given(pipeline=pipelines(), seed=st.integers(0, 2**32))
@settings(max_examples=examples(15, 500), deadline=None)
def test_in_any_pipeline_each_entry_is_of_a_key_that_there_is(pipeline, seed):
    app, environment = build(pipeline), memory()
    parts = any_records(random.Random(seed), pipeline.partitions, nulls=pipeline.nulls)
    for stream, rows in {**{s: stored(p) for s, p in pipeline.split(parts).items()}, **tables(pipeline)}.items():
        environment.create_stream(stream, StreamConfig(partitions=len(rows)))
        for partition, some in enumerate(rows):
            if some:
                append_rows(environment, stream, partition, some)
    run_once(app, environment, until_now=True)
    specs, plan = (
        app.graph().specs,
        app.plan({name: config.partitions for name, config in environment.streams().items()}),
    )
    whole = {one.operator for one in splittable(plan)}
    # The keys of records, of what was repartitioned, of the rows of tables, and the one of all that is in one task.
    known = {b"", *(Tagged().encode(f"k{number}") for number in range(6))}
    for id in {*environment.stores(APP)} - whole:
        for task in range(plan.tasks):
            assert {specs[id].key_at(place) for place, _ in environment.state_range(APP, id, task)} <= known


def test_each_kind_of_operator_that_keeps_state_is_tried():
    tried = set()
    for step in STEPS:
        app = App("parts")
        STEPS[step](Given(app, (0, 1)))
        tried |= {spec.kind for spec in app.graph().specs.values()}
    kinds = {one.kind for one in specs() if one.stateful is not False}
    assert kinds - tried <= KEEPS_NOTHING


def test_a_kind_that_does_not_say_where_keys_lie_is_an_error():
    class Forgetful(Spec):
        kind = "forgetful"

    with pytest.raises(TypeError, match=r"forgetful .*write instead: def entry_kinds\(self\) in .*Forgetful"):
        Forgetful().key_at(b"sAA")
