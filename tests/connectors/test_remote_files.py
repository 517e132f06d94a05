"""Files behind servers of HTTP and in memory: single ones, folders, globs, fields of folders, signatures in URLs."""

import gzip
import itertools
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest

from samza_dsl import App, SamzaError, connectors

NUMBERS = itertools.count()
FILES = {
    "all/day=2026-01-01/a.jsonl": b'{"n":1}\n',
    "all/day=2026-01-02/deep er/b.jsonl": b'{"n":2}\n{"n":3}\n',
    "all/day=2026-01-02/_hidden.jsonl": b'{"n":4}\n',
    "packed/c.csv.gz": gzip.compress(b"n\n5\n6\n"),
}


class Leg(msgspec.Struct, frozen=True):
    n: int
    day: str = ""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture(params=["http", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a folder that has the files."""
    if request.param == "memory":
        where = f"/remote-{next(NUMBERS)}"
        for name, data in FILES.items():
            fsspec.filesystem("memory").pipe_file(f"{where}/{name}", data)
        yield f"memory:/{where}"
        return
    for name, data in FILES.items():
        (tmp_path / "www" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "www" / name).write_bytes(data)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www"))) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
        # Its connections stay open else, and are told of by the collector.
        fsspec.filesystem("http").clear_instance_cache()


def read(bound: object, data: Path, **how: Any) -> list[Leg]:
    app = App("copying")
    app.input("legs", value=Leg).send_to(app.output("copies", value=Leg))
    found: list[Leg] = app.run(data, bind={"legs": bound}, **how).received("copies")
    return sorted(found, key=lambda leg: leg.n)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("all/day=2026-01-01/a.jsonl", [Leg(1, "2026-01-01")]),
        ("all/day=*/", [Leg(1, "2026-01-01"), Leg(2, "2026-01-02"), Leg(3, "2026-01-02")]),
        ("all/", [Leg(1, "2026-01-01"), Leg(2, "2026-01-02"), Leg(3, "2026-01-02")]),
        ("all/**/b.{jsonl,csv}", [Leg(2, "2026-01-02"), Leg(3, "2026-01-02")]),
        ("packed/*.gz", [Leg(5), Leg(6)]),
    ],
)
def test_files_are_read_wherever_they_lie(root: str, said: str, wanted: list[Leg], tmp_path: Path) -> None:
    assert read(f"{root}/{said}", tmp_path / "whole") == wanted
    for _ in range(2):
        assert read(f"growing:{root}/{said}", tmp_path / "growing", until_now=True) == wanted


def test_a_url_that_is_signed_is_read_and_not_told(root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if root.startswith("memory"):
        return
    assert read(f"{root}/packed/c.csv.gz?key=geheim", tmp_path / "whole") == [Leg(5), Leg(6)]
    source = connectors.growing_folder(f"{root}/packed/c.csv.gz?key=geheim")
    assert read(source, tmp_path / "growing", until_now=True) == [Leg(5), Leg(6)]
    with pytest.raises(SamzaError, match=r"there is no file .*absent\.csv,") as caught:
        read(f"{root}/absent.csv?key=geheim", tmp_path / "absent")
    assert "geheim" not in f"{source.name} {caught.value} {caplog.text}"
