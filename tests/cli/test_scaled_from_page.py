"""The page of a real run asks for another size, and the run has it: other containers, and other tasks."""

import signal
from contextlib import closing

import pytest

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl.data.records import records_from
from tests.cli.test_rebalances import containers_of
from tests.faults.processes import wait_until
from tests.kafka.brokers import free_ports
from tests.watching.spans import asked_of_page, numbers, total

pytestmark = pytest.mark.ci

SIZED = """
    from samza_dsl import App, Options

    app = App("sized", Options(commit_interval_ms=50))
    keyed = app.input("numbers", value=int).partition_by(lambda number: number % 7, partitions=4, op_id="by")
    keyed.scan(lambda total, _: total + 1, init=int, op_id="count").send_to(app.output("counts", value=int))
"""
NUMBERS = 140


def append(log):
    log.append([Append("numbers", partition, Batch([b"%d" % n for n in range(NUMBERS)])) for partition in range(4)])


def test_a_run_has_the_size_that_its_page_asks_for(program, folder, write):
    write("sized.py", SIZED)
    data, (port,) = folder / ".samza-dsl", free_ports(1)
    with closing(LogEnvironment(data)) as log:
        log.create_stream("numbers", StreamConfig(partitions=4))
        append(log)
    run = program("run", "sized.py", "--containers", "2", "--metrics", f":{port}", "--ui", "--ui-allow-actions")

    def has(containers, tasks):
        found = numbers(port)
        are_all_owned = total(found, "samza_task_assigned") == tasks == total(found, "samza_job_tasks")
        return are_all_owned and total(found, "samza_container_settled") == containers == len(containers_of(run))

    def asks(**size):
        assert "is asked to have another size" in asked_of_page(port, "0/sized", "scale", **size)

    wait_until(lambda: run.poll() is not None or has(2, 4))
    asks(containers=3)
    wait_until(lambda: has(3, 4))
    with closing(LogEnvironment(data)) as log:
        append(log)
    asks(factor=2)
    wait_until(lambda: has(3, 8))
    asks(containers=1)
    wait_until(lambda: has(1, 8))
    with closing(LogEnvironment(data)) as log:
        append(log)
    wait_until(lambda: written(data) >= 12 * NUMBERS)
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    assert written(data) == 12 * NUMBERS, "each record counts once"


def written(data):
    with closing(LogEnvironment(data)) as log:
        found = log.streams().get("counts")
        return sum(len([*records_from(log, "counts", one, 0)]) for one in range(found.partitions)) if found else 0
