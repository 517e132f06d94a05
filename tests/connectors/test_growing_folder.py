"""A folder that grows: each row of each file comes once, through deaths, in every place and of every kind."""

import asyncio
import gzip
import itertools
import json
import os
import random
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.errors import Damaged
from runtime.ports.streams import Append, StreamConfig
from runtime.run.run import Run
from runtime.systems.folders import growing
from samza_dsl import App, SamzaError, connectors, dead_letter
from samza_dsl.testing import check_source
from tests.connectors.test_pushed_sources import DyingEnvironment
from tests.real_time import until
from tests.scale import examples

KINDS = ("jsonl", "ndjson.gz", "csv", "parquet")
NUMBERS = itertools.count()


class Leg(msgspec.Struct, frozen=True, omit_defaults=True):
    n: int
    carrier: str
    day: str = ""


def write(place: str, name: str, rows: list[Leg]) -> None:
    """Put a file into a folder, whole when it appears."""
    fields = [{"n": row.n, "carrier": row.carrier} for row in rows]
    text = "".join(json.dumps(row) + "\n" for row in fields)
    if name.endswith("csv"):
        text = "n,carrier\n" + "".join(f'{row.n},"{row.carrier}"\n' for row in rows)
    data = gzip.compress(text.encode()) if name.endswith("gz") else text.encode()
    if name.endswith("parquet"):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(fields), sink)
        data = sink.getvalue().to_pybytes()
    if "://" in place:
        system, path = fsspec.core.url_to_fs(f"{place}/{name}", use_listings_cache=False)
        system.pipe_file(path, data)
    else:
        file = Path(place, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(f".{file.name}").write_bytes(data)
        file.with_name(f".{file.name}").rename(file)


def copying(**how: object) -> App:
    app = App("copying")
    app.input("legs", value=Leg, **how).send_to(app.output("copies", value=Leg))  # type: ignore[call-overload]
    return app


def has_more_than(run: Run, number: int) -> bool:
    return len(run.received("copies")) > number


FILES = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from(["", "a/b/", "day=2026-01-01/", "day=x y/"]),
    st.lists(st.builds(Leg, n=st.integers(-9, 9), carrier=st.sampled_from(["AA", "é", "a,b"])), min_size=1, max_size=9),
)


@given(
    arrivals=st.lists(st.lists(FILES, max_size=3), min_size=1, max_size=4),
    deaths=st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=4),
    at_once=st.integers(1, 12),
    globs=st.lists(st.sampled_from(["", "/**/*", "/**/*.*"]), min_size=1, max_size=5),
)
@settings(deadline=None, max_examples=examples(25, 300))
def test_each_row_comes_once_through_deaths(
    arrivals: list[list[tuple[str, str, list[Leg]]]], deaths: list[tuple[int, bool]], at_once: int, globs: list[str]
) -> None:
    """Also where another glob finds the same files."""
    place, environment, wanted = f"memory://grows-{next(NUMBERS)}", DyingEnvironment(), Counter[Leg]()
    sources = itertools.cycle([connectors.growing_folder(f"{place}{glob}") for glob in globs])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "AT_ONCE", at_once)
        for number in range(max(len(arrivals), len(deaths)) + 1):
            for kind, folder, rows in arrivals[number] if number < len(arrivals) else ():
                write(place, f"{folder}{next(NUMBERS)}.{kind}", rows)
                day = folder[4:-1] if folder.startswith("day=") else ""
                wanted.update(Leg(row.n, row.carrier, day) for row in rows)
            environment.dies_at, environment.keeps = deaths[number] if number < len(deaths) else (-1, False)
            try:
                run = copying().run(environment, bind={"legs": next(sources)}, until_now=True)
            except SamzaError:
                continue
            assert Counter(run.received("copies")) == wanted
    assert (
        Counter(copying().run(environment, bind={"legs": next(sources)}, until_now=True).received("copies")) == wanted
    )


def test_a_live_run_follows_a_folder(tmp_path: Path, place: str) -> None:
    source = connectors.growing_folder(f"{place}/*.{{jsonl,csv}}", poll_ms=10, settled_ms=0)
    if "://" not in place:
        Path(place).mkdir()

    async def main(start: int) -> None:
        async with copying().running(tmp_path / "data", bind={"legs": source}) as run:
            for number in range(start, start + 3):
                write(place, f"{9 - number}.{('jsonl', 'csv')[number % 2]}", [Leg(number, "AA")])
                write(place, f"{number}.parquet", [Leg(99, "not of the glob")])
                await until(partial(has_more_than, run, number))
            assert [leg.n for leg in run.received("copies")] == [*range(start + 3)]

    asyncio.run(main(0))
    asyncio.run(main(3))


@pytest.mark.parametrize("kind", KINDS)
def test_the_suite_for_sources_passes(place: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "AT_ONCE", 3)
    for number in range(3):
        write(place, f"{number}.{kind}", [Leg(n, "AA") for n in range(7)])
    check_source(lambda: connectors.growing_folder(place, settled_ms=0), times=3)


def test_by_url_on_the_command_line(place: str, tmp_path: Path) -> None:
    write(place, "1.jsonl", [Leg(1, "AA")])
    run = copying().run(tmp_path / "data", bind={"legs": f"growing:{place}"}, until_now=True)
    assert run.received("copies") == [Leg(1, "AA")]


@pytest.mark.parametrize("by_url", [True, False])
def test_history_is_not_computed_of_a_folder_that_only_a_live_run_takes_in(place: str, by_url: bool) -> None:
    write(place, "1.jsonl", [Leg(1, "AA")])
    what = f"growing:{place}" if by_url else connectors.growing_folder(place)
    environment = DyingEnvironment()
    with pytest.raises(SamzaError, match="only a live run takes into the stream of that name: leave the binding out"):
        copying().reprocess(environment, bind={"legs": what})
    assert "legs" not in environment.streams()


def test_records_of_others_in_the_stream_are_told_once(place: str, caplog: pytest.LogCaptureFixture) -> None:
    write(place, "1.jsonl", [Leg(1, "AA")])
    environment, source = DyingEnvironment(), connectors.growing_folder(place, settled_ms=0)
    environment.create_stream("legs", StreamConfig())
    environment.append([Append("legs", 0, Batch([b'{"n":7,"carrier":"UA"}']))])
    for told in (1, 1):
        run = copying().run(environment, bind={"legs": source}, until_now=True)
        assert caplog.text.count("which holds records already that it has not brought") == told
    assert {leg.n for leg in run.received("copies")} == {1, 7}


def test_records_that_it_has_brought_are_not_told(place: str, caplog: pytest.LogCaptureFixture) -> None:
    write(place, "1.jsonl", [Leg(1, "AA")])
    environment, source = DyingEnvironment(), connectors.growing_folder(place, settled_ms=0)
    for _ in range(2):
        copying().run(environment, bind={"legs": source}, until_now=True)
    environment.reset("copying")
    copying().run(environment, bind={"legs": source}, until_now=True)
    assert "holds records already" not in caplog.text


def test_rows_that_are_none_are_for_the_policy_of_the_input(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("n,carrier\n1,AA\nAA\n3,AA\n")
    source = connectors.growing_folder(tmp_path / "in", settled_ms=0)
    run = copying(on_error=dead_letter("bad")).run(tmp_path / "data", bind={"legs": source}, until_now=True)
    assert [leg.n for leg in run.received("copies")] == [1, 3]
    assert len(run.received("bad")) == 1
    assert "1.csv has rows that can't be read" in caplog.text and "has 1 fields where the header names 2" in caplog.text


def test_a_file_may_go_once_it_was_taken_in(tmp_path: Path) -> None:
    source = connectors.growing_folder(tmp_path / "in", settled_ms=0)
    for number in range(3):
        write(f"{tmp_path}/in", f"{number}.jsonl", [Leg(number, "AA")])
        run = copying().run(tmp_path / "data", bind={"legs": source}, until_now=True)
        os.remove(tmp_path / "in" / f"{number}.jsonl")
        assert [leg.n for leg in run.received("copies")] == [*range(number + 1)]


def test_a_file_behind_a_url_that_was_changed_to_as_many_bytes_is_noticed(tmp_path: Path) -> None:
    system, place = fsspec.filesystem("memory"), f"/changed-{next(NUMBERS)}"
    for number in (1, 2):
        system.pipe(f"{place}/a.jsonl", b'{"n": %d, "carrier": "AA"}\n' % number)
        source = f"growing:memory:/{place}"
        if number == 1:
            run = copying().run(tmp_path, bind={"legs": source}, until_now=True)
            assert [leg.n for leg in run.received("copies")] == [1]
    with pytest.raises(Damaged, match=r"a\.jsonl was changed since it was taken in"):
        copying().run(tmp_path, bind={"legs": source}, until_now=True)


def test_a_file_that_was_changed_is_noticed(tmp_path: Path) -> None:
    source = connectors.growing_folder(tmp_path / "in", settled_ms=0)
    for rows in ([Leg(1, "AA")], [Leg(1, "AA"), Leg(2, "AA")]):
        write(f"{tmp_path}/in", "a.jsonl", rows)
        if len(rows) == 1:
            copying().run(tmp_path / "data", bind={"legs": source}, until_now=True)
    with pytest.raises(Damaged, match=r"a\.jsonl was changed since it was taken in"):
        copying().run(tmp_path / "data", bind={"legs": source}, until_now=True)


@pytest.mark.parametrize("at_once", [2, 100_000])
def test_the_way_out_of_a_file_that_was_cut_off_is_one(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole one in its place is read where none of its rows were taken in; else its other rows under another name."""
    monkeypatch.setattr(growing, "AT_ONCE", at_once)
    rows = [msgspec.json.encode(Leg(n, random.Random(n).randbytes(600).hex())) + b"\n" for n in range(3_000)]
    whole = gzip.compress(b"".join(rows))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    source = connectors.growing_folder(folder, settled_ms=0)

    def seen() -> list[int]:
        run = copying().run(tmp_path / "data", bind={"legs": source}, until_now=True)
        return [leg.n for leg in run.received("copies")]

    with pytest.raises(Damaged, match="cut off") as failed:
        seen()
    taken = re.search(r"(\S+) of its rows were taken in: put those behind them", str(failed.value))
    assert (taken is None) == ("put a whole one in its place" in str(failed.value)) == (at_once == 100_000)
    (folder / "a.jsonl.gz").write_bytes(whole)
    if taken is not None:
        with pytest.raises(Damaged, match=f"was changed .* {taken[1]} of its rows were taken in"):
            seen()
        os.remove(folder / "a.jsonl.gz")
        (folder / "b.jsonl").write_bytes(b"".join(rows[int(taken[1].replace(",", "")) :]))
    assert seen() == [*range(3_000)]


@pytest.mark.parametrize("kind", ["parquet", "avro", "arrow"])
def test_a_file_that_can_not_be_read_is_told_with_the_way_out(kind: str, tmp_path: Path) -> None:
    write(f"{tmp_path}/in", f"a.{kind}", [])
    (tmp_path / "in" / f"a.{kind}").write_bytes(b"")
    source = connectors.growing_folder(tmp_path / "in", settled_ms=0)
    with pytest.raises(SamzaError, match=rf"a\.{kind}.*put a whole one in its place, or remove it"):
        copying().run(tmp_path / "data", bind={"legs": source}, until_now=True)
    os.remove(tmp_path / "in" / f"a.{kind}")
    write(f"{tmp_path}/in", "b.jsonl", [Leg(1, "AA")])
    run = copying().run(tmp_path / "data", bind={"legs": source}, until_now=True)
    assert [leg.n for leg in run.received("copies")] == [1]


def test_links_to_folders_above_and_pipes_hold_nothing_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(f"{tmp_path}/in/sub", "a.jsonl", [Leg(1, "AA")])
    (tmp_path / "in" / "sub" / "again").symlink_to(tmp_path / "in", target_is_directory=True)
    (tmp_path / "in" / "itself").symlink_to(tmp_path / "in", target_is_directory=True)
    write(f"{tmp_path}/other", "b.jsonl", [Leg(2, "AA")])
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "other", target_is_directory=True)
    os.mkfifo(tmp_path / "in" / "pipe.jsonl")
    source = connectors.growing_folder(tmp_path / "in", settled_ms=0)
    run = copying().run(tmp_path / "data", bind={"legs": source}, until_now=True)
    assert sorted(leg.n for leg in run.received("copies")) == [1, 2]
    assert re.search(r"pipe\.jsonl is a pipe or a device", caplog.text)


def test_a_file_that_is_renamed_behind_that_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = connectors.growing_folder(tmp_path / "in", settled_ms=0)
    for name in ("a.jsonl", "b.jsonl"):
        write(f"{tmp_path}/in", name, [Leg(1, "AA")])
        copying().run(tmp_path / "data", bind={"legs": source}, until_now=True)
    assert "has the size and time of" not in caplog.text
    os.rename(tmp_path / "in" / "a.jsonl", tmp_path / "in" / "c.jsonl")
    run = copying().run(tmp_path / "data", bind={"legs": source}, until_now=True)
    assert len(run.received("copies")) == 3
    assert re.search(r"c\.jsonl has the size and time of .*a\.jsonl, which was taken in and is gone", caplog.text)


def test_a_file_is_taken_in_once_it_lies_still(tmp_path: Path) -> None:
    write(f"{tmp_path}/in", "old.jsonl", [Leg(1, "AA")])
    os.utime(tmp_path / "in" / "old.jsonl", (1, 1))
    write(f"{tmp_path}/in", "new.jsonl", [Leg(2, "AA")])
    os.utime(tmp_path / "in" / "new.jsonl", (1 << 33, 1 << 33))
    source = connectors.growing_folder(tmp_path / "in", poll_ms=1)

    async def main() -> None:
        async with copying().running(tmp_path / "data", bind={"legs": source}) as run:
            await until(lambda: has_more_than(run, 0))
            assert [leg.n for leg in run.received("copies")] == [1]
            os.utime(tmp_path / "in" / "new.jsonl", (1, 1))
            await until(lambda: has_more_than(run, 1))

    asyncio.run(main())


def test_what_is_no_data_is_told_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(f"{tmp_path}/in", "a.jsonl", [Leg(1, "AA")])
    for name in ("a.jsonl.tmp", ".b.jsonl", "_c.jsonl"):
        (tmp_path / "in" / name).write_text("no data")
    source = connectors.growing_folder(tmp_path / "in", settled_ms=0)
    run = copying().run(tmp_path / "data", bind={"legs": source}, until_now=True)
    assert [leg.n for leg in run.received("copies")] == [1]
    told = [record.getMessage() for record in caplog.records if "is not taken in" in record.getMessage()]
    assert len(told) == 1 and "a.jsonl.tmp" in told[0]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    for where in (tmp_path / "absent", tmp_path / "absent" / "*.jsonl"):
        with pytest.raises(SamzaError, match=r"there is no folder .*absent for files to come to"):
            copying().run(tmp_path / "data", bind={"legs": connectors.growing_folder(where)}, until_now=True)


@pytest.mark.parametrize("said", [{"poll_ms": 0}, {"settled_ms": -1}, {"poll_ms": 0.5}])
def test_lengths_of_time_are_whole(said: dict[str, int]) -> None:
    with pytest.raises(SamzaError, match="write whole ms of at least"):
        connectors.growing_folder("in", **said)


def test_a_url_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(SamzaError, match=r"needs fsspec, which is not installed: pip install 'samza-dsl\[files\]'"):
        copying().run(tmp_path, bind={"legs": "growing:memory://none"}, until_now=True)
