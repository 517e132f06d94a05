"""State on Kafka of tasks that are split or merged: copied from what a host has, and committed by nobody of before."""

import asyncio
import tempfile
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.partition_by import bucket_of
from planner.model.virtual_tasks import Split, VirtualTask, is_task
from runtime.model.assignment import Scale
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import Damaged, EnvironmentFault, SamzaError
from runtime.opening.rescaling import rescale, split_by, tell_split
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import StreamConfig
from runtime.run.scaling import follow_ahead
from runtime.systems.kafka.state import shared_state, task_state
from runtime.systems.kafka.state.changelog import POSITIONS, TaskState
from runtime.systems.kafka.state.shared_state import move_in
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options
from tests.runtime.test_standby import Container
from tests.scale import examples
from tests.simulation.kafka import cut_changelogs, opened, simulated
from tests.simulation.kafka_brokers import MARKERS_S, Cluster
from tests.strategies import APP

STORE, PLACE = "st", "st/log/0"
KEYS = st.integers(0, 9).map(lambda number: b"%d" % number)
CHANGES = st.lists(st.tuples(KEYS, st.sampled_from((b"1", b"2", None))), min_size=1, max_size=20)


def split_into(factor: int) -> Split:
    return Split(1, factor, lambda store, place: bucket_of(place, 0, 1 << 16))


def with_changes(one: TaskState, changes: list[tuple[bytes, bytes | None]], end: int) -> None:
    """Replay changes up to an offset into the state of a task, from where that is."""
    newest = {key: value for key, value in changes[one.positions.get(PLACE, 0) : end] if one.has(STORE, key)}
    one.positions[PLACE] = end
    one.write([StateWrites(STORE, one.task.base, sorted(newest.items()))])


def opened_state(folder: Path, task: VirtualTask) -> TaskState:
    return TaskState(LogEnvironment(folder / task.name, sync=False), APP, task, split_into(task.factor))


@given(CHANGES, st.sampled_from(((2, 1), (1, 2), (4, 2), (4, 1), (2, 8))), st.data())
@settings(max_examples=examples(40, 2_000))
def test_no_key_is_lost_in_a_copy_however_far_each_part_of_a_task_has_followed(changes, factors, data):
    before, now = factors
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in split_into(before).parts(0):
            with closing((one := opened_state(folder, part)).local):
                with_changes(one, changes, data.draw(st.integers(0, len(changes))))
        found: dict[bytes, bytes] = {}
        for part in split_into(now).parts(0):
            with closing((one := opened_state(folder, part)).local):
                move_in(folder, [one])
                noted = one.local.checkpoints(APP)[POSITIONS].outputs
                one.positions = dict(noted)
                with_changes(one, changes, len(changes))
                found |= one.entries(STORE)
        assert found == {key: value for key, value in dict(changes).items() if value is not None}


@pytest.mark.parametrize("is_alone", [True, False], ids=["in one process", "as who starts containers"])
def test_whoever_has_the_tasks_copies_their_entries_and_tells_how_many(is_alone):
    plans = {factor: app_of(factor).plan({"words": 1}) for factor in (1, 2, 4)}
    cluster = Cluster(0)
    with tempfile.TemporaryDirectory() as name, simulated(cluster):
        here = opened(Path(name))
        here.create_stream("words", StreamConfig())
        run, said = here.own(APP), Checkpoint(1, (Position("log", "words", 0, 1),))
        items = [(b"s%d" % key, b"1") for key in range(9)]
        here.commit(Commit(APP, run, [], [StateWrites("st", 0, items)], {"0": said}))
        assert here.brought(APP) == (0, 0)
        for times, factor in enumerate((2, 1, 4), start=1):
            if not is_alone:
                run = here.own(APP)  # as containers end, and who has started them opens the application anew
            rescale(here, plans[factor], app_of(factor).graph(), run)
            tell_split(here, plans[factor], app_of(factor).graph())
            assert here.brought(APP) == (0, 9 * times if is_alone else 0)
        if not is_alone:
            container = here.join(APP, run, "one", 4)
            container.mine()
            container.take(range(4))
            assert here.brought(APP) == (0, 9)
            assert dict(here.state_range(APP, "st", 0)) == dict(items)
            container.leave()
        here.close()


def app_of(factor: int) -> App:
    app = App(APP, Options(elasticity=factor))
    words = app.input("words", value=str, key=str)
    words.scan(lambda seen, word: seen + 1, init=int, op_id="st").send_to(app.output("out"))
    return app


LOOKS = {
    "metrics": lambda here: here.state_stats(APP),
    "queries": lambda here: here.snapshot_here(APP).close(),
    "a reader": lambda here: here.state_get(APP, "st", 0, b"s1"),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("is_split", [True, False], ids=["at a split", "at the first read"])
def test_who_looks_at_state_while_another_thread_brings_it_brings_none_itself(look, is_split, monkeypatch):
    brought, failed, again = [], [], threading.Event()
    restored = task_state.restore

    def ask() -> None:
        try:
            LOOKS[look](here)
        except BaseException as error:
            failed.append(error)

    def restore(streams, committed, opened, copy) -> int:
        brought.append(sorted(one.task.name for one in opened))
        if len(brought) > 1:
            again.set()
            return 0
        asker.start()
        again.wait(0.2)  # whoever waits for this one comes later
        return restored(streams, committed, opened, copy)

    with tempfile.TemporaryDirectory() as name, simulated(Cluster(0)):
        here, asker = opened(Path(name)), threading.Thread(target=ask)
        here.create_stream("words", StreamConfig())
        run, said = here.own(APP), Checkpoint(1, (Position("log", "words", 0, 1),))
        items = [(b"s%d" % key, b"1") for key in range(9)]
        here.commit(Commit(APP, run, [], [StateWrites("st", 0, items)], {"0": said}))
        if is_split:
            app = app_of(4)
            rescale(here, app.plan({"words": 1}), app.graph(), run)
            monkeypatch.setattr(task_state, "restore", restore)
            tell_split(here, app.plan({"words": 1}), app.graph())
        else:
            here.own(APP)
            monkeypatch.setattr(task_state, "restore", restore)
            assert here.state_get(APP, "st", 0, b"s0") == b"1"
        asker.join()
        assert failed == []
        assert brought == [[f"0-{bucket}-4" for bucket in range(4)] if is_split else ["0"]]
        assert dict(here.state_range(APP, "st", 0)) == dict(items)
        here.close()


def test_a_parent_commits_nothing_once_its_children_are_claimed():
    app, cluster = app_of(2), Cluster(0)
    with tempfile.TemporaryDirectory() as name, simulated(cluster) as thread:
        folder = Path(name)
        owner = opened(folder / "owner")
        owner.create_stream("words", StreamConfig())
        parent = Container(cluster, folder, "parent", owner.own(APP), 1)
        parent.settles()
        parent.commits([(0, "st", 1, True)])
        heir = opened(folder / "heir")
        run = heir.own(APP)
        plan = app.plan({"words": 1})
        rescale(heir, plan, app.graph(), run)
        children = {one: said for one, said in heir.checkpoints(APP).items() if is_task(one)}
        assert children.keys() == {"0-0-2", "0-1-2"}
        with pytest.raises(SamzaError):
            parent.commits([(0, "st", 2, True)])
        thread.catch_up(cluster.loop.time() + MARKERS_S)
        with closing(opened(folder / "beside")) as beside:
            assert {one: said for one, said in beside.checkpoints(APP).items() if is_task(one)} == children
        parent.dies()
        heir.close()
        owner.close()


class Dies(BaseException):
    """The process is killed here."""


WRITES = st.lists(st.tuples(st.integers(0, 30), st.none() | st.sampled_from((b"1", b"2"))), min_size=1, max_size=4)


@given(
    st.lists(WRITES, min_size=1, max_size=8),
    st.sampled_from(((1, 4), (4, 1), (2, 4), (4, 2), (1, 2))),
    st.integers(1, 3),
    st.integers(1, 40),
    st.none() | st.integers(1, 30),
    st.booleans(),
)
@settings(max_examples=examples(100, 2_000), deadline=None)
def test_state_is_copied_ahead_of_a_split_while_tasks_change_it(writes, factors, at_once, stops_at, dies_at, is_alone):
    """Between any two entries that are copied tasks may commit; and the copying may stop, or be killed, halfway."""
    before, now = factors
    plans = {factor: app_of(factor).plan({"words": 1}) for factor in factors}
    held: dict[bytes, bytes] = {}
    left, asked = [*writes[1:]], 0

    def write(changes: list[tuple[int, bytes | None]]) -> None:
        newest = {b"s%d" % key: value for key, value in changes}
        run = here.generation(APP)
        state = [StateWrites("st", 0, sorted(newest.items()))]
        here.commit(Commit(APP, run, [], state, {name: Checkpoint(run, said.positions) for name in names}))
        held.update({key: value for key, value in newest.items() if value is not None})
        for key in [key for key, value in newest.items() if value is None]:
            held.pop(key, None)

    def goes_on() -> bool:
        nonlocal asked
        asked += 1
        if left:
            write(left.pop())
        if asked == dies_at:
            raise Dies
        return asked < stops_at

    with tempfile.TemporaryDirectory() as name, simulated(Cluster(0)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_state, "_ENTRIES_AT_ONCE", at_once)
        here, said = opened(Path(name)), Checkpoint(1, (Position("log", "words", 0, 1),))
        here.create_stream("words", StreamConfig())
        here.own(APP)
        names = ["0"]
        write([(key, b"0") for key in range(20)])
        rescale(here, plans[before], app_of(before).graph(), here.generation(APP))
        tell_split(here, plans[before], app_of(before).graph())
        names = [task.name for task in split_into(before).parts(0)]
        write(writes[0])
        with suppress(Dies):
            here.prepare_split(APP, split_by(plans[before], app_of(before).graph(), now), goes_on)
        if dies_at == asked:
            dies_at, asked = None, 0
            write([(key, None) for key in range(18)])
            here.prepare_split(APP, split_by(plans[before], app_of(before).graph(), now), goes_on)
        is_whole = asked < stops_at
        for changes in left:
            write(changes)
        if not is_alone:
            here.own(APP)  # as containers end, and who has started them opens the application anew
        copied = []
        patch.setattr(task_state, "move_in", lambda _, fresh: copied.extend(shared_state.absent(fresh)))
        if not is_whole:
            patch.undo()
        moved = here.brought(APP).moved
        rescale(here, plans[now], app_of(now).graph(), here.generation(APP))
        tell_split(here, plans[now], app_of(now).graph())
        assert dict(here.state_range(APP, "st", 0)) == held
        assert not copied, "nothing is left to copy at the cut"
        if is_alone:
            assert here.brought(APP).moved - moved == len(held)
        here.close()


STEPS = st.lists(WRITES | st.sampled_from((1, 2, 4)) | st.just("begun anew"), min_size=1, max_size=8)


@given(STEPS)
@example([2, 1, 2, [(0, None)]])
@settings(max_examples=examples(150, 1_000), deadline=None)
def test_state_that_lies_here_is_gone_on_with_where_its_changelogs_are_cut(steps):
    """Whatever a task has deleted, or never had, and however often it was split before the clean end."""
    held: dict[bytes, bytes] = {}
    said = Checkpoint(1, (Position("log", "words", 0, 1),))

    def split(factor: int) -> None:
        plan, graph = app_of(factor).plan({"words": 1}), app_of(factor).graph()
        rescale(here, plan, graph, here.generation(APP))
        tell_split(here, plan, graph)
        here.bring(APP, range(factor))  # as a run does: what is merged is only then as far as each part was

    with tempfile.TemporaryDirectory() as name, simulated(cluster := Cluster(0)):
        here, factor = opened(Path(name)), 1
        here.create_stream("words", StreamConfig())
        here.own(APP)
        for step in [[(1, b"0")], *steps]:
            if step == "begun anew":
                here.close()
                here = opened(Path(name))
                here.own(APP)
                split(factor)
            elif isinstance(step, int):
                factor = step
                split(factor)
            else:
                newest = {b"s%d" % key: value for key, value in step}
                run, tasks = here.generation(APP), split_into(factor).parts(0)
                checkpoints = {task.name: Checkpoint(run, said.positions) for task in tasks}
                here.commit(Commit(APP, run, [], [StateWrites("st", 0, sorted(newest.items()))], checkpoints))
                held |= newest
        here.close()
        held = {key: value for key, value in held.items() if value is not None}
        cut_changelogs(cluster)
        for _ in range(2):
            here = opened(Path(name))
            here.own(APP)
            split(factor)
            assert dict(here.state_range(APP, "st", 0)) == held
            here.close()
        if held:
            with closing(opened(Path(name) / "elsewhere")) as there:
                there.own(APP)
                with pytest.raises(Damaged, match="begins at offset"):
                    there.state_range(APP, "st", 0)


@pytest.mark.parametrize("asked", [Scale(4), Scale(1), Scale(2), Scale(containers=3)], ids=str)
def test_who_has_joined_a_run_makes_its_state_ready_for_the_split_that_others_are_asked_for(asked):
    """A host where somebody else began the run: its own tasks' state is copied there as well, and once."""
    plan, graph, looks = app_of(2).plan({"words": 1}), app_of(2).graph(), 0
    with tempfile.TemporaryDirectory() as name, simulated(Cluster(0)):
        here = opened(Path(name))
        here.create_stream("words", StreamConfig())
        run, said = here.own(APP), Checkpoint(1, (Position("log", "words", 0, 1),))
        items = [(b"s%d" % key, b"1") for key in range(9)]
        here.commit(Commit(APP, run, [], [StateWrites("st", 0, items)], {"0": said}))
        rescale(here, plan, graph, run)
        tell_split(here, plan, graph)
        here.bring(APP, range(2))

        def goes_on() -> bool:
            nonlocal looks
            looks += 1
            if looks == 2:
                here.ask_scale(APP, asked)
            return looks < 100

        def say_ready(number: int) -> None:
            # Not before what can be is copied; brokers may not answer the first time.
            assert {path.name for path in (Path(name) / "state" / APP).iterdir()} >= lying
            if len(refused) < 2:
                refused.append(number)
                raise EnvironmentFault("no broker answers")
            said_ready.add(number)

        async def rested(length_ms: float, is_cut_to_come: bool) -> None:
            # Told once all is ready: nobody looks often for a cut that waits for this host.
            assert is_cut_to_come == bool(looks > 1 and asked.factor not in (None, 2))

        said_ready, refused = set(), []
        lying = {task.name for task in split_into(asked.factor or 2).parts(0)}
        asyncio.run(follow_ahead(here, plan, graph, 0, say_ready, rested, goes_on))
        assert said_ready == {here.asked_scale(APP).number}
        there = {path.name: LogEnvironment(path, sync=False) for path in (Path(name) / "state" / APP).iterdir()}
        ready = {task for task, one in there.items() if "ahead" in one.checkpoints(APP)}
        assert ready == {task.name for task in split_into(asked.factor or 2).parts(0)} - {"0-0-2", "0-1-2"}
        for one in there.values():
            one.close()
        here.close()
