"""Processes that are killed at any moment, on a real broker: every input counts exactly once."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.faults.processes import wait_until
from tests.kafka.topics import consume, create, group_offsets, produce
from tests.scale import scale

PROGRAM = """
import asyncio

from samza_dsl import App, Json, Options, String


async def looked_up(word):
    await asyncio.sleep(0.005)
    return [word]


app = App("{name}", Options(commit_interval_ms=20, max_in_flight=10))
words = app.input("{name}-words", value=String()).async_flat_map(looked_up)
counts = words.partition_by(lambda word: word, partitions=2, op_id="by-word").scan(
    lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count"
)
counts.send_to(app.output("{name}-counts", value=Json(list)))
"""


@pytest.mark.parametrize("seed", range(scale(1, 1, 30)))
def test_a_run_that_is_killed_again_and_again_counts_each_word_once(seed, broker, topics, tmp_path):
    chance = random.Random(seed)
    words = [b"w%d" % chance.randrange(50) for _ in range(3_000)]
    create(broker, f"{topics}-words", 2)
    produce(broker, f"{topics}-words", *((number % 2, None, word) for number, word in enumerate(words)))
    (tmp_path / "app.py").write_text(PROGRAM.format(name=topics))
    killed_at = {0}
    for _ in range(5):
        process = started(broker, tmp_path, chance.choice(["here", "there"]))
        is_alive_until(process, lambda: read_so_far(broker, topics) > max(killed_at))
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(0, 0.2))
        process.kill()
        process.communicate()
        killed_at.add(read_so_far(broker, topics))
    process = started(broker, tmp_path, "here")
    finished(process)
    assert len(killed_at) > 3, "it was killed in the midst of it"
    found = consume(broker, f"{topics}-counts")
    told = Counter(tuple(msgspec.json.decode(record.value)) for records in found.values() for record in records)
    expected = {(word.decode(), number + 1) for word, count in Counter(words).items() for number in range(count)}
    assert set(told) == expected, "each count is told"
    assert set(told.values()) == {1}, "and none of them twice"


ASKING = """
import asyncio
import os

from samza_dsl import App, Options, String

asked = os.open({asked!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


async def ask(word):
    os.write(asked, word.encode() + b"\\n")
    await asyncio.sleep(0.02)
    return [word]


app = App("{name}", Options(commit_interval_ms=60_000))
answers = app.input("{name}-words", value=String()).async_flat_map(ask, remember=True, max_in_flight=10, op_id="ask")
answers.send_to(app.output("{name}-counts", value=String()))
"""


def test_answers_are_paid_for_once_on_whatever_host_the_next_run_is(broker, topics, tmp_path):
    words, asked = [b"w%d" % number for number in range(400)], tmp_path / "asked"
    create(broker, f"{topics}-words", 2)
    produce(broker, f"{topics}-words", *((number % 2, None, word) for number, word in enumerate(words)))
    (tmp_path / "app.py").write_text(ASKING.format(name=topics, asked=str(asked)))
    asked.touch()
    kills = 0
    for state in ("here", "there"):
        process, before = started(broker, tmp_path, state), len(asked.read_bytes().split())
        kills += is_alive_until(process, lambda enough=before + 100: len(asked.read_bytes().split()) >= enough)
        process.kill()
        process.communicate()
    finished(started(broker, tmp_path, "elsewhere"))
    assert kills == 2, "it was killed in the midst of it"
    calls = Counter(asked.read_bytes().split())
    assert calls.keys() == {*words}
    assert calls.total() <= len(words) + kills * 2 * 10, "two tasks had ten calls each in the air"
    found = consume(broker, f"{topics}-counts")
    assert sorted(record.value for records in found.values() for record in records) == sorted(words)


def is_alive_until(process: subprocess.Popen[str], happened: Callable[[], bool]) -> bool:
    """Wait until something has happened or a process has ended; return whether it lives."""
    wait_until(lambda: process.poll() is not None or happened())
    return process.poll() is None


def read_so_far(broker, app: str) -> int:
    """Return up to where inputs are read, as committed."""
    return sum(offset for (topic, _), offset in group_offsets(broker, app).items() if topic == f"{app}-words")


def started(broker, folder: Path, state: str) -> subprocess.Popen[str]:
    """Start a run in a process of its own, on one of two machines."""
    program = Path(sys.executable).with_name("samza-dsl")
    how = ["--environment", f"kafka://{broker.bootstrap}", "--data", state, "--until-now"]
    environment = {**os.environ, "COLUMNS": "100"}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([program, "run", "app.py", *how], cwd=folder, env=environment, **pipes)


def finished(process: subprocess.Popen[str]) -> None:
    """Wait until a run has ended well; what it says is read meanwhile, as a pipe that is full would hold it up."""
    try:
        _, told = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"it did not end; it said: {process.communicate()[1]}")
    assert process.returncode == 0, told
