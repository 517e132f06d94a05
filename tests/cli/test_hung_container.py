"""A container that is stopped is told in the log, on the page, in the numbers and by health, and then goes on."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing
from itertools import pairwise

import pytest

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from tests.cli.test_rebalances import containers_of, is_whole
from tests.faults.processes import wait_until
from tests.kafka.brokers import free_ports
from tests.source import ROOT
from tests.watching.spans import numbers

pytestmark = pytest.mark.ci

HUNG = """
    import logging
    import sys

    import runtime.containers.crew_numbers
    import runtime.watching.watcher
    import samza_dsl.room.look
    from samza_dsl import App, Metrics, Options

    app = App("hung", Options(commit_interval_ms=50))
    app.input("numbers", value=int).send_to(app.output("out", value=int))

    if __name__ == "__main__":
        logging.basicConfig()
        runtime.containers.crew_numbers.SILENT_MS = samza_dsl.room.look.SILENT_MS = 3_000.0
        runtime.watching.watcher.STUCK_MS = 12_000.0
        app.run(containers=2, metrics=Metrics(address=sys.argv[1], ui=True))
"""
HEARD = 6
"""The times at which the one that is well is heard at least while the other one is silent for 12 s: once a second."""


def asked(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def silences(port):
    """Return for how long each container has said nothing, in seconds."""
    found = numbers(port).get("samza_container_silence_seconds", {})
    return {dict(labels)["container"]: seconds for labels, seconds in found.items()}


def on_page(port):
    """Return the containers that the page shows in red, with its words, and its alerts."""
    look = json.loads(asked(port, "/api/run?run=0/hung")[1])["look"]
    return {one["name"]: one["words"] for one in look["containers"] if not one["well"]}, look["alerts"]


def test_a_container_that_is_stopped_is_told_everywhere_and_the_others_are_not(folder, write):
    write("hung.py", HUNG)
    (port,) = free_ports(1)
    with closing(LogEnvironment(folder / ".samza-dsl")) as log:
        log.create_stream("numbers", StreamConfig(partitions=2))
        log.append([Append("numbers", partition, Batch([b"1"])) for partition in range(2)])
    with (folder / "said").open("w") as said:
        how = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdout": said, "stderr": said}
        run = subprocess.Popen([sys.executable, "hung.py", f"127.0.0.1:{port}"], **how)
    try:
        wait_until(lambda: run.poll() is not None or is_whole(numbers(port)))
        assert asked(port, "/livez") == (200, "alive\n")
        stopped, _ = containers_of(run)
        os.kill(stopped, signal.SIGSTOP)
        try:
            wait_until(lambda: f"(process {stopped}) has said nothing for" in (folder / "said").read_text())
            (slow,) = [one for one, seconds in silences(port).items() if seconds > 3]
            wait_until(lambda: slow in on_page(port)[0])
            red, alerts = on_page(port)
            assert any("silent for" in word for word in red[slow])
            assert any(f"container {slow} has said nothing for" in one for one in alerts)
            # It has not committed meanwhile either, whatever it last said.
            assert numbers(port)["samza_commit_age_seconds"][frozenset({("container", slow)})] > 3
            heard, (other,) = [], {"0", "1"} - {slow}
            while asked(port, "/livez")[0] == 200:
                heard.append(silences(port)[other])
            times = sum(later < sooner for sooner, later in pairwise(heard))
            assert times >= HEARD, "the other one is asked all the same"
            assert f"container {slow} has said nothing" in asked(port, "/livez")[1]
        finally:
            os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: asked(port, "/livez")[0] == 200 and not on_page(port)[0])
        wait_until(lambda: f"(process {stopped}) goes on, after" in (folder / "said").read_text())
        assert (folder / "said").read_text().count("has said nothing") == 1
        run.send_signal(signal.SIGTERM)
        assert run.wait() == 0, (folder / "said").read_text()
    finally:
        run.kill()
        run.wait()
