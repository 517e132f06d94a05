"""State on Kafka is asked for at the port of a run's metrics, and comes from the container that has the task."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, closing

import pytest

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import KafkaCluster, SamzaError, query
from tests.faults.processes import wait_until
from tests.source import ROOT

PROGRAM = """
import asyncio, json, sys, urllib.error, urllib.request

from samza_dsl import App, Options, SamzaError, String

app = App("{name}", Options(commit_interval_ms=50))
words = app.input("{name}-words", value=String())
counts = words.partition_by(lambda word: word, partitions=4, op_id="by-word")
counts.scan(lambda total, word: total + 1, init=int, op_id="count").send_to(app.output("{name}-counts"))


def ask(path):
    try:
        with urllib.request.urlopen("http://127.0.0.1:{port}/state" + path) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def ask_all():
    found, path = [], "/count?limit=3"
    while path:
        status, told = ask(path)
        assert status == 200, told
        found += [[one["key"], one["value"]] for one in told["entries"]]
        path = told["next"] and "/count?page=" + told["next"]
    return found


def from_afar():
    # As a process that has nothing but the program, and the address of brokers.
    from samza_dsl import query

    with query(app, environment="{address}") as far:
        count = far.state("count")
        words = [f"word {{number}}" for number in range(9)]
        gets = {{word: count.get(word, at_least={{"{name}-words": {records}}}) for word in words}}
        return [gets, count.get("nobody", "none"), [*count.range()], [*count.range("word 3", "word 5")]]


async def watch(run):
    while (await asyncio.to_thread(ask, ""))[0] != 200:
        await asyncio.sleep(0.01)
    # As soon as anybody answers: what the first stage has sent on is covered, whichever container has the key.
    words = [f"word {{number}}" for number in range(9)]
    path = "/count?at_least={name}-words:{records}&timeout_ms=8000&key="
    covered = {{}}
    for word in words:
        covered[word] = await asyncio.to_thread(ask, path + word.replace(" ", "+"))
        while covered[word][0] in (421, 503, 504):  # nobody has its task yet, or has come that far
            covered[word] = await asyncio.to_thread(ask, path + word.replace(" ", "+"))
    while True:
        await asyncio.sleep(0.2)
        found = await asyncio.to_thread(ask_all) if (await asyncio.to_thread(ask, ""))[0] == 200 else []
        if sum(number for _, number in found) == {records}:
            break
    told = {{word: await asyncio.to_thread(ask, "/count?key=" + word.replace(" ", "+")) for word, _ in found}}
    gets = {{word: one["value"] for word, (_, one) in told.items()}}
    absent = await asyncio.to_thread(ask, "/count?key=nobody")
    held_back = await asyncio.to_thread(ask, "/count?key=a&at_least={name}-words:1000&timeout_ms=50")
    count = run.state("count")
    own = await asyncio.to_thread(count.get, "word 1"), await asyncio.to_thread(lambda: sorted(count.range()))
    if {containers} > 1:
        try:
            count.get("word 1")
        except SamzaError as error:
            assert "asyncio.to_thread" in str(error)
        else:
            raise AssertionError("the loop would wait for itself")
    far = await asyncio.to_thread(from_afar)
    print(json.dumps([found, gets, absent[0], held_back, own, covered, far]))
    run.stop()


if __name__ == "__main__":
    run = app.run("data", environment="{address}", containers={containers}, metrics=":{port}", watch=watch)
    try:
        run.state("count").get("word 1")
    except SamzaError as error:
        assert "query(app, environment='{address}')" in str(error)
    else:
        raise AssertionError("the run is over")
"""


@pytest.mark.parametrize("containers", [1, 2])
def test_state_is_asked_for_where_it_is(broker, topics, tmp_path, caplog, containers):
    name, address = topics, f"kafka://{broker.bootstrap}"
    words = [f"word {number % 9}" for number in range(60)]
    with closing(KafkaEnvironment(KafkaCluster(address), tmp_path / "writer")) as environment:
        environment.create_stream(f"{name}-words", StreamConfig())
        environment.append([Append(f"{name}-words", 0, Batch([word.encode() for word in words]))])
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port = found.getsockname()[1]
    said = {"name": name, "port": port, "address": address, "containers": containers, "records": len(words)}
    (tmp_path / "counting.py").write_text(PROGRAM.format(**said))
    ran = subprocess.run(
        [sys.executable, "counting.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0 and "changelogs" not in ran.stderr, ran.stderr
    entries, gets, absent, held_back, own, covered, far = json.loads(ran.stdout.splitlines()[-1])
    counts = Counter(words)
    assert gets == dict(entries) == counts and len(entries) == len(counts)
    assert absent == 404 and held_back[0] == 504 and "no commit of" in held_back[1]["error"]
    assert {word: answer.get("value") for word, (_, answer) in covered.items()} == counts, covered
    assert own == [counts["word 1"], sorted(map(list, counts.items()))]
    within = [["word 3", counts["word 3"]], ["word 4", counts["word 4"]]]
    assert far[:2] == [counts, "none"] and dict(far[2]) == counts and sorted(far[3]) == within
    # Nobody runs it any more: changelogs have it.
    made = runpy.run_path(str(tmp_path / "counting.py"))["app"]
    with query(made, environment=address) as found, caplog.at_level("WARNING", "samza_dsl"):
        count = found.state("count")
        assert {word: count.get(word, at_least={f"{name}-words": len(words)}) for word in counts} == counts
        assert dict(count.range()) == counts and count.get("nobody") is None
        with pytest.raises(SamzaError, match="no commit of"):
            count.get("word 1", at_least={f"{name}-words": 1_000}, timeout_ms=50)
    assert [line.message for line in caplog.records if "read from its changelogs" in line.message][1:] == []


def test_containers_are_killed_while_they_are_asked(broker, topics, tmp_path):
    """What is told of a key never falls, nor is more than was written; a range is whole, or says to begin it anew."""
    name, address = topics, f"kafka://{broker.bootstrap}"
    words = [f"word {number}" for number in range(9)]
    said = {"name": name, "port": 0, "address": address, "containers": 2, "records": 0}
    program = tmp_path / "counting.py"
    program.write_text(PROGRAM.format(**said).partition("if __name__")[0])
    command = [sys.executable, "-m", "samza_dsl", "run", "counting.py", "--environment", address, "--containers", "2"]
    how = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    with ExitStack() as during:
        environment = during.enter_context(closing(KafkaEnvironment(KafkaCluster(address), tmp_path / "writer")))
        environment.create_stream(f"{name}-words", StreamConfig())
        errors = during.enter_context((tmp_path / "errors").open("w"))
        running = subprocess.Popen([*command, "--metrics", ":0"], stderr=errors, stdout=errors, **how)
        during.callback(running.wait)
        during.callback(running.kill)
        count = during.enter_context(query(runpy.run_path(str(program))["app"], environment=address)).state("count")
        told, written, ranges = dict.fromkeys(words, 0), 0, 0
        for turn in range(12):
            environment.append([Append(f"{name}-words", 0, Batch([word.encode() for word in words]))])
            written += 1
            if turn in (3, 7):
                wait_until(lambda: len(children(running.pid)) == 2)
                os.kill(children(running.pid)[turn == 7], signal.SIGKILL)
            for word in words:
                found = count.get(word, 0)
                assert told[word] <= found <= written, (turn, word)
                told[word] = found
            refused = ""
            try:
                found = dict(count.range())
            except SamzaError as error:
                refused = str(error)
            assert not refused or "begin it anew" in refused
            if not refused:
                assert all(told[word] <= found.get(word, 0) <= written for word in words), (turn, found)
                ranges += 1
        last = {f"{name}-words": written * len(words)}
        assert {word: count.get(word, at_least=last, timeout_ms=60_000) for word in words} == dict.fromkeys(
            words, written
        )
        assert dict(count.range()) == dict.fromkeys(words, written) and ranges
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, (tmp_path / "errors").read_text()


def children(pid):
    """Return the processes that one has started."""
    with open(f"/proc/{pid}/task/{pid}/children") as found:
        return [int(one) for one in found.read().split()]
