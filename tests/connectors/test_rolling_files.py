"""Files that roll into folders: each row is once in the files that count, through deaths, of zombies as well."""

import asyncio
import gzip
import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import date
from functools import partialmethod
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import FSSpecHandler, PyFileSystem

from runtime.model.errors import Damaged
from runtime.systems.files.places.remote import written_system
from runtime.systems.folders import manifest
from runtime.systems.folders.object_place import LocalObjects, RemoteObjects, object_place
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, SamzaError, connectors, dead_letter
from samza_dsl.connectors import SinkOwner, SinkRow
from samza_dsl.testing import check_sink
from tests.connectors.programs import run_program, write_program
from tests.real_time import until
from tests.scale import examples

PLACES = itertools.count()


class Leg(msgspec.Struct, frozen=True):
    n: int
    carrier: str = "AA"
    day: date = date(2026, 1, 1)


def rows_in(files: Sequence[str]) -> list[Leg]:
    """Return what others read: pyarrow of Parquet with its folders, and Python of JSON lines."""
    found: list[Leg] = []
    for file in files:
        system, path = written_system(file) if "://" in file else (fsspec.filesystem("file"), file)
        data = system.cat_file(path)
        if file.endswith("parquet"):
            fields = dict(part.split("=") for part in file.split("/") if "=" in part)
            table = pq.read_table(path, filesystem=PyFileSystem(FSSpecHandler(system)), partitioning=None)
            found += [msgspec.convert({**row, **fields}, Leg, strict=False) for row in table.to_pylist()]
        else:
            text = gzip.decompress(data) if file.endswith("gz") else data
            found += [msgspec.json.decode(line, type=Leg) for line in text.splitlines()]
    return found


@pytest.mark.parametrize(
    ("kind", "by"), [("parquet", ()), ("parquet", ("day", "carrier")), ("jsonl", ()), ("jsonl.gz", ())]
)
def test_the_suite_for_sinks_passes(
    place: str, kind: Any, by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "WHOLE_EVERY", 3)
    rows = [SinkRow(Leg(n, "AB"[n % 2], date(2026, 1, 1 + n % 2))) for n in range(10)]
    times = 4 if place.startswith("s3") else 15
    check_sink(
        lambda: connectors.rolling_files(place, kind, partition_by=by),
        lambda: rows_in(connectors.committed_files(place)),
        rows,
        times=times,
    )


@contextmanager
def dying(patch: pytest.MonkeyPatch, at: int, keeps: bool) -> Iterator[None]:
    """Let a process die at one of its writes and removals of objects, before that is done or behind it."""
    left = [at]

    def dies(place: Any, function: Any, *arguments: Any) -> None:
        left[0] -= 1
        if left[0] != 0 or keeps:
            function(place, *arguments)
        if left[0] == 0:
            raise SamzaError("the machine is gone")

    with patch.context() as inner:
        for kind in (LocalObjects, RemoteObjects):
            for name in ("create", "put", "remove"):
                inner.setattr(kind, name, partialmethod(dies, getattr(kind, name)))
        yield


def copying(partitions: int | None = None) -> App:
    app = App("copying")
    legs = app.input("legs", value=Leg, key=lambda leg: leg.n)
    legs.send_to(app.output("copies", value=Leg, key=int, partitions=partitions))
    return app


@given(
    steps=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12), st.booleans()), min_size=1, max_size=5),
    rows=st.integers(1, 8),
    partitions=st.integers(1, 2),
    by=st.sampled_from([(), ("carrier",)]),
)
@settings(deadline=None, max_examples=examples(15, 300))
def test_each_row_is_in_one_file_through_deaths(
    steps: list[tuple[int, int, bool]], rows: int, partitions: int, by: tuple[str, ...]
) -> None:
    place, environment, legs = f"memory://rolls-{next(PLACES)}", MemoryEnvironment(), list[Leg]()
    patch = pytest.MonkeyPatch()
    sink = connectors.rolling_files(place, rows=rows, partition_by=by)
    for number, at, keeps in steps:
        legs += [Leg(len(legs) + n, "ABC"[n % 3]) for n in range(number)]
        with dying(patch, at, keeps):
            try:
                copying(partitions).run(environment, bind={"legs": legs, "copies": sink})
            except SamzaError:
                continue
    copying(partitions).run(environment, bind={"legs": legs, "copies": sink})
    files = connectors.committed_files(place)
    assert Counter(rows_in(files)) == Counter(legs)
    # And nothing beside these: who reads the folder as it is finds the same.
    start = place.removeprefix("memory:/")
    found = fsspec.filesystem("memory").find(start)
    assert sorted(f"memory:/{one}" for one in found if "_samza_dsl" not in one) == files


def test_pyarrow_reads_the_folder(tmp_path: Path) -> None:
    legs = [Leg(n, "ABC"[n % 3], date(2026, 1, 1 + n % 2)) for n in range(20)]
    sink = connectors.rolling_files(tmp_path / "out", partition_by=["day"])
    copying().run(tmp_path / "data", bind={"legs": legs, "copies": sink})
    table = ds.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table()
    assert Counter(msgspec.convert(row, Leg, strict=False) for row in table.to_pylist()) == Counter(legs)
    again = App("again")
    again.input("legs", value=Leg).send_to(again.output("seen", value=Leg))
    assert Counter(again.run(tmp_path / "data", bind={"legs": tmp_path / "out"}).received("seen")) == Counter(legs)


def test_rows_wait_for_others_and_no_longer_than_was_said(tmp_path: Path) -> None:
    async def main(every_ms: int) -> int:
        sink = connectors.rolling_files(tmp_path / "out", "jsonl", rows=10, every_ms=every_ms)
        async with copying().running(tmp_path / "data", bind={"copies": sink}) as run:
            before = len(connectors.committed_files(tmp_path / "out"))
            for n in range(before, before + 3):
                await run.send("legs", Leg(n))
            await run.settled()
            found = len(connectors.committed_files(tmp_path / "out")) - before
            if every_ms == 1:
                await until(lambda: len(rows_in(connectors.committed_files(tmp_path / "out"))) == 6)
            return found

    assert asyncio.run(main(10_000_000)) == 0
    assert len(connectors.committed_files(tmp_path / "out")) == 1, "what waited was written at the end"
    asyncio.run(main(1))
    assert Counter(leg.n for leg in rows_in(connectors.committed_files(tmp_path / "out"))) == Counter(
        [0, 1, 2, 1, 2, 3]
    )


def test_another_application_follows_the_files_that_count(place: str, tmp_path: Path) -> None:
    sink, follower = connectors.rolling_files(place, "jsonl"), App("follower")
    follower.input("seen", value=Leg).send_to(follower.output("again", value=Leg))
    legs, patch = list[Leg](), pytest.MonkeyPatch()
    for number in range(4):
        legs.append(Leg(number))
        # Behind the file, and before the entry that names it.
        with dying(patch, 5 if number == 1 else 99, False), suppress(SamzaError):
            copying().run(tmp_path / "data", bind={"legs": legs, "copies": sink})
        run = follower.run(tmp_path / "follower", bind={"seen": f"growing:{place}"}, until_now=True)
        counting = rows_in(connectors.committed_files(place))
        assert Counter(run.received("again")) == Counter(counting)
        assert len(counting) == (1 if number == 1 else number + 1)


def test_a_file_has_about_so_many_rows(tmp_path: Path) -> None:
    for _ in range(3):
        sink = connectors.rolling_files(tmp_path / "out", "jsonl.gz", rows=7)
        copying().run(tmp_path / "data", bind={"legs": [Leg(n) for n in range(40)], "copies": sink})
    files = connectors.committed_files(tmp_path / "out")
    assert [leg.n for leg in rows_in(files)] == [*range(40)]


def test_an_application_that_begins_anew_empties_its_folder(place: str, tmp_path: Path) -> None:
    for number in range(3):
        sink = connectors.rolling_files(place, "jsonl")
        copying().run(
            tmp_path,
            bind={"legs": [Leg(number)], "copies": sink},
            **({"from_start": True, "state": "reset"} if number else {}),
        )
        assert [leg.n for leg in rows_in(connectors.committed_files(place))] == [number]


def test_another_life_is_told(tmp_path: Path) -> None:
    bind = {"legs": [Leg(1)], "copies": connectors.rolling_files(tmp_path / "out", "jsonl")}
    copying().run(tmp_path / "data", bind=bind)
    with pytest.raises(SamzaError, match="in an earlier life"):
        copying().run(tmp_path / "other", bind=bind)


def test_a_manifest_that_lacks_entries_is_told(tmp_path: Path) -> None:
    bind = {"legs": [Leg(1)], "copies": connectors.rolling_files(tmp_path / "out", "jsonl")}
    copying().run(tmp_path / "data", bind=bind)
    next((tmp_path / "out" / "_samza_dsl").rglob("*1.json")).unlink()
    with pytest.raises(Damaged, match=r"entries of .* are missing"):
        copying().run(tmp_path / "data", bind=bind)


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("is_anew", [False, True])
def test_files_whose_manifest_is_gone_are_told_and_kept(place: str, runs: int, is_anew: bool, tmp_path: Path) -> None:
    """They are the only copy of rows that were delivered long ago: what no entry names is not removed."""
    legs = list[Leg]()
    bind = {"legs": legs, "copies": connectors.rolling_files(place, "jsonl")}
    for n in range(runs):
        legs.append(Leg(n))
        copying().run(tmp_path / "data", bind=bind)
    objects = object_place(place)
    entries = {name: objects.read([name])[0] for name in objects.names("_samza_dsl")}
    files = sorted(objects.names(""))
    objects.remove([*entries])
    legs.append(Leg(runs))
    with pytest.raises(Damaged, match=r"restore|another time"):
        copying().run(tmp_path / ("other" if is_anew else "data"), bind=bind)
    assert sorted(objects.names("")) == [name for name in files if name not in entries]
    if not is_anew:
        for name, data in entries.items():
            objects.create(name, data)
        copying().run(tmp_path / "data", bind=bind)
        assert [leg.n for leg in rows_in(connectors.committed_files(place))] == [*range(runs + 1)]


def test_a_file_system_that_can_not_fence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteObjects, "create", RemoteObjects.put)
    sink = connectors.rolling_files(f"memory://rolls-{next(PLACES)}")
    with pytest.raises(SamzaError, match="does not tell that a file is there already"):
        sink.claim(SinkOwner("shop", "orders", 0, 1, 9, Leg))


@pytest.mark.parametrize(
    ("url", "told"), [("s3://lake/out", r"pip install 'samza-dsl\[s3\]'"), ("az://lake/out", "Install adlfs")]
)
def test_a_library_that_is_absent_is_named_as_the_run_begins(
    url: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(scheme: str) -> type:
        raise ImportError(f"Install {'s3fs' if scheme == 's3' else 'adlfs'} to access it")

    monkeypatch.setattr("fsspec.core.get_filesystem_class", absent)
    app = App("absent")
    app.input("numbers", value=int).send_to(app.output("all", value=int))
    with pytest.raises(SamzaError, match=rf"^{url}/? needs a library that is not installed: .*{told}"):
        app.run(tmp_path, bind={"numbers": [1], "all": connectors.rolling_files(url)})


def test_by_url_on_the_command_line(place: str, tmp_path: Path) -> None:
    url = f"rolling:{place}?kind=jsonl&rows=3&every_ms=500"
    copying().run(tmp_path, bind={"legs": [Leg(1)], "copies": url})
    (file,) = connectors.committed_files(place)
    assert rows_in([file]) == [Leg(1)]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"kind": "csv"}, "write one of 'parquet', 'jsonl', 'jsonl.gz'"),
        ({"rows": 0}, "write a whole number of rows"),
        ({"every_ms": 0}, "write whole ms of at least 1"),
        ({"kind": "jsonl", "partition_by": "day"}, "for Parquet alone"),
    ],
)
def test_malformed_arguments_are_told(said: dict[str, Any], error: str) -> None:
    with pytest.raises(SamzaError, match=error):
        connectors.rolling_files("out", **said)


@pytest.mark.parametrize("url", ["rolling:out?kinds=jsonl", "rolling:out?rows=many", "rolling:", "rolling:?kind=jsonl"])
def test_malformed_urls_are_told(url: str, tmp_path: Path) -> None:
    with pytest.raises(SamzaError, match="write rolling:FOLDER"):
        copying().run(tmp_path, bind={"copies": url})


def test_a_folder_that_grows_has_a_name(tmp_path: Path) -> None:
    with pytest.raises(SamzaError, match="growing: names no folder: write growing:incoming"):
        copying().run(tmp_path, bind={"legs": "growing:", "copies": "rolling:out"})


class ModelLeg(pydantic.BaseModel):
    n: int
    carrier: str = pydantic.Field("AA", serialization_alias="carried_by", validation_alias="carried_by")
    day: date = date(2026, 1, 2)
    note: str = pydantic.Field("none", exclude=True)


@pytest.mark.parametrize("by", ["n", "carried_by", "day"])
def test_fields_of_a_model_name_folders(by: str, tmp_path: Path) -> None:
    app = App("models")
    app.input("legs", value=ModelLeg).send_to(app.output("copies", value=ModelLeg))
    sink = connectors.rolling_files(tmp_path / "out", partition_by=by)
    app.run(tmp_path / "data", bind={"legs": [ModelLeg(n=1)], "copies": sink})
    (file,) = connectors.committed_files(tmp_path / "out")
    said = {"n": 1, "carried_by": "AA", "day": date(2026, 1, 2)}
    assert f"{by}={said.pop(by)}" in file.split("/")
    assert pq.read_table(file, partitioning=None).to_pylist() == [said]
    again = App("again")
    again.input("legs", value=ModelLeg).send_to(again.output("copies", value=ModelLeg))
    run = again.run(tmp_path / "data", bind={"legs": str(tmp_path / "out")})
    assert run.received("copies") == [ModelLeg(n=1)]


def test_a_field_that_a_model_leaves_out_is_no_column_and_no_folder(tmp_path: Path) -> None:
    app = App("models")
    app.input("legs", value=ModelLeg).send_to(app.output("copies", value=ModelLeg))
    sink = connectors.rolling_files(tmp_path / "out", partition_by="note")
    with pytest.raises(SamzaError, match="note is no declared text"):
        app.run(tmp_path / "data", bind={"legs": [ModelLeg(n=1)], "copies": sink})
    table = connectors.sqlite(tmp_path / "legs.db", "legs", key="n")
    app.run(tmp_path / "data", bind={"legs": [ModelLeg(n=1)], "copies": table})
    with closing(sqlite3.connect(tmp_path / "legs.db")) as legs:
        assert legs.execute("SELECT * FROM legs").fetchall() == [(1, "AA", "2026-01-02")]


def test_fields_that_are_no_folders_are_told(tmp_path: Path) -> None:
    sink = connectors.rolling_files(tmp_path / "out", partition_by="carriers")
    with pytest.raises(SamzaError, match="carriers is no declared text"):
        copying().run(tmp_path / "data", bind={"legs": [Leg(1)], "copies": sink})


PROGRAM = """
    import msgspec

    from samza_dsl import App, connectors

    class Row(msgspec.Struct):
        id: int

    app = App("rolling")
    rows = app.input("rows", value=Row).partition_by(lambda row: row.id, op_id="by", partitions=2)
    rows.send_to(app.output("out", value=Row))

    if __name__ == "__main__":
        bind = {"rows": "rows.jsonl", "out": connectors.rolling_files("out", "jsonl")}
        app.run("data", containers=2, bind=bind)
"""


def test_containers_leave_no_row_behind_as_they_end(tmp_path: Path) -> None:
    write_program(tmp_path, "rolling", PROGRAM)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"id":{n}}}\n' for n in range(20)))
    done = run_program(tmp_path, "rolling")
    assert done.returncode == 0, done.stderr
    lines = [
        line for file in connectors.committed_files(tmp_path / "out") for line in Path(file).read_text().splitlines()
    ]
    assert sorted(json.loads(line)["id"] for line in lines) == [*range(20)]


def test_a_row_that_no_folder_can_name_is_for_the_policy_of_the_output(tmp_path: Path) -> None:
    class Sold(msgspec.Struct):
        city: str
        n: int

    app = App("naming")
    sold = app.input("sold", value=Sold)
    sold.send_to(app.output("all", value=Sold), on_error=dead_letter("unnamed"))
    long = [Sold("x" * 300, 10), Sold("/" * 90, 11)]  # of more bytes than a name of a folder has
    rows = [Sold("", 0), *[Sold("Bonn", n) for n in range(1, 9)], *long, Sold("", 9)]
    bind = {"sold": rows, "all": connectors.rolling_files(str(tmp_path / "out"), partition_by="city")}
    run = app.run(tmp_path / "data", bind=bind)
    files = connectors.committed_files(str(tmp_path / "out"))
    assert sorted(n for file in files for n in pq.read_table(file, partitioning=None)["n"].to_pylist()) == [
        *range(1, 9)
    ]
    assert sum(one.dead_lettered for one in run.metrics().operators) == 4
