"""Every bound output keeps exactly what was flushed, through crashes at any point."""

import datetime as dt
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from unittest import mock

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from operators.core.base import Batch, Serde
from runtime.encoding.serdes import Bytes, Json, String, Tagged
from runtime.model.errors import Damaged, EnvironmentFault, EnvironmentFull, SamzaError, SerdeError
from runtime.ports.sink import Sink
from runtime.systems.files import parquet, record_files
from runtime.systems.files.files import open_folder, open_sink, open_source
from runtime.systems.files.places.locations import fields_in
from runtime.systems.files.places.tables import IntoTable
from runtime.systems.memory.lists import ListSink, ListSource
from tests.scale import examples


class Pane(msgspec.Struct):
    key: str
    total: int | None


PANES = st.lists(st.builds(Pane, total=st.none() | st.integers(-(2**63), 2**63 - 1)), max_size=8)


class Sinks(RuleBasedStateMachine):
    """A sink against a list: what is flushed stays, what is not flushed goes with the crash."""

    file_name: str

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name, self.file_name)
        self.patches: list[Any] = [
            mock.patch.object(record_files, "PENDING_BYTES", 40),
            mock.patch.object(parquet, "ROWS_PER_PART", 5),
            mock.patch("os.fsync"),
        ]
        for patch in self.patches:
            patch.start()
        self.flushed: list[Pane] = []
        self.pending: list[Pane] = []
        self.positions: list[tuple[int, list[Pane]]] = [(0, [])]

    def open(self) -> Sink:
        return open_sink(self.path)

    def content(self) -> list[Pane]:
        return read_back(self.path, Pane)

    @initialize()
    def start(self) -> None:
        self.sink = self.open()
        self.serde = self.sink.serde(Json(Pane))
        self.sink.recover(0)

    @rule(panes=PANES)
    def write(self, panes: list[Pane]) -> None:
        self.sink.write(Batch(list(map(self.serde.encode, panes))))
        self.pending += panes

    @rule()
    def flush(self) -> None:
        position = self.sink.flush()
        self.flushed = self.flushed + self.pending
        self.pending = []
        assert position >= self.positions[-1][0]
        self.positions.append((position, self.flushed))
        assert self.content() == self.flushed

    @rule(torn=st.binary(max_size=20), back=st.integers(0, 2), closed=st.booleans())
    def crash(self, torn: bytes, back: int, closed: bool) -> None:
        """Start again from one of the last commits, over what a write had left unfinished."""
        if closed:
            self.sink.close()
        self.leave_unfinished(torn)
        del self.positions[max(1, len(self.positions) - back) :]
        position, self.flushed = self.positions[-1]
        self.pending = []
        self.sink = self.open()
        self.serde = self.sink.serde(Json(Pane))
        self.sink.recover(position)
        assert self.content() == self.flushed
        assert not list(self.path.parent.glob("**/*.tmp"))

    def leave_unfinished(self, torn: bytes) -> None:
        with self.file.open("ab") as file:
            file.write(torn)

    @property
    def file(self) -> Path:
        return self.path

    @invariant()
    def nothing_flushed_is_lost(self) -> None:
        assert self.content()[: len(self.flushed)] == self.flushed

    def teardown(self) -> None:
        self.sink.close()
        for patch in self.patches:
            patch.stop()
        self.directory.cleanup()


class JsonlSinks(Sinks):
    file_name = "out.jsonl"


class CsvSinks(Sinks):
    file_name = "out.csv"


class SinksOfParts(Sinks):
    """A sink of a directory that is there: it writes a file in it."""

    file_name = "out.jsonl"

    def __init__(self) -> None:
        super().__init__()
        self.path.mkdir()

    @property
    def file(self) -> Path:
        return self.path / "part-000001.jsonl"


class ParquetSinks(Sinks):
    file_name = "out.parquet"

    def leave_unfinished(self, torn: bytes) -> None:
        (self.path / ".part-000001.parquet.tmp").write_bytes(torn)


class PartedSinks(Sinks):
    """A folder with one for each value of a column, whose rows are of no order among folders."""

    file_name = "parted"

    def open(self) -> Sink:
        return open_folder(IntoTable(self.path, partition_by="total"))

    def content(self) -> list[Pane]:
        found = read_back(self.path, Pane)
        expected = [pane for pane in self.flushed if pane in found and (found.remove(pane) is None)]
        return expected + found

    def leave_unfinished(self, torn: bytes) -> None:
        folder = self.path / "total=1"
        folder.mkdir(exist_ok=True)
        (folder / ".part-000001.parquet.tmp").write_bytes(torn)


class ListSinks(Sinks):
    file_name = "none"

    def open(self) -> Sink:
        self.list_sink = getattr(self, "list_sink", ListSink())
        return self.list_sink

    def content(self) -> list[Pane]:
        return self.list_sink.values

    def leave_unfinished(self, torn: bytes) -> None:
        pass


TestJsonlSink = JsonlSinks.TestCase
TestCsvSink = CsvSinks.TestCase
TestSinkOfParts = SinksOfParts.TestCase
TestParquetSink = ParquetSinks.TestCase
TestPartedSink = PartedSinks.TestCase
TestListSink = ListSinks.TestCase
for _test in (TestJsonlSink, TestCsvSink, TestSinkOfParts, TestParquetSink, TestPartedSink, TestListSink):
    _test.settings = settings(deadline=None, max_examples=examples(26, 1_000), stateful_step_count=15)
del _test


def read_back(path: Path, kind: Any) -> list[Any]:
    if path.is_dir() and not list(path.rglob("part-*")):
        return []
    source = open_source(path)
    decode = source.serde(Json(kind)).decode
    rows: list[Any] = []
    for partition in range(source.partitions):
        offset = 0
        while read := source.read(partition, offset):
            rows += map(decode, read.batch.values)
            offset = read.next_offset
    source.close()
    return rows


def fill(sink: Sink, declared: Serde, values: list[Any]) -> None:
    encode = sink.serde(declared).encode
    sink.write(Batch([None if value is None else encode(value) for value in values]))
    sink.flush()


FILES = ["out.jsonl", "out.csv", "out.parquet"]


@pytest.mark.parametrize("name", FILES)
def test_opening_changes_nothing_until_it_is_told_to(tmp_path: Path, name: str) -> None:
    fill(open_sink(tmp_path / name), Json(Pane), [Pane("a", 1)])
    sink = open_sink(tmp_path / name)
    assert read_back(tmp_path / name, Pane) == [Pane("a", 1)]
    fill(sink, Json(Pane), [Pane("b", 2)])
    assert read_back(tmp_path / name, Pane) == [Pane("a", 1), Pane("b", 2)]
    sink.recover(0)
    assert read_back(tmp_path / name, Pane) == []
    assert not [path for path in tmp_path.iterdir() if path.name != name]


@pytest.mark.parametrize("name", FILES)
def test_an_output_that_was_changed_from_outside_is_noticed(tmp_path: Path, name: str) -> None:
    with pytest.raises(Damaged, match="changed from outside"):
        open_sink(tmp_path / name).recover(3)


@pytest.mark.parametrize("name", FILES)
def test_what_can_not_be_written_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(SamzaError, match="no existing directory"):
        open_sink(tmp_path / "absent" / name)
    with pytest.raises(SamzaError, match="known are"):
        open_sink(tmp_path / "out.txt")
    (tmp_path / "out.parquet").touch()
    for suffix in ("jsonl", "csv"):
        (tmp_path / f"out.{suffix}" / f"part-000001.{suffix}").mkdir(parents=True)
    with pytest.raises(SamzaError, match=r"is a (file|directory)"):
        open_sink(tmp_path / name)


class Trip(msgspec.Struct, frozen=True, rename={"city": "Città"}):
    city: str | None
    day: dt.date
    late: bool
    gate: int | None
    km: float


@given(
    trips=st.lists(
        st.builds(
            Trip,
            city=st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
            gate=st.none() | st.integers(-(2**63), 2**63 - 1),
            km=st.floats(allow_nan=False),
        ),
        min_size=1,
        max_size=12,
    ),
    by=st.lists(st.sampled_from(["Città", "day", "late", "gate"]), min_size=1, unique=True),
)
@settings(deadline=None, max_examples=examples(50, 5_000))
def test_a_folder_parted_by_columns_is_read_as_what_was_written(trips: list[Trip], by: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "trips")
        fill(open_folder(IntoTable(path, partition_by=by)), Json(Trip), trips)
        assert sorted(read_back(path, Trip), key=repr) == sorted(trips, key=repr)
        files = [*path.rglob("*.parquet")]
        assert all(not {*by} & {*pq.ParquetFile(file).schema_arrow.names} for file in files)
        assert len(files) == len({tuple(msgspec.to_builtins(one)[name] for name in by) for one in trips})
        folders = [folder for folder in path.rglob("*") if folder.is_dir()]
        assert all(dict(fields_in(f"{folder.relative_to(path)}/x")).keys() <= {*by} for folder in folders)


@pytest.mark.parametrize(
    ("declared", "by", "wrong"),
    [
        (Json(Trip), ["km"], "km is no declared text"),
        (Json(Trip), ["where"], "where is no declared text"),
        (Json(), ["city"], "city is no declared text"),
        (Json(Pane), ["key", "total"], "no column is left"),
        (Json(int), ["value"], "value is no declared text"),
    ],
)
def test_columns_that_name_no_folders_are_refused(tmp_path: Path, declared: Serde, by: list[str], wrong: str) -> None:
    with pytest.raises(SamzaError, match=wrong):
        open_folder(IntoTable(tmp_path / "out", partition_by=by)).serde(declared)


@pytest.mark.parametrize("key", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_that_would_be_read_as_none_is_refused(tmp_path: Path, key: str) -> None:
    sink = open_folder(IntoTable(tmp_path / "out", partition_by="key"))
    with pytest.raises(SerdeError, match=f"a folder can't say key='{key}'"):
        fill(sink, Json(Pane), [Pane("a", 1), Pane(key, 2)])
    assert not [*(tmp_path / "out").rglob("part-*.parquet")]


def test_json_lines_take_tombstones_and_any_value(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    fill(open_sink(path), Json(), [{"a": "é\n"}, None, 3])
    fill(open_sink(path), String(), ["a\nb"])
    fill(open_sink(path), Tagged(), [(1, Pane("a", None))])
    fill(open_sink(path), Bytes(), [b'{"a":\n 1}'])
    assert path.read_bytes().splitlines() == [
        '{"a":"é\\n"}'.encode(),
        b"null",
        b"3",
        b'"a\\nb"',
        b'[1,{"key":"a","total":null}]',
        b'{"a":1}',
    ]


class Shouting:
    """A serde of a user's own."""

    def encode(self, value: str) -> bytes:
        return value.upper().encode()

    def decode(self, data: bytes) -> str:
        return data.decode().lower()


@pytest.mark.parametrize("value", ["abc", "", '"a" 1'])
def test_json_lines_refuse_what_is_not_json(tmp_path: Path, value: str) -> None:
    serde = open_sink(tmp_path / "out.jsonl").serde(Shouting())
    assert serde.decode(serde.encode('"a"')) == '"a"'
    with pytest.raises(SerdeError, match="not JSON"):
        serde.encode(value)


def test_a_line_break_never_gets_into_a_line(tmp_path: Path) -> None:
    sink = open_sink(tmp_path / "out.jsonl")
    with pytest.raises(SerdeError, match="line break"):
        sink.write(Batch([b"1\n2"]))
    assert sink.flush() == 0


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_rows_need_named_fields(tmp_path: Path, name: str) -> None:
    sink = open_sink(tmp_path / name)
    if name == "out.csv":
        with pytest.raises(SamzaError, match="declare the output's value"):
            sink.serde(String())
    with pytest.raises(SerdeError, match="no row"):
        sink.serde(Json()).encode(3)
    with pytest.raises(SerdeError, match="tombstone"):
        sink.write(Batch([None]))


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        (String(), ["a", ""]),
        (Bytes(), [b"\0"]),
        (Json(int), [1, -7]),
        (Json(int | None), [2]),
        (Json(list[float]), [[0.5]]),
    ],
)
def test_plain_values_are_rows_of_one_column_of_parquet(tmp_path: Path, declared: Serde, values: list[Any]) -> None:
    fill(open_sink(tmp_path / "out.parquet"), declared, values)
    assert pq.read_table(tmp_path / "out.parquet").to_pydict() == {"value": values}


class Renamed(msgspec.Struct, rename="camel", omit_defaults=True, tag="renamed"):
    first_name: str = "x"
    last_name: str | None = None


@pytest.mark.parametrize("name", FILES)
def test_a_value_comes_back_whatever_it_leaves_out(tmp_path: Path, name: str) -> None:
    values = [Renamed(), Renamed("a", "b")]
    fill(open_sink(tmp_path / name), Json(Renamed), values)
    assert read_back(tmp_path / name, Renamed) == values


class Leaving(msgspec.Struct, omit_defaults=True):
    number: int = 1
    text: str = "x"


class OfText(TypedDict):
    one: Leaving


class ByPlace(NamedTuple):
    one: Leaving


class Around(msgspec.Struct):
    typed: OfText
    by_place: ByPlace
    both: tuple[Leaving, Leaving]
    by_name: dict[str, OfText] | None = None


def test_parquet_has_what_records_within_any_type_leave_out(tmp_path: Path) -> None:
    one, other = Leaving(), Leaving(2)
    values = [
        Around({"one": one}, ByPlace(one), (one, other), {"a": {"one": one}}),
        Around({"one": other}, ByPlace(other), (other, one)),
    ]
    fill(open_sink(tmp_path / "out.parquet"), Json(Around), values)
    first, second = pq.read_table(tmp_path / "out.parquet").to_pylist()
    whole, changed = {"number": 1, "text": "x"}, {"number": 2, "text": "x"}
    assert first["typed"] == {"one": whole} and first["both"] == [whole, changed] and first["by_place"] == [whole]
    assert second["typed"] == {"one": changed} and second["both"] == [changed, whole]
    assert dict(first["by_name"])["a"] == {"one": whole}


def test_csv_has_the_columns_of_the_first_record(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    fill(open_sink(path), Json(), [{"a": 1, "b": [1, {"x": None}]}])
    sink = open_sink(path)
    fill(sink, Json(), [{"b": True}])
    assert path.read_bytes() == b'a,b\r\n1,"[1,{""x"":null}]"\r\n,true\r\n'
    with pytest.raises(SerdeError, match="a record also c"):
        fill(sink, Json(), [{"c": 1}])


def test_csv_still_writes_its_header_after_a_refused_batch(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    sink = open_sink(path)
    with pytest.raises(SerdeError, match="a record also b"):
        fill(sink, Json(), [{"a": 1}, {"b": 1}])
    fill(sink, Json(), [{"a": 1}])
    assert path.read_bytes() == b"a\r\n1\r\n"


def test_parquet_parts_have_the_same_columns_where_the_type_is_declared(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "out.parquet"
    sink = open_sink(path)
    fill(sink, Json(Pane), [Pane("a", None)])
    assert sink.flush() == 1
    fill(sink, Json(Pane), [Pane("b", 1)])
    assert sink.flush() == 2
    assert sorted(each.name for each in path.iterdir()) == ["part-000001.parquet", "part-000002.parquet"]
    assert pq.read_table(path).to_pylist() == [{"key": "a", "total": None}, {"key": "b", "total": 1}]


def test_parquet_refuses_a_column_of_mixed_types(tmp_path: Path) -> None:
    with pytest.raises(SerdeError, match="'a' don't fit one column"):
        fill(open_sink(tmp_path / "out.parquet"), Json(), [{"a": 1}, {"a": "x"}])


def test_a_failed_write_is_written_over_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    sink = open_sink(path)
    fill(sink, Json(), [1])
    sink.write(Batch([b"2", b"3"]))
    with mock.patch("os.fsync", side_effect=OSError("no space")), pytest.raises(EnvironmentFault, match="no space"):
        sink.flush()
    sink.write(Batch([b"4"]))
    assert sink.flush() == 8
    assert path.read_bytes() == b"1\n2\n3\n4\n"


def test_a_list_sink_keeps_the_columns() -> None:
    sink = ListSink()
    sink.write(Batch(["a", "b"], keys=[b"x", b"y"], timestamps=[1, 2]))
    sink.write(Batch(["c"]))
    assert (sink.values, sink.keys, sink.timestamps) == (["a", "b", "c"], [b"x", b"y", None], [1, 2, None])
    sink.recover(1)
    assert (sink.values, sink.keys, sink.timestamps, sink.flush()) == (["a"], [b"x"], [1], 1)
    with pytest.raises(Damaged, match="fewer than the 5"):
        sink.recover(5)
    assert ListSource(sink.values).offsets(0) == (0, 1, True)


@pytest.mark.parametrize("name", ["full.jsonl", "full.csv"])
def test_a_full_disk_is_told_with_the_path(name, tmp_path):
    path = tmp_path / name
    path.symlink_to("/dev/full")
    sink = open_sink(path)
    serde = sink.serde(Json(Pane))
    sink.write(Batch([serde.encode(Pane("k", 1))]))
    with pytest.raises(EnvironmentFull, match=f"{name}.*No space left"):
        sink.flush()
    sink.close()


def test_a_directory_that_can_not_be_written_is_told_with_the_path(tmp_path):
    sink = open_sink(tmp_path / "parts.parquet")
    serde = sink.serde(Json(Pane))
    (tmp_path / "parts.parquet" / ".part-000001.parquet.tmp").mkdir(parents=True)
    sink.write(Batch([serde.encode(Pane("k", 1))]))
    with pytest.raises(EnvironmentFault, match=r"parts\.parquet.*directory"):
        sink.flush()
