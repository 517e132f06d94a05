"""Paths, globs, nested and compressed folders, and folders that name fields: one input, wherever its files lie."""

import bz2
import csv
import gzip
import io
import json
import sys
import tempfile
import tracemalloc
from datetime import date
from pathlib import Path
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.columnar.terms import Term
from runtime.encoding.columns import SureColumns
from runtime.encoding.serdes import Json
from runtime.systems.files.files import open_source
from runtime.systems.files.parquet import ParquetSource
from runtime.systems.files.parquet_columns import ColumnsOfParquet
from runtime.systems.files.places import contents
from runtime.systems.files.places.locations import NO_VALUE, files_of, matches
from runtime.systems.files.places.remote import opened_system
from samza_dsl import App, SamzaError
from samza_dsl.formats import CsvFiles
from tests.runtime.object_store import object_store
from tests.scale import examples


class Leg(msgspec.Struct, frozen=True):
    n: int
    carrier: str
    day: date
    hour: int | None
    code: str


LEGS = st.lists(
    st.builds(
        Leg,
        n=st.integers(-(2**31), 2**31),
        carrier=st.text(st.characters(exclude_categories=["C", "Zs"]), min_size=1),
        day=st.dates(),
        hour=st.none() | st.integers(-100, 100),
        code=st.sampled_from(["007", "a/b", "x=y", "é %"]),
    ),
    min_size=1,
    max_size=20,
)


def encoded(kind, rows):
    """Return the bytes of a file, and its suffix."""
    if kind == "parquet":
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), file)
        return file.getvalue(), ".parquet"
    if kind.startswith("csv"):
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        data, suffix = text.getvalue().encode(), ".csv"
    else:
        data, suffix = "".join(json.dumps(row) + "\n" for row in rows).encode(), ".jsonl"
    if kind.endswith("gz"):
        return gzip.compress(data), suffix + ".gz"
    return (bz2.compress(data), suffix + ".bz2") if kind.endswith("bz2") else (data, suffix)


def laid_out(root, kind, legs):
    """Write records as Hive and Spark do, one file in each folder."""
    folders = {}
    for leg in legs:
        hour = NO_VALUE if leg.hour is None else leg.hour
        folder = f"day={leg.day}/hour={hour}/code={quote(leg.code, safe='')}"
        folders.setdefault(folder, []).append({"n": leg.n, "carrier": leg.carrier})
    for folder, rows in folders.items():
        data, suffix = encoded(kind, rows)
        (root / folder).mkdir(parents=True)
        (root / folder / f"part-0{suffix}").write_bytes(data)
        (root / folder / "_SUCCESS").touch()
    (root / "_temporary").mkdir()
    (root / "_temporary" / "part-0.txt").touch()
    return len(folders)


def read_all(source, kind):
    decode, found = source.serde(Json(kind)).decode, []
    for partition in range(source.partitions):
        offset = 0
        while (read := source.read(partition, offset, 3)) is not None:
            found += map(decode, read.batch.values)
            offset = read.next_offset
    source.close()
    return found


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "csv.bz2", "parquet"])
@given(legs=LEGS, bound=st.sampled_from(["{}", "{}/", "{}/day=*", "{}/**/part-*", "file://{}", "{}/day=*/hour={{*,}}"]))
@settings(deadline=None, max_examples=examples(20, 1_000))
def test_fields_that_folders_name_have_the_declared_types(kind, legs, bound):
    with tempfile.TemporaryDirectory() as directory:
        folders = laid_out(Path(directory), kind, legs)
        source = open_source(bound.format(directory))
        assert source.partitions == folders
        assert sorted(read_all(source, Leg), key=repr) == sorted(legs, key=repr)


def test_columns_have_the_fields_that_folders_name(tmp_path):
    legs = [Leg(n, "AA", date(2026, 1, 1 + n % 3), n % 4 or None, "007") for n in range(12)]
    laid_out(tmp_path, "parquet", legs)
    fields = [Term("column", ("n",), "int"), Term("column", ("hour",), "int", optional=True)]
    for needed in (["n", "hour"], ["hour"], ["hour", "code"]):
        for file in files_of(tmp_path):
            fields = [*fields[:2], Term("column", ("code",), "str")]
            source = ColumnsOfParquet([file], fields, needed)
            rows = ParquetSource([file]).read(0, 0).batch.values.rows()
            found = source.read(0, 0).batch.values
            assert isinstance(found, SureColumns)
            decoded = [msgspec.to_builtins(msgspec.json.decode(row, type=Leg, strict=False)) for row in rows]
            assert found.table.to_pylist() == [{name: row[name] for name in needed} for row in decoded]
            assert found.rows() == rows
    wrong = [Term("column", ("n",), "int"), Term("column", ("day",), "int")]
    assert not isinstance(ColumnsOfParquet([file], wrong, ["n"]).read(0, 0).batch.values, SureColumns)


class Hour(msgspec.Struct, frozen=True):
    n: int
    month: int
    hour: int | None = None
    name: str | None = None


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_numbers_of_folders_may_have_zeros_in_front(kind, tmp_path):
    data, suffix = encoded(kind, [{"n": 1}])
    expected = []
    for month, hour, name in (("01", "00", "007"), ("-012", NO_VALUE, NO_VALUE), ("10", "7", "0")):
        folder = tmp_path / f"month={month}" / f"hour={hour}" / f"name={name}"
        folder.mkdir(parents=True)
        (folder / f"a{suffix}").write_bytes(data)
        given = ((hour, int), (name, str))
        expected.append(Hour(1, int(month), *(None if one == NO_VALUE else of(one) for one, of in given)))
    assert sorted(read_all(open_source(tmp_path), Hour), key=repr) == sorted(expected, key=repr)
    if kind == "csv":
        given = CsvFiles(tmp_path, nulls=("NA",))
        assert sorted(read_all(open_source(given), Hour), key=repr) == sorted(expected, key=repr)


def test_without_a_declared_type_the_names_of_folders_are_text(tmp_path):
    for kind in ("jsonl", "csv", "parquet"):
        laid_out(tmp_path / kind, kind, [Leg(1, "AA", date(2026, 1, 1), 7, "007")])
        (found,) = read_all(open_source(tmp_path / kind), dict)
        assert (found["day"], found["hour"], found["code"]) == ("2026-01-01", "7", "007")


def test_a_folder_names_its_field_also_where_the_file_has_one_of_that_name(tmp_path):
    for kind in ("jsonl", "csv", "parquet"):
        (tmp_path / kind / "n=2").mkdir(parents=True)
        data, suffix = encoded(kind, [{"n": 1}])
        (tmp_path / kind / "n=2" / f"a{suffix}").write_bytes(data)
        assert read_all(open_source(tmp_path / kind), dict[str, int]) == [{"n": 2}]


def test_what_is_no_object_and_objects_without_fields_are_read_as_they_are(tmp_path):
    (tmp_path / "n=2").mkdir()
    (tmp_path / "n=2" / "a.jsonl").write_text('{}\n3\n{ } \n{"a": {}}\n')
    assert read_all(open_source(tmp_path), object) == [{"n": "2"}, 3, {"n": "2"}, {"a": {}, "n": "2"}]


def test_files_come_by_name_folder_by_folder(tmp_path):
    for name in ("b/2.jsonl", "a/10.jsonl", "a/1.jsonl", "c.json", "a/.hidden.jsonl", "a/_part.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n")
    found = [str(file.path.relative_to(tmp_path)) for file in files_of(tmp_path)]
    assert found == ["a/1.jsonl", "a/10.jsonl", "b/2.jsonl", "c.json"]


def test_a_name_with_the_letters_of_a_glob_is_itself_where_it_is_there(tmp_path):
    (tmp_path / "data[1].jsonl").write_text("1\n")
    assert read_all(open_source(tmp_path / "data[1].jsonl"), int) == [1]


@pytest.mark.parametrize(
    ("bound", "error"),
    [
        ("{}/day=*", r"there is no file or directory that .*day=\* matches; check the pattern"),
        ("file://{}/x.jsonl", "there is no file or directory /.*/x.jsonl; check the path"),
        ("{}/two", "give the fields day, and those of .* hour: bind folders that give the same"),
    ],
)
def test_what_is_no_input_is_refused(tmp_path, bound, error):
    for folder in ("two/day=1", "two/hour=1"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.jsonl").touch()
    with pytest.raises(SamzaError, match=error):
        open_source(bound.format(tmp_path))


@given(st.lists(st.sampled_from("ab"), min_size=1), st.lists(st.sampled_from(["a", "b", "*", "**", "[!a]"])))
def test_a_glob_over_urls_means_what_one_over_folders_means(names, patterns):
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "/".join(names)).mkdir(parents=True)
        found = [Path(directory), *Path(directory).glob("/".join(patterns))] if patterns else [Path(directory)]
        above = {"/".join(names[:depth]) for depth in range(1, len(names) + 1)}
        expected = not patterns or any(str(one.relative_to(directory)) in above for one in found[1:])
        if patterns and all(each == "**" for each in patterns):
            expected = True
        assert matches("/".join(names), "/".join(patterns) if patterns else "**") == expected


def test_an_application_reads_days_of_compressed_folders(tmp_path):
    legs = [Leg(n, "AA", date(2026, 1, 1 + n % 3), n % 5, "007") for n in range(100)]
    laid_out(tmp_path, "jsonl.gz", legs)
    app = App("days")
    app.input("legs", value=Leg).send_to(app.output("out", value=Leg))
    found = app.run(bind={"legs": f"{tmp_path}/day=2026-01-0{{1,3}}"}, data=tmp_path / ".data").received("out")
    assert sorted(found, key=repr) == sorted((leg for leg in legs if leg.day.day != 2), key=repr)


@pytest.fixture
def lake(tmp_path, monkeypatch):
    """Return the folder of a bucket that is called `lake`."""
    with object_store(tmp_path) as address:
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            monkeypatch.setenv(name, value)
        opened_system.cache_clear()
        (tmp_path / "lake").mkdir()
        yield tmp_path / "lake"


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv.bz2", "parquet"])
@pytest.mark.parametrize("bound", ["s3://lake/legs", "s3a://lake/legs/", "s3a://lake/**/day=*/", Path("s3a://lake")])
def test_a_local_run_reads_what_lies_in_an_object_store(lake, monkeypatch, kind, bound):
    monkeypatch.setattr(contents, "AHEAD", 1_000)
    legs = [Leg(n, "AA" * n, date(2026, 1, 1 + n % 3), n % 5, "007") for n in range(30)]
    laid_out(lake / "legs", kind, legs)
    assert sorted(read_all(open_source(bound), Leg), key=repr) == sorted(legs, key=repr)


@pytest.mark.parametrize(
    ("bound", "error"),
    [
        ("s3a://lake/absent/x.jsonl", "there is no file s3a://lake/absent/x.jsonl, nor one below it"),
        ("s3a://lake/x=*/", r"there is no file s3a://lake/x=\*/, nor"),
        ("dbfs:/lake/x.jsonl", r"can't open dbfs:/lake/x.jsonl: .*Spark opens what its session can: on=Spark"),
    ],
)
def test_a_url_of_nothing_is_told_as_it_was_written(lake, bound, error):
    with pytest.raises(SamzaError, match=error):
        open_source(bound)


def test_a_url_names_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "runtime.systems.files.places.remote", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SamzaError, match=r"s3a://b/x.jsonl needs pyarrow, .* pip install 'samza-dsl\[files\]'"):
        open_source("s3a://b/x.jsonl")


class Weighed(msgspec.Struct):
    """A record whose folder says a number."""

    n: int
    km: float | None = None


@pytest.mark.parametrize("said", ["nan", "inf", "-inf"])
def test_a_folder_that_says_no_finite_number_is_never_read_as_none(tmp_path, said):
    for kind in ("jsonl", "parquet"):
        (tmp_path / kind / f"km={said}").mkdir(parents=True)
        data, suffix = encoded(kind, [{"n": 1}])
        (tmp_path / kind / f"km={said}" / f"a{suffix}").write_bytes(data)
    (found,) = read_all(open_source(tmp_path / "parquet"), Weighed)
    assert repr(found.km) == said
    with pytest.raises(msgspec.ValidationError):
        read_all(open_source(tmp_path / "jsonl"), Weighed)


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_of_compressed_files_that_nobody_reads_just_now_nothing_is_held(tmp_path, suffix):
    opened = {".gz": gzip.open, ".bz2": bz2.open}[suffix]
    for number in range(100):
        with opened(tmp_path / f"{number}.jsonl{suffix}", "wb") as file:
            file.write(b"1234567\n" * 20)
    tracemalloc.start()
    try:
        source = open_source(tmp_path)
        read = [source.read(number, 0).batch.values for number in range(source.partitions)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [*map(len, read)] == [20] * 100
    assert held < 100 * 10_000
    assert source.read(7, 19).batch.values == [b"1234567"]


@pytest.mark.parametrize(
    ("bound", "instead"),
    [
        ("s3://me:secret@lake/legs.csv", '"rolling:s3://lake"'),
        (Path("s3a://lake/days/legs.parquet"), '"rolling:s3a://lake/days"'),
        ("memory://lake/legs.jsonl", '"rolling:memory://lake"'),
        ("https://host/legs.jsonl?key=secret", '"webhook+https://host/legs.jsonl"'),
    ],
)
def test_a_file_that_can_not_be_written_there_is_told_with_what_can(tmp_path, bound, instead):
    with pytest.raises(SamzaError, match="a file as an output lies on this machine") as told:
        numbers().run(tmp_path, bind={"numbers": [1], "copies": bound})
    assert instead in str(told.value) and "secret" not in str(told.value)


@pytest.mark.parametrize("url", ["mysql://me:secret@db/shop?table=paid", "kinesis://x", "mongodb://h/x.jsonl"])
def test_a_url_of_no_connector_is_told_as_that(tmp_path, url):
    for bind in ({"numbers": [1], "copies": url}, {"numbers": url, "copies": "copies.jsonl"}):
        with pytest.raises(SamzaError, match=r"no connector of \w+:// is installed") as told:
            numbers().run(tmp_path, bind=bind)
        assert "rolling" not in str(told.value) and "secret" not in str(told.value)


def test_a_url_of_this_machine_is_written(tmp_path):
    for values in ([1], [1, 2]):
        numbers().run(tmp_path / "data", bind={"numbers": values, "copies": f"file://{tmp_path}/a%20b.jsonl"})
    assert (tmp_path / "a b.jsonl").read_text() == "1\n2\n"


def numbers():
    app = App("numbers")
    app.input("numbers", value=int).send_to(app.output("copies", value=int))
    return app
