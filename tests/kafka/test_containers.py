"""Several containers that share an application on a real broker: who has a task, and who can't commit any more."""

import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest

from operators.core.base import Batch
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import Damaged, Fenced
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.coordination import owner
from runtime.systems.kafka.coordination.owner import transact
from runtime.systems.kafka.environment import FENCED, KafkaEnvironment
from runtime.systems.kafka.state import ledger as kafka_ledger
from runtime.systems.kafka.streams.sink import send_all
from samza_dsl import KafkaCluster
from tests.faults.processes import wait_until
from tests.kafka.topics import consume, delete, group_offsets
from tests.sample import crossed

TASKS = 4

PROGRAM = """
import asyncio

from samza_dsl import App, Json, Options, String


async def looked_up(word):
    await asyncio.sleep(0.04)  # runs last while others start, at little work
    return [word]


app = App("{name}", Options(commit_interval_ms=100, max_in_flight=20))
words = app.input("{name}-words", value=String()).async_flat_map(looked_up)
counts = words.partition_by(lambda word: word, partitions=4, op_id="by-word").scan(
    lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count"
)
counts.send_to(app.output("{name}-counts", value=Json(list)))
"""


@pytest.fixture
def opened(broker, topics, tmp_path):
    """Open an environment with its state in a directory of that name; all are closed at the end."""
    environments = []

    def opened(name: str) -> KafkaEnvironment:
        environments.append(KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path / name))
        return environments[-1]

    yield opened
    for environment in environments:
        environment.close()


class Container:
    """A container without a loop: it has tasks, and commits what it is told to."""

    def __init__(self, opened, app: str, run: int, name: str, commit_by: str = "container") -> None:
        self.app, self.run = app, run
        self.environment = opened(name)
        if commit_by == "task":
            self.environment.commit_by_task(app, ())
        self.members = self.environment.join(app, run, name, TASKS)

    def takes(self, *tasks: int) -> None:
        """Take tasks as soon as they are its to take."""
        wait_until(lambda: {*tasks} <= self.members.mine())
        while wanted := {*tasks} - self.members.taken.keys():
            self.members.take(wanted)

    def commits(self, task: int, offset: int) -> None:
        """Commit that a task has read so far, and has that in its state."""
        self.environment.commit(self.commit(task, offset))

    def commit(self, task: int, offset: int) -> Commit:
        checkpoint = Checkpoint(self.run, (Position("log", f"{self.app}-words", task, offset),))
        state = [StateWrites("st", task, [(b"read", b"%d" % offset)])]
        taken = {task: self.members.taken[task]}
        return Commit(self.app, self.run, [], state, {str(task): checkpoint}, tasks=taken)

    def producer_of(self, task: int):
        """Return the producer of a task's transactions."""
        return self.environment._owners[self.app].writer(task)

    def has_read(self, task: int) -> tuple[int, bytes | None]:
        """Return what its checkpoint and its state say."""
        checkpoint = self.environment.checkpoints(self.app)[str(task)]
        return checkpoint.positions[0].offset, self.environment.state_get(self.app, "st", task, b"read")

    def goes_silent(self) -> None:
        """Be taken for dead without knowing it."""
        self.environment._thread.call(self.members._group.leave())


@pytest.fixture(params=["container", "task"])
def run(opened, topics, request):
    """A run of an application, and a way to start containers of it; all leave at the end."""
    owner = opened("owner")
    owner.create_stream(f"{topics}-words", StreamConfig(partitions=TASKS))
    generation, joined = owner.own(topics), []

    def container(name: str) -> Container:
        joined.append(Container(opened, topics, generation, name, request.param))
        return joined[-1]

    yield container
    for one in joined:
        with suppress(Exception):
            one.members.leave()


def test_a_task_that_is_given_up_moves_with_all_that_was_committed(run):
    first = run("first")
    first.takes(*range(TASKS))
    for task in range(TASKS):
        first.commits(task, 7)
    second = run("second")
    wait_until(lambda: len(second.members.mine()) == TASKS / 2)
    moving = second.members.mine()
    assert second.members.take(moving) == {}, "they are still another one's"
    wait_until(lambda: first.members.mine() == {*range(TASKS)} - moving)
    first.members.give_up(moving)
    assert second.members.take(moving) == dict.fromkeys(moving, 2)
    for task in moving:
        assert second.has_read(task) == (7, b"7")
        second.commits(task, 8)
    for task in first.members.mine():
        first.commits(task, 8)  # what stays goes on
    with pytest.raises(Fenced, match=r"Task \d of application .* at generation 0, and this container has it of 1"):
        first.environment.commit(first.commit(min(first.members.mine()), 9)._replace(tasks={min(moving): 1}))


def test_who_was_taken_for_dead_cant_commit_and_takes_nothing_along(run):
    zombie = run("zombie")
    zombie.takes(*range(TASKS))
    zombie.commits(0, 1)
    zombie.goes_silent()
    zombie.members.check()
    heir = run("heir")
    heir.takes(0)
    assert heir.has_read(0) == (1, b"1")
    with pytest.raises(Fenced, match=r"Task 0 of application .* is at generation 2, and this container has it of 1"):
        zombie.members.check()
    with pytest.raises(Fenced, match=r"Task 0 of application .* is at generation 2, and this container has it of 1"):
        zombie.commits(0, 2)
    heir.commits(0, 5)
    heir.takes(1)
    assert heir.has_read(0) == (5, b"5")


def test_who_was_taken_for_dead_cant_commit_for_tasks_that_nobody_has_taken_yet(run):
    zombie = run("zombie")
    zombie.takes(*range(TASKS))
    zombie.commits(1, 1)
    zombie.goes_silent()
    heir = run("heir")
    heir.takes(0)
    with pytest.raises(Fenced):
        zombie.commits(1, 2)
    heir.takes(1)
    assert heir.has_read(1) == (1, b"1")


def test_without_the_fence_a_zombie_would_commit(run, monkeypatch):
    async def nothing(streams, writer):
        """Fence nobody."""

    monkeypatch.setattr(kafka_ledger, "fence", nothing)
    zombie = run("zombie")
    zombie.takes(*range(TASKS))
    zombie.commits(0, 1)
    zombie.goes_silent()
    heir = run("heir")
    heir.takes(0)
    zombie.commits(0, 2)


def begin(container: Container, task: int) -> None:
    """Begin a transaction that says something of a task in the ledger, and leave it open."""
    app, producer = container.app, container.producer_of(task)
    said = {(f"{app}-checkpoints", 0): kafka_ledger.said_of_checkpoints({str(task): Checkpoint(9)})}

    async def work():
        await producer.begin_transaction()
        await send_all(producer, said)

    container.environment._call(app, work())


def roll_back(container: Container, task: int) -> None:
    """End the transaction that it has begun."""
    container.environment._thread.call(container.producer_of(task).abort_transaction())


def test_a_transaction_that_the_dead_have_left_open_hides_nothing_that_others_have_committed(run):
    dying, living = run("dying"), run("living")
    wait_until(lambda: len(dying.members.mine()) == len(living.members.mine()) == TASKS / 2)
    ours, theirs = min(living.members.mine()), min(dying.members.mine())
    living.takes(ours)
    dying.takes(theirs)
    dying.commits(theirs, 1)
    living.commits(ours, 1)
    begin(dying, theirs)
    dying.goes_silent()
    living.commits(ours, 3)  # lies behind what is open, where nobody can read it yet
    third = run("third")
    living.goes_silent()
    third.takes(*range(TASKS))
    assert third.has_read(ours) == (3, b"3")
    assert third.has_read(theirs) == (1, b"1")


def test_with_a_container_for_each_task_transactions_are_of_one_task_and_none_waits_for_another(run):
    containers = [run(f"container-{number}") for number in range(TASKS)]
    wait_until(lambda: all(len(one.members.mine()) == 1 for one in containers))
    for one in containers:
        one.takes(*one.members.mine())
        one.commits(min(one.members.taken), 1)
    held, *others = containers
    begin(held, min(held.members.taken))
    with ThreadPoolExecutor() as pool:
        committing = [pool.submit(one.commits, min(one.members.taken), 3) for one in others]
        assert not wait(committing, timeout=600).not_done
    for one in others:
        assert one.has_read(min(one.members.taken)) == (3, b"3")
    roll_back(held, min(held.members.taken))
    held.goes_silent()
    heir = others[0]
    heir.takes(*held.members.taken)  # which fences one task, and no other
    with pytest.raises(Fenced):
        held.commits(min(held.members.taken), 5)
    for one in others:
        one.commits(min(one.members.taken), 7)


@pytest.mark.parametrize("run", ["task"], indirect=True)
def test_tasks_of_one_container_commit_at_once_and_each_is_fenced_by_itself(run, opened):
    container = run("all")
    container.takes(*range(TASKS))
    for task in range(TASKS):
        container.commits(task, 1)
    begin(container, 0)
    with ThreadPoolExecutor() as pool:
        committing = [pool.submit(container.commits, task, 3) for task in range(1, TASKS)]
        assert not wait(committing, timeout=600).not_done, "none waits for the transaction of another"
    roll_back(container, 0)
    other = opened("other")
    writer = kafka_ledger.writer_of(container.app, container.run, "all", 0)
    other._thread.call(kafka_ledger.fence(other._streams, writer))
    for task in range(1, TASKS):
        container.commits(task, 5)
    with pytest.raises(Fenced):
        container.commits(0, 5)
    found = other.checkpoints(container.app)
    assert [found[str(task)].positions[0].offset for task in range(TASKS)] == [1, 5, 5, 5]


def test_a_new_run_fences_every_task_of_a_run_that_had_all(opened, topics):
    zombie, ledger = opened("zombie"), (kafka_ledger.ledger_of(topics), 0)
    zombie.create_stream(f"{topics}-words", StreamConfig(partitions=TASKS))
    generation = zombie.own(topics)
    taken = zombie.commit_by_task(topics, range(TASKS))
    assert taken == dict.fromkeys(range(TASKS), 1)
    begun = {str(task): Checkpoint(generation) for task in range(TASKS)}
    for task in range(TASKS):
        zombie.commit(Commit(topics, generation, [], [], {str(task): begun[str(task)]}, tasks={task: 1}))
    successor = opened("successor")
    assert successor.own(topics) == generation + 1
    assert {task: successor.checkpoints(topics)[task] for task in begun} == begun
    for task in range(TASKS):
        writing = transact(
            zombie._streams, zombie._owners[topics].writer(task), {ledger: kafka_ledger.said_of_checkpoints(begun)}
        )
        with pytest.raises(FENCED):
            zombie._thread.call(writing)
    assert successor.commit_by_task(topics, range(TASKS)) == dict.fromkeys(range(TASKS), 2)


def test_who_takes_a_task_waits_for_what_others_are_in_the_midst_of(run):
    pair = [run("first"), run("second")]
    wait_until(lambda: all(len(one.members.mine()) == TASKS / 2 for one in pair))
    for one in pair:
        one.takes(*one.members.mine())
    third = run("third")
    wait_until(third.members.mine)
    task = min(third.members.mine())
    giving, busy = pair if task in pair[0].members.taken else reversed(pair)
    giving.commits(task, 1)
    begin(busy, min(busy.members.taken))
    giving.commits(task, 3)
    giving.members.give_up([task])
    with ThreadPoolExecutor() as pool:
        taking = pool.submit(third.members.take, [task])
        assert not wait([taking], timeout=1).done, "it can't be known yet what was committed"
        roll_back(busy, min(busy.members.taken))
        assert taking.result() == {task: 2}
    assert third.has_read(task) == (3, b"3")


def test_a_claim_under_a_model_that_nobody_who_lives_has_heard_of_is_outlived(run):
    heir = run("heir")
    ghost = kafka_ledger.Claim(0, 1, "ghost", heir.run, 2**50)
    heir.environment._streams.write(kafka_ledger.ledger_of(heir.app), kafka_ledger.said_of_claims([ghost]))
    heir.takes(0)
    assert heir.members.taken == {0: 2}


def test_who_takes_over_on_a_machine_makes_no_directory_twice_for_good(opened, topics, tmp_path):
    owner = opened("owner")
    owner.create_stream(f"{topics}-words", StreamConfig(partitions=TASKS))
    generation, state = owner.own(topics), tmp_path / "here" / "state" / topics

    def container(name: str) -> Container:
        return Container(lambda _: opened("here"), topics, generation, name)

    def directories() -> list[str]:
        return sorted(path.name for path in state.iterdir() if path.name.startswith("0"))

    zombie = container("zombie")
    zombie.takes(0)
    zombie.commits(0, 1)
    zombie.goes_silent()
    heir = container("heir")
    heir.takes(0)
    heir.commits(0, 2)
    assert directories() == ["0", "0.1"]
    heir.members.leave()
    for gone in (zombie, heir):
        gone.environment.close()
    third = container("third")
    third.takes(0)
    assert directories() == ["0"]
    assert third.has_read(0) == (2, b"2")
    third.members.leave()


def test_a_new_run_fences_the_containers_of_the_one_before(run, opened, topics):
    former = run("former")
    former.takes(*range(TASKS))
    former.commits(0, 1)
    successor = opened("successor")
    generation = successor.own(topics)
    assert successor.checkpoints(topics)["0"].positions[0].offset == 1
    with pytest.raises(Fenced, match=f"is at generation {generation}, and this run is of {generation - 1}"):
        former.commits(0, 2)
    with pytest.raises(Fenced, match=f"is at generation {generation}"):
        former.members.take([1])
    assert successor.state_get(topics, "st", 0, b"read") == b"1"


def test_one_who_comes_too_late_leaves_a_task_to_the_other(run):
    first, second = run("first"), run("second")
    first.takes(*first.members.mine())
    wait_until(lambda: len(second.members.mine()) == TASKS / 2)
    assert second.members.take(first.members.mine()) == {}


def start(broker, folder: Path, data: str, *how: str) -> "subprocess.Popen[str]":
    """Start containers as a user does, with the state in a directory of that name."""
    program = Path(sys.executable).with_name("samza-dsl")
    where = ["--environment", f"kafka://{broker.bootstrap}", "--data", data, "--containers", "2"]
    environment = {**os.environ, "COLUMNS": "200"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([program, "run", "app.py", *where, *how], cwd=folder, env=environment, **pipes)


def ended(process: "subprocess.Popen[str]") -> str:
    """Wait for the end of a run that is to end well, and return what it has told."""
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return said


@pytest.fixture
def words(broker, topics, tmp_path):
    """Words in a topic, and a program that counts them."""
    (tmp_path / "app.py").write_text(PROGRAM.format(name=topics))
    words = [b"w%d" % (number % 50) for number in range(10_000)]
    with closing(KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path / "writer")) as environment:
        environment.create_stream(f"{topics}-words", StreamConfig(partitions=TASKS))
        environment.append([Append(f"{topics}-words", task, Batch(words[task::TASKS])) for task in range(TASKS)])
    return words


def check_counts(broker, topics, words) -> None:
    """Check that each word counts once."""
    found = consume(broker, f"{topics}-counts")
    told = Counter(tuple(msgspec.json.decode(record.value)) for records in found.values() for record in records)
    counted = Counter(words).items()
    assert told == Counter((word.decode(), number + 1) for word, count in counted for number in range(count))


def test_hosts_share_a_run_and_end_it_together(broker, topics, words, tmp_path):
    hosts = [start(broker, tmp_path, "here", "--until-now")]
    wait_until(lambda: f"{topics}: running" in os.read(hosts[0].stdout.fileno(), 10_000).decode() or is_over(hosts[0]))
    wait_until(lambda: has_containers(hosts[0]) or is_over(hosts[0]))
    hosts.append(start(broker, tmp_path, "there", "--until-now"))
    for host in hosts:
        ended(host)
    check_counts(broker, topics, words)


def test_hosts_that_start_at_once_share_one_run(broker, topics, words, tmp_path):
    hosts = [start(broker, tmp_path, name, "--until-now") for name in ("here", "there", "elsewhere")]
    for host in hosts:
        ended(host)
    check_counts(broker, topics, words)


def test_what_runs_is_shared_only_by_the_same_application(broker, topics, words, tmp_path):
    host = start(broker, tmp_path, "here")
    wait_until(lambda: has_committed(broker, topics))
    other = start(broker, tmp_path, "there", "--until-now")
    said, _ = other.communicate(timeout=600)
    assert (other.returncode, "live, and run without until_now" in said) == (1, True), said
    host.send_signal(signal.SIGTERM)
    ended(host)


def test_who_spans_two_runs_is_there_while_no_container_is_and_has_no_task(opened, topics):
    """Where nobody is left in the group, brokers by default wait 3 s for more before the first one gets a task."""
    owner = opened("owner")
    owner.create_stream(f"{topics}-words", StreamConfig(partitions=TASKS))
    owner.own(topics)
    runs, span = owner.runs(topics), owner.span(topics)
    for name in ("a", "b"):
        run = owner.own(topics)
        # Who has just left is known to have gone once the others have heard of it.
        wait_until(lambda: runs.is_run() and not runs.is_alive())
        one = Container(opened, topics, run, name)
        one.takes(*range(TASKS))
        model = runs.model()
        assert (model.run, model.containers, {*model.tasks}) == (run, (name,), {name})
        one.members.leave()
    span.leave()
    span.leave()
    assert not runs.is_run()


def is_over(process) -> bool:
    return process.poll() is not None


def has_containers(process) -> bool:
    return len(containers_of(process)) == 2


def has_committed(broker, topics) -> bool:
    """Whether any input was read, as committed."""
    return any(group_offsets(broker, topics).values())


def containers_of(process) -> list[int]:
    """Return the processes that another one has started."""
    return [*map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())]


def test_who_is_killed_is_taken_over_from_and_replaced(broker, topics, words, tmp_path):
    host = start(broker, tmp_path, "here", "--until-now")
    for _ in range(2):
        wait_until(lambda: has_containers(host) and has_committed(broker, topics))
        with suppress(ProcessLookupError, IndexError, FileNotFoundError):
            os.kill(containers_of(host)[0], signal.SIGKILL)
    ended(host)
    check_counts(broker, topics, words)


EXITS = {
    "sys.exit": ("sys.exit(3)", 3, "it has called sys.exit(3)"),
    "an interrupt": ("raise KeyboardInterrupt", 130, "has raised KeyboardInterrupt"),
}


@pytest.mark.parametrize(("how", "awaits"), crossed(EXITS, [False, True]))
def test_an_exit_that_a_function_asks_for_in_a_container_ends_the_run(broker, topics, words, tmp_path, how, awaits):
    line, code, told = EXITS[how]
    program = (tmp_path / "app.py").read_text()
    asked = f"\n\ndef leave(word):\n    if word == 'w7':\n        {line}\n    return word\n"
    before = ".partition_by(lambda word: word,"
    calls = "await asyncio.sleep(0.04)"
    program = (
        program.replace(calls, f"{calls}\n    leave(word)")
        if awaits
        else program.replace(before, f".map(leave){before}")
    )
    (tmp_path / "app.py").write_text(program.replace("import asyncio\n", f"import asyncio\nimport sys\n{asked}", 1))
    process = start(broker, tmp_path, "here", "--until-now")
    said, _ = process.communicate(timeout=600)
    said = " ".join(said.split())
    assert process.returncode == code, said
    assert told in said and "app.py:" in said
    assert "takes the place of" not in said


def test_a_commit_that_has_read_a_topic_which_is_gone_says_so(run, broker, topics, monkeypatch):
    container = run("first")
    container.takes(0)
    container.commits(0, 1)
    delete(broker, f"{topics}-words")
    monkeypatch.setattr(owner, "TRANSACTION_S", 5.0)
    with pytest.raises(Damaged, match=f"The topic '{topics}-words' is gone, which this run reads or writes"):
        container.commits(0, 2)
