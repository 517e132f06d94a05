"""What is posted, sent by a websocket, or comes as files, on a real broker: once each, killed and stopped between."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from os import environ
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.programs import write_program
from tests.connectors.test_http import posted
from tests.connectors.test_websocket import ticking, ticks
from tests.faults.processes import wait_until
from tests.kafka.topics import consume
from tests.source import ROOT

MOST = 60
"""The records; of these `PROGRAM` is killed at one, and stopped at another."""
PROGRAM = """
    import os, signal
    from pathlib import Path

    import msgspec

    from samza_dsl import App, Options, connectors
    from runtime.systems.kafka.client.topic import KafkaCluster

    NAME, URL = os.environ["NAME"], os.environ["URL"]
    ENDS = {20: signal.SIGKILL, 40: signal.SIGTERM}


    class Row(msgspec.Struct):
        id: int


    def ending(row):
        mark = Path(f"ended-{row.id}")
        if row.id in ENDS and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), ENDS[row.id])
        return row


    def told(url):
        Path("url.new").write_text(url)
        Path("url.new").rename("url")


    app = App(NAME, Options(batch_records=7, max_uncommitted=14, commit_interval_ms=20))
    rows = app.input(f"{NAME}-rows", value=Row, partitions=2)
    rows.map(ending).send_to(app.output(f"{NAME}-copies", value=Row, partitions=1))

    SOURCES = {
        "http": lambda: connectors.http_source(":0", "/rows", on_ready=told),
        "websocket": lambda: connectors.websocket(f"{URL}?after={{token}}", resume=lambda row: str(row.id)),
        "folder": lambda: connectors.growing_folder("incoming", poll_ms=20, settled_ms=0),
    }

    if __name__ == "__main__":
        cluster = KafkaCluster(os.environ["CLUSTER"])
        app.run(os.environ["DATA"], environment=cluster, bind={f"{NAME}-rows": SOURCES[os.environ["KIND"]]()})
"""


@contextmanager
def posting(folder: Path) -> Iterator[str]:
    """Post rows one after the other, each until it is taken, wherever it is listened to by then."""

    def post(number: int) -> bool:
        try:
            url = (folder / "url").read_text()
            status, _ = posted(url, json.dumps({"id": number}).encode(), Idempotency_Key=f"row {number}")
        except (OSError, ValueError):  # nobody listens yet, or not any more
            return False
        return status == 202

    def post_all() -> None:
        for number in range(MOST):
            wait_until(lambda number=number: post(number))  # type: ignore[misc]

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(post_all)
        yield ""
        done.result()


@contextmanager
def sending(folder: Path) -> Iterator[str]:
    """Send rows from behind a token on, and hang up once."""
    with ticking(ticks(MOST), [25]) as ticker:
        yield ticker.url


@contextmanager
def writing(folder: Path) -> Iterator[str]:
    """Put files of rows into a folder, each whole when it appears."""
    (folder / "incoming").mkdir()
    for start in range(0, MOST, 15):
        lines = "".join(json.dumps({"id": n}) + "\n" for n in range(start, start + 15))
        (folder / "incoming" / f".{start:02}.jsonl").write_text(lines)
        (folder / "incoming" / f".{start:02}.jsonl").rename(folder / "incoming" / f"{start:02}.jsonl")
    yield ""


@pytest.mark.parametrize(("kind", "given"), [("http", posting), ("websocket", sending), ("folder", writing)])
def test_each_record_is_there_once_through_a_kill_and_a_stop(
    kind: str, given: Callable[[Path], Any], broker: Any, topics: str, tmp_path: Path
) -> None:
    write_program(tmp_path, "taking", PROGRAM)

    def copied() -> list[int]:
        records = consume(broker, f"{topics}-copies")[0]
        return [json.loads(record.value)["id"] for record in records]

    with ExitStack() as end:
        url = end.enter_context(given(tmp_path))
        said = {"NAME": topics, "CLUSTER": f"kafka://{broker.bootstrap}", "KIND": kind, "URL": url}
        # Each life is on another machine, which has nothing of the ones before.
        for life, status in enumerate((-9, 0, 0)):
            environment = {**environ, "PYTHONPATH": str(ROOT), "DATA": f"data-{life}", **said}
            with subprocess.Popen([sys.executable, "taking.py"], cwd=tmp_path, env=environment) as running:
                if life == 2:
                    wait_until(lambda: running.poll() is not None or MOST - 1 in copied())
                    running.terminate()
            assert running.returncode == status, life
    assert sorted(copied()) == [*range(MOST)]
