"""Tasks go back to the host that has their state, on a real broker: what is there is not replayed."""

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.model.assignment import Placement, round_robin, sticky
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import SamzaError
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import KafkaCluster
from samza_dsl.application.placement import named
from tests.faults.processes import wait_until

TASKS = 5
ENTRIES = 50
"""How many entries a task has in its state before it moves."""


class Container:
    """A container without a loop on a host, whose state is in a directory of the host's name."""

    def __init__(
        self, broker, folder, app: str, run: int, host: str, name: str, placement: Placement = sticky, standby: int = 0
    ) -> None:
        self.app, self.run, self.host = app, run, host
        self.environment = KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), folder / host, host)
        self.members = self.environment.join(app, run, name, TASKS, placement, standby)

    def settles(self) -> set[int]:
        """Give up what is another one's, take what is this one's, and return all that it has then."""
        mine = self.members.mine()
        self.members.give_up(self.members.taken.keys() - mine)
        self.members.take(mine - self.members.taken.keys())
        return {*self.members.taken}

    def commits(self, *keys: int) -> None:
        """Commit entries of all of its tasks."""
        for task, taken in self.members.taken.items():
            checkpoint = Checkpoint(self.run, (Position("log", f"{self.app}-words", task, max(keys)),))
            state = [StateWrites("st", task, [(b"%d" % key, b"1") for key in keys])]
            self.environment.commit(Commit(self.app, self.run, [], state, {str(task): checkpoint}, tasks={task: taken}))

    def restored(self) -> int:
        return self.environment.restored(self.app)

    def ends(self) -> None:
        """End well, with all that it has given up."""
        self.members.give_up({*self.members.taken})
        self.members.leave()
        self.environment.close()

    def dies(self) -> None:
        """Be gone without a word of what it has."""
        self.members.leave()
        self.environment.close()


@pytest.fixture
def owner(broker, topics, tmp_path):
    environment = KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path / "owner")
    environment.create_stream(f"{topics}-words", StreamConfig(partitions=TASKS))
    yield environment
    environment.close()


@pytest.fixture
def start(broker, topics, tmp_path, owner):
    """Start a container on a host; who has not ended by the end does so then."""
    owner.own(topics)
    started = []

    def start(host: str, name: str, placement: Placement = sticky) -> Container:
        started.append(Container(broker, tmp_path, topics, owner.generation(topics), host, name, placement))
        return started[-1]

    yield start
    for container in started:
        container.dies()


def settled(*containers: Container) -> list[set[int]]:
    """Wait until all tasks are with one of these, as many with each, and return which are with which."""

    def looked() -> bool:
        found = [container.settles() for container in containers]
        return sum(map(len, found)) == TASKS and max(map(len, found)) - min(map(len, found)) <= 1

    wait_until(looked)
    return [{*container.members.taken} for container in containers]


def test_tasks_go_back_to_the_hosts_that_have_their_state_after_a_restart(start, owner, topics):
    x, y = start("x", "b"), start("y", "a")
    before = dict(zip("xy", settled(x, y), strict=True))
    for container in (x, y):
        container.commits(*range(ENTRIES))
        container.ends()
    owner.own(topics)
    y, x = start("y", "m"), start("x", "n")
    after = dict(zip("xy", settled(x, y), strict=True))
    assert after == before
    assert owner.job_model(topics).hosts == ("y", "x")


@pytest.mark.parametrize(("placement", "goes_back"), [(sticky, True), (round_robin, False)])
def test_a_host_that_was_away_gets_back_what_it_has_and_replays_what_is_newer_alone(start, placement, goes_back):
    x, y = start("x", "c", placement), start("y", "a", placement)
    _, theirs = settled(x, y)
    for container in (x, y):
        container.commits(*range(ENTRIES))
    y.dies()
    assert settled(x) == [{*range(TASKS)}]
    assert x.restored() == ENTRIES * len(theirs), "the state of the other's tasks was made anew"
    x.commits(ENTRIES)
    again = start("y", "z", placement)
    _, mine = settled(x, again)
    if goes_back:
        assert mine <= theirs
        assert again.restored() == len(mine), "one entry of each is newer than what is here"
    else:
        assert not mine <= theirs
        assert again.restored() > ENTRIES


def test_a_run_by_itself_leaves_its_tasks_to_the_containers_of_its_host(broker, topics, tmp_path, start, owner):
    alone = KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path / "y", "y")
    run = alone.own(topics)
    for task in range(TASKS):
        checkpoint = Checkpoint(run, (Position("log", f"{topics}-words", task, 1),))
        alone.commit(Commit(topics, run, [], [StateWrites("st", task, [(b"k", b"1")])], {str(task): checkpoint}))
    alone.close()
    owner.own(topics)
    x, y = start("x", "a"), start("y", "b")
    settled(x, y)
    assert (len(x.members.taken), len(y.members.taken)) == (2, 3), "the one that may have more is where they are"


def last_first(placing):
    """Give all tasks to the container whose name is last."""
    return [max(placing.hosts)] * placing.tasks


def test_a_function_places_tasks(start):
    first, last = start("x", "a", last_first), start("x", "b", last_first)
    wait_until(lambda: [one.settles() for one in (first, last)] == [set(), {*range(TASKS)}])


def test_a_function_that_places_a_task_nowhere_ends_who_has_asked_it(start):
    container = start("x", "a", lambda placing: ["nobody"] * placing.tasks)
    with pytest.raises(SamzaError, match="gives task 0 to 'nobody', and the containers are a"):
        container.settles()


PROGRAM = """
from samza_dsl import App, Json, Placing, String

app = App("{name}")
words = app.input("{name}-words", value=String(), key=str)
counts = words.scan(lambda total, word: (total or 0) + 1, op_id="count")
counts.send_to(app.output("{name}-counts", value=Json(int)))


def backwards(placing: Placing) -> list[str]:
    names = sorted(placing.hosts)
    return [names[-1 - task % len(names)] for task in range(placing.tasks)]


if __name__ == "__main__":
    app.run(environment="{environment}", containers=2, host_id="here", placement=backwards, until_now=True)
"""


@pytest.mark.parametrize("how", ["program", "command"])
def test_a_function_of_the_applications_module_places_its_tasks(how, broker, topics, tmp_path, owner):
    environment = f"kafka://{broker.bootstrap}"
    (tmp_path / "app.py").write_text(PROGRAM.format(name=topics, environment=environment))
    command = ["python", "app.py"]
    if how == "command":
        command = ["samza-dsl", "run", "app.py", "--until-now", "--environment", environment, "--containers", "2"]
        command += ["--placement", "app:backwards", "--host-id", "here"]
    command[0] = str(Path(sys.executable).with_name(command[0]))
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert said.returncode == 0, said.stderr
    assert {homes.trusted()[0] for homes in owner._ledger(topics).homes.values()} == {"here"}


@pytest.mark.parametrize("placement", [lambda placing: [], "stick", last_first.__get__])
def test_what_other_processes_can_not_find_is_no_placement(placement):
    with pytest.raises(SamzaError, match='write placement="sticky", "round_robin", or a function at the top level'):
        named(placement)
