"""SIGINT and SIGTERM, in a process of their own: the first drains and commits, a second stops at once."""

import signal
import subprocess
import sys
import textwrap

import pytest

from tests.runtime.written_log import Log
from tests.source import ROOT

PROGRAM = """
import asyncio, sys
from samza_dsl import App, Options

app = App("signalled", Options(commit_interval_ms=1_000_000))
third = {third!r}

async def slowly(n):
    if n == 3 and third:
        print("third", flush=True)
        if third == "for ever":
            await asyncio.Event().wait()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return [n]

numbers = app.input("numbers", value=int)
numbers.async_flat_map(slowly, order="partition", timeout_ms=20_000).send_to(app.output("seen", value=int))
app.run({data!r}, until_now=not third)
print("ended", flush=True)
"""


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path / "data")
    log.write("numbers", [1, 2, 3])
    return log


def start(log, third):
    program = textwrap.dedent(PROGRAM).format(data=str(log.path), third=third)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_drains_commits_and_ends_well(log, number):
    process = start(log, "until told")
    assert process.stdout.readline() == "third\n"
    process.send_signal(number)
    out, told = process.communicate("go on\n", timeout=600)
    assert (process.returncode, out, told) == (0, "ended\n", "")
    assert log.values("seen") == [1, 2, 3]


@pytest.mark.ci
def test_a_second_signal_stops_at_once_and_a_restart_loses_nothing(log):
    process = start(log, "for ever")
    assert process.stdout.readline() == "third\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    out, told = process.communicate(timeout=600)
    assert process.returncode != 0
    assert "ended" not in out
    assert "stopped at once: what was not yet committed will be processed again" in told
    assert log.values("seen") == []
    again = start(log, third="")
    assert again.communicate(timeout=600) == ("ended\n", "")
    assert log.values("seen") == [1, 2, 3]
