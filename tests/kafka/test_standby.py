"""Copies of state on other hosts, on a real broker: who has one takes over, and replays the tail alone."""

import os
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from operators.core.base import Batch
from runtime.job.job_model import job_of
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import KafkaCluster
from tests.faults.processes import wait_until
from tests.kafka.test_containers import PROGRAM, check_counts, containers_of, ended
from tests.kafka.test_placement import ENTRIES, TASKS, Container, owner, settled

owner = owner  # a fixture


@pytest.fixture
def start(broker, topics, tmp_path, owner):
    """Start a container on a host, which keeps copies; who has not ended by the end does so then."""
    owner.own(topics)
    started = []

    def start(host: str, name: str) -> Container:
        started.append(Container(broker, tmp_path, topics, owner.generation(topics), host, name, standby=1))
        return started[-1]

    yield start
    for container in started:
        container.dies()


def has_copies(container: Container, tasks: set[int], entries: int) -> bool:
    """Whether a container has so many entries of each of these tasks, when it has looked."""
    container.members._look_at_ms = 0.0
    container.settles()
    copies = container.environment._state.copies(container.app)
    held = {
        task.base: sum(count for count, _ in copy.local.state_stats(container.app).values())
        for task, copy in copies.items()
    }
    warm = [task.base for task in container.members._standby.warm]
    return held == dict.fromkeys(tasks, entries) and warm == sorted(tasks)


def test_who_has_a_copy_takes_over_and_replays_the_tail_alone(start):
    x, y = start("x", "a"), start("y", "b")
    theirs, _ = settled(x, y)
    x.commits(*range(ENTRIES))
    wait_until(lambda: has_copies(y, theirs, ENTRIES))
    assert x.environment.job_model(x.app).standbys == tuple(
        ("b",) if task in theirs else ("a",) for task in range(TASKS)
    )
    for _ in range(3):
        x.commits(ENTRIES)  # which y has not looked at
    x.dies()
    assert settled(y) == [{*range(TASKS)}]
    assert y.restored() <= 3 * len(theirs)
    state = {task: {*dict(y.environment.state_range(y.app, "st", task))} for task in theirs}
    assert state == {task: {b"%d" % key for key in range(ENTRIES + 1)} for task in theirs}


def test_a_third_host_is_given_the_tasks_that_it_has_copies_of(start):
    x, y, z = start("x", "a"), start("y", "b"), start("z", "c")
    before = dict(zip("xyz", settled(x, y, z), strict=True))
    for container in (x, y, z):
        container.commits(*range(ENTRIES))
    copies = {
        name: one.members._group.model.kept_by(one.members.name) for name, one in zip("xyz", (x, y, z), strict=True)
    }
    for name, container in zip("xyz", (x, y, z), strict=True):
        wait_until(lambda one=container, tasks=copies[name]: has_copies(one, {*tasks}, ENTRIES))
    x.dies()
    settled(y, z)
    assert y.restored() == z.restored() == 0, "what x had is where there was a copy of it"
    assert {*range(TASKS)} == y.members.taken.keys() | z.members.taken.keys()
    assert before["x"] & copies["y"] <= y.members.taken.keys() | copies["z"]


def begin(broker, folder: Path, host: str) -> "subprocess.Popen[str]":
    program = Path(sys.executable).with_name("samza-dsl")
    where = ["--environment", f"kafka://{broker.bootstrap}", "--data", host, "--host-id", host, "--containers", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([program, "run", "app.py", *where, "--standby", "1"], cwd=folder, **pipes)


def test_a_host_that_is_gone_is_taken_over_from_by_copies_and_each_word_counts_once(broker, topics, tmp_path):
    (tmp_path / "app.py").write_text(PROGRAM.format(name=topics))
    words = [b"w%d" % (number % 50) for number in range(20_000)]
    cluster = KafkaCluster(f"kafka://{broker.bootstrap}")
    with closing(KafkaEnvironment(cluster, tmp_path / "writer")) as environment:
        environment.create_stream(f"{topics}-words", StreamConfig(partitions=4))

        def write(words) -> None:
            environment.append([Append(f"{topics}-words", task, Batch(words[task::4])) for task in range(4)])

        def committed() -> int:
            return sum(sum(one.offset for one in found.positions) for found in environment.checkpoints(topics).values())

        def standbys() -> list[str]:
            tasks = job_of(environment, topics).tasks
            hosts = {one.name: one.host for one in job_of(environment, topics).containers}
            return [f"{task.host} {hosts.get(name)}" for task in tasks for name in task.standby]

        write(words[:10_000])
        here = begin(broker, tmp_path, "here")
        wait_until(lambda: committed() > 0)
        there = begin(broker, tmp_path, "there")
        wait_until(lambda: sorted(standbys()) == ["here there"] * 2 + ["there here"] * 2)
        before = committed()
        for process in (*containers_of(here), here.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        here.communicate()
        write(words[10_000:])
        wait_until(lambda: committed() > before and len(job_of(environment, topics).containers) == 2)
        wait_until(lambda: environment.stream_stats(f"{topics}-counts")[0] >= len(words))
        there.send_signal(signal.SIGTERM)
        ended(there)
    check_counts(broker, topics, words)
    state = {path.name for path in (tmp_path / "there" / "state" / topics).iterdir()}
    assert state == {"0", "1", "2", "3"}, "a copy was taken over where it lay"
