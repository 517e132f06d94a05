"""An application that changes between its runs: state that nobody drops is never lost, and what errors advise works."""

import re
import tempfile
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from planner.model.errors import PlanError
from planner.passes import plan as make_plan
from runtime.assembly.bindings import Bindings
from runtime.model.errors import SamzaError
from runtime.opening.former_inputs import TABLES
from runtime.opening.rewind import check_move
from runtime.opening.stored_state import CHANGING, STORES, finish, forget, move, stored, streams_between
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, StreamConfig
from runtime.stored_state.entries import StoredEntries, entries_of
from runtime.stored_state.replacement import imported
from runtime.systems.kafka.state import task_state as kafka_state
from runtime.systems.kafka.state.task_state import MOST_APART
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Forget
from samza_dsl.testing.environment import Crash
from tests.runtime.histories import crashing
from tests.sample import crossed
from tests.scale import examples, scale
from tests.simulation.crash import memory, rows_of, run_once, run_through
from tests.simulation.kafka import close_or_die, opened, simulated
from tests.simulation.kafka_brokers import TROUBLES, Cluster, Trouble

APP, KEYS = "changing", 5
STEPS = {
    "count": (int, lambda n, event: n + 1),
    "total": (int, lambda n, event: n + event[1]),
    "list": (list, lambda values, event: [*values, event[1]]),
}
"""The first two keep the same kind of state, so that one may have the other's."""


class Operator(msgspec.Struct, frozen=True):
    """A step of state by key: what it does, and behind a repartitioning into how many partitions."""

    step: str
    partitions: int | None = None

    @property
    def kind(self):
        return STEPS[self.step][0]

    @property
    def lies(self):
        """By whom a key's partition is chosen, where there are several."""
        return (self.partitions or 2, "" if self.partitions else "events")


def application(operators):
    app = App(APP)
    events = app.input("events", value=tuple, key=lambda event: event[0], partitioned_by_key=True)
    events.map(list).send_to(app.output("all", value=list))
    for id, operator in operators.items():
        init, step = STEPS[operator.step]
        above = events
        if operator.partitions is not None:
            above = events.partition_by(lambda event: event[0], partitions=operator.partitions, op_id=f"by-{id}")
        emit = above.scan(step, init=init, emit=lambda key, state: [key, state], op_id=id)
        emit.send_to(app.output(f"out-{id}", value=list))
    return app


def written(environment, stream):
    rows = [value for part in rows_of(environment, stream) for _, value, _ in part]
    return sorted((msgspec.json.decode(value) for value in rows), key=repr)


class Model:
    """What there should be: by operator what it is and keeps, and what each has written."""

    def __init__(self):
        self.kept = {}
        self.written = {}

    def misfits(self, operators):
        """Return the operators that a run is refused for; what a repartitioning lays otherwise is moved."""
        found = set()
        for id, (was, _) in self.kept.items():
            now = operators.get(id)
            if now is None or now.kind != was.kind:
                found.add(id)
            elif now.lies == was.lies or (now.lies[0], was.lies[0]) == (1, 1):
                continue
            elif now.lies[1] and not was.lies[1]:
                found.add(id)  # nobody knows where the writer of the input has that key
        return found

    def forget(self, ids):
        for id in ids:
            self.kept.pop(id, None)

    def run(self, operators, events):
        for id, operator in operators.items():
            if id in self.kept:
                self.kept[id] = (operator, self.kept[id][1])
            init, step = STEPS[operator.step]
            for key, number in events:
                _, states = self.kept.setdefault(id, (operator, {}))
                states[key] = step(states.get(key, init()), (key, number))
                self.written.setdefault(f"out-{id}", []).append([key, states[key]])


ids = st.sampled_from(["a", "b"])
operators = st.dictionaries(ids, st.builds(Operator, st.sampled_from([*STEPS]), st.sampled_from([None, 1, 2, 3])))
events = st.lists(st.tuples(st.integers(0, KEYS - 1), st.integers(1, 9)), min_size=1, max_size=8)
crashes = crashing(latest=12, most=2)

changes = st.one_of(
    st.tuples(st.just("run"), operators, events, crashes, st.booleans()),
    st.tuples(st.just("forget"), ids),
    st.builds(
        lambda old, new, now, one: ("move", old, new, {**{id: now[id] for id in now if id != old}, new: one}),
        ids,
        ids,
        operators,
        st.builds(Operator, st.sampled_from(["count", "total"]), st.sampled_from([None, 1, 2])),
    ),
)


def advised(error):
    """Return the operators that an error says to forget, as they are typed."""
    found = re.search(
        rf"samza-dsl state forget {APP} ([^;,]+)(?:;|$)", re.sub(r" --(data|environment) [^\s;]+", "", str(error))
    )
    assert found, error
    return found[1].split()


def do_run(environment, model, now, rows, deaths, by_option):
    add(environment, rows)
    misfits = model.misfits(now)
    how = {}
    event(f"{len(misfits)} do not fit" if model.kept else "nothing is kept")
    if misfits:
        with pytest.raises((SamzaError, PlanError)) as refused:
            run_once(application(now), environment, until_now=True)
        assert {*advised(refused.value)} == misfits
        if by_option:
            how["state"] = Forget(*misfits, "a", "nosuch")  # of which that fits stays
        else:
            environment.own(APP)
            forget(environment, APP, advised(refused.value))
        model.forget(misfits)
    run_through(lambda: application(now), environment, deaths, until_now=True, **how)
    model.run(now, rows)


def do_forget(environment, model, id):
    environment.own(APP)
    forget(environment, APP, [id])
    model.forget([id])


def do_move(environment, model, old, new, now):
    app = application(now)
    environment.own(APP)
    graph = app.graph()
    plan = make_plan(graph, app.options, Bindings(environment, graph, {}).partition_counts(graph))
    had, has = model.kept.get(old, (None, None))[0], now.get(new)
    fits = had is not None and has is not None and old not in now and new not in model.kept and had.kind == has.kind
    if not fits or (had.lies != has.lies and (had.lies[0], has.lies[0]) != (1, 1)):
        event("a move is refused")
        with pytest.raises((SamzaError, PlanError)):
            check_move(environment, plan, graph, old, new)
        return
    event("a move")
    check_move(environment, plan, graph, old, new)
    move(environment, APP, old, new)
    model.kept[new] = has, model.kept.pop(old)[1]


def add(environment, rows):
    for partition in (0, 1):
        mine = [row for row in rows if row[0] % 2 == partition]
        if mine:
            values = [msgspec.json.encode(row) for row in mine]
            environment.append([Append("events", partition, Batch(values, timestamps=[1] * len(values)))])


@contextmanager
def environments(kind):
    with tempfile.TemporaryDirectory() as directory:
        if kind == "memory":
            yield memory()
        elif kind == "log":
            environment = LogEnvironment(directory, sync=False)
            yield environment
            environment.close()
        else:
            apart = MOST_APART if kind == "kafka" else 0
            with simulated(Cluster()), patch.object(kafka_state, "MOST_APART", apart):
                environment = opened(Path(directory))
                yield environment
                environment.close()


def holds(kind, sequence):
    with environments(kind) as environment:
        environment.create_stream("events", StreamConfig(partitions=2))
        model = Model()
        for name, *how in [("run", {"a": Operator("count")}, [(0, 1)], [], False), *sequence]:
            {"run": do_run, "forget": do_forget, "move": do_move}[name](environment, model, *how)
            found = {one.operator: one.entries for one in stored(environment, APP) if one.tasks}
            assert found == {id: len(states) for id, (_, states) in model.kept.items() if states}
        for stream, rows in model.written.items():
            assert written(environment, stream) == sorted(rows, key=repr)


RUN = [(1, 2), (2, 3), (3, 4)], [], False
SAME_NUMBER = [("run", {"a": Operator("count")}, *RUN), ("run", {"a": Operator("count", 2)}, *RUN)]
MOVED = [("run", {"b": Operator("total")}, *RUN), ("move", "a", "b", {"b": Operator("total")})]
RENAMED = [("move", "a", "b", {"b": Operator("total")}), ("run", {"b": Operator("total")}, *RUN)]
TWO, ONE = Operator("count", 2), Operator("total", 1)
IN_ITS_PLACE = [("run", {"a": ONE, "b": TWO}, *RUN), ("forget", "b"), ("move", "a", "b", {"b": ONE})]
IN_ITS_PLACE += [("run", {"b": ONE}, *RUN)] * 2
ELSEWHERE = [*IN_ITS_PLACE[:3], *[("run", {"b": Operator("total", 3)}, *RUN)] * 2]


@example(SAME_NUMBER)
@example(MOVED)
@example(RENAMED)
@example(IN_ITS_PLACE)
@example(ELSEWHERE)
@given(st.lists(changes, min_size=2, max_size=6))
@settings(max_examples=examples(120, 10_000))
def test_whatever_changes_no_state_is_lost_that_nobody_drops(sequence):
    holds("memory", sequence)


@example(IN_ITS_PLACE)
@example(ELSEWHERE)
@given(st.lists(changes, min_size=1, max_size=5))
@settings(max_examples=examples(30, 2_000))
def test_so_it_is_on_the_embedded_log(sequence):
    holds("log", sequence)


@example(IN_ITS_PLACE)
@example(ELSEWHERE)
@given(st.lists(changes, min_size=1, max_size=4))
@settings(max_examples=examples(16, 1_000))
def test_so_it_is_on_kafka(sequence):
    holds("kafka", sequence)


@example([("forget", "a"), ("run", {"a": Operator("count")}, *RUN)])
@given(st.lists(changes, min_size=1, max_size=4))
@settings(max_examples=examples(12, 1_000))
def test_so_it_is_on_kafka_where_tasks_lie_together(sequence):
    holds("kafka together", sequence)


class Dying:
    """An environment whose process dies right before or after the nth thing that it changes."""

    def __init__(self, inner, number, after):
        self._inner, self._left, self._after = inner, number, after

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name not in ("commit", "forget", "delete_stream"):
            return found

        def change(*arguments):
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Crash
            found(*arguments)
            if self._left == 0:
                raise Crash

        return change


def begun(environment):
    """Have state of three operators, one of them behind a repartitioning."""
    environment.create_stream("events", StreamConfig(partitions=2))
    add(environment, FIRST)
    run_once(application(BEFORE), environment, until_now=True)


FIRST, MORE = [(n, 1) for n in range(KEYS)], [(n, 2) for n in range(KEYS)]
BEFORE = {"a": Operator("count"), "b": Operator("list", 2), "c": Operator("total")}
CHANGES = {
    "forget": (lambda environment: forget(environment, APP, ["a", "b", "by-b"]), {"c": Operator("total")}),
    "move": (lambda environment: move(environment, APP, "a", "d"), BEFORE | {"d": Operator("count")}),
}
AFTER = {
    "forget": {"out-c": [[n, 3] for n in range(KEYS)]},
    "move": {"out-d": [[n, 2] for n in range(KEYS)], "out-b": [[n, [1, 2]] for n in range(KEYS)]},
}


def check_after(environment, change):
    """Check that a run, which may have to complete a change, goes on with all state that is left."""
    add(environment, MORE)
    now = {id: one for id, one in CHANGES[change][1].items() if change == "forget" or id != "a"}
    run_once(application(now), environment, until_now=True)
    for stream, rows in AFTER[change].items():
        before = len(written(environment, stream)) - len(rows)
        assert [row for row in written(environment, stream) if row in rows] == sorted(rows, key=repr), before
    kept = {"c"} if change == "forget" else {"b", "c", "d"}
    assert {one.operator for one in stored(environment, APP) if one.tasks} == kept
    assert not environment.checkpoints(APP)[CHANGING].meanings
    assert streams_between(environment, APP) == (set() if change == "forget" else {f"{APP}-by-b"})


@pytest.mark.parametrize(
    ("change", "number", "after", "kind"), crossed(CHANGES, range(1, 8), [False, True], ["memory", "log"])
)
def test_what_a_crash_leaves_of_a_change_the_next_run_completes(change, number, after, kind):
    with environments(kind) as environment:
        begun(environment)
        environment.own(APP)
        dying, died = Dying(environment, number, after), True
        try:
            CHANGES[change][0](dying)
        except Crash:
            pass
        else:
            died = False
        assert died or number > 4
        if number == 1 and not after:  # nothing has begun
            CHANGES[change][0](environment)
        check_after(environment, change)


# Each third of all in CI: every number and every trouble is among them, with some of the changes.
@pytest.mark.parametrize(("change", "at", "what"), [*product(CHANGES, range(1, 21), TROUBLES)][:: scale(7, 5, 1)])
def test_so_it_is_where_what_is_said_to_brokers_is_lost(change, at, what, tmp_path):
    cluster = Cluster()
    with simulated(cluster):
        environment = opened(tmp_path / "here")
        begun(environment)
        environment.own(APP)
        cluster.changes, cluster.troubles = 0, [Trouble(at, what)]
        close_or_die(cluster, environment, lambda: CHANGES[change][0](environment))
        cluster.troubles = []
        environment = opened(tmp_path / "there")
        environment.own(APP)
        finish(environment, APP)
        if {one.operator for one in stored(environment, APP) if one.tasks} == {"a", "b", "c"}:  # nothing has begun
            CHANGES[change][0](environment)
        environment.close()
        environment = opened(tmp_path / "here")  # where the state lies as it was
        check_after(environment, change)
        environment.close()


def merged(*names):
    app = App(APP)
    first, *others = (app.input(name, value=int) for name in names)
    for other in others:
        first = first.merge(other)
    first.map(abs).send_to(app.output("out", value=int))
    return app


def looked_up(stream="numbers", broadcast=False):
    app = App(APP)
    table = app.table(stream, value=int, key=int, broadcast=broadcast)
    how = {"on": abs} if broadcast else {}
    joined = app.input("others", value=int, key=int).join(table, lambda value, row: [value, row], **how)
    joined.send_to(app.output("joined", value=list))
    return app


def put(environment, stream, value):
    environment.append([Append(stream, 0, Batch([b"%d" % value], [b"%d" % value], [1]))])


@pytest.mark.parametrize("kind", ["memory", "log", "kafka"])
def test_an_input_that_comes_back_goes_on_where_it_was(kind):
    with environments(kind) as environment:
        for name in ("numbers", "others"):
            environment.create_stream(name, StreamConfig())
            put(environment, name, len(name))
        for names in (["numbers", "others"], ["numbers"], ["numbers", "others"], ["others"], ["others", "numbers"]):
            run_once(merged(*names), environment, until_now=True)
            for name in ("numbers", "others"):
                put(environment, name, 1)
        assert written(environment, "out") == [*[1] * 8, 6, 7]


def test_a_stream_that_was_made_anew_while_it_was_no_input_is_read_from_its_start():
    environment = memory()
    for name in ("numbers", "others"):
        environment.create_stream(name, StreamConfig())
        put(environment, name, len(name))
    run_once(merged("numbers", "others"), environment, until_now=True)
    put(environment, "numbers", 1)
    run_once(merged("numbers"), environment, until_now=True)
    environment.delete_stream("others")
    environment.create_stream("others", StreamConfig())
    put(environment, "others", 2)
    run_once(merged("numbers", "others"), environment, until_now=True)
    assert written(environment, "out") == [1, 2, 6, 7]


@pytest.mark.parametrize("broadcast", [False, True])
@pytest.mark.parametrize("kind", ["memory", "log"])
@pytest.mark.parametrize("noted", [False, True])
def test_a_table_that_was_an_input_has_all_of_its_rows(noted, kind, broadcast):
    with environments(kind) as environment:
        for name in ("numbers", "others"):
            environment.create_stream(name, StreamConfig())
            put(environment, name, 7)
        run_once(merged("numbers"), environment, until_now=True)
        if not noted:
            without(environment, TABLES)
        for _ in range(2):
            run_once(looked_up(broadcast=broadcast), environment, until_now=True)
            put(environment, "others", 7)
        assert written(environment, "joined") == [[7, 7], [7, 7]]


def without(environment, word):
    """Leave of what is noted what a version before has noted."""
    job = environment.checkpoints(APP)["job"]
    said = {name: one for name, one in job.meanings.items() if name != word}
    environment.commit(
        Commit(APP, environment.generation(APP), [], [], {"job": msgspec.structs.replace(job, meanings=said)})
    )


def test_state_whose_partitions_were_not_noted_is_moved_after_a_run_that_notes_them():
    environment = memory()
    environment.create_stream("events", StreamConfig(partitions=2))
    add(environment, FIRST)
    run_once(application({"a": Operator("count")}), environment, until_now=True)
    without(environment, STORES)
    app = application({"b": Operator("count")})
    plan = app.plan({"events": 2})
    with pytest.raises(SamzaError, match="run the app as it was once more with --until-now, which notes it"):
        check_move(environment, plan, app.graph(), "a", "b")
    run_once(application({"a": Operator("count")}), environment, until_now=True)
    check_move(environment, plan, app.graph(), "a", "b")


def test_forgetting_goes_with_a_run_that_goes_on():
    with pytest.raises(SamzaError, match=r"state=Forget.*is about a run that goes on"):
        run_once(application({}), memory(), from_start=True, state=Forget("a"))


@pytest.mark.parametrize("kind", ["kafka", "kafka together"])
def test_state_that_lies_here_is_dropped_with_what_brokers_have_of_it(kind):
    with environments(kind) as environment:
        generation = environment.own(APP)
        writes = [StateWrites(store, task, [(b"k", b"v")]) for store in ("a", "b") for task in (0, 1)]
        environment.commit(Commit(APP, generation, [], writes, {}))
        environment.forget(APP, ["a"])
        assert environment.state_stats(APP) == {("b", 0): (1, 2), ("b", 1): (1, 2)}
        assert environment.state_get(APP, "a", 0, b"k") is None


def test_what_lies_in_front_of_it_and_was_not_read_is_told_with_its_number_and_what_to_type():
    environment = memory()
    environment.create_stream("events", StreamConfig(partitions=2))
    add(environment, FIRST)
    run_once(application({"a": ONE, "b": TWO}), environment, until_now=True)
    environment.own(APP)
    forget(environment, APP, ["b"])
    move(environment, APP, "a", "b")
    environment.append([Append(f"{APP}-by-b", 1, Batch([b"1", b"2"], [b"k", b"k"], [1, 1]))])
    app = application({"b": ONE})
    with pytest.raises(
        PlanError,
        match=r"state lies in 1 partition, and 'changing-by-b' has 2 partitions.*with 2 records that nobody has read: "
        "samza-dsl state forget changing by-b",
    ):
        run_once(app, environment, until_now=True)
    forget(environment, APP, ["by-b"])
    run_once(app, environment, until_now=True)


def behind_one(partitions, *ids):
    app = App(APP)
    events = app.input("events", value=tuple, key=lambda event: event[0], partitioned_by_key=True)
    if "a" in ids:
        alone = events.partition_by(lambda event: event[0], partitions=1, op_id="by-a")
        alone.scan(lambda n, event: n + 1, init=int, op_id="a").send_to(app.output("out-a"))
    behind = events.partition_by(lambda event: event[0], partitions=partitions, op_id="by")
    for id in ("b", "c"):
        behind.scan(lambda n, event: n + 1, init=int, op_id=id).send_to(app.output(f"out-{id}", value=int))
    return app


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("id", ["b", "c"])
def test_where_state_behind_one_stream_lies_in_two_ways_what_is_advised_lays_it_in_one(id, partitions):
    environment = memory()
    environment.create_stream("events", StreamConfig(partitions=2))
    add(environment, FIRST)
    run_once(behind_one(2, "a"), environment, until_now=True)
    environment.own(APP)
    forget(environment, APP, [id])
    move(environment, APP, "a", id)
    app = behind_one(partitions)
    plan, other = app.plan({"events": 2}), {"b": "c", "c": "b"}[id]
    odd = other if partitions == 1 else id
    with pytest.raises(PlanError, match=rf"scan '{odd}' .*state export \S+ {odd} --to .*state import") as told:
        run_once(app, environment, until_now=True)
    assert "state forget changing by" not in str(told.value)
    environment.own(APP)
    with closing(environment.snapshot(APP)) as snapshot:
        form = StoredEntries(plan, app.graph(), odd)
        rows = [("a row", form.row(entry)) for entry in entries_of(snapshot, odd)]
    assert imported(environment, plan, app.graph(), rows) == {odd: KEYS}
    add(environment, FIRST)
    run_once(app, environment, until_now=True)
    for one in ("b", "c"):
        assert written(environment, f"out-{one}")[-KEYS:] == [2] * KEYS
