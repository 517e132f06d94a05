"""The job model is shown: what an application is run with, and who runs which task where."""

import asyncio
import json
import platform
import signal
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace

import msgspec
import pytest

from planner.model.plan import Options
from runtime.containers.supervisor import Containers
from runtime.job.job_model import Job
from runtime.model.assignment import REFUSED, Scale
from runtime.run.settings import UNSAID, CrewSettings
from runtime.spark.own_code import own_version
from runtime.systems.log.environment import LogEnvironment
from samza_dsl.application.loading import load_app
from samza_dsl.cli import job
from samza_dsl.cli.errors import Mistake
from tests.faults.processes import wait_until

ORDER = json.dumps({"customer": "ann", "amount": 1, "at_ms": 0}) + "\n"


@pytest.fixture
def orders(call, spending):
    call("streams", "produce", "orders", "--partitions", "3", stdin=ORDER)


def shown(call, *where: str) -> Job:
    result = call("job", "show", *where, "--json")
    assert result.exit_code == 0, result.stderr
    return msgspec.json.decode(result.stdout, type=Job)


def test_an_application_that_has_run_is_shown_with_its_options_and_tasks(call, orders):
    assert call("run", "spending.py", "--until-now").exit_code == 0
    found = shown(call, "spending")
    assert (found.app, found.environment, found.generation, found.options) == ("spending", ".samza-dsl", 1, Options())
    assert [task.reads for task in found.tasks] == [
        (("orders", 0), ("spending-by-customer", 0)),
        (("orders", 1), ("spending-by-customer", 1)),
        (("orders", 2),),
    ]
    assert found.containers == ()
    text = call("job", "show", "spending.py").stdout
    assert text.startswith("spending on .samza-dsl, generation 1\n")
    assert "guarantee            exactly_once\n" in text
    assert "no container is known to live" in text
    assert text.splitlines()[-1].split() == ["2", "-", "-", "orders:2"]


def test_what_was_changed_since_is_shown_when_it_was_run_with_that(call, orders, spending):
    call("run", "spending.py", "--until-now")
    spending.write_text(spending.read_text().replace('"spending")', '"spending", Options(batch_records=7))'))
    spending.write_text(spending.read_text().replace("import App", "import Options, App"))
    assert shown(call, "spending").options == Options()
    call("run", "spending.py", "--until-now")
    assert shown(call, "spending").options == Options(batch_records=7)


def test_a_size_that_cannot_be_is_refused_and_one_for_later_is_told_as_it_will_be(call, orders):
    call("run", "spending.py", "--until-now")
    for factor, wrong in (("3", "is no power of two"), ("8192", "more than the 4096 parts")):
        assert wrong in call("scale", "spending", "--factor", factor).stderr
    assert "as many as the next run says" in call("scale", "spending", "--factor", "2", "--containers", "3").stderr
    assert call("run", "spending.py", "--until-now").exit_code == 0
    assert len(shown(call, "spending").tasks) == 3, "what was refused was not asked for"
    told = call("scale", "spending", "--factor", "2").stdout
    assert "split into 2 from its next start on, unless its Options(elasticity=...) say" in told
    call("run", "spending.py", "--until-now")
    assert len(shown(call, "spending").tasks) == 6


def test_a_size_that_can_be_nowhere_is_refused_before_anybody_looks_for_the_application(call):
    assert "is no power of two" in call("scale", "nobody", "--factor", "3").stderr
    assert "is no power of two" in call("scale", "nobody", "--factor", "3", "--environment", "kafka://nowhere:1").stderr
    assert "a size is to be said" in call("scale", "nobody").stderr


@pytest.mark.ci
def test_a_process_that_has_all_tasks_is_shown(call, orders, program):
    process = program("run", "spending.py")
    process.stdout.readline()
    (container,) = shown(call, "spending").containers
    assert (container.name, container.host) == (f"process {process.pid}", platform.node())
    assert container.tasks == (0, 1, 2)


@pytest.mark.ci
def test_containers_are_shown_with_their_tasks(call, orders, program):
    process = program("run", "spending.py", "--containers", "2")
    wait_until(lambda: call("job", "show", "spending").exit_code == 0)
    wait_until(lambda: [len(one.tasks) for one in shown(call, "spending").containers] == [2, 1])
    found = shown(call, "spending")
    assert {one.name: len(one.tasks) for one in found.containers} == {"0.0": 2, "1.0": 1}
    assert sorted(task.container for task in found.tasks) == ["0.0", "0.0", "1.0"]
    assert found.model > 0
    process.send_signal(signal.SIGTERM)
    process.wait()
    assert shown(call, "spending").containers == ()


def test_a_size_is_asked_of_containers_that_are_still_to_come(call, orders, folder, spending, monkeypatch):
    monkeypatch.setattr("samza_dsl.cli.job.LONGEST_MS", 100.0)
    pipeline = load_app("spending.py").pipeline()
    crew = CrewSettings(number=2, command=[], found=("", ""), fenced=None)
    containers = Containers(pipeline, folder / ".samza-dsl", crew, UNSAID)
    try:
        asked = call("scale", "spending", "--factor", "2", "--containers", "3")
        assert "has not taken it up within" in asked.stderr, "nobody brings up any here"
        with closing(LogEnvironment(folder / ".samza-dsl")) as log:
            assert (log.asked_scale("spending").factor, log.asked_scale("spending").containers) == (2, 3)
    finally:
        containers._release()


@pytest.mark.ci
def test_a_number_of_containers_asks_for_no_factor_of_a_run_before(call, orders, program, spending):
    call("run", "spending.py", "--until-now")
    call("scale", "spending", "--factor", "4")
    written = spending.read_text().replace('"spending")', '"spending", Options(elasticity=2))')
    spending.write_text(written.replace("import App", "import Options, App"))
    process = program("run", "spending.py", "--containers", "2")
    wait_until(lambda: len(shown(call, "spending").containers) == 2)
    for command, factor, number in (
        (("--containers", "3"), 2, 3),
        (("--factor", "4"), 4, 3),  # as before this run, and asked anew
        (("--containers", "1"), 4, 1),
    ):
        assert call("scale", "spending", *command).exit_code == 0
        found = shown(call, "spending")
        assert (found.factor, len(found.containers)) == (factor, number)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def test_an_application_that_has_never_run_is_unknown(call, orders):
    result = call("job", "show", "spendnig")
    assert (result.exit_code, "no application 'spendnig' has run on .samza-dsl" in result.stderr) == (2, True)


@pytest.mark.ci
def test_a_process_that_has_all_tasks_of_a_cluster_is_shown_while_it_lives(call, spending, program, broker, topics):
    where = ["--environment", f"kafka://{broker.bootstrap}"]
    text = spending.read_text().replace('"orders"', f'"{topics}-orders"').replace('"spent"', f'"{topics}-spent"')
    spending.write_text(text.replace('App("spending")', f'App("{topics}")'))
    call("streams", "produce", f"{topics}-orders", "--partitions", "3", *where, stdin=ORDER)
    process = program("run", "spending.py", *where, "--host-id", "east")
    wait_until(lambda: call("job", "show", topics, *where).exit_code == 0)
    wait_until(lambda: shown(call, topics, *where).containers)
    (container,) = shown(call, topics, *where).containers
    assert (container.name, container.host, container.tasks) == (f"process {process.pid}", "east", (0, 1, 2))
    process.send_signal(signal.SIGTERM)
    process.wait()
    assert shown(call, topics, *where).containers == ()
    killed = program("run", "spending.py", *where)
    wait_until(lambda: [one.name for one in shown(call, topics, *where).containers] == [f"process {killed.pid}"])
    killed.kill()
    wait_until(lambda: not shown(call, topics, *where).containers)


@pytest.mark.ci
def test_containers_on_two_hosts_that_share_a_cluster_are_shown(call, spending, program, broker, topics):
    where = ["--environment", f"kafka://{broker.bootstrap}"]
    text = spending.read_text().replace('"orders"', f'"{topics}-orders"').replace('"spent"', f'"{topics}-spent"')
    spending.write_text(text.replace('App("spending")', f'App("{topics}")'))
    call("streams", "produce", f"{topics}-orders", "--partitions", "4", *where, stdin=ORDER)
    program("run", "spending.py", *where, "--containers", "2", "--host-id", "east")
    wait_until(lambda: call("job", "show", topics, *where).exit_code == 0)
    wait_until(lambda: len(shown(call, topics, *where).containers) == 2)
    program("run", "spending.py", *where, "--containers", "2", "--host-id", "west", "--data", "there")
    wait_until(lambda: len(shown(call, topics, *where).containers) == 4)
    found = shown(call, topics, *where)
    assert sorted(one.host for one in found.containers) == ["east", "east", "west", "west"]
    assert all(len(one.tasks) == 1 for one in found.containers)
    assert [task.reads[0] for task in found.tasks] == [(f"{topics}-orders", number) for number in range(4)]
    assert {task.host for task in found.tasks} == {"east", "west"}


def test_a_zip_of_samza_dsl_is_imported_where_there_is_no_other(call, folder):
    """As `spark-submit --py-files` puts it on the path of machines that have only what it needs."""
    assert call("job", "pack", "ours.zip").stdout == "wrote ours.zip\n"
    first = (folder / "ours.zip").read_bytes()
    call("job", "pack", "ours.zip")
    assert (folder / "ours.zip").read_bytes() == first
    packages = [path for path in sys.path if path.endswith("site-packages")]
    begins = f"import sys; sys.path[:0] = ['ours.zip', *{packages!r}]; import samza_dsl, runtime.spark.own_code as own"
    command = [sys.executable, "-I", "-S", "-c", f"{begins}; print(samza_dsl.__file__, own.own_version())"]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.split()
    assert told[1] == own_version() and "ours.zip" in told[0]
    refused = call("job", "pack", "ours.tar")
    assert refused.exit_code != 0 and "write ours.zip" in refused.stderr


@pytest.mark.parametrize(
    ("newest", "told"),
    [
        (Scale(4, None, REFUSED, 2, 2), "can't have this size: its log says why"),
        (Scale(4, None, f"{REFUSED}: all of one", 2, 2), "can't have this size: all of one$"),
        (Scale(2, None, "asked for", 3, 3), "was asked for another size meanwhile"),
    ],
)
def test_a_request_that_can_not_be_read_yet_is_waited_for(monkeypatch, newest, told):
    """Who dies in a transaction holds back all that is written behind it, until it is rolled back."""
    asked, before = Scale(4, None, "asked for", 2, 2), Scale(1, None, "asked for", 1, 1)
    answers = iter([before, before, newest])
    place = SimpleNamespace(checkpoints=lambda app: {}, asked_scale=lambda app: next(answers))
    found = SimpleNamespace(containers=[], tasks=[], factor=1)
    monkeypatch.setattr(job, "job_of", lambda *_: found)
    monkeypatch.setattr(job, "LOOK_MS", 0.0)
    with pytest.raises(Mistake, match=told):
        asyncio.run(job._await(place, "a", asked, Scale(4), (), 1))
