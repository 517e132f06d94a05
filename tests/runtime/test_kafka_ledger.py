"""What the order of the ledger says of who has which task, and who lives."""

import asyncio
import tempfile
from pathlib import Path

import msgspec
import pytest
from aiokafka.errors import KafkaConnectionError
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from planner.model.virtual_tasks import VirtualTask
from runtime.commit.commit import SHARED, STATE
from runtime.job.job_model import JOB
from runtime.model.assignment import JobModel
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import Damaged, Fenced
from runtime.ports.commits import Commit
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.coordination import owner
from runtime.systems.kafka.coordination.group import Awaited, Joining, shared_out
from runtime.systems.kafka.state.changelog import ChangelogEnd, Committed
from runtime.systems.kafka.state.ledger import (
    Claim,
    Ledger,
    said_of_checkpoints,
    said_of_claims,
    said_of_given,
    said_of_reached,
    said_of_stores,
)
from tests.scale import examples
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import Cluster

claims = st.builds(
    Claim,
    task=st.integers(0, 1),
    generation=st.integers(1, 3),
    container=st.sampled_from("abc"),
    run=st.just(1),
    model=st.just(1),
)


def entries(claims):
    """The topic's newest values by key, in the order in which each key came first; nobody claims twice."""
    batch = said_of_claims(claims)
    return dict(reversed([*zip(reversed(batch.keys), reversed(batch.values), strict=True)]))


@given(st.lists(claims, unique_by=lambda claim: claim.key))
def test_who_claims_a_generation_first_has_the_task(claims):
    ledger = Ledger(entries(claims))
    for task in {claim.task for claim in claims}:
        newest = max(claim.generation for claim in claims if claim.task == task)
        first = next(claim for claim in claims if (claim.task, claim.generation) == (task, newest))
        assert ledger.held(task) == first


@given(st.lists(claims, unique_by=lambda claim: claim.key))
def test_what_is_outlived_can_be_forgotten(claims):
    ledger = Ledger(entries(claims))
    outlived = {key for keys in ledger.outlived.values() for key in keys}
    left = Ledger({key: said for key, said in entries(claims).items() if key not in outlived})
    assert left.claims == ledger.claims
    assert not left.outlived


def test_a_task_that_was_given_up_is_nobodys_until_it_is_claimed_again():
    first, second = (Claim(0, generation, "a", 1, 1) for generation in (1, 2))
    given_up = said_of_given({0: 1})
    records = {**entries([first]), **dict(zip(given_up.keys, given_up.values, strict=True))}
    assert Ledger(records).held(0) is None
    assert Ledger({**records, **entries([second])}).held(0) == second


@pytest.mark.parametrize("name", ["run", "live", "recomputed", "claim", "scale", "0-1-2", SHARED, STATE, JOB])
def test_no_checkpoint_is_taken_for_something_else(name):
    checkpoint = Checkpoint(3, meanings={"recomputed": "so"})
    said = said_of_checkpoints({name: checkpoint})
    ledger = Ledger(dict(zip(said.keys, said.values, strict=True)))
    assert ledger.checkpoints == {name: checkpoint} and ledger.run is None and not ledger.said


@given(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), st.lists(st.sampled_from("abcd"), unique=True))
def test_who_lives_shares_all_tasks_and_keeps_what_it_has(before, after):
    after = after or before
    model = shared_out([Joining(name, 1, 5, JobModel()) for name in before], 0)
    again = shared_out(
        [Joining(name, 1, 5, model if name in before else JobModel(), sorted(model.of(name))) for name in after], 2
    )
    assert sorted(again.containers) == sorted(after)
    assert set(again.tasks) <= set(after)
    assert again.generation > model.generation
    if set(after) == set(before):
        assert again.tasks == model.tasks


def test_who_is_of_an_older_run_has_no_task():
    model = shared_out(
        [Joining("old", 1, 3, JobModel(1, 9, ("old",), ("old",) * 3)), Joining("new", 2, 2, JobModel())], 0
    )
    assert model == JobModel(2, 10, ("new",), ("new", "new"), ("",), ((), ()), ("",))


def test_a_model_is_newer_than_those_of_containers_that_are_gone():
    assert shared_out([Joining("a", 1, 1, JobModel())], 1_000).generation == 1_000


TASKS = st.sampled_from([VirtualTask(0, bucket, factor) for factor in (1, 2, 4) for bucket in range(factor)])
WROTE = st.lists(st.tuples(TASKS, st.booleans()), min_size=2, max_size=12)


@given(WROTE, TASKS)
@settings(max_examples=examples(100, 5_000))
def test_what_a_task_has_is_what_all_have_written_who_had_keys_of_it(wrote, task):
    kept, reached, counted_by = {}, {}, None
    for end, (one, is_counted) in enumerate(wrote, 1):
        kept[one] = kept.get(one, frozenset()) | {f"store {one.factor}"}
        reached[one] = {"place": ChangelogEnd(end, 7 if is_counted else -1)}
        if one.meets(task):
            counted_by = one if is_counted else None
    said = said_of_stores(kept)
    said.extend(said_of_reached(reached))
    found = Ledger(dict(zip(said.keys, said.values, strict=True))).committed
    ends = [at["place"].end for one, at in reached.items() if one.meets(task)]
    entries = 7 if counted_by == task else -1
    assert found.ends(task) == ({"place": ChangelogEnd(max(ends), entries)} if ends else {})
    assert found.stores(task) == {f"store {one.factor}" for one in kept if one.meets(task)}


EVENTS = ("commits", "ends well", "is taken over")
RUNS = st.lists(
    st.tuples(st.sampled_from((1, 2, 4)), st.lists(st.tuples(st.integers(0, 3), st.sampled_from(EVENTS)), max_size=8)),
    max_size=4,
)


@given(RUNS, TASKS)
@settings(max_examples=examples(300, 10_000))
def test_nothing_is_behind_the_end_of_what_is_settled_however_tasks_were_split_and_died(runs, task):
    """Each run splits anew; a task begins behind all that was written, and ends well, or dies."""
    end, last, all_well, said = 0, 0, True, {}
    for factor, events in runs:
        living: dict[VirtualTask, int] = {}
        for number, event in events:
            one = VirtualTask(0, number % factor, factor)
            reached = end if event == "is taken over" else living.pop(one, end)
            if event == "is taken over":
                living[one] = end
            elif event == "commits":
                said[one] = {"place": ChangelogEnd(reached)}
                end += 1
                living[one] = end
                last = end if one.meets(task) else last
            else:
                said[one] = {"place": ChangelogEnd(reached, 7)}
        all_well &= not any(one.meets(task) for one in living)
    found = Committed({}, {one: frozenset({"store"}) for one in said}, said)
    is_settled = found.is_settled(task, "store", "place")
    assert not is_settled or last <= found.ends(task)["place"].end
    assert is_settled or not all_well or not any(one.meets(task) for one in said)


READ = st.lists(st.integers(0, 3), min_size=2, max_size=2)


@given(st.lists(READ, min_size=2, max_size=6))
def test_who_looks_again_never_takes_an_older_checkpoint_for_a_newer_one(looks):
    def ledger(offsets):
        positions = tuple(Position("log", "words", partition, at) for partition, at in enumerate(offsets))
        found = Ledger({})
        found.checkpoints["0-1-2"] = Checkpoint(1, positions)
        return found

    known = ledger(looks[0])
    for offsets in looks[1:]:
        before = [one.offset for one in known.checkpoints["0-1-2"].positions]
        known.follow(ledger(offsets))
        is_further = all(now >= at for now, at in zip(offsets, before, strict=True))
        expected = offsets if is_further else before
        assert [one.offset for one in known.checkpoints["0-1-2"].positions] == expected


@pytest.mark.parametrize("answer", ["hangs", "fails", "knows it", "knows none"])
def test_a_transaction_that_takes_too_long_is_told_whatever_the_brokers_say_of_topics(answer, monkeypatch):
    async def too_long(*_):
        raise TimeoutError("the transaction")

    class Streams:
        async def metadata_of(self, names):
            if answer == "hangs":
                await asyncio.Event().wait()
            if answer == "fails":
                raise KafkaConnectionError("nobody there")
            return dict.fromkeys(names) if answer == "knows it" else {}

    monkeypatch.setattr(owner, "_transacted", too_long)
    monkeypatch.setattr(owner, "STOP_S", 0.01)
    error, told = (Damaged, "'out' is gone") if answer == "knows none" else (TimeoutError, "the transaction")
    with pytest.raises(error, match=told):
        asyncio.run(owner.transact(Streams(), object(), {("out", 0): Batch([b"1"])}))


@given(st.integers(1, 4).flatmap(lambda tasks: st.tuples(st.just(tasks), st.integers(0, tasks - 1))), st.data())
@settings(max_examples=examples(40, 400))
def test_a_task_that_is_gone_for_good_leaves_no_checkpoint_that_seems_lost(counts, data):
    """As where a move has left partitions between stages, and the process dies before their topic is made anew."""
    (before, now), app = counts, "moving"
    offsets = data.draw(st.lists(st.integers(1, 9), min_size=before, max_size=before))

    def read(run: int, tasks: range) -> dict[str, Checkpoint]:
        heard = {"0": 1}  # what producers between stages have told
        places = {task: Position("log", "between", task, offsets[task], producers=heard) for task in tasks}
        return {str(task): Checkpoint(run, (at,)) for task, at in places.items()}

    with tempfile.TemporaryDirectory() as folder, simulated(Cluster(0)):
        here = opened(Path(folder))
        here.create_stream("between", StreamConfig(partitions=before))
        run = here.own(app)
        here.commit(Commit(app, run, [], [], read(run, range(before))))
        here.commit(Commit(app, run, [], [], read(run, range(now)), gone=tuple(map(str, range(now, before)))))
        here.close()
        here = opened(Path(folder))
        here.own(app)
        here.check_kept(app)
        here.close()


@given(
    st.lists(st.sampled_from(("here", "there")), min_size=1, max_size=6),
    st.integers(0, 6),
    st.integers(1, 12),
    st.integers(0, 2),
    st.data(),
)
def test_tasks_of_containers_that_are_awaited_wait_for_them_and_never_move_twice(hosts, grown, tasks, standby, data):
    """Whoever comes first takes what it keeps once all have come, and no more, in whatever order they come."""
    former, run = JobModel(1, 5, tuple(map(str, range(len(hosts))))), 2
    # As they were, and more on the first host.
    coming = [*hosts, *[hosts[0]] * grown]
    awaited = Awaited(1, {host: coming.count(host) for host in {*coming}})
    spans = Joining("process 1", 0, 0, former, awaited=awaited)
    homes = [[host] for host in data.draw(st.lists(st.sampled_from(hosts), min_size=tasks, max_size=tasks))]
    order = data.draw(st.permutations(range(len(coming))))
    model, here = JobModel(), []
    for number in order:
        held = {one.name: model.of(one.name) for one in here}
        here = [msgspec.structs.replace(one, held=sorted(held[one.name]), model=model) for one in here]
        here.append(Joining(f"{number}", run, tasks, JobModel(), host=coming[number], homes=homes, standby=standby))
        before, model = model, shared_out([spans, *here], now_ms=0)
        assert {*model.tasks} <= {*model.containers, ""} and model.containers == tuple(sorted(one.name for one in here))
        assert all(was in ("", now) for was, now in zip(before.tasks, model.tasks, strict=False))
        assert {name for names in model.standbys for name in names} <= {*model.containers}
    assert "" not in model.tasks, "nobody is waited for who is here"
    # Who never comes is waited for until the one leaves who spans the runs.
    assert "" not in shared_out(here[:1], now_ms=0).tasks
    # Containers of the run before know nothing of those who are to come.
    old = [Joining(str(number), 1, tasks, former, host=host) for number, host in enumerate(hosts)]
    assert "" not in shared_out([spans, *old], now_ms=0).tasks


def test_who_takes_a_task_fences_the_one_that_had_it(tmp_path):
    with simulated(Cluster(0)):
        zombie, heir = opened(tmp_path / "zombie"), opened(tmp_path / "heir")
        run = zombie.own("app")
        commit = Commit("app", run, [], [], {"0": Checkpoint(run)}, tasks={0: 1})
        had = zombie.join("app", run, "zombie", 1)
        assert had.take(had.mine()) == {0: 1}
        zombie.commit(commit)
        zombie._thread.call(had._group.leave())  # it is taken for dead, and does not know it
        has = heir.join("app", run, "heir", 1)
        assert has.take(has.mine()) == {0: 2}
        with pytest.raises(Fenced, match="Task 0 of application 'app' is at generation 2"):
            zombie.commit(commit)
        for member, environment in ((has, heir), (had, zombie)):
            member.leave()
            environment.close()
