"""Operators that begin without reading all that they keep: over restarts, splits, and versions that noted less."""

import json
from collections import defaultdict
from dataclasses import dataclass
from operator import itemgetter
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from operators.core.base import Batch
from operators.state.keyed_state import STATE
from operators.windows.sliding import LAST, MARK, ROW
from planner.model.virtual_tasks import is_task
from runtime.encoding.serdes import Tagged
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import END, Append, StreamConfig
from samza_dsl import (
    App,
    Json,
    Options,
    after_count,
    after_delay,
    collect,
    count,
    counted,
    hopping,
    session,
    sliding,
    tumbling,
)
from samza_dsl.data.records import records_from
from tests.scale import examples
from tests.simulation.crash import memory, run_once

LATE = {"allowed_lateness_ms": 90}


@dataclass(frozen=True)
class Growing:
    """From each value on, as long as its number says; what overlaps is one."""

    merges = True

    def assign(self, key, timestamp, tick):
        return [(timestamp, timestamp + 1 + tick[0] * 7 % 30)]


@dataclass(frozen=True)
class Apart(Growing):
    """The same, each by itself."""

    merges = False


WINDOWS = {
    "sessions": lambda ticks: ticks.window(session(milliseconds=20), collect(), op_id="it"),
    "growing": lambda ticks: ticks.window(Growing(), collect(), op_id="it"),
    "early": lambda ticks: ticks.window(
        tumbling(milliseconds=50), count(), early=after_delay(milliseconds=9), op_id="it"
    ),
    "late": lambda ticks: ticks.window(
        hopping(milliseconds=60, every_ms=30), count(), early=after_count(2), **LATE, op_id="it"
    ),
    "again": lambda ticks: ticks.window(
        session(milliseconds=9), collect(), late_trigger=after_count(2), **LATE, op_id="it"
    ),
    "apart": lambda ticks: ticks.window(Apart(), collect(), **LATE, early=after_delay(milliseconds=5), op_id="it"),
}
WINDOWS |= {
    "counted": lambda ticks: ticks.window(counted(3), collect(), op_id="it"),
    "counted again": lambda ticks: ticks.window(counted(4, every=3), collect(), op_id="it"),
    "counted early": lambda ticks: ticks.window(
        counted(5), collect(), early=after_delay(milliseconds=9), panes="discarding", op_id="it"
    ),
    "late sliding": lambda ticks: ticks.window(sliding(milliseconds=20), collect(), **LATE, op_id="it"),
    "sliding": lambda ticks: ticks.window(sliding(milliseconds=20), collect(), op_id="it"),
    "sliding, removing": lambda ticks: ticks.window(sliding(milliseconds=30), count(), op_id="it"),
    "sliding, final": lambda ticks: ticks.window(sliding(milliseconds=20), collect(), **LATE, emit="final", op_id="it"),
}
WITHIN = {
    "outer": lambda left, right: left.join(right, pair, how="outer", within=(-10, 15), op_id="it"),
    "left": lambda left, right: left.join(right, pair, how="left", within=(0, 25), op_id="it"),
    "as of": lambda left, right: left.join_asof(right, pair, how="left", direction="forward", tolerance=30, op_id="it"),
    "nearest": lambda left, right: left.join_asof(right, pair, direction="nearest", tolerance=8, op_id="it"),
}
TICKS = st.lists(st.tuples(st.integers(0, 9), st.integers(-40, 25)), max_size=40)
PARTS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 1, 2, 4]), st.booleans()), max_size=6)


def pair(left, right):
    return [(left or right)[0], left, right]


def ticks_app(name, factor, is_behind, counts=False, **options):
    app = App("ticks", Options(elasticity=factor, **options))
    ticks = app.input(
        "ticks",
        value=Json(),
        key=lambda tick: tick[0],
        timestamp=lambda tick: tick[1],
        partitioned_by_key=True,
        max_disorder_ms=15,
    )
    if is_behind:
        ticks = ticks.partition_by(lambda tick: tick[0], key_type=int, partitions=2, op_id="behind")
    if name in WINDOWS:
        panes = WINDOWS[name](ticks)
        shown = panes.map(lambda pane: [pane.key, pane.start, pane.end, pane.index, pane.timing, pane.value])
    else:
        shown = WITHIN[name](ticks.filter(lambda tick: tick[1] % 3 > 0), ticks.filter(lambda tick: tick[1] % 3 < 2))
    if counts:
        # What event time passes by is late here, and not counted.
        below = shown.partition_by(lambda row: row[0], partitions=2, op_id="below")
        panes = below.window(tumbling(milliseconds=20), count(), op_id="counts")
        shown = panes.map(lambda pane: [pane.key, pane.start, pane.value])
    shown.send_to(app.output("out", value=Json()))
    return app


def as_before(environment, has_mark):
    """Let the application be as a version left it that noted no lowest stamps, and left alone what others noted."""
    checkpoints = environment.checkpoints("ticks")
    changed = {name: replace(one, watermarks={}) for name, one in checkpoints.items() if is_task(name)}
    writes = [
        StateWrites(store, task, with_a_mark([*environment.state_range("ticks", store, task)]))
        for store, task in (environment.state_stats("ticks") if has_mark else ())
    ]
    environment.commit(Commit("ticks", environment.generation("ticks"), [], writes, changed))


def with_a_mark(entries):
    """Return the states of sliding windows without the times that have fired last, and one mark in their place."""
    states = {place: Tagged().decode(data) for place, data in entries if place[:1] == STATE}
    marks = [(MARK, Tagged().encode((ROW, len(states), 0)))] if states else []
    return [*marks, *((place, Tagged().encode(tuple(state[:LAST]))) for place, state in states.items())]


def results(rows, parts, options, name, is_behind, counts):
    """Return the panes by key in their order, and what is left in the store, where the application ran in parts."""
    environment = memory()
    environment.create_stream("ticks", StreamConfig())
    for number, factor, is_former in parts:
        some, rows = rows[:number], rows[number:]
        environment.append([Append("ticks", 0, Batch(some, timestamps=[0] * len(some)))] if some else [])
        run_once(ticks_app(name, factor, is_behind, counts, **options), environment, until_now=True)
        if is_former:
            # These versions split no tasks of sliding windows.
            as_before(environment, factor == 1 and name in ("sliding", "sliding, removing", "sliding, final"))
    environment.append([Append("ticks", 0, Batch(rows, timestamps=[0] * len(rows)), END)])
    run_once(ticks_app(name, parts[-1][1] if parts else 1, is_behind, counts, **options), environment)
    found = defaultdict(list)
    for record in records_from(environment, "out", 0, 0):
        pane = json.loads(record.value)
        found[pane[0]].append(pane)
    # Pairs are written as rows come, and rows that nothing has met when that is sure; where early panes of a window lie
    # among those of another goes by how many records are taken in at once.
    order = json.dumps if name in WITHIN else itemgetter(slice(1, 3))
    if "counted" not in name or counts:
        found = {key: sorted(rows, key=order) for key, rows in found.items()}
    return dict(found), [*environment.state_range("ticks", "it", 0)]


NOTED = [name for name in WINDOWS if "counted" not in name and "sliding" not in name]
"""Those that note in the store when they are to look at what they keep."""
READ = [*(WINDOWS.keys() - NOTED), *WITHIN]
"""Those that read all that they keep, in parts."""
LITTLE = st.fixed_dictionaries(
    {"batch_records": st.sampled_from([1, 2_000]), "max_uncommitted": st.sampled_from([1, 9])}
)


def check_parts(ticks, parts, options, *shape):
    """Compare what an application comes to that runs in parts with what it does at once."""
    now, rows = 100, []
    for key, step in ticks:
        now += abs(step) // 2 if step > 0 else 0
        rows.append(json.dumps([key, max(now + step, 0)]).encode())
    found, left = results(rows, parts, options, *shape)
    assert left == [], "nothing is kept behind the end of all"
    assert found == results(rows, [], {}, *shape)[0]


@settings(max_examples=examples(120, 5_000), deadline=None)
@given(st.sampled_from(NOTED), st.booleans(), st.booleans(), TICKS, PARTS, LITTLE)
def test_runs_in_parts_come_to_what_one_does(name, is_behind, counts, ticks, parts, options):
    check_parts(ticks, parts, options, name, is_behind, counts)


MANY = st.lists(st.tuples(st.integers(0, 20), st.integers(-25, 12)), min_size=20, max_size=60)


@settings(max_examples=examples(120, 5_000), deadline=None)
@given(st.sampled_from(READ), st.booleans(), st.booleans(), MANY, PARTS, LITTLE, st.integers(1, 3))
def test_runs_that_read_in_parts_come_to_what_one_does(name, is_behind, counts, ticks, parts, options, most):
    # Commits come between two steps here, as they do where these take long.
    with patch("operators.state.unread_entries.MOST_READ", most), patch("runtime.loop.loop.SLICE_MS", -1):
        check_parts(ticks, parts, options, name, is_behind, counts)
