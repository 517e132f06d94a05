"""The command that serves the control room: where runs are looked for, and to whom they are shown."""

import json
import signal
import urllib.request

import pytest

from samza_dsl import produce
from tests.faults.processes import wait_until


@pytest.mark.parametrize(
    ("options", "code", "wrong"),
    [
        (["nowhere"], 2, "there is no data directory at nowhere: a run makes one"),
        (["--address", "x"], 1, "'x' is no address; write instead: ':9464'"),
        (["--address", "0.0.0.0:0"], 1, "--token-file of samza-dsl ui"),
        (["--address", "0.0.0.0:0", "--token-file", "none"], 1, "the token in 'none' can't be read"),
        (["kafka://host/topic"], 2, "names a topic: an environment is a cluster"),
    ],
)
def test_what_can_not_be_served_is_told(call, options, code, wrong):
    result = call("ui", *options)
    assert result.exit_code == code and wrong in result.stderr.replace("\n", " ")


def test_a_run_says_what_its_page_may_do_only_where_it_has_one(call, shouting):
    result = call("run", "shouting.py", "--ui-allow-actions")
    assert result.exit_code == 2 and "--ui-allow-actions is about the page: add --ui" in result.stderr


@pytest.mark.ci
def test_runs_that_run_have_ended_or_were_killed_are_shown_until_it_is_told_to_end(program, call, shouting, folder):
    produce("words", ["a", "b"], value=str, data=folder / "one", end=True)
    assert call("run", "shouting.py", "--data", "one").exit_code == 0
    (folder / "two").mkdir()
    serving = program("ui", "one", "two", "--address", ":0")
    url = serving.stdout.readline().split()[-1]
    with urllib.request.urlopen(f"{url}api/runs", timeout=20) as answer:
        (run,) = json.loads(answer.read())
    assert (run["id"], run["state"], run["lag"]) == ("0/shouting", "has ended", 0)
    produce("words", ["c"], value=str, data=folder / "two")

    def states():
        with urllib.request.urlopen(f"{url}api/runs", timeout=20) as answer:
            return {one["id"]: one["state"] for one in json.loads(answer.read())}

    running = program("run", "shouting.py", "--data", "two")
    wait_until(lambda: states() == {"0/shouting": "has ended", "1/shouting": "runs"})
    running.kill()
    wait_until(lambda: states()["1/shouting"] == "was killed")
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(20) == 0
