"""Tasks that are split and merged on a real broker while they run: each word counts once, with the state of before."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import json, msgpack

from operators.core.base import Batch
from operators.partition_by import murmur2
from planner.model.virtual_tasks import is_task
from runtime.encoding.serdes import Tagged
from runtime.job.job_model import job_of
from runtime.model.assignment import Scale
from runtime.model.clock import sleep_ms
from runtime.opening.agreement import StarterReport
from runtime.opening.rescaling import scalings
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import App, Json, KafkaCluster, Options, String, count, session, testing, tumbling
from tests.faults.processes import wait_until
from tests.kafka.brokers import free_ports
from tests.kafka.test_containers import PROGRAM, check_counts, containers_of, ended
from tests.watching.spans import asked_of_page

WORDS = [b"w%d" % (number % 50) for number in range(2_000)]


@pytest.fixture
def environment(broker, topics, tmp_path):
    """An environment beside that of the run, whose input has one partition."""
    with closing(KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path / "beside")) as environment:
        environment.create_stream(f"{topics}-words", StreamConfig())
        yield environment


def write(environment: KafkaEnvironment, name: str, words: list[bytes]) -> None:
    environment.append([Append(f"{name}-words", 0, Batch(words))])


def counting(name: str, options: Options) -> App:
    app = App(name, options)
    words = app.input(f"{name}-words", value=String()).map(str.lower)
    counts = words.partition_by(lambda word: word, partitions=1, op_id="by-word").scan(
        lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count"
    )
    counts.send_to(app.output(f"{name}-counts", value=Json(list)))
    return app


def test_scale_up_and_scale_down_without_increasing_input_partition_count(
    broker, topics, environment, tmp_path, monkeypatch
):
    monkeypatch.setattr("runtime.run.scaling.FAR_LOOK_MS", 100.0)
    cluster = KafkaCluster(f"kafka://{broker.bootstrap}")
    app = counting(topics, Options(commit_interval_ms=100))

    async def main():
        async with app.running(data=tmp_path / "here", environment=cluster) as run:
            for start, factor in ((0, 4), (500, 2), (1_000, 8)):
                write(environment, topics, WORDS[start : start + 500])
                while environment.stream_stats(f"{topics}-counts")[0] < start + 500:
                    await sleep_ms(20)
                environment.ask_scale(topics, Scale(factor))
                while run.plan.options.factor != factor:
                    await sleep_ms(20)
            write(environment, topics, WORDS[1_500:])
            while environment.stream_stats(f"{topics}-counts")[0] < len(WORDS):
                await sleep_ms(50)
            assert len(run.tasks) == 8

    asyncio.run(main())
    check_counts(broker, topics, WORDS)
    told = [(one.before, one.now, one.moved) for one in scalings(environment.checkpoints(topics))]
    assert told == [(1, 4, 50), (4, 2, 50), (2, 8, 50)], "each word's count was copied, and nothing was read again"
    here = {path.name for path in (tmp_path / "here" / "state" / topics).iterdir()}
    assert here == {f"0-{bucket}-8" for bucket in range(8)}, "what was split is where its parts are"
    # Elsewhere, as one task again: all state comes from the changelogs.
    environment.ask_scale(topics, Scale(1))
    write(environment, topics, WORDS)
    app.run(tmp_path / "there", environment=cluster, until_now=True)
    check_counts(broker, topics, WORDS * 2)
    assert {name for name in environment.checkpoints(topics) if is_task(name)} == {"0"}


def several(name: str) -> App:
    """Return an application with state of several kinds, in two stages."""
    app = App(name, Options(commit_interval_ms=100))
    hits = app.input(f"{name}-words", value=Json(list), key=str, timestamp=lambda hit: hit[1])
    sums = hits.scan(lambda sum, hit: sum + hit[2], init=int, emit=lambda key, sum: [key, sum], op_id="sums")
    sums.send_to(app.output(f"{name}-sums", value=Json(list)))
    visits = hits.window(session(milliseconds=40), count(), op_id="visits")
    visits.map(lambda pane: [pane.key, pane.start, pane.end, pane.value], op_id="visit").send_to(
        app.output(f"{name}-visits", value=Json(list))
    )
    large = hits.filter(lambda hit: hit[2] > 6, op_id="large")
    pairs = hits.join(large, lambda hit, other: [*hit, other[1]], within=(-8, 8), op_id="pairs")
    pairs.send_to(app.output(f"{name}-pairs", value=Json(list)))
    timed = hits.process(on_hit, on_timer=lambda at, context: [[context.key, at]], init=int, op_id="timed")
    timed.send_to(app.output(f"{name}-timed", value=Json(list)))
    numbers = hits.partition_by(lambda hit: f"n{hit[2]}", key_type=str, partitions=2, op_id="by-number")
    numbers.window(tumbling(milliseconds=50), count(), op_id="counts").map(
        lambda pane: [pane.key, pane.start, pane.value], op_id="counted"
    ).send_to(app.output(f"{name}-counts", value=Json(list)))
    return app


def on_hit(hit: list[Any], context: Any) -> list[Any]:
    context.set_timer(hit[1] + 25)
    return []


def test_operators_of_several_kinds_go_on_with_their_state_as_tasks_are_split_and_merged(
    broker, topics, environment, tmp_path, monkeypatch
):
    monkeypatch.setattr("runtime.run.scaling.FAR_LOOK_MS", 100.0)
    app, hits = several(topics), [[f"u{at % 7}", at * 3 + at % 40 // 30 * 90, at % 10] for at in range(600)]
    rows = [testing.Record(hit, hit[0], hit[1]) for hit in hits]

    async def main():
        async with app.running(data=tmp_path / "here", environment=KafkaCluster(f"kafka://{broker.bootstrap}")) as run:
            for start, factor in ((0, 4), (200, 2), (400, 1)):
                part = hits[start : start + 200]
                batch = Batch([json.encode(hit) for hit in part], [hit[0].encode() for hit in part])
                environment.append([Append(f"{topics}-words", 0, batch)])
                await run.settled()
                environment.ask_scale(topics, Scale(factor))
                while run.plan.options.factor != factor:
                    await sleep_ms(20)
            environment.end_stream(f"{topics}-words")
            await run.ended()
            return {stream.name: run.received(stream.name) for stream in app.plan().results}

    expected = testing.run(app, {f"{topics}-words": rows})
    assert testing.unordered(asyncio.run(main())) == testing.unordered(expected)
    assert all(expected.values())


def test_containers_give_way_to_others_where_the_command_or_the_page_says_so(broker, topics, environment, tmp_path):
    (tmp_path / "app.py").write_text(PROGRAM.format(name=topics).replace("partitions=4", "partitions=1"))
    program, where = Path(sys.executable).with_name("samza-dsl"), ["--environment", f"kafka://{broker.bootstrap}"]
    (port,) = free_ports(1)
    page = ["--ui", "--ui-allow-actions", "--metrics", f":{port}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": tmp_path}

    def scaled(*how: str) -> str:
        done = subprocess.run([program, "scale", topics, *where, *how], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    write(environment, topics, WORDS[:1_000])
    run = subprocess.Popen([program, "run", "app.py", *where, "--data", "here", "--containers", "2", *page], **pipes)
    hosts = [run]
    try:
        # The job model comes by another topic than checkpoints do.
        wait_until(lambda: environment.checkpoints(topics).keys() >= {"0"} and job_of(environment, topics).containers)
        wait_until(lambda: environment.stream_stats(f"{topics}-counts")[0] >= 1_000)
        said = scaled("--factor", "4", "--containers", "2")
        assert "4 tasks in 2 containers" in said
        assert re.search(r"split into 4 and not 1 \(asked for\), in [\d,]{3,} ms; 50 entries of state were moved", said)
        assert len({one.container for one in job_of(environment, topics).tasks}) == 2
        with suppress(ProcessLookupError):
            os.kill(containers_of(run)[0], signal.SIGKILL)
        write(environment, topics, WORDS[1_000:1_500])
        for size, is_so in (
            ({"containers": 1}, lambda job: len({one.container for one in job.tasks}) == 1),
            ({"factor": 2}, lambda job: len(job.tasks) == 2),
        ):
            assert "is asked to have another size" in asked_of_page(port, f"0/{topics}", "scale", **size)
            wait_until(lambda is_so=is_so: is_so(job_of(environment, topics)))
        joins = [program, "run", "app.py", *where, "--data", "there", "--host-id", "there", "--join"]
        hosts.append(subprocess.Popen(joins, **pipes))
        wait_until(lambda: len({one.container for one in job_of(environment, topics).tasks}) == 2)
        scaled("--factor", "4")
        asked = environment.asked_scale(topics).number
        said = [msgpack.decode(one, type=StarterReport) for one in environment.runs(topics).said().values()]
        assert [one.ready for one in said if one.ready] == [asked], "the cut waits for who has joined"
        write(environment, topics, WORDS[1_500:])
        wait_until(lambda: environment.stream_stats(f"{topics}-counts")[0] >= len(WORDS))
    finally:
        for host in hosts:
            host.send_signal(signal.SIGTERM)
    for host in hosts:
        ended(host)
    check_counts(broker, topics, WORDS)


SIZED = """
import sys
import time

import runtime.containers.autosizing
from samza_dsl import App, Json, Options, Sized, String

name = "{name}"
app = App(name, Options(commit_interval_ms=100))


def slowly(word: str) -> str:
    time.sleep(0.002)
    return word


words = app.input(f"{{name}}-words", value=String()).partition_by(lambda word: word, partitions=2, op_id="by-word")
counts = words.map(slowly).scan(
    lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count"
)
counts.send_to(app.output(f"{{name}}-counts", value=Json(list)))


def sizing(loads):
    with open(sys.argv[2], "a") as told:
        print(loads[-1].containers, file=told)
    return Sized(2, "there is more to read") if loads[-1].read_per_s > 0 and loads[-1].containers == 1 else None


if __name__ == "__main__":
    runtime.containers.autosizing.LOOK_MS = 500.0
    app.run(sys.argv[1], environment="{environment}", host_id=sys.argv[1], autosize=sizing)
"""


def test_who_leads_a_run_sizes_it_by_its_load_and_who_shares_it_asks_for_nothing(broker, topics, environment, tmp_path):
    where = {"name": topics, "environment": f"kafka://{broker.bootstrap}"}
    (tmp_path / "app.py").write_text(SIZED.format(**where))

    def begun(host: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "app.py", host, f"{host}.told"]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    hosts = [begun("here")]
    try:
        wait_until(lambda: bool(job_of(environment, topics).containers))
        hosts.append(begun("there"))
        # Who leads sizes its own containers by what the whole run has to read: here others have all of it.
        wait_until(lambda: len({one.container for one in job_of(environment, topics).tasks if one.container}) == 2)
        (theirs,) = (one.task for one in job_of(environment, topics).tasks if one.host == "there")
        of_others = [word for word in WORDS if murmur2(Tagged().encode(word.decode())) % 2 == theirs]
        written = list[bytes]()

        def sized_for(words: list[bytes]) -> bool:
            # Some at each look: how long tasks take until they have settled, and are measured, is not known.
            write(environment, topics, words)
            written.extend(words)
            return len(job_of(environment, topics).containers) == 3

        wait_until(lambda: sized_for(of_others[:100]))
        sized_for([word for word in WORDS if word not in {*of_others}])
        wait_until(lambda: environment.stream_stats(f"{topics}-counts")[0] >= len(written))
        wait_until(lambda: any(one.containers == (1, 2) for one in scalings(environment.checkpoints(topics))))
    finally:
        for host in reversed(hosts):
            host.send_signal(signal.SIGTERM)
    for host in hosts:
        ended(host)
    check_counts(broker, topics, written)
    (sized,) = [one for one in scalings(environment.checkpoints(topics)) if one.containers == (1, 2)]
    assert sized.why == "there is more to read"
    assert not (tmp_path / "there.told").exists(), "who shares a run is not asked for its size"
