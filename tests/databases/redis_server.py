"""A Redis server of the tests' own, started from the program that Debian's package brings."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

TRIES = 1_000
"""How often a server that starts is asked, every 20 ms."""


@contextmanager
def running() -> Iterator[str]:
    """Yield the URL of a server that is empty, and gone at the end of the block."""
    program = shutil.which("redis-server")
    assert program is not None, "Redis is not installed: apt-get install redis-server"
    directory = Path(tempfile.mkdtemp(prefix="redis-"))
    try:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        said = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(directory)]
        with (
            (directory / "log").open("wb") as log,
            subprocess.Popen([program, *said], stdout=log, stderr=log) as server,
        ):
            try:
                url = f"redis://127.0.0.1:{port}/0"
                _await(url, directory / "log", server)
                yield url
            finally:
                server.kill()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _await(url: str, log: Path, server: "subprocess.Popen[bytes]") -> None:
    client = redis.Redis.from_url(url, retry=Retry(ConstantBackoff(0.02), TRIES))
    try:
        client.ping()
    except redis.ConnectionError as error:
        raise AssertionError(f"Redis does not start ({server.poll()}): {log.read_text()}") from error
    finally:
        client.close()
