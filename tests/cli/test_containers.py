"""Several containers, in processes of their own: they share the tasks, take over from the dead, and end together."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from operators.core.base import Batch
from runtime.opening.rescaling import scalings
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment, verify
from tests.faults.processes import wait_until
from tests.source import ROOT

COUNTING = """
    import asyncio, os, sys
    from pathlib import Path
    from samza_dsl import App, Options

    app = App("counting", Options(commit_interval_ms=60_000, max_drain_ms=300_000))

    async def look_up(record):
        if record[1] == 50:
            Path(f"{record[0]}-{os.getpid()}.held").touch()
        while record[1] == 50 and not Path("open").exists():
            await asyncio.sleep(0.001)
        if Path("broken").exists():
            raise ValueError(f"no such record: {record}")
        return [record]

    def count_up(record, context):
        context.state = (context.state or 0) + 1
        return [[context.key, record[1], context.state]]

    records = app.input("records", value=tuple[int, int])
    looked_up = records.async_flat_map(look_up, timeout_ms=250_000, op_id="lookup", order="partition")
    by_digit = looked_up.partition_by(lambda record: record[1] % 10, partitions=2, op_id="by-digit")
    by_digit.process(count_up, op_id="counts").send_to(app.output("counts", partitions=2))
"""
LOADED_LATE = """
    import os, sys, time
    from pathlib import Path

    starter = os.getppid()
    while sys.argv[0] == "-c" and not Path("loaded").exists() and os.getppid() == starter:
        time.sleep(0.01)
"""
ALL = [(partition, number) for partition in range(2) for number in range(100)]


@pytest.fixture
def counting(write):
    """An application whose records of number 50 wait for a file."""
    return write("counting.py", COUNTING)


def produce(folder, ended=True):
    with_records = LogEnvironment(folder / ".samza-dsl")
    with_records.create_stream("records", StreamConfig(partitions=2))
    for partition, number in ALL:
        value = json.dumps([partition, number]).encode()
        with_records.append([Append("records", partition, Batch([value]))])
    if ended:
        with_records.end_stream("records")
    with_records.close()


def counts(folder):
    """Return what is written, partition by partition."""
    log = LogEnvironment(folder / ".samza-dsl")
    found = []
    for partition in range(2):
        offset = 0
        while (read := log.read("counts", partition, offset)) is not None:
            found += map(json.loads, read.batch.values)
            offset = read.next_offset
    log.close()
    assert verify(folder / ".samza-dsl") == []
    return found


def check_counts(folder):
    """Check that all is counted once, and in order."""
    found = counts(folder)
    by_digit = {digit: [count for key, _, count in found if key == digit] for digit in range(10)}
    assert by_digit == {digit: list(range(1, 21)) for digit in range(10)}
    assert sorted(number for _, number, _ in found) == sorted(number for _, number in ALL)


def holders(folder, partition):
    """Return the processes that have come to the record of a partition that waits."""
    return {int(file.stem.partition("-")[2]) for file in folder.glob(f"{partition}-*.held")}


def holders_wait(folder):
    """Wait until each partition is with a container of its own, and return their processes."""
    wait_until(lambda: holders(folder, 0) and holders(folder, 1))
    return [min(holders(folder, partition)) for partition in range(2)]


def is_gone(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


@pytest.mark.ci
def test_they_share_the_tasks_and_end_together(program, folder, counting):
    produce(folder)
    (folder / "open").touch()
    run = program("run", "counting.py", "--containers", "2")
    shown, errors = run.communicate()
    assert (run.returncode, errors) == (0, "")
    first, *_, last = shown.splitlines()
    assert first == "counting: running, 2 stages, 5 operators"
    assert last.startswith("counting: done in ") and "200 read" in last and "200 written" in last
    assert holders(folder, 0) != holders(folder, 1)
    check_counts(folder)


def test_what_a_killed_one_had_is_taken_over_and_another_one_takes_its_place(program, folder, counting):
    produce(folder)
    run = program("run", "counting.py", "--containers", "2")
    doomed, other = holders_wait(folder)
    os.kill(doomed, signal.SIGKILL)
    wait_until(lambda: holders(folder, 0) - {doomed})
    (folder / "open").touch()
    shown, errors = run.communicate()
    assert run.returncode == 0
    assert all(map(is_gone, (doomed, other)))
    check_counts(folder)
    told = [re.fullmatch(r"\S+Z warning (.*) logger=samza_dsl app=counting.*", line)[1] for line in errors.splitlines()]
    dead, taken, *restarted = sorted(told, key=lambda line: ("takes" in line, "place" in line))
    killed = rf"\(process {doomed}\) was killed by SIGKILL; it had task 0, after \d+ commits"
    slot = re.fullmatch(rf"counting: container (\d)\.0 {killed}", dead).group(1)
    assert re.fullmatch(
        rf"counting: container \d\.\d takes task 0 over from {slot}\.0, which is gone; "
        r"(nothing was committed of it|the last commit goes to records:0 offset \d+.*)",
        taken,
    )
    assert [re.fullmatch(rf"counting: container {slot}.1 \(process \d+\) takes the place of {slot}.0", *restarted)]
    assert shown.splitlines()[-1].endswith("1 container died, 1 task taken over")


@pytest.mark.ci
def test_the_lag_of_tasks_that_no_container_has_is_what_it_is(program, folder, write):
    write("counting.py", LOADED_LATE + COUNTING)
    produce(folder, ended=False)
    run = program("run", "counting.py", "--containers", "2", "--until-now")
    line = next(line for line in run.stdout if "lag" in line)
    assert f"lag {len(ALL)}," in line and "2 tasks in no container" in line
    (folder / "loaded").touch()
    (folder / "open").touch()
    shown, _ = run.communicate()
    assert run.returncode == 0
    assert "no container" not in shown.splitlines()[-1]


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_when_they_have_committed(program, folder, counting, number):
    produce(folder, ended=False)
    run = program("run", "counting.py", "--containers", "2")
    pids = holders_wait(folder)
    run.send_signal(number)
    (folder / "open").touch()
    shown, errors = run.communicate()
    assert (run.returncode, errors) == (0, "")
    assert shown.splitlines()[-1].startswith("counting: stopped in ")
    assert all(map(is_gone, pids))
    assert program("run", "counting.py", "--containers", "2", "--until-now").wait() == 0
    check_counts(folder)


@pytest.mark.ci
def test_a_second_signal_stops_at_once_and_nothing_is_lost(program, folder, counting):
    produce(folder)
    run = program("run", "counting.py", "--containers", "2")
    pids = holders_wait(folder)
    run.send_signal(signal.SIGINT)
    run.send_signal(signal.SIGTERM)
    _, errors = run.communicate()
    assert run.returncode == 1 and "stopped at once" in errors
    assert all(map(is_gone, pids))
    (folder / "open").touch()
    assert program("run", "counting.py").wait() == 0
    check_counts(folder)


@pytest.mark.ci
def test_what_fails_in_one_ends_all_and_names_the_users_line(program, folder, counting):
    produce(folder)
    (folder / "broken").touch()
    run = program("run", "counting.py", "--containers", "2")
    _, errors = run.communicate()
    assert run.returncode == 1
    assert "lookup" in errors and "no such record" in errors
    assert "counting.py" in errors and 'raise ValueError(f"no such record: {record}")' in errors
    (folder / "broken").unlink()
    (folder / "open").touch()
    assert program("run", "counting.py", "--containers", "2").wait() == 0
    check_counts(folder)


@pytest.mark.ci
def test_they_end_when_the_process_that_started_them_is_gone(program, folder, counting):
    produce(folder)
    run = program("run", "counting.py", "--containers", "2")
    pids = holders_wait(folder)
    run.kill()
    run.wait()
    again = program("run", "counting.py", "--containers", "2")
    (folder / "open").touch()
    wait_until(lambda: all(map(is_gone, pids)))
    assert again.wait() == 0, "it begins when they have ended, who have the owner's lock as well"
    check_counts(folder)


@pytest.mark.ci
def test_a_second_run_is_refused(program, folder, counting):
    produce(folder)
    run = program("run", "counting.py", "--containers", "2")
    holders_wait(folder)
    refused = program("run", "counting.py", "--containers", "2")
    _, errors = refused.communicate()
    assert refused.returncode == 1 and f"Process {run.pid} runs application 'counting'" in errors
    (folder / "open").touch()
    assert run.wait() == 0


ENDS = {
    "os._exit": (".map(lambda record: os._exit(3))", "exit code 3, as did 4 before it"),
    "sys.exit": (".map(lambda record: sys.exit(3))", "it has called sys.exit(3)"),
    "sys.exit beside a call": (".async_flat_map(leaves)", "it has called sys.exit(3)"),
    "a signal": (".map(lambda record: os.kill(os.getpid(), 9))", "killed by SIGKILL, as did 4 before it"),
}


@pytest.mark.ci
@pytest.mark.parametrize("how", ENDS)
def test_those_that_die_again_and_again_end_the_run(program, folder, write, how):
    step, told = ENDS[how]
    write(
        "dying.py",
        f"""
        import asyncio, os, sys
        from samza_dsl import App

        async def leave():
            sys.exit(3)

        async def leaves(record):
            await asyncio.create_task(leave())

        app = App("dying")
        app.input("records"){step}.send_to(app.output("seen"))
        """,
    )
    produce(folder)
    run = program("run", "dying.py", "--containers", "2")
    _, errors = run.communicate()
    assert run.returncode == (3 if how.startswith("sys.exit") else 1)
    errors = " ".join(errors.split())
    assert told in errors
    assert ("async_flat_map 'async_flat_map-records' at " in errors) == (how == "sys.exit beside a call")
    assert how.startswith("sys.exit") == ("dying.py:" in errors)
    assert ("memory" in errors) == (how == "a signal")
    assert ("sys.exit()" in errors) == (how == "os._exit")


def python(folder, file, **how):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, file]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, **how)


@pytest.mark.ci
def test_a_script_may_run_itself_in_several(folder, counting):
    produce(folder)
    (folder / "open").touch()
    guarded = """
async def watch(run):
    # Of all containers, while they run and as they commit.
    while await asyncio.to_thread(run.state("counts").get, 3) not in (None, 20):
        await asyncio.sleep(0.01)

if __name__ == "__main__":
    run = app.run(containers=2, watch=watch)
    print(run.metrics().received("counts"), sorted(run.state("counts").range()) == [(digit, 20) for digit in range(10)])
"""
    counting.write_text(counting.read_text() + guarded)
    ran = python(folder, "counting.py")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "200 True\n", "")
    check_counts(folder)


@pytest.mark.ci
def test_they_end_though_an_answer_takes_longer_than_it_was_waited_for(folder, counting):
    produce(folder)
    (folder / "open").touch()
    (folder / "hasty.py").write_text(
        "import runtime.containers.supervisor\nfrom counting import app\n"
        "runtime.containers.supervisor.SILENCE_S = 0.000_01\n"
        'if __name__ == "__main__":\n    app.run(containers=2)\n'
    )
    ran = python(folder, "hasty.py", timeout=600)
    assert (ran.returncode, ran.stderr) == (0, "")
    check_counts(folder)


@pytest.mark.ci
def test_a_script_that_runs_itself_whenever_it_is_loaded_is_told(folder, counting):
    produce(folder)
    counting.write_text(counting.read_text() + "app.run(containers=2)\n")
    ran = python(folder, "counting.py")
    assert ran.returncode == 1
    assert 'write it under if __name__ == "__main__":' in ran.stderr


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def make():\n    return App('hidden')\nmake().run(containers=2)\n", "it is no variable of a module"),
        ("app.run(containers=0)\n", "containers=0"),
        ("app.run(containers=2, bind={'counts': 'out.jsonl'})\n", "one process writes a bound output"),
        ("app.run(containers=2, bind={'records': [[0, 1]]})\n", "can't open a list of this process"),
        ("import dataclasses\napp.run(containers=2, bind={'other': 'x.jsonl'})\n", "neither reads nor writes"),
    ],
    ids=["hidden", "none", "bound output", "list", "unknown"],
)
def test_what_they_can_not_do_is_told(folder, counting, code, told):
    produce(folder)
    guarded = "".join(f"    {line}\n" for line in code.splitlines())
    counting.write_text(f'{counting.read_text()}\nif __name__ == "__main__":\n{guarded}')
    ran = python(folder, "counting.py")
    assert ran.returncode == 1 and told in ran.stderr


@pytest.mark.ci
def test_an_application_that_is_another_one_when_it_is_loaded_is_told(folder, counting):
    produce(folder)
    guarded = 'if __name__ == "__main__":\n    records.sink(print)\n    app.run(containers=2)\n'
    counting.write_text(counting.read_text() + guarded)
    ran = python(folder, "counting.py")
    assert ran.returncode == 1 and "is not the one that was started" in ran.stderr


@pytest.mark.ci
def test_a_bound_input_is_read_by_the_one_that_has_its_task(program, folder, write, shouting):
    write("in.jsonl", '"ahoy"\n"all"\n')
    run = program("run", "shouting.py", "--bind", "words=in.jsonl", "--containers", "2")
    _, errors = run.communicate()
    assert (run.returncode, errors) == (0, "")
    shown, _ = program("streams", "show", "shouts").communicate()
    assert "AHOY" in shown and "ALL" in shown


SIZED = """
    import time
    import runtime.containers.autosizing
    from samza_dsl import App, Sized, produce

    app = App("sized")

    def slowly(number):
        time.sleep(0.002)
        return number

    numbers = app.input("numbers", value=int, key=lambda number: number % 8, partitioned_by_key=True)
    counted = numbers.map(slowly).scan(lambda count, number: (count or 0) + 1, op_id="counts")
    counted.send_to(app.output("counts", value=int))

    def sizing(loads):
        # One more, then fewer again; all may have been read before the second look.
        sizes = [one.containers for one in loads]
        if 2 not in sizes:
            return Sized(2, "there is more to read")
        if sizes[-1] == 2:
            produce("numbers", [], end=True)
            return Sized(1, "that was enough")

    if __name__ == "__main__":
        runtime.containers.autosizing.LOOK_MS = 100.0
        produce("numbers", [*range(1_600)])
        app.run(autosize=sizing)
"""


@pytest.mark.ci
def test_their_number_follows_the_load_and_each_record_counts_once(folder, write):
    write("sized.py", SIZED)
    run = python(folder, "sized.py")
    assert (run.returncode, run.stderr) == (0, "")
    log = LogEnvironment(folder / ".samza-dsl")
    found, read, offset = [], None, 0
    while (read := log.read("counts", 0, offset)) is not None:
        found, offset = [*found, *map(int, read.batch.values)], read.next_offset
    changes = [(one.containers, one.why) for one in scalings(log.checkpoints("sized"))]
    log.close()
    assert changes[0] == ((1, 2), "there is more to read")
    assert changes[1:] in ([], [((2, 1), "that was enough")])  # it may have ended before that was taken up
    assert sorted(found) == sorted([*range(1, 201)] * 8)
