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
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather

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


def written(file: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    if file.suffix == ".jsonl":
        file.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    elif file.suffix == ".csv":
        csv.write_csv(table, file)
    elif file.suffix == ".parquet":
        pq.write_table(table, file)
    else:
        feather.write_feather(table, file)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize("form", ["", "growing:"])
@pytest.mark.parametrize("own", [{"day": "2025-12-31"}, {"more": '"day"'}, {"Day": "x", "more": "day"}, {}])
def test_a_column_that_a_folder_gives_as_well_is_told(
    own: dict[str, str], form: str, suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        (tmp_path / "in" / f"day={day}").mkdir(parents=True)
        written(tmp_path / "in" / f"day={day}" / f"a.{suffix}", [{"n": int(day[-1]), **own}] * 2)
    app = App("copying")
    legs = app.input("legs", value=Leg).filter(lambda leg: leg.n > 0)
    legs.send_to(app.output("copies", value=Leg))
    run = app.run(tmp_path / "data", bind={"legs": f"{form}{tmp_path}/in/**/*.{suffix}"}, until_now=True)
    wanted = [Leg(n, f"2026-01-0{n}") for n in (1, 1, 2, 2)]
    assert sorted(run.received("copies"), key=lambda leg: leg.n) == wanted
    told = [one.getMessage() for one in caplog.records if "which its folder gives as well" in one.getMessage()]
    assert bool(told) == ("day" in own)
    assert all(f"a.{suffix} has the column 'day'" in words for words in told)
    assert form or len(told) <= 1, "it is told once of an input"


class Stingy(Quiet):
    """Serves a file with no size of it, and no part."""

    def do_HEAD(self) -> None:
        """Say that there is one."""
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        """Send all of it, and end the connection."""
        self.do_HEAD()
        self.wfile.write(b'{"n":1}\n')


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_a_server_that_gives_no_part_of_a_file_is_told_with_the_url(suffix: str, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stingy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        app = App("stingy")
        app.input("legs", value=Leg).send_to(app.output("seen", value=Leg))
        url = f"http://127.0.0.1:{server.server_address[1]}/legs.{suffix}"
        with pytest.raises(SamzaError, match=f"can't read {url}"):
            app.run(tmp_path, bind={"legs": url})
        server.shutdown()
        thread.join()
