"""Copies of state that others have, on a simulated Kafka: they are as of a commit, and who has one replays the rest."""

import asyncio
import tempfile
from collections.abc import Callable
from contextvars import Context, copy_context
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from planner.model.errors import PlanError
from planner.model.virtual_tasks import VirtualTask
from runtime.model.assignment import Placing, standbys, sticky
from runtime.model.checkpoint import Checkpoint, Position
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.coordination.owner import say_counted
from runtime.systems.kafka.state.changelog import PARTITIONS
from runtime.systems.kafka.state.standby import Standby
from samza_dsl import App
from tests.runtime.test_assignment import is_balanced, of_living, placings
from tests.runtime.test_laws_on_kafka import check_copies
from tests.scale import examples
from tests.simulation.kafka import cut_changelogs, die, opened, simulated
from tests.simulation.kafka_brokers import MARKERS_S, PROCESS, SESSION_S, Cluster
from tests.strategies import APP

TASKS = 4

writes = st.tuples(st.integers(0, TASKS - 1), st.sampled_from(("st", "other")), st.integers(0, 5), st.booleans())
steps = st.lists(st.one_of(st.lists(writes, min_size=1, max_size=6), st.none()), max_size=8)
"""What is committed, as (task, store, key, whether it is there); None where copies follow."""


class Container:
    """A container without a loop, a process on a host of its own, or on one that others have as well."""

    def __init__(
        self, cluster: Cluster, folder: Path, name: str, run: int, tasks: int = TASKS, host: str | None = None
    ) -> None:
        self.cluster, self.tasks, self.copies = cluster, tasks, int(host is None)
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, name)
        self.environment = self.does(opened, folder / (host or name), host or name)
        self.read: dict[int, int] = {}
        self.joins(run, name)

    def joins(self, run: int, name: str) -> "Container":
        self.run = run
        self.members = self.does(self.environment.join, APP, run, name, self.tasks, sticky, self.copies)
        return self

    def does(self, what: Callable[..., Any], *how: Any) -> Any:
        return self.context.run(what, *how)

    def settles(self) -> set[int]:
        mine = self.does(self.members.mine)
        self.does(self.members.give_up, self.members.taken.keys() - mine)
        self.does(self.members.take, mine - self.members.taken.keys())
        return {*self.members.taken}

    def commits(self, changes: list[tuple[int, str, int, bool]]) -> None:
        state: dict[tuple[str, int], dict[bytes, bytes | None]] = {}
        for task, store, key, is_there in changes:
            state.setdefault((store, task), {})[b"%d" % key] = b"1" if is_there else None
            self.read[task] = self.read.get(task, 0) + 1
        tasks = {task: self.members.taken[task] for task, *_ in changes}
        said = {str(task): Checkpoint(self.run, (Position("log", "words", task, self.read[task]),)) for task in tasks}
        written = [StateWrites(store, task, sorted(items.items())) for (store, task), items in state.items()]
        self.does(self.environment.commit, Commit(APP, self.run, [], written, said, tasks=tasks))

    def follows(self) -> None:
        """Have all copies of what was committed."""
        self.members._look_at_ms = 0.0
        for _ in range(40):  # what is at hand comes by and by
            self.does(self.members.mine)
            self.members._standby._look_at_ms = 0.0

    def state(self) -> dict[tuple[int, str], dict[bytes, bytes]]:
        found = {
            (task, store): dict(self.environment.state_range(APP, store, task))
            for task in self.members.taken
            for store in ("st", "other")
        }
        return {place: entries for place, entries in found.items() if entries}

    def lets_go(self) -> None:
        self.does(self.members.leave)
        self.does(self.environment.let_go, APP)

    def dies(self) -> None:
        self.cluster.expire(self.context.run(PROCESS.get))
        self.does(die, self.cluster, self.environment)


def note(committed: dict[tuple[int, str], dict[bytes, bytes]], changes: list[tuple[int, str, int, bool]]) -> None:
    """Take note of what was committed, by task and store."""
    for task, store, key, is_there in changes:
        entries = committed.setdefault((task, store), {})
        _ = entries.update({b"%d" % key: b"1"}) if is_there else entries.pop(b"%d" % key, None)


@given(steps, st.integers(0, 1_000))
@settings(max_examples=examples(30, 5_000))
@example([[(0, "st", 1, True), (1, "st", 1, True)], None, [(0, "st", 2, True)]], 0)
def test_who_takes_over_with_a_copy_replays_what_was_committed_since_it_followed(steps, seed):
    cluster = Cluster(seed)
    with tempfile.TemporaryDirectory() as name, simulated(cluster) as thread:
        folder = Path(name)
        owner = opened(folder / "owner")
        owner.create_stream("words", StreamConfig(partitions=TASKS))
        run = owner.own(APP)
        first = Container(cluster, folder, "first", run)
        assert first.settles() == {*range(TASKS)}
        second = Container(cluster, folder, "second", run)
        theirs = first.settles()
        assert theirs | second.settles() == {*range(TASKS)}
        committed: dict[tuple[int, str], dict[bytes, bytes]] = {}
        since = 0
        for step in steps:
            if step is None:
                thread.catch_up(cluster.loop.time() + MARKERS_S)
                second.follows()
                assert check_copies(cluster, second.environment) == sum(map(len, committed.values()))
                since = 0
            elif changes := [one for one in step if one[0] in theirs]:
                first.commits(changes)
                since += len({one[:3] for one in changes})
                note(committed, changes)
        copies = {task.base for task in second.environment._state.copies(APP)}
        first.dies()
        thread.catch_up(cluster.loop.time() + SESSION_S)
        assert second.settles() == {*range(TASKS)}
        assert second.state() == {place: entries for place, entries in committed.items() if entries}
        assert second.environment.restored(APP) <= since
        assert copies == theirs or None not in steps
        second.does(second.members.leave)
        second.does(second.environment.close)
        owner.close()


hands = st.lists(st.one_of(st.lists(writes, min_size=1, max_size=6), st.sampled_from(("stopped", "ended", "killed"))))


@given(hands, st.integers(0, 1_000), st.booleans())
@settings(max_examples=examples(60, 600), deadline=None)
@example([[(0, "st", 0, True)], "stopped", [(0, "st", 0, False)]], 0, True)
def test_what_containers_of_a_host_leave_is_whole_where_changelogs_are_cut(steps, seed, wakes):
    """However often a task changed hands: who is stopped holds its directory, and ends only when it is woken."""
    cluster = Cluster(seed)
    with tempfile.TemporaryDirectory() as name, simulated(cluster) as thread:
        folder, number, stopped = Path(name), 0, list[Container]()
        owner = opened(folder / "owner")
        owner.create_stream("words", StreamConfig(partitions=TASKS))
        run = owner.own(APP)
        committed: dict[tuple[int, str], dict[bytes, bytes]] = {}

        def begun() -> Container:
            one = Container(cluster, folder, f"container {number}", run, host="host")
            assert one.settles() == {*range(TASKS)}
            return one

        def ends(one: Container) -> None:
            one.does(one.members.leave)
            one.does(one.environment.close)

        here = begun()
        for step in [*steps, "ended"]:
            if isinstance(step, list):
                here.commits(step)
                note(committed, step)
                continue
            if step == "killed":
                here.dies()
            elif step == "stopped":
                cluster.expire(here.context.run(PROCESS.get))
                stopped.append(here)
            else:
                ends(here)
            thread.catch_up(cluster.loop.time() + SESSION_S)
            number += 1
            here = begun()
        ends(here)
        for one in stopped:
            if wakes:
                ends(one)
            else:
                one.dies()
        cut_changelogs(cluster)
        number += 1
        here = begun()
        assert here.state() == {place: entries for place, entries in committed.items() if entries}
        ends(here)
        owner.close()


def test_what_is_said_of_a_task_that_is_given_up_waits_for_a_commit_of_the_others():
    """One producer writes for all tasks of a container, in one transaction after the other."""
    cluster = Cluster(0)
    with tempfile.TemporaryDirectory() as name, simulated(cluster) as thread:
        folder = Path(name)
        owner = opened(folder / "owner")
        owner.create_stream("words", StreamConfig(partitions=TASKS))
        one = Container(cluster, folder, "one", owner.own(APP))
        one.settles()
        one.commits([(0, "st", 1, True), (1, "st", 1, True)])
        held, streams = one.environment._owners[APP], one.environment._streams
        records = {("words", 1): Batch([b"1"])}
        counted = one.environment._counted(APP, held)

        async def both() -> None:
            committing = held.transact(streams, held.producer, records)
            await asyncio.gather(committing, say_counted(streams, APP, held, counted))

        one.does(thread.call, both())
        assert one.environment.offsets("words", 1).end > 0
        for word in one.environment._ledger(APP).reached.values():
            assert all(end.entries == 1 for end in word.values())
        one.does(one.members.leave)
        one.does(one.environment.close)
        owner.close()


def test_a_copy_that_comes_later_has_what_was_read_for_another_one_of_its_partition():
    """Tasks 0 and 8 lie in one partition of a changelog, which both are to be read from its start."""
    cluster = Cluster(0)
    with tempfile.TemporaryDirectory() as name, simulated(cluster) as thread:
        folder = Path(name)
        owner = opened(folder / "owner")
        owner.create_stream("words", StreamConfig(partitions=PARTITIONS + 1))
        first = Container(cluster, folder, "first", owner.own(APP), PARTITIONS + 1)
        first.settles()
        first.commits([(0, "st", 1, True), (PARTITIONS, "st", 2, True)])
        thread.catch_up(cluster.loop.time() + MARKERS_S)
        environment = opened(folder / "second")
        standby = Standby(environment._streams, environment._state, APP)
        for tasks in ([VirtualTask(0)], [VirtualTask(0), VirtualTask(PARTITIONS)]):
            standby.keep(tasks, environment._ledger(APP))
            while standby.warm != tasks:
                standby._look_at_ms = 0.0
                standby.follow()
        assert check_copies(cluster, environment) == 2
        standby.stop()
        first.does(first.members.leave)
        for one in (environment, owner):
            one.close()
        first.does(first.environment.close)


@given(placings(), st.integers(0, 3), st.data())
@settings(max_examples=examples(60, 20_000))
def test_copies_are_on_other_hosts_and_as_many_as_there_can_be(placing, count, data):
    names = sorted(placing.hosts)
    lists = st.lists(st.lists(st.sampled_from([*names, "gone"]), unique=True, max_size=2), max_size=placing.tasks)
    placing = placing._replace(standbys=data.draw(lists))
    tasks = sticky(placing)
    found = standbys(placing, tasks, count)
    others = len({*placing.hosts.values()}) - 1
    for task, copies in enumerate(found):
        hosts = [placing.hosts[name] for name in (tasks[task], *copies)]
        assert len({*hosts}) == len(hosts) == 1 + min(count, others)
    assert standbys(placing._replace(standbys=found), tasks, count) == found, "what is so stays so"


@given(st.integers(0, 5), st.integers(2, 4), st.data())
def test_no_balanced_assignment_gives_more_tasks_of_one_that_is_gone_to_who_has_a_copy(tasks, number, data):
    hosts = {name: f"host of {name}" for name in "abcd"[:number]}
    had = sticky(Placing(tasks, hosts))
    gone = data.draw(st.sampled_from(sorted(hosts)))
    placing = Placing(tasks, hosts, had)
    copies = standbys(placing, had, 1)
    left = placing._replace(hosts={name: host for name, host in hosts.items() if name != gone}, standbys=copies)
    found = sticky(left)
    names = sorted(left.hosts)
    others = [other for other in product(names, repeat=tasks) if is_balanced(names, other)]
    least = min(of_living(left, other) for other in others)
    best = max(with_copy(left, other) for other in others if of_living(left, other) == least)
    assert (of_living(left, found), with_copy(left, found)) == (least, best)


def with_copy(placing, tasks):
    return sum(name in placing.standbys[task] for task, name in enumerate(tasks) if placing.before[task] != name)


@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        ({"standby": 1, "containers": 2}, "containers on the embedded log have all state on one machine"),
        ({"standby": 1, "environment": "kafka://nowhere:1"}, "one container has the application to itself"),
        ({"standby": -1, "containers": 2}, "standby"),
    ],
)
def test_copies_that_nobody_could_have_are_refused(how, wrong, tmp_path):
    with pytest.raises(PlanError, match=wrong):
        App("a").run(tmp_path, **how)


def test_who_loses_all_that_it_claims_to_another_goes_on_without():
    """Two claim the tasks of one that is gone at the same moment, and the other's claim lies before this one's."""
    cluster = Cluster(0)
    with tempfile.TemporaryDirectory() as name, simulated(cluster):
        folder = Path(name)
        owner = opened(folder / "owner")
        owner.create_stream("words", StreamConfig(partitions=TASKS))
        run = owner.own(APP)
        first = Container(cluster, folder, "first", run)
        assert first.settles() == {*range(TASKS)}
        first.commits([(task, "st", 1, True) for task in range(TASKS)])
        second = Container(cluster, folder, "second", run)
        first.settles()
        wanted, settled = second.does(second.members.mine), second.members._settled
        moments = iter([lambda: first.does(first.members.take, wanted)])

        def and_another_claims_them(*fenced):
            found = settled(*fenced)
            next(moments, lambda: None)()
            return found

        second.members._settled = and_another_claims_them
        assert wanted and second.does(second.members.take, wanted) == {}
        assert second.does(second.members.mine) == wanted and not second.members.taken
        for one in (first, second):
            one.does(one.members.leave)
            one.does(one.environment.close)
        owner.close()
