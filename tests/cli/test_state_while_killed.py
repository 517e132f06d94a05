"""State on the log is asked for by all roads while containers and their starter are killed: it is what is committed."""

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from contextlib import suppress

import pytest

from samza_dsl import produce, query
from samza_dsl.application.loading import load_app
from tests.faults.processes import wait_until

pytestmark = pytest.mark.ci

KEYS = range(7)
COUNTING = """
    from samza_dsl import App, Options

    app = App("counting", Options(commit_interval_ms=50))
    keyed = app.input("keys", value=int).partition_by(lambda key: key, partitions=4, key_type=int, op_id="keyed")
    keyed.scan(lambda total, key: total + 1, init=int, op_id="count").send_to(app.output("counts"))
"""


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as found:
        return [int(one) for one in found.read().split()]


def over_http(port, said):
    """Return what the port of the metrics answers; None where nobody listens."""
    with suppress(OSError):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/state/count?{said}", timeout=20) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            with refused:
                code = refused.code
        assert code in (404, 503)
        return {"value": 0, "entries": []} if code == 404 else None
    return None


def test_state_is_what_is_committed_while_containers_and_their_starter_are_killed(program, write, folder):
    write("counting.py", COUNTING)
    data = folder / ".samza-dsl"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = "run", "counting.py", "--containers", "2", "--metrics", f":{port}", "--log-level", "error"
    produce("keys", [*KEYS], value=int, data=data)
    running, written, told = program(*command), 1, dict.fromkeys(KEYS, 0)
    app = load_app("counting.py")
    heard = 0
    with query(app, data) as near:
        count = near.state("count")
        for turn in range(9):
            wait_until(lambda running=running: running.poll() is not None or len(children(running.pid)) == 2)
            assert running.poll() is None, (turn, running.communicate())
            if turn in (2, 4):
                os.kill(children(running.pid)[turn == 4], signal.SIGKILL)
            if turn == 6:
                running.kill()
                running.wait()
            produce("keys", [*KEYS], value=int, data=data)
            written += 1
            for key in KEYS:
                found = count.get(key, 0)
                answer = over_http(port, f"key={key}")
                assert told[key] <= found <= written, (turn, key, found)
                if answer is not None:
                    heard += 1
                    assert found <= answer["value"] <= written, (turn, key, answer)
                told[key] = found
            ranged = dict(count.range())
            assert all(told[key] <= ranged.get(key, 0) <= written for key in KEYS), (turn, ranged)
            if turn == 6:
                running = program(*command)
        last = {"keys": written * len(KEYS)}
        assert dict(count.range(at_least=last, timeout_ms=60_000)) == dict.fromkeys(KEYS, written)
    paged = over_http(port, "limit=1000")["entries"]
    assert {one["key"]: one["value"] for one in paged} == dict.fromkeys(KEYS, written) and heard > len(KEYS)
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0
