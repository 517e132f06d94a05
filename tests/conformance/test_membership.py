"""What holds for containers that share the tasks of an application, wherever they meet."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from operators.core.base import Batch
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import EnvironmentFault, Fenced
from runtime.ports.commits import Commit
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.environment import MemoryEnvironment
from tests.runtime.log_directory import start
from tests.simulation.directory import Directory, SimulatedLog

APP, TASKS = "app", 5


@pytest.fixture(params=["log", "memory", "simulated"])
def environment(request, tmp_path):
    if request.param == "log":
        environment = LogEnvironment(tmp_path)
    elif request.param == "memory":
        environment = MemoryEnvironment()
    else:
        environment = SimulatedLog(Directory(), now_ms=lambda: 0)
    environment.create_stream("s", StreamConfig())
    yield environment
    environment.close()


@pytest.fixture
def join(environment):
    """Have a container join the newest run."""
    environment.own(APP)
    joined = []

    def join(name, tasks=TASKS):
        joined.append(environment.join(APP, environment.generation(APP), name, tasks))
        return joined[-1]

    yield join
    for member in joined:
        member.leave()


def commit(environment, tasks, run=None):
    generation = environment.generation(APP) if run is None else run
    checkpoints = {str(task): Checkpoint(generation) for task in tasks}
    environment.commit(Commit(APP, generation, [Append("s", 0, Batch([b"x"]))], [], checkpoints, tasks=tasks))


def test_one_container_has_all(join):
    alone = join("a")
    assert alone.mine() == set(range(TASKS))
    assert alone.take(alone.mine()) == dict.fromkeys(range(TASKS), 1)


def test_all_see_the_same_model(join):
    members = [join(name) for name in "abc"]
    shares = [member.mine() for member in members]
    assert sorted(task for share in shares for task in share) == list(range(TASKS))
    assert [member.mine() for member in members] == shares


def test_a_task_is_kept_until_it_is_given_up(join):
    first = join("a")
    assert len(first.take(first.mine())) == TASKS
    second = join("b")
    wanted = second.mine()
    assert 0 < len(wanted) < TASKS
    assert second.take(wanted) == {}
    first.give_up(wanted)
    assert second.take(wanted) == dict.fromkeys(wanted, 2)
    assert first.take(wanted) == {}


def test_what_one_had_that_is_gone_can_be_taken(join):
    first, second = join("a"), join("b")
    first.take(first.mine())
    second.take(second.mine())
    first.leave()
    first.leave()
    assert second.mine() == set(range(TASKS))
    assert second.take(range(TASKS)).keys() == set(range(TASKS))


def test_a_placement_says_who_has_what(environment):
    environment.own(APP)
    members = [environment.join(APP, 1, name, TASKS, lambda placing: ["b"] * placing.tasks) for name in "ab"]
    assert [member.mine() for member in members] == [set(), set(range(TASKS))]
    for member in members:
        member.leave()


def test_to_take_what_one_has_makes_it_a_new_generation(join):
    alone = join("a")
    assert alone.take([3]) == {3: 1}
    assert alone.take([3]) == {3: 2}


def test_to_give_up_what_another_has_does_nothing(join):
    first, second = join("a"), join("b")
    first.take([0])
    second.give_up([0])
    assert second.take([0]) == {}


def test_a_commit_for_a_task_that_was_taken_is_fenced(environment, join):
    first, second = join("a"), join("b")
    taken = first.take([0, 1])
    commit(environment, taken)
    first.give_up([1])
    second.take([1])
    with pytest.raises(Fenced, match="Task 1 of application 'app' is at generation 2, and this container has it of 1"):
        commit(environment, taken)
    commit(environment, {0: taken[0]})
    assert environment.offsets("s", 0).end == 2
    assert set(environment.checkpoints(APP)) == {"0", "1"}


def test_another_run_begins_anew(environment, join):
    old = join("a")
    taken = old.take(old.mine())
    run = environment.generation(APP)
    environment.own(APP)
    with pytest.raises(Fenced, match="is at generation 2, and this run is of 1"):
        old.take([0])
    with pytest.raises(Fenced):
        old.give_up([0])
    with pytest.raises(Fenced):
        commit(environment, taken, run)
    new = join("a")
    assert new.mine() == set(range(TASKS))
    assert new.take(new.mine()) == dict.fromkeys(range(TASKS), 2)


def test_applications_have_nothing_to_do_with_each_other(environment, join):
    mine = join("a")
    generation = environment.own("other")
    other = environment.join("other", generation, "a", 2)
    assert mine.mine() == set(range(TASKS))
    assert other.mine() == {0, 1}
    assert other.take([0]) == {0: 1}
    assert mine.take([0]) == {0: 1}
    other.leave()


def test_a_name_that_could_be_a_path_is_refused(environment):
    with pytest.raises(EnvironmentFault, match="is no application name"):
        environment.join("../app", 1, "a", 1)


class Containers(RuleBasedStateMachine):
    """Containers come, go, take and give up in any order: no task ever has two that could commit for it."""

    def __init__(self):
        super().__init__()
        self.environment = MemoryEnvironment()
        self.environment.create_stream("s", StreamConfig())
        self.environment.own(APP)
        self.members = {}
        self.held = {}
        self.count = 0

    @rule()
    def join(self):
        self.count += 1
        name = f"{self.count}"
        self.members[name] = self.environment.join(APP, 1, name, TASKS)
        self.held[name] = {}

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def take_what_is_mine(self, data):
        name = data.draw(st.sampled_from(sorted(self.members)))
        mine = self.members[name].mine()
        self.held[name] |= self.members[name].take(mine - self.held[name].keys())

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def give_up_what_is_not(self, data):
        name = data.draw(st.sampled_from(sorted(self.members)))
        surplus = self.held[name].keys() - self.members[name].mine()
        self.members[name].give_up(surplus)
        self.held[name] = {task: taken for task, taken in self.held[name].items() if task not in surplus}

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def die(self, data):
        name = data.draw(st.sampled_from(sorted(self.members)))
        self.members.pop(name).leave()
        del self.held[name]

    @invariant()
    def each_may_commit_and_none_has_what_another_has(self):
        for name in self.members:
            commit(self.environment, self.held[name])
        had = [task for held in self.held.values() for task in held]
        assert len(had) == len(set(had))

    def teardown(self):
        for _ in range(2):
            for name, member in self.members.items():
                mine = member.mine()
                member.give_up(self.held[name].keys() - mine)
                self.held[name] = {task: taken for task, taken in self.held[name].items() if task in mine}
                self.held[name] |= member.take(mine - self.held[name].keys())
        if self.members:
            assert sorted(task for held in self.held.values() for task in held) == list(range(TASKS))


TestContainers = Containers.TestCase
TestContainers.settings = settings(deadline=None)

HOLDS = """
log = LogEnvironment(sys.argv[1])
member = log.join("app", log.generation("app"), "other", 4)
print(len(member.take(member.mine())), flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_had_can_be_taken_at_once(tmp_path):
    log = LogEnvironment(tmp_path)
    log.own(APP)
    other = start(HOLDS, tmp_path)
    try:
        assert other.stdout.readline() == "4\n"
        mine = log.join(APP, 1, "mine", 4)
        assert len(mine.mine()) == 2
        assert mine.take(mine.mine()) == {}
        other.kill()
        other.wait()
        assert mine.mine() == {0, 1, 2, 3}
        assert mine.take(mine.mine()) == dict.fromkeys(range(4), 2)
        mine.leave()
    finally:
        other.kill()
        other.communicate()
        log.close()
