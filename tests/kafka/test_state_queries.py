"""State on Kafka is asked for at the port of a run's metrics, and comes from the container that has the task."""

import json
import os
import runpy
import socket
import subprocess
import sys
from collections import Counter
from contextlib import closing

import pytest

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import KafkaCluster, SamzaError, query
from tests.source import ROOT

PROGRAM = """
import asyncio, json, sys, urllib.error, urllib.request

from samza_dsl import App, Options, String

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
    own = run.state("count").get("word 1") if {containers} == 1 else None
    far = await asyncio.to_thread(from_afar)
    print(json.dumps([found, gets, absent[0], held_back, own, covered, far]))
    run.stop()


if __name__ == "__main__":
    app.run("data", environment="{address}", containers={containers}, metrics=":{port}", watch=watch)
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
    assert own == (counts["word 1"] if containers == 1 else None)
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
