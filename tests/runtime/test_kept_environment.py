"""Containers that keep their environment from one run to the next, on a simulated Kafka, have what was committed."""

import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from operators.core.base import Batch
from runtime.model.errors import EnvironmentFault, Fenced
from runtime.ports.streams import Append, Offsets, StreamConfig
from tests.runtime.test_standby import TASKS, Container, note, writes
from tests.scale import examples
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import LOST, MARKERS_S, SESSION_S, UNHEARD, Cluster, Trouble
from tests.strategies import APP

ENDS = st.sampled_from(("ends", "is fenced", "dies", "stays away"))
RUNS = st.lists(st.tuples(st.lists(st.lists(writes, min_size=1, max_size=4), max_size=4), ENDS, ENDS), max_size=5)
"""Of each run, what is committed, and how it ends for either of two containers."""


def settled(containers: Mapping[str, Container]) -> None:
    """Let each have its tasks."""
    for _ in range(10):
        for one in containers.values():
            one.settles()
        if sum(len(one.members.taken) for one in containers.values()) == TASKS:
            return
    raise AssertionError("tasks are left over")


@given(RUNS, st.integers(0, 1_000))
@settings(max_examples=examples(30, 5_000))
def test_what_is_committed_in_one_run_is_there_in_the_next(runs, seed):
    cluster = Cluster(seed)
    with tempfile.TemporaryDirectory() as name, simulated(cluster) as thread:
        folder = Path(name)
        owner = opened(folder / "owner")
        owner.create_stream("words", StreamConfig(partitions=TASKS))
        kept: dict[str, Container] = {}
        away: dict[str, Container] = {}
        committed: dict[tuple[int, str], dict[bytes, bytes]] = {}
        for number, (commits, *ends) in enumerate([*runs, ([], "ends", "ends")]):
            run = owner.own(APP)
            for one in kept.values():  # those that the new run has fenced hear of it, and let go
                if one.members.taken:
                    with pytest.raises(Fenced):
                        one.commits([(min(one.members.taken), "st", 0, True)])
                    one.lets_go()
            there = {}
            for place in ("first", "second"):
                if place in kept:
                    there[place] = kept.pop(place).joins(run, f"{place} {number}")
                elif place in away and number % 2:  # it comes back where others have had its tasks since
                    there[place] = away.pop(place).joins(run, f"{place} {number}")
                elif place not in away:
                    there[place] = Container(cluster, folder, f"{place} {number}", run, host=place)
            if not there:
                continue
            settled(there)
            read = {task: at for one in there.values() for task, at in one.read.items()}
            for changes in commits:
                for one in there.values():
                    if mine := [change for change in changes if change[0] in one.members.taken]:
                        one.read |= {task: max(read.get(task, 0), one.read.get(task, 0)) for task, *_ in mine}
                        one.commits(mine)
                        note(committed, mine)
            found = {place: entries for one in there.values() for place, entries in one.state().items()}
            assert found == {place: entries for place, entries in committed.items() if entries}
            for (place, one), end in zip(there.items(), ends, strict=False):
                if end == "dies":
                    one.dies()
                    thread.catch_up(cluster.loop.time() + SESSION_S)
                    continue
                if end != "is fenced":
                    one.lets_go()
                (away if end == "stays away" else kept)[place] = one
        for one in (*kept.values(), *away.values()):
            one.does(one.environment.close)
        owner.close()


@pytest.mark.parametrize(("what", "at"), [*product((LOST, UNHEARD), (1, 2))])
def test_an_owner_that_was_not_heard_says_nothing_more(tmp_path, what, at):
    """Its producer is in the midst of a transaction, of which nobody knows what has come."""
    cluster = Cluster()
    with simulated(cluster) as thread:
        owner = opened(tmp_path / "owner")
        owner.own(APP)
        cluster.troubles = [Trouble(cluster.changes + at, what)]
        for _ in range(2):
            with pytest.raises(EnvironmentFault, match="lost"):
                owner.runs(APP).begin(b"said")
        owner.own(APP)
        owner.runs(APP).begin(b"said anew")
        thread.catch_up(cluster.loop.time() + MARKERS_S)
        assert owner.runs(APP).begun() == b"said anew"
        owner.close()


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("is_between", [False, True])
def test_a_stream_that_was_made_anew_between_two_runs_is_read_from_its_start(tmp_path, partitions, is_between):
    cluster, config = Cluster(), StreamConfig(partitions=1, intermediate=is_between)
    with simulated(cluster) as thread:
        one, other = opened(tmp_path / "one"), opened(tmp_path / "other")
        other.create_stream("words", config)
        other.append([Append("words", 0, Batch([b"a", b"b", b"c"], [b"k"] * 3, [0] * 3), None)])
        thread.catch_up(cluster.loop.time() + MARKERS_S)
        run = one.own(APP)
        assert one.offsets("words", 0).end == 4  # the marker of a transaction is one
        assert one.read("words", 0, 0).batch.values == [b"a", b"b", b"c"]
        one.let_go(APP)
        other.delete_stream("words")
        other.create_stream("words", replace(config, partitions=partitions))
        other.append([Append("words", partitions - 1, Batch([b"d"], [b"k"], [0]), None)])
        thread.catch_up(cluster.loop.time() + MARKERS_S)
        assert one.own(APP) > run
        assert one.streams()["words"].partitions == partitions
        assert one.offsets("words", partitions - 1) == Offsets(0, 2, ended=False)
        assert one.read("words", partitions - 1, 0).batch.values == [b"d"]
        one.close()
        other.close()
