"""Inputs of several tasks that are read together come to what each by itself does, whatever is unusual in one."""

import asyncio
import json
import re
from collections import Counter
from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.levers import ALL
from runtime.job.pipeline import Pipeline
from runtime.model.clock import SystemClock
from runtime.model.errors import SamzaError
from runtime.reading.relay import Relay
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from runtime.task import together
from runtime.task.task import Task
from samza_dsl import (
    App,
    Options,
    aggregate,
    collect,
    count,
    dead_letter,
    fail,
    hopping,
    maximum,
    skip,
    total,
    tumbling,
)
from tests.scale import examples
from tests.simulation.crash import rows_of

WINDOWS = {
    "tumbling": tumbling(milliseconds=5),
    "hopping": hopping(milliseconds=6, every_ms=2),
    "long": tumbling(milliseconds=50),
}
AGGREGATIONS = {
    "count": count,
    "several": lambda: aggregate(dict, n=count(), most=maximum(lambda r: r[2]), sum=total(lambda r: r[2])),
    "in order": lambda: collect(),
    "raising": lambda: total(lambda r: 10 // (r[2] - 3)),
}
POLICIES = {"fail": fail, "skip": skip, "letter": dead_letter("bad")}
ANY_POLICY = st.sampled_from(["skip", "letter", "skip", "letter", "fail"])
ODD = {
    "keys": [1, -7, (1, "x"), True, None, "\ud800", "d"],
    "times": [None, "soon", 2**70, -500],
    "numbers": [3, 5, 7],
}
"""Parts of records that are unlike the others, by their place in these."""


@st.composite
def partitioned(draw):
    """Draw the records of several partitions, (key, time, number, partition, place) each, some of which are odd."""
    chance, keys, spread_ms = Random(draw(st.integers(0, 2**16))), draw(st.sampled_from([4, 1_000])), draw(TIMES)
    parts = [
        [
            [f"k{chance.randrange(keys)}", place // 3 + chance.randrange(spread_ms), chance.choice("0012468"), part]
            for place in range(size)
        ]
        for part, size in enumerate(draw(st.lists(st.sampled_from([3, 40, 40, 70, 150]), min_size=2, max_size=8)))
    ]
    for records in draw(st.lists(st.sampled_from(parts), min_size=1, max_size=3)):
        if records:
            column = draw(st.sampled_from([*ODD]))
            records[chance.randrange(len(records))][[*ODD].index(column)] = chance.choice(ODD[column])
    return [
        [(key, at, int(number), part, place) for place, (key, at, number, part) in enumerate(records)]
        for records in parts
    ]


TIMES = st.sampled_from([1, 10, 15, 30])
"""The ms within which the times of neighbours lie, some more than the disorder that is allowed."""


def chosen(key, partitions):
    """Choose a partition, but for one key that has none."""
    if key == "d":
        raise ValueError("nowhere")
    return len(repr(key)) % partitions


def by_partition(records):
    """Return which records of each partition came, in order; what comes of several has no order between them."""
    found = {}
    for _, _, _, partition, number, *_ in records:
        found.setdefault(partition, []).append(number)
    return sorted(found.items())


@st.composite
def pipelines(draw):
    """Draw what makes an application, given options."""
    windows, aggregation = draw(st.sampled_from([*WINDOWS])), draw(st.sampled_from([*AGGREGATIONS]))
    by = {"by": chosen} if draw(st.integers(0, 4)) == 0 else {}
    partitions, policy, before = draw(st.integers(1, 5)), draw(ANY_POLICY), draw(st.booleans())
    lateness, branches = draw(st.sampled_from([0, 0, 10])), draw(st.booleans())
    letters, in_rows, raising = draw(ANY_POLICY), draw(st.booleans()), draw(st.booleans())

    def make(options):
        app = App("together", options)
        records = app.input("in", timestamp=lambda r: r[1], max_disorder_ms=15, value=tuple, on_error=POLICIES[letters])
        kept = records.filter(lambda r: r[2] != 5).flat_map(lambda r: [r] * (r[2] % 3))
        if raising:
            kept = kept.map(lambda r: (*r, 8 // (r[2] - 7)), on_error=POLICIES[policy], op_id="raising")
        said = {"on_error": POLICIES[policy]} if before else {}
        keyed = kept.partition_by(lambda r: r[0], partitions=partitions, op_id="by", **by, **said)
        streams = [keyed]
        if branches:
            streams.append(kept.partition_by(lambda r: r[2] % 4, partitions=2, op_id="by-other"))
        for number, stream in enumerate(streams):
            # Windows behind a map get rows, and not groups.
            panes = (stream.map(lambda r: r, op_id=f"as-rows-{number}") if in_rows else stream).window(
                WINDOWS[windows],
                AGGREGATIONS[aggregation](),
                allowed_lateness_ms=lateness,
                late=dead_letter("late"),
                on_error=POLICIES[policy],
                op_id=f"windows-{number}",
            )
            panes.map(
                lambda p: [
                    repr(p.key),
                    p.start,
                    p.end,
                    p.index,
                    by_partition(p.value) if type(p.value) is list else repr(p.value),
                ],
                op_id=f"shown-{number}",
            ).send_to(app.output(f"out-{number}"))
        return app

    return make, 1 + branches


def outcome(app, branches, parts, levers):
    """Return what a run in memory leaves: outputs, letters, counts and positions; or the error that ended it."""
    environment, sinks = MemoryEnvironment(), {f"out-{number}": ListSink() for number in range(branches)}
    bind = {"in": ListSource(parts, partitions=len(parts)), **sinks}
    run = Run(Pipeline(app.graph(), app.options, app.around), environment, RunSettings(bind=bind, levers=levers))
    try:
        asyncio.run(run.drive())
    except SamzaError as failure:
        return str(failure)
    letters = [
        sorted(repr(row[1]) for row in rows_of(environment, name)[0])
        for name in ("bad", "late")
        if rows_of(environment, name)
    ]
    counts = Counter()
    for one in run.metrics().operators:
        counts[one.operator, "received"] += one.received
        counts[one.operator, "emitted"] += one.emitted
        counts[one.operator, "skipped"] += one.skipped
        counts[one.operator, "late"] += one.late
    read = [one for checkpoint in environment.checkpoints("together").values() for one in checkpoint.positions]
    positions = {(one.partition, one.offset, one.watermark, one.ended_at) for one in read if one.stream == "in"}
    return [sorted(map(json.dumps, sink.values)) for sink in sinks.values()], letters, counts, positions


@given(pipelines(), partitioned(), st.sampled_from([10, 100, 1_000, 1_000]))
@settings(max_examples=examples(150, 5_000), deadline=None)
def test_tasks_that_are_fed_together_come_to_what_each_does(pipeline, parts, batch_records):
    make, branches = pipeline
    options = Options(batch_records=batch_records)
    as_rows = outcome(make(options), branches, parts, replace(ALL, folding=False))
    with patch.object(together, "joins", lambda place: False):
        alone = outcome(make(options), branches, parts, ALL)
    joint = outcome(make(options), branches, parts, ALL)
    if isinstance(as_rows, str):  # which of several failures comes first is nobody's
        assert isinstance(alone, str) and isinstance(joint, str)
    else:
        assert joint == alone == as_rows
        assert len(joint[-1]) == len(parts)


def words(partitions, app_options=None, **policies):
    app = App("words", app_options or Options())
    words = app.input("in", timestamp=lambda r: r[1], value=tuple, **policies)
    counted = words.partition_by(lambda r: r[0], op_id="by").window(tumbling(milliseconds=100), count())
    counted.map(lambda p: [p.key, p.start, p.value]).send_to(app.output("out-0"))
    return app


def handed_on(monkeypatch):
    """Return the numbers of messages in what relays are given from now on, that of rows as 0."""
    found, give = [], Relay.give

    def noted(self, batch):
        found.append(len(batch) if hasattr(batch, "by_slots") else 0)
        give(self, batch)

    # Time stands still: how much is read together depends on no other work of the machine.
    monkeypatch.setattr(SystemClock, "elapsed_ms", lambda self: 0.0)
    monkeypatch.setattr(Relay, "give", noted)
    return found


def test_what_many_partitions_hand_on_is_grouped_once(monkeypatch):
    found, partitions = handed_on(monkeypatch), 8
    parts = [[(f"w{number % 50}", 50, 0) for number in range(1_600)] for _ in range(partitions)]
    (values,), _, counts, _ = outcome(words(partitions), 1, parts, ALL)
    assert len(values) == 50 and counts["by", "received"] == counts["by", "emitted"] == 1_600 * partitions
    # Steps begin with 16 records and grow: 16, 256, and the rest; each gives every partition one piece at most.
    assert sum(found) == 1_600 * partitions and 0 not in found
    assert len(found) <= 3 * partitions


def test_rows_of_many_partitions_are_split_once(monkeypatch):
    found, partitions = handed_on(monkeypatch), 8
    app = App("rows", Options())
    records = app.input("in", timestamp=lambda r: r[1], value=tuple)
    records.partition_by(lambda r: r[0], op_id="by").map(lambda r: [r[0], r[1]]).send_to(app.output("out-0"))
    parts = [[(f"w{number % 50}", 50, 0) for number in range(1_600)] for _ in range(partitions)]
    (values,), _, counts, _ = outcome(app, 1, parts, ALL)
    assert len(values) == counts["by", "received"] == 1_600 * partitions
    assert len(found) <= 3 * partitions


def test_one_partition_with_a_malformed_record_goes_alone(monkeypatch):
    found, partitions, number = handed_on(monkeypatch), 4, 12  # of fewer first records the times are looked at
    parts = [[(f"w{one}", 50, 0) for one in range(number)] for _ in range(partitions)]
    parts[2][4] = ("w4", "soon", 0)
    _, letters, counts, _ = outcome(words(partitions, on_error=dead_letter("bad")), 1, parts, ALL)
    assert len(letters[0]) == 1 and re.search("soon", letters[0][0])
    assert counts["by", "received"] == number * partitions - 1
    assert sum(found) == number * (partitions - 1), "the others are grouped"


@pytest.mark.parametrize(("keys", "again"), [(5, []), (1_000_000, [0, 1, 2, 3, 4, 6])])
def test_only_those_since_a_savepoint_fold_again_with_an_odd_one(monkeypatch, keys, again):
    handed_on(monkeypatch)  # time stands still: which are read together depends on no other work of the machine
    partitions, number, seen = 8, 1_000, Counter()

    def noted(record):
        seen[record[2]] += 1
        return (*record, 1 // record[3])

    app = App("odd", Options())
    records = app.input("in", timestamp=lambda r: r[1], value=tuple)
    kept = records.map(noted, on_error=skip, op_id="noted").partition_by(lambda r: r[0], op_id="by")
    kept.window(tumbling(milliseconds=100), count()).map(lambda p: p.value).send_to(app.output("out-0"))
    parts = [[(f"w{(number * part + one) % keys}", 50, part, 1) for one in range(number)] for part in range(partitions)]
    for odd in (5, 7):
        parts[odd][900] = ("w0", 50, odd, 0)
    (values,), _, counts, _ = outcome(app, 1, parts, ALL)
    assert sum(map(int, values)) == partitions * number - 2 and counts["noted", "skipped"] == 2
    del seen[5], seen[7]
    assert sorted(part for part in seen if seen[part] > number) == again
    assert max(seen.values()) <= 2 * number, "none folds a third time"


def test_what_many_hand_on_further_is_taken_in_together(monkeypatch):
    """A stage behind another takes in a few large batches, and not one for each that its neighbours were handed."""
    partitions, fed = 16, Counter()
    feed = Task.feed

    def noted(self, lane, reader, limit):
        fed[lane.depth] += 1
        return feed(self, lane, reader, limit)

    monkeypatch.setattr(Task, "feed", noted)
    # Time stands still: how much is taken in at once depends on no other work of the machine.
    monkeypatch.setattr(SystemClock, "elapsed_ms", lambda self: 0.0)
    app = App("further", Options())
    records = app.input("in", timestamp=lambda r: r[1], value=tuple)
    hashed = records.partition_by(lambda r: r[0], partitions=partitions, op_id="by").map(lambda r: r)
    again = hashed.partition_by(lambda r: r[2], partitions=partitions, op_id="by-other")
    again.map(lambda r: r[2]).send_to(app.output("out-0"))
    parts = [[(part * 1_000 + one, 50, one % 97) for one in range(1_000)] for part in range(4)]
    (values,), *_ = outcome(app, 1, parts, replace(ALL, joint=False))
    assert Counter(map(int, values)) == Counter(one % 97 for _ in parts for one in range(1_000))
    assert fed[1] >= partitions
    assert fed[2] <= fed[1] + 2 * partitions


def test_each_partition_has_its_turn_where_a_step_ends_before_all_had_theirs(monkeypatch):
    turns, most_apart, feed = Counter(), [], together.feed_together

    def feed_three(places, each, clock):
        fed = feed(places[:3], 10, clock)
        turns.update(reader.origin.partition for _, _, reader in places[: len(fed)])
        if any(reader.ready() for _, _, reader in places):
            most_apart.append(max(turns.values()) - min(turns[one] for one in range(8)))
        return fed

    monkeypatch.setattr("runtime.loop.loop.feed_together", feed_three)
    app = App("turns")
    stream = app.input("in", timestamp=lambda r: r)
    stream.partition_by(lambda r: r % 7).window(tumbling(milliseconds=50), count()).send_to(app.output("out"))
    sink = ListSink()
    parts = [[*range(100)] for _ in range(8)]
    settings = RunSettings(bind={"in": ListSource(parts, partitions=8), "out": sink})
    asyncio.run(Run(Pipeline(app.graph(), app.options, app.around), MemoryEnvironment(), settings).drive())
    assert sum(pane.value for pane in sink.values) == 800
    assert max(most_apart) <= 2
