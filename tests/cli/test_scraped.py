"""Containers whose numbers are looked at now and then, as Prometheus does, tell those of that moment."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from time import monotonic

import pytest

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl.data.records import records_from
from tests.cli.test_rebalances import is_whole
from tests.faults.processes import wait_until
from tests.kafka.brokers import free_ports
from tests.source import ROOT
from tests.watching.spans import numbers, total

pytestmark = pytest.mark.ci

SCRAPED = """
    import sys

    from samza_dsl import App, Metrics, Options

    app = App("scraped", Options(commit_interval_ms=50))
    app.input("numbers", value=int).send_to(app.output("out", value=int))

    if __name__ == "__main__":
        app.run(containers=2, metrics=Metrics(address=sys.argv[1]))
"""
PAUSE_S = 2.0
"""The pause between two looks: longer than the second after which containers that nobody looks at are asked again."""


def written(folder):
    """Return how many records the output has."""
    with closing(LogEnvironment(folder / ".samza-dsl")) as log:
        number = log.streams()["out"].partitions if "out" in log.streams() else 0
        return sum(len([*records_from(log, "out", one, 0)]) for one in range(number))


def rests():
    until = monotonic() + PAUSE_S
    wait_until(lambda: monotonic() >= until)


def test_who_looks_seldom_sees_the_numbers_of_now(folder, write):
    write("scraped.py", SCRAPED)
    (port,) = free_ports(1)

    def append():
        with closing(LogEnvironment(folder / ".samza-dsl")) as log:
            log.append([Append("numbers", partition, Batch([b"1"] * 10)) for partition in range(2)])

    with closing(LogEnvironment(folder / ".samza-dsl")) as log:
        log.create_stream("numbers", StreamConfig(partitions=2))
    how = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    run = subprocess.Popen([sys.executable, "scraped.py", f"127.0.0.1:{port}"], **how)
    try:
        wait_until(lambda: run.poll() is not None or is_whole(numbers(port)))
        for times in (1, 2):
            rests()
            append()
            wait_until(lambda times=times: written(folder) == 20 * times)
            found = numbers(port)
            assert total(found, "samza_operator_received_total") == 2 * 20 * times, "two operators, and all records"
            assert total(found, "samza_input_offset") == 20 * times
        run.send_signal(signal.SIGTERM)
        assert run.wait() == 0
    finally:
        run.kill()
        run.wait()
