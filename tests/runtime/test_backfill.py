"""What is changed or new is computed from history alone, and goes on as if the new program had run from the start."""

import asyncio
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from planner.model.virtual_tasks import VirtualTask, is_task
from planner.passes import plan
from runtime.assembly.bindings import Bindings
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import LoopClock
from runtime.model.errors import SamzaError
from runtime.opening.evolution import computed_anew, evolved
from runtime.opening.stored_state import finish, forget, stored
from runtime.ports.environment import own_whole
from runtime.ports.streams import StreamConfig
from runtime.reprocessing.ahead import Ahead
from runtime.reprocessing.backfill import backfill_of, run_backfill
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from samza_dsl import App, Options, session, sliding, total, tumbling
from samza_dsl import counted as counted_windows
from samza_dsl.testing.environment import CrashPoint
from tests.runtime.test_laws import crash_points
from tests.scale import examples
from tests.simulation.crash import NOW_MS, Crash, Watched, append_rows, memory, rows_of, run_once
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import Cluster
from tests.simulation.loop import rest, simulate
from tests.strategies import Event, keys_of

APP = "evolving"
ANY_ORDER = ("meet", "left", "process")
"""What emits in an order that is not fixed."""
BY_ORDER = ("scan", "process", "remember", "once", "own", "counted")
"""What makes something else of messages in another order."""
SPLITS = ((1, 1), (2, 2), (2, 1), (2, 4), (1, 2))
"""What each task of the program that has run is split into, and of the next one."""
UNREAD = ("counted", "sliding", "left")
"""What reads what it keeps bit by bit where it begins."""
KEEPING = ("window", "session", "scan", "process", "remember", "once", "meet", "table", "own", *UNREAD)
HOLDING = ("counted", "sliding", "meet", "left")
"""What holds event time back below itself by what it keeps of the keys of its task."""
TWO = ("meet", "left", "table")
"""What has two inputs."""
UNTIMED = ("scan", "remember", "own")
"""What keeps something and does not go by event time."""
FIRING = ("window", "session", "sliding", "process")
"""What fires by event time."""


@dataclass(frozen=True)
class Op:
    """An operator of a drawn program: what it reads, and a number that varies it."""

    id: str
    kind: str
    above: str
    number: int = 1
    other: str = ""


class Programs:
    """Draws a program, and another one that it becomes."""

    def __init__(self, chance):
        self.chance = chance

    def first(self):
        ops = []
        for number in range(self.chance.randint(1, 6)):
            self.add(ops, f"op-{number}")
        return ops

    def add(self, ops, id):
        chance = self.chance
        above = chance.choice(["events", "others", *(one.id for one in ops)])
        kinds = ["map", "partition_by", *KEEPING]
        if self.depth(ops, above) == 2:
            kinds.remove("partition_by")
        if self.is_of_any_order(ops, above):
            kinds = [kind for kind in kinds if kind not in BY_ORDER and kind != "table"]
        kind = chance.choice(kinds)
        others = [one for one in self.beside(ops, above) if one != above]
        # What timers emit may be late by then, or not: it goes by when they fire.
        if kind in TWO and any(one.kind == "process" for place in (above, *others) for one in self.lineage(ops, place)):
            kind = "window"
        if kind in TWO and not others:
            kind = "window"
        op = Op(id, kind, above, chance.randint(1, 4), chance.choice(others) if kind in TWO else "")
        ops.append(op)

    def second(self, ops):
        """Return the program changed here and there, and the operators that were changed."""
        chance, found, changed, gone = self.chance, [], set(), set()
        for op in ops:
            if op.above in gone or op.other in gone or (op.kind != "partition_by" and chance.random() < 0.1):
                gone.add(op.id)
                continue
            if op.kind != "partition_by" and chance.random() < 0.3:
                op = replace(op, number=op.number % 4 + 1)
                changed.add(op.id)
            found.append(op)
        for number in range(chance.randint(0, 2)):
            self.add(found, f"new-{number}")
            changed.add(found[-1].id)
        return found, changed

    def lineage(self, ops, id):
        by_id = {one.id: one for one in ops}
        found = []
        while id in by_id:
            found.append(by_id[id])
            id = by_id[id].above
        return found

    def depth(self, ops, id):
        return sum(one.kind == "partition_by" for one in self.lineage(ops, id))

    def is_of_any_order(self, ops, id):
        return any(one.kind in ANY_ORDER for one in self.lineage(ops, id))

    def entry(self, ops, id):
        """Return the partition_by whose stage it is in, or "" in that of the inputs."""
        return next((one.id for one in self.lineage(ops, id) if one.kind == "partition_by"), "")

    def options(self, first, second):
        """Return the options of the program that has run, those of one that always ran in its place, and the next."""
        # An id is looked for among all keys of a partition, so that such tasks can't be split.
        can_split = all(one.kind != "once" for one in (*first, *second))
        splits = self.chance.choice(SPLITS if can_split else SPLITS[:1])
        has_run, next_run = (Options(elasticity=split) for split in splits)
        # What all keys of a task hold back has not fired at the cut, where those of a part of it would have let it go.
        above = [one for op in second for place in (op.above, op.other) for one in self.lineage(second, place)]
        return has_run, has_run if any(one.kind in HOLDING for one in above) else next_run, next_run

    def beside(self, ops, id):
        """Return what is in the same stage, with inputs."""
        mine = self.entry(ops, id)
        return [one for one in ["events", "others", *(one.id for one in ops)] if self.entry(ops, one) == mine]


class UntimedPrograms(Programs):
    """Draws a program in which nothing goes by event time, and another one in whose later stage something new does."""

    def first(self):
        chance = self.chance
        ops = [Op("by-key", "partition_by", chance.choice(("events", "others")), chance.randint(1, 4))]
        for number in range(chance.randint(1, 3)):
            ops.append(Op(f"op-{number}", chance.choice(UNTIMED), chance.choice(ops).id, chance.randint(1, 4)))
        return ops

    def second(self, ops):
        found, changed = super().second(ops)
        above = self.chance.choice([one.id for one in found if one.id in {known.id for known in ops}])
        found.append(Op("new", self.chance.choice(FIRING), above, self.chance.randint(1, 4)))
        return found, changed | {"new"}


def build(ops, calls=None, options=None):
    app = App(APP, options)
    calls = Counter() if calls is None else calls
    streams = {
        name: app.input(name, value=Event, key=lambda e: e.key, partitioned_by_key=True, timestamp=lambda e: e.at)
        for name in {"events", "others"} & {place for op in ops for place in (op.above, op.other)}
    }
    for op in ops:
        other = streams[op.other] if op.other else None
        streams[op.id] = say(op, streams[op.above], other, calls)
        if op.kind != "partition_by" or not any(op.id in (one.above, one.other) for one in ops):
            streams[op.id].send_to(app.output(f"out-{op.id}", value=Event), op_id=f"send-{op.id}")
    return app


def say(op, above, other, calls):
    def counted(event):
        calls[op.id] += 1
        return event.number

    def on_message(event, context):
        context.state += counted(event) * op.number
        context.set_timer(event.at + 40 * op.number)
        return [Event(context.state, event.key, event.at)]

    async def remembered(event, context):
        context.state += counted(event) * op.number
        await rest(1)
        return [Event(context.state, event.key, event.at)]

    def joined(event, row):
        counted(event)
        return Event(event.number + op.number * (0 if row is None else row.number), event.key, event.at)

    def changed(change):
        return Event(
            change.new.number - (0 if change.old is None else change.old.number), change.new.key, change.new.at
        )

    how = {"op_id": op.id}
    summed = total(counted)
    if op.kind == "map":
        return above.map(lambda e: Event(counted(e) + op.number, e.key, e.at), **how)
    if op.kind == "partition_by":
        return above.partition_by(lambda e: e.key, partitions=op.number, **how)
    if op.kind in ("window", "session"):
        kind = (tumbling if op.kind == "window" else session)(milliseconds=30 * op.number)
        panes = above.window(kind, summed, **how)
        return panes.map(lambda pane: Event(pane.value, pane.key, pane.start), op_id=f"pane-{op.id}")
    if op.kind in ("counted", "sliding"):
        kind = counted_windows(op.number + 1) if op.kind == "counted" else sliding(milliseconds=30 * op.number)
        panes = above.window(kind, summed, **how)
        return panes.map(lambda pane: Event(pane.value, pane.key, pane.start), op_id=f"pane-{op.id}")
    if op.kind == "scan":
        return above.scan(lambda n, e: n + counted(e) * op.number, init=int, emit=lambda k, n: Event(n, k, 0), **how)
    if op.kind == "process":
        return above.process(on_message, on_timer=lambda at, c: [Event(0, c.key, at)], init=int, **how)
    if op.kind == "remember":
        return above.async_flat_map(remembered, init=int, order="key", **how)
    if op.kind == "once":
        return above.deduplicate(lambda e: f"{e.key} {counted(e) % (3 + op.number)}", within_ms=80, **how)
    if op.kind == "own":
        rows = above.map(lambda e: Event(counted(e) * op.number, e.key, e.at), op_id=f"row-{op.id}").to_table(op.id)
        return rows.changes().map(changed, op_id=f"changed-{op.id}")
    if op.kind == "table":
        return above.join(other, joined, within=(-20 * op.number, 0), **how)
    if op.kind == "left":
        return above.join(other, joined, how="left", within=(-20 * op.number, 20 * op.number), **how)
    return above.join(other, joined, within=(-20 * op.number, 20 * op.number), **how)


def drawn_records(chance, partitions):
    """Return events by stream and partition, in the order of their times, and how many of each come before the cut."""
    found = {}
    for stream in ("events", "others"):
        for partition in range(partitions):
            keys, at, events = keys_of(partition, partitions), 0, []
            for _ in range(chance.randint(0, 20)):
                at += chance.choice((0, 5, 20, 90))
                events.append(Event(chance.randint(1, 99), chance.choice(keys), at))
            found[stream, partition] = events, chance.randint(0, len(events))
    return found


def environment_of(records, partitions):
    return filled(memory(), records, partitions)


def filled(environment, records, partitions):
    for stream in ("events", "others"):
        environment.create_stream(stream, StreamConfig(partitions=partitions))
    add(environment, {place: events[:cut] for place, (events, cut) in records.items()})
    return environment


def add(environment, records):
    for (stream, partition), events in records.items():
        if events:
            append_rows(environment, stream, partition, [(None, msgspec.json.encode(one), one.at) for one in events])


def ends(environment, app):
    """Return how many records outputs have by now."""
    streams = {out.stream for spec in app.graph().specs.values() for out in spec.outputs} & environment.streams().keys()
    return {(one, number): len(rows) for one in streams for number, rows in enumerate(rows_of(environment, one))}


def bound(records, names, whole=False):
    """Return the lists that inputs are bound to, of one partition each: up to the cut, or with what comes later."""
    return {name: events if whole else events[:cut] for (name, _), (events, cut) in records.items() if name in names}


def go_on(environment, app, records, seed, before, bind=None):
    """Let the rest come, run to the end, and return what was written since by output."""
    add(environment, {place: events[cut:] for place, (events, cut) in records.items()})
    for stream in ("events", "others"):
        environment.end_stream(stream)
    run_once(app, environment, seed, bind)
    found = {}
    for stream, _ in ends(environment, app):
        parts = rows_of(environment, stream)
        found[stream] = sorted(
            (key or b"", value, at)
            for number, rows in enumerate(parts)
            for key, value, at in rows[before.get((stream, number), 0) :]
        )
    return found


def compute_ahead(environment, app, changed, ahead, seed, first=None):
    """Compute what was changed as far as a live run is, which owns the application and goes on."""
    pipeline = app.pipeline()
    if (operators := operators_of(environment, pipeline, changed, {})) and environment.checkpoints(APP):
        backfill = backfill_of(environment, pipeline, operators, is_ahead=True)
        ahead = ahead or Ahead(environment, pipeline, runner(environment, seed), first and first(environment))
        if ahead.behind(backfill):
            ahead.compute(backfill)
        assert ahead.behind(backfill) == 0
    return ahead


def evolve(environment, app, changed, seed, bind, ahead=None, first=None):
    """Back-fill what was changed, and return the operators that were computed anew."""
    pipeline = app.pipeline()
    own_whole(environment, pipeline.graph.app)
    finish(environment, APP)  # as the command does: a crash may have left a part of a change
    gone = [one.operator for one in stored(environment, APP) if one.operator not in pipeline.graph.specs]
    if gone:
        forget(environment, APP, gone)
    operators = operators_of(environment, pipeline, changed, bind)
    if operators:
        backfill = backfill_of(environment, pipeline, operators, bind)
        if ahead is None and first is None:
            run_backfill(environment, pipeline, backfill, runner(environment, seed))
        else:
            (ahead or Ahead(environment, pipeline, runner(environment, seed), first(environment))).join(backfill)
    return operators


def operators_of(environment, pipeline, changed, bind):
    """Return what is to be computed anew where some operators were changed, by what has run."""
    graph = pipeline.graph
    with closing(Bindings(environment, graph, bind)) as bindings:
        counts = bindings.partition_counts(graph)
    found = evolved(environment, plan(graph, pipeline.options, counts), graph, counts)
    return computed_anew(graph, changed | {one.operator for one in found if one.anew})


def runner(environment, seed):
    """Return what runs a part of a program in virtual time."""

    def run(part, span, bind):
        async def main():
            found = Run(part, environment, RunSettings(clock=LoopClock(NOW_MS), span=span, bind=bind))
            await found.drive()
            return found

        return simulate(main, seed, environment.at_turn)

    return run


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(80, 20_000))
def test_what_evolves_goes_on_as_if_it_had_always_run_so(chance):
    check_evolved(chance)


@given(st.randoms(use_true_random=False), st.lists(crash_points, min_size=1, max_size=3))
@settings(max_examples=examples(30, 20_000))
def test_it_may_crash_and_be_asked_for_again(chance, crashes):
    check_evolved(chance, crashes)


@given(st.randoms(use_true_random=False), st.lists(crash_points, max_size=1))
@settings(max_examples=examples(60, 20_000))
def test_an_input_that_has_ended_has_closed_what_was_open(chance, crashes):
    check_evolved(chance, crashes, {name: chance.choice(("open", "bound", "ended")) for name in ("events", "others")})


@given(st.randoms(use_true_random=False), st.lists(crash_points, max_size=1))
@settings(max_examples=examples(60, 20_000))
def test_what_was_computed_ahead_of_the_stop_is_gone_on_with(chance, crashes):
    check_evolved(chance, crashes, rounds=chance.randint(1, 3))


@given(st.randoms(use_true_random=False), st.lists(crash_points, max_size=1))
@settings(max_examples=examples(60, 20_000))
def test_what_is_new_may_be_the_first_to_go_by_event_time(chance, crashes):
    check_evolved(chance, crashes, rounds=chance.randint(0, 1), drawn=UntimedPrograms)


@pytest.mark.parametrize("above", ["map", *UNTIMED])
@pytest.mark.parametrize("kind", FIRING)
def test_what_a_new_operator_fires_in_history_is_not_fired_once_more(kind, above):
    first = [Op("by-key", "partition_by", "events", 3), Op("above", above, "by-key")]
    second = [*first, Op("new", kind, "above")]
    records = {("events", 0): ([Event(1, "k0", 0), Event(1, "k1", 100), Event(1, "k1", 110)], 2)}
    always, live = (environment_of(records, 1) for _ in range(2))
    for environment, ops in ((always, second), (live, first)):
        run_once(build(ops), environment, until_now=True)
    evolve(Watched(live), build(second), {"new"}, 0, {})
    check_alike((always, live), build(second), ["new"], lambda one, cut: go_on(one, build(second), records, 0, cut))


def evolved_by(processes, app, changed, seed, bind, ahead, first):
    """Evolve in one process after the other, until one lives to the end; what is ahead is of the first."""
    for number, process in enumerate(processes):
        try:
            return evolve(process, app, changed, seed + number, bind, None if number else ahead, first)
        except Crash:
            continue
    raise AssertionError("the last process has no point to die at")


def check_alike(environments, app, below, going_on):
    """Check that from here on both write the same, but for what operators `below` a change have written before."""
    # What was not changed may have written earlier or later: event time goes by all that is read in a stage.
    touched = {out.stream for one in below for out in app.graph().specs[one].outputs}
    start = {place: 0 for place in ends(environments[1], app) if place[0] not in touched}
    wanted, found = (going_on(one, ends(one, app) | start) for one in environments)
    assert found == wanted


def later(records, read, more):
    """Return records cut so many later, where they are of inputs that are read."""
    return {
        place: (events, min(len(events), cut + more) if place[0] in read else cut)
        for place, (events, cut) in records.items()
    }


def are_level(environment, split):
    """Whether all virtual tasks have committed, and have come equally far."""
    tasks = {name: one for name, one in environment.checkpoints(APP).items() if is_task(name)}
    reached = {}
    for one in (one for checkpoint in tasks.values() for one in checkpoint.positions):
        reached.setdefault((one.stream, one.partition), set()).add(one.offset)
    whole = len(tasks) == split * len({VirtualTask.of(name).base for name in tasks})
    return whole and all(len(offsets) == 1 for offsets in reached.values())


def check_evolved(chance, crashes=(), held=MappingProxyType({}), rounds=0, first_on=None, drawn=Programs):
    """Check the law for `drawn` programs, of inputs `held` in a list that grows, in a stream that has ended, or open.

    In some `rounds` history is computed beside the live run, to which more comes then. What there is at first is
    computed by what `first_on(environment)` returns, where that is given.
    """
    programs, seed = drawn(chance), chance.randint(0, 999)
    partitions = 1 if "bound" in held.values() else chance.randint(1, 3)
    first = programs.first()
    second, changed = programs.second(first)
    if not second:
        return
    options, options_always, later_options = programs.options(first, second)
    read = {place for one in first for place in (one.above, one.other)}
    # An input that is new is read from its start, once the program has evolved.
    records = {
        place: (events, cut if place[0] in read else 0)
        for place, (events, cut) in drawn_records(chance, partitions).items()
    }
    # Of one that has ended no more comes; of one that is bound the stream of its name has nothing.
    lists = {name for name, how in held.items() if how == "bound"}
    ended = [name for name, how in held.items() if how == "ended" and name in read]
    records |= {place: (events[:cut], cut) for place, (events, cut) in records.items() if place[0] in ended}
    stored_there = {place: one for place, one in records.items() if place[0] not in lists}
    note(f"{first}\n{second}\n{changed} {options.elasticity} {records} {held}")
    always, live = (environment_of(stored_there, partitions) for _ in range(2))
    for name, environment in product(ended, (always, live)):
        environment.end_stream(name)

    def places(ops, whole=False):
        return bound(records, lists & {place for one in ops for place in (one.above, one.other)}, whole)

    run_once(build(second, options=options_always), always, seed, places(second), until_now=True)
    run_once(build(first, options=options), live, seed, places(first), until_now=True)
    calls = Counter()
    app = build(second, calls, later_options)
    graph = app.graph()
    # Each process dies at its point, if it comes so far, and the next begins anew.
    processes = [Watched(live, crash) for crash in (*crashes, None)]
    ahead = None
    for number in range(rounds):
        try:
            ahead = compute_ahead(processes[0], app, changed, ahead, seed, first_on)
        except Crash:
            processes, ahead = processes[1:], None
        came = later(records, read, 4 * number)
        for environment, ops, how in ((always, second, options_always), (live, first, options)):
            add(environment, {place: records[place][0][records[place][1] : cut] for place, (_, cut) in came.items()})
            run_once(build(ops, options=how), environment, seed, until_now=True)
        records = stored_there = came
    try:
        operators = evolved_by(processes, app, changed, seed, places(second), ahead, first_on)
    except SamzaError as error:
        # Where a share of keys had no record, its task may have been left behind.
        split = options.elasticity
        if split == 1 or "have come to different offsets" not in str(error) or are_level(live, split):
            raise
        return
    left_behind = [name for name in live.streams() if "backfilling" in name]
    assert not left_behind and live.state_stats(f"{APP}.backfilling") == {}
    above = {*operators}.union(*(graph.above(id) for id in operators))
    assert crashes or calls.keys() <= above, "nothing but what leads to what was changed is run again"
    how, after = (build(second, options=later_options), stored_there, seed), places(second, whole=True)
    below = [one for id in (*operators, *changed) for one in graph.below(id)]
    check_alike((always, live), app, below, lambda environment, cut: go_on(environment, *how, cut, after))


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(40, 5_000), deadline=None)
def test_it_is_computed_beside_a_run_on_kafka_that_goes_on(chance):
    programs, seed, partitions = Programs(chance), chance.randint(0, 999), chance.randint(1, 2)
    first = programs.first()
    second, changed = programs.second(first)
    if not second:
        return
    read = {place for one in first for place in (one.above, one.other)}
    records = {
        place: (events, cut if place[0] in read else 0)
        for place, (events, cut) in drawn_records(chance, partitions).items()
    }
    note(f"{first}\n{second}\n{changed} {records}")
    always, calls = environment_of(records, partitions), Counter()
    run_once(build(second), always, seed, until_now=True)
    app = build(second, calls)
    with simulated(Cluster(seed)), TemporaryDirectory() as folder:
        live, beside = opened(Path(folder, "live")), opened(Path(folder, "beside"))
        filled(live, records, partitions)
        run_once(build(first), live, seed, until_now=True)
        generation, ahead = live.generation(APP), None
        for number in range(chance.randint(1, 2)):
            ahead = compute_ahead(Watched(beside), app, changed, ahead, seed)
            assert live.generation(APP) == generation, "nobody fences the run that goes on"
            came = later(records, read, 4 * number)
            for environment, ops in ((always, second), (live, first)):
                add(environment, {place: came[place][0][cut : came[place][1]] for place, (_, cut) in records.items()})
                run_once(build(ops), environment, seed, until_now=True)
            records, generation = came, live.generation(APP)
        live.close()
        operators = evolve(Watched(beside), app, changed, seed, {}, ahead)
        assert not [name for name in beside.streams() if "backfilling" in name]
        above = {*operators}.union(*(app.graph().above(id) for id in operators))
        assert calls.keys() <= above, "nothing but what leads to what was changed is run again"
        below = [one for id in (*operators, *changed) for one in app.graph().below(id)]
        check_alike((always, beside), app, below, lambda one, cut: go_on(one, app, records, seed, cut))
        beside.close()


class GoneOn(Watched):
    """An environment in which the live run goes on behind each look at what it has committed."""

    def __init__(self, inner, go_on):
        super().__init__(inner)
        self._go_on = go_on

    def checkpoints(self, app):
        found = self._inner.checkpoints(app)
        self._go_on()
        return found


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(60, 10_000))
def test_a_look_at_a_run_that_goes_on_is_of_one_cut(chance):
    partitions, seed = chance.randint(1, 3), chance.randint(0, 999)
    drawn = drawn_records(chance, partitions)
    records = {place: one for place, one in drawn.items() if place[0] == "events"}
    first = [Op("op-0", "window", "events"), Op("op-1", "scan", "op-0")]
    live = environment_of(records, partitions)
    cuts = [{place: cut for place, (_, cut) in records.items()}]
    run_once(build(first), live, seed, until_now=True)

    def go_on():
        before = cuts[-1]
        cuts.append({place: min(at + 2, len(records[place][0])) for place, at in before.items()})
        add(live, {place: records[place][0][at : cuts[-1][place]] for place, at in before.items()})
        run_once(build(first), live, seed, until_now=True)

    changed = build([first[0], replace(first[1], number=4)]).pipeline()
    backfill = backfill_of(GoneOn(live, go_on), changed, ["op-1"], is_ahead=True)
    assert backfill.until in cuts
    for (stream, partition), at in backfill.until.items():
        read = records[stream, partition][0][:at]
        if read:
            assert backfill.rests[f"{stream}:{partition}"].watermark == read[-1].at


def dying_with_something_due(live, number):
    """Return a process that dies behind so many commits that have left something due, and not before."""
    left = count(1)

    def on_commit(commit):
        if any(one.due for one in commit.checkpoints.values()) and next(left) == number:
            raise Crash

    return Watched(live, on_commit=on_commit)


@given(st.randoms(use_true_random=False), st.integers(1, 3))
@settings(max_examples=examples(120, 20_000))
def test_whatever_was_due_where_a_run_was_killed_is_written_once(chance, number):
    """An operator that is computed again, though nothing changed, repeats nothing and loses nothing."""
    programs, seed, partitions = Programs(chance), chance.randint(0, 999), chance.randint(1, 3)
    # Of several that fire by the same event time, a commit may leave some.
    ops = [*programs.first(), Op("early", "window", "events", 1), Op("later", "session", "events", 2)]
    ops.append(Op("last", chance.choice(("scan", "window", "process")), "early", 3))
    if any(op.kind in BY_ORDER and {*TWO} & {one.kind for one in programs.lineage(ops, op.above)} for op in ops):
        return
    again = {op.id for op in ops if op.kind in KEEPING and chance.random() < 0.6}
    # A commit comes in the midst of what fires where it may hold little.
    options = Options(max_uncommitted=chance.randint(1, 4), batch_records=chance.choice((1, 5, 1_000)))
    records = drawn_records(chance, partitions)
    note(f"{ops}\n{again} {options} {records} {number}")
    always, live = (environment_of(records, partitions) for _ in range(2))
    run_once(build(ops, options=options), always, seed, until_now=True)
    with suppress(Crash):
        run_once(build(ops, options=options), dying_with_something_due(live, number), seed, until_now=True)
    left = [due for one in live.checkpoints(APP).values() for due in one.due.values()]
    event(f"due: {bool(left)}, begun: {any(one.is_begun for one in left)}")
    try:
        evolve(Watched(live), build(ops, options=options), again, seed, {})
    except SamzaError as error:
        # The program that has run has to bring these to an end.
        if "between stages" not in str(error) and not any(one.is_begun for one in left):
            raise
        run_once(build(ops, options=options), live, seed, until_now=True, drains=True)
        evolve(Watched(live), build(ops, options=options), again, seed, {})
    how = build(ops, options=options), records, seed, {}
    wanted, found = (go_on(environment, *how) for environment in (always, live))
    assert found == wanted


def keyed(again, options):
    """Return a program that counts by key in windows, whose panes a map writes that may be another one."""
    app = App(APP, options)
    events = app.input("events", value=Event, key=lambda e: e.key, partitioned_by_key=True, timestamp=lambda e: e.at)
    panes = events.window(tumbling(milliseconds=50), total(lambda e: e.number), op_id="panes")
    sums = panes.scan(lambda n, pane: n + pane.value * again, init=int, emit=lambda k, n: [k, n], op_id="sums")
    sums.send_to(app.output("sums"))
    return app


@pytest.mark.parametrize("changed", ["panes", "sums"])
def test_a_run_that_was_killed_as_it_wrote_panes_of_one_time_is_brought_to_its_end_first(changed):
    options = Options(max_uncommitted=1)
    keys = [f"k{number}" for number in range(40)]
    found = []
    for commits in range(3, 60):
        live = memory()
        live.create_stream("events", StreamConfig())
        add(live, {("events", 0): [*(Event(1, key, 0) for key in keys), Event(1, "k0", 60)]})
        with suppress(Crash):
            run_once(keyed(1, options), Watched(live, CrashPoint("after_commit", commits)), until_now=True)
        due = live.checkpoints(APP).get("0", Checkpoint(0)).due
        if not due or not due["panes"].is_begun:
            continue
        app = keyed(1, options)
        with pytest.raises(SamzaError, match=r"'panes' wrote results of one time.*: let that program write the rest"):
            evolve(Watched(live), app, {changed}, 0, {})
        run_once(keyed(1, options), live, until_now=True, drains=True)
        assert not live.checkpoints(APP)["0"].due
        evolve(Watched(live), app, {changed}, 0, {})
        add(live, {("events", 0): [Event(1, key, 60) for key in keys[1:]]})
        live.end_stream("events")
        run_once(keyed(1, options), live)
        (rows,) = rows_of(live, "sums")
        assert sorted(value for _, value, _ in rows) == sorted(
            b'["%s",%d]' % (key.encode(), n) for key in keys for n in (1, 2)
        )
        found.append(commits)
    assert found, "none of the commits lay in the midst of what fired"


def paced(options=None):
    """Return a program in whose two stages event time goes on without a partition of which nothing comes."""
    app = App(APP, options)
    events = app.input(
        "events",
        value=Event,
        key=lambda e: e.key,
        partitioned_by_key=True,
        timestamp=lambda e: e.at,
        idle_after_ms=1_000,
    )
    by_key = events.partition_by(lambda e: e.key, partitions=2, op_id="by-key")
    for stage, stream in (("first", events), ("second", by_key)):
        for kind in (tumbling, session):
            id = f"{stage}-{kind.__name__}"
            panes = stream.window(kind(milliseconds=50), total(lambda e: e.number), op_id=id)
            panes.send_to(app.output(f"out-{id}"))
    return app


def run_for(app, environment, seconds, seed):
    """Run a program for so long, and stop it."""

    async def main():
        run = Run(app.pipeline(), environment, RunSettings(clock=LoopClock(NOW_MS)))
        running = asyncio.ensure_future(run.drive())
        await rest(1_000 * seconds)
        run.stop()
        await running

    simulate(main, seed)


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(60, 10_000))
def test_what_has_closed_while_nothing_came_of_an_input_stays_closed(chance):
    partitions, seed, seconds = chance.randint(1, 3), chance.randint(0, 999), chance.choice((0.1, 3.0))
    drawn = drawn_records(chance, partitions)
    records = {place: one for place, one in drawn.items() if place[0] == "events"}
    windows = [id for id in paced().graph().specs if id.endswith(("tumbling", "session"))]
    again = {id for id in windows if chance.random() < 0.5}
    note(f"{again} {seconds} {records}")
    found = []
    for changed in (set(), again):
        environment = environment_of(records, partitions)
        run_for(paced(), environment, seconds, seed)
        if changed:
            evolve(Watched(environment), paced(), changed, seed, {})
        found.append(go_on(environment, paced(), records, seed, {}))
    assert found[1] == found[0]
