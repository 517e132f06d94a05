"""Operators that begin without reading what they keep: over restarts, splits, and versions that noted no dues."""

import json
from collections import defaultdict
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from operators.core.base import Batch
from planner.model.virtual_tasks import is_task
from runtime.ports.commits import Commit
from runtime.ports.streams import END, Append, StreamConfig
from samza_dsl import App, Json, Options, after_count, after_delay, collect, count, hopping, session, tumbling
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
TICKS = st.lists(st.tuples(st.integers(0, 5), st.integers(-40, 25)), max_size=40)
PARTS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 1, 2, 4]), st.booleans()), max_size=6)


def ticks_app(name, factor, is_behind):
    app = App("ticks", Options(elasticity=factor))
    ticks = app.input(
        "ticks",
        value=Json(),
        key=lambda tick: tick[0],
        timestamp=lambda tick: tick[1],
        partitioned_by_key=True,
        max_disorder_ms=15,
    )
    if is_behind:
        ticks = ticks.partition_by(lambda tick: tick[0] % 4, key_type=int, partitions=2, op_id="behind")
    panes = WINDOWS[name](ticks)
    shown = panes.map(lambda pane: [pane.key, pane.start, pane.end, pane.index, pane.timing, pane.value])
    shown.send_to(app.output("out", value=Json()))
    return app


def as_before(environment):
    """Let the application be as a version left it that noted no lowest stamps, and left alone what others noted."""
    checkpoints = environment.checkpoints("ticks")
    changed = {name: replace(one, watermarks={}) for name, one in checkpoints.items() if is_task(name)}
    environment.commit(Commit("ticks", environment.generation("ticks"), [], [], changed))


def results(name, is_behind, rows, parts):
    """Return the panes by key in their order, and what is left in the store, where the application ran in parts."""
    environment = memory()
    environment.create_stream("ticks", StreamConfig())
    for number, factor, is_former in parts:
        some, rows = rows[:number], rows[number:]
        environment.append([Append("ticks", 0, Batch(some, timestamps=[0] * len(some)))] if some else [])
        run_once(ticks_app(name, factor, is_behind), environment, until_now=True)
        if is_former:
            as_before(environment)
    environment.append([Append("ticks", 0, Batch(rows, timestamps=[0] * len(rows)), END)])
    run_once(ticks_app(name, parts[-1][1] if parts else 1, is_behind), environment)
    found = defaultdict(list)
    for record in records_from(environment, "out", 0, 0):
        pane = json.loads(record.value)
        found[pane[0]].append(pane)
    return dict(found), [*environment.state_range("ticks", "it", 0)]


@settings(max_examples=examples(120, 5_000), deadline=None)
@given(st.sampled_from([*WINDOWS]), st.booleans(), TICKS, PARTS)
def test_runs_in_parts_come_to_what_one_does(name, is_behind, ticks, parts):
    now, rows = 100, []
    for key, step in ticks:
        now += abs(step) // 2 if step > 0 else 0
        rows.append(json.dumps([key, max(now + step, 0)]).encode())
    panes, left = results(name, is_behind, rows, parts)
    assert left == [], "nothing is kept behind the end of all"
    assert panes == results(name, is_behind, rows, [])[0]
