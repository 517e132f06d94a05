"""Every bound input reads the same rows, whatever the offsets and sizes of the reads."""

import bz2
import gzip
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP, Batch
from runtime.encoding.serdes import Bytes, Json, MessagePack, String
from runtime.model.errors import Damaged, SamzaError
from runtime.ports.source import Source
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.files import parquet, record_files
from runtime.systems.files.archive import Kind, archive_stream
from runtime.systems.files.files import open_sink, open_source
from runtime.systems.files.record_files import RecordSource
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSource
from tests.scale import examples


class Row(msgspec.Struct):
    n: int
    text: str
    note: str | None
    x: float | None
    ok: bool
    at: datetime
    tags: list[str]


ROWS = st.lists(
    st.builds(
        Row,
        n=st.integers(-(2**63), 2**63 - 1),
        note=st.none() | st.text(min_size=1),
        x=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        at=st.datetimes(timezones=st.just(UTC)),
    ),
    max_size=40,
)
READS = st.lists(st.tuples(st.integers(0, 45), st.integers(1, 20)), max_size=20)
FILES = {"jsonl": "in.jsonl", "csv": "in.csv", "parquet": "in.parquet"}


@contextmanager
def small_blocks(size: int = 100) -> Iterator[Path]:
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.multiple(record_files, BLOCK=size, LARGE_BLOCK=4 * size, MANY=3),
        mock.patch.object(parquet, "ROWS_AT_ONCE", 3),
    ):
        yield Path(directory)


def written(path: Path, rows: list[Row]) -> Source:
    """Return the source over what the sink of the same kind made of `rows`."""
    sink = open_sink(path)
    encode = sink.serde(Json(Row)).encode
    sink.write(Batch([encode(row) for row in rows]))
    sink.flush()
    sink.close()
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return open_source(files[0])


def decoded(source: Source, partition: int = 0, kind: Any = Row) -> list[Any]:
    """Return everything in a partition, read from the beginning."""
    decode = source.serde(Json(kind)).decode
    rows: list[Any] = []
    while read := source.read(partition, len(rows)):
        rows += map(decode, read.batch.values)
    return rows


def check_reads(source: Source, rows: list[Any], reads: list[tuple[int, int]], partition: int = 0) -> None:
    decode = source.serde(Json(Row)).decode
    for offset, size in reads:
        if offset > len(rows):
            with pytest.raises(Damaged, match="fewer than"):
                source.read(partition, offset, size)
            continue
        read = source.read(partition, offset, size)
        if offset == len(rows):
            assert read is None
            continue
        assert read is not None
        got = list(map(decode, read.batch.values))
        assert 1 <= len(got) <= size
        assert got == rows[offset : offset + len(got)]
        assert list(read.batch.offsets or ()) == list(range(offset, offset + len(got)))
        assert (read.control, read.next_offset) == (None, offset + len(got))
    assert source.offsets(partition) == (0, len(rows), True)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@given(rows=ROWS.filter(bool), reads=READS)
@settings(deadline=None, max_examples=examples(40, 2_000))
def test_reads_of_an_archive_agree_with_the_list(kind: Kind, rows: list[Row], reads: list[tuple[int, int]]) -> None:
    environment = MemoryEnvironment()
    environment.create_stream("rows", StreamConfig())
    environment.append([Append("rows", 0, Batch([Json(Row).encode(row) for row in rows]))])
    with tempfile.TemporaryDirectory() as directory:
        archive_stream(environment, "rows", Path(directory), kind, rows_per_file=7)
        source = open_source(Path(directory))
        check_reads(source, rows, reads)
        source.close()


@pytest.mark.parametrize("kind", FILES)
@given(rows=ROWS.filter(bool), reads=READS)
@settings(deadline=None, max_examples=examples(40, 2_000))
def test_reads_of_any_size_from_anywhere_agree_with_the_list(
    kind: str, rows: list[Row], reads: list[tuple[int, int]]
) -> None:
    with small_blocks() as directory:
        source = written(directory / FILES[kind], rows)
        check_reads(source, rows, reads)
        source.close()
        assert decoded(source) == rows
        source.close()
        source.close()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


def packed(path: Path, suffix: str, parts: int) -> Path:
    """Compress a file in so many pieces, one behind the other, as `cat a.gz b.gz` has it."""
    data, target = path.read_bytes(), path.with_name(path.name + suffix)
    cuts = [len(data) * part // parts for part in range(parts + 1)]
    target.write_bytes(b"".join(PACKED[suffix](data[start:stop]) for start, stop in pairwise(cuts)))
    return target


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@given(rows=ROWS.filter(bool), reads=READS, parts=st.integers(1, 3))
@settings(deadline=None, max_examples=examples(20, 1_000))
def test_compressed_files_read_like_others(
    kind: str, suffix: str, rows: list[Row], reads: list[tuple[int, int]], parts: int
) -> None:
    with small_blocks() as directory:
        written(directory / FILES[kind], rows).close()
        source = open_source(packed(directory / FILES[kind], suffix, parts))
        assert isinstance(source, RecordSource)
        assert source.expected(0) > 0
        check_reads(source, rows, reads)
        assert source.expected(0) == len(rows)
        source.close()
        assert decoded(source) == rows


@pytest.mark.parametrize("suffix", PACKED)
def test_a_compressed_file_that_was_cut_off_is_told(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"".join(b'{"n": %d}\n' % n for n in range(10_000)))
    path = packed(tmp_path / "in.jsonl", suffix, 1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Damaged, match=rf"in.jsonl{suffix} can't be unpacked"):
        decoded(open_source(path), kind=dict)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@given(rows=ROWS.filter(bool), until=st.integers(0, 45))
@settings(deadline=None, max_examples=examples(20, 1_000))
def test_the_end_of_a_file_is_known_once_it_was_read(kind: str, rows: list[Row], until: int) -> None:
    with small_blocks() as directory:
        source = written(directory / FILES[kind], rows)
        assert isinstance(source, RecordSource)
        offset = 0
        while offset < until and (read := source.read(0, offset)):
            assert source.expected(0) > 0
            offset = read.next_offset
        known = source.known(0)
        assert known.end in (len(rows), MAX_TIMESTAMP)
        if offset == len(rows) and source.read(0, offset) is None:
            assert known == source.known(0) == source.offsets(0) == (0, len(rows), True)
            assert source.expected(0) == len(rows)


@given(rows=ROWS, reads=READS)
def test_lists_read_like_files(rows: list[Row], reads: list[tuple[int, int]]) -> None:
    check_reads(ListSource([rows, rows[::-1]], partitions=2), rows[::-1], reads, partition=1)
    check_reads(ListSource(rows), rows, reads)


@given(
    lines=st.lists(st.sampled_from([b"", b" \t", b"{}", b"null", b'"\xc3\xa9"', b"not json", b"[1, 2]  "])),
    end=st.sampled_from([b"", b"\n"]),
    newline=st.sampled_from([b"\n", b"\r\n"]),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    size=st.integers(1, 30),
)
def test_json_lines_keep_their_bytes_and_blank_ones_do_not_count(
    lines: list[bytes], end: bytes, newline: bytes, mark: bytes, size: int
) -> None:
    with small_blocks(size) as directory:
        path = directory / "in.jsonl"
        path.write_bytes(mark + newline.join(lines) + end)
        source = open_source(path)
        rows = [line for line in lines if line.strip()]
        assert decoded_bytes(source) == rows
        assert source.offsets(0) == (0, len(rows), True)


def decoded_bytes(source: Source) -> list[bytes]:
    values: list[bytes] = []
    while read := source.read(0, len(values), 3):
        values += read.batch.values
    return values


def test_a_malformed_line_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "in.ndjson"
    path.write_bytes(b'{"n": 1}\n{"n": \n\xff\xfe\n{"n": 2}')
    source = open_source(path)
    decode = source.serde(Json(dict[str, int])).decode
    values = decoded_bytes(source)
    assert values == [b'{"n": 1}', b'{"n": ', b"\xff\xfe", b'{"n": 2}']
    assert [decode(values[0]), decode(values[3])] == [{"n": 1}, {"n": 2}]
    for value in values[1:3]:
        with pytest.raises(msgspec.MsgspecError):
            decode(value)


def test_json_lines_are_json_whatever_plain_serde_is_declared(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'"a"\n')
    source = open_source(path)
    assert source.serde(String()).decode(b'"a"') == "a"
    assert source.serde(MessagePack(str)).decode(b'"a"') == "a"
    assert source.serde(Bytes()).decode(b'"a"') == b'"a"'


@dataclass
class Flight:
    carrier: str
    delay: float | None
    cancelled: bool = False
    stops: int = 0
    route: list[str] | None = None


class Typed(msgspec.Struct):
    i: int
    f: float
    s: str | None
    when: datetime | None
    local: datetime
    day: date
    clock: time
    took: timedelta
    price: Decimal
    raw: bytes
    counts: dict[str, int]
    nested: Flight | None


TYPED = [
    Typed(
        2**62,
        0.1,
        None,
        datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC),
        datetime(2024, 1, 1),
        date(1969, 12, 31),
        time(23, 59, 59, 999999),
        timedelta(days=-1, microseconds=5),
        Decimal("12.50"),
        b"\x00\xff",
        {"a": 1},
        Flight("AA", None, route=["JFK"]),
    ),
    Typed(
        -1, 1e-300, "", None, datetime(1900, 1, 1), date(9999, 1, 1), time(0), timedelta(0), Decimal(1), b"", {}, None
    ),
]


@pytest.mark.parametrize("kind", FILES)
def test_values_of_all_types_survive(tmp_path: Path, kind: str) -> None:
    sink = open_sink(tmp_path / FILES[kind])
    encode = sink.serde(MessagePack(Typed)).encode
    sink.write(Batch(list(map(encode, TYPED))))
    sink.flush()
    source = open_source(tmp_path / FILES[kind])
    expected = msgspec.structs.replace(TYPED[1], s=None) if kind == "csv" else TYPED[1]
    assert decoded(source, kind=Typed) == [TYPED[0], expected]
    source.close()


def test_parquet_of_others_is_read(tmp_path: Path) -> None:
    """Nanoseconds, floats that JSON has not, small integers, dictionaries, and row groups."""
    path = tmp_path / "in.parquet"
    table = pa.table(
        {
            "t": pa.array([1_000, None, 3_500], type=pa.timestamp("ns", "UTC")),
            "f": pa.array([float("nan"), None, float("-inf")]),
            "i": pa.array([1, 2, 3], type=pa.uint8()),
            "d": pa.array(["a", None, "a"]).dictionary_encode(),
        }
    )
    pq.write_table(table, path, row_group_size=2)

    class Other(msgspec.Struct):
        t: datetime | None
        f: float | None
        i: int
        d: str | None

    source = open_source(path)
    rows = decoded(source, kind=Other)
    assert [row.t for row in rows] == [
        datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        None,
        datetime(1970, 1, 1, 0, 0, 0, 3, tzinfo=UTC),
    ]
    assert [str(row.f) for row in rows] == ["nan", "None", "-inf"]
    assert [(row.i, row.d) for row in rows] == [(1, "a"), (2, None), (3, "a")]
    source.close()


def test_a_directory_has_a_partition_per_file(tmp_path: Path) -> None:
    for name, content in [("b.jsonl", b"3\n"), ("a.jsonl", b"1\n2"), ("_SUCCESS", b""), (".a.jsonl.tmp", b"x")]:
        (tmp_path / name).write_bytes(content)
    source = open_source(tmp_path)
    assert source.partitions == 2
    assert [decoded(source, partition, int) for partition in range(2)] == [[1, 2], [3]]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    for name in ("in.jsonl", "in.csv"):
        (tmp_path / name).write_bytes(b"")
        source = open_source(tmp_path / name)
        assert (source.read(0, 0), source.offsets(0)) == (None, (0, 0, True))


def two_kinds(directory: Path) -> Path:
    (directory / "a.jsonl").touch()
    (directory / "a.csv").touch()
    return directory


def two_headers(directory: Path) -> Path:
    (directory / "a.csv").write_text("a\n1\n")
    (directory / "b.csv").write_text("b\n1\n")
    return directory


def no_parquet(directory: Path) -> Path:
    (directory / "a.parquet").write_text("no")
    return directory / "a.parquet"


def text_file(directory: Path) -> Path:
    (directory / "a.txt").touch()
    return directory / "a.txt"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda directory: directory / "absent.jsonl", "there is no file"),
        (lambda directory: directory, "holds no files"),
        (text_file, r"known are JSON lines \(.jsonl"),
        (two_kinds, "several kinds"),
        (two_headers, "one header"),
        (no_parquet, "as Parquet"),
    ],
)
def test_what_is_no_input_is_refused(tmp_path: Path, make: Callable[[Path], Path], error: str) -> None:
    with pytest.raises(SamzaError, match=error):
        open_source(make(tmp_path)).offsets(0)


def test_parquet_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "runtime.systems.files.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SamzaError, match=r"samza-dsl\[parquet\]"):
        open_sink(tmp_path / "out.parquet")


def test_a_file_that_shrinks_while_it_is_read_is_noticed() -> None:
    with small_blocks(4) as directory:
        path = directory / "in.jsonl"
        path.write_bytes(b"1\n2\n3\n4\n")
        source = open_source(path)
        assert source.read(0, 0) is not None
        path.write_bytes(b"1\n2\n3\n")
        with pytest.raises(Damaged, match="became shorter"):
            source.read(0, 2)


def test_a_record_without_end_is_not_read_into_memory() -> None:
    with small_blocks(10) as directory, mock.patch.object(record_files, "LONGEST_RECORD", 50):
        path = directory / "in.csv"
        path.write_bytes(b'a\n1\n"' + b"x" * 2_000)
        source = open_source(path)
        assert source.read(0, 0) is not None
        with pytest.raises(Damaged, match="closing quote is missing"):
            source.read(0, 1)


def test_list_columns_keep_together() -> None:
    source = ListSource(["a", "b", "c"], timestamps=[1, 2, 3], keys=[b"x", None, b"z"])
    read = source.read(0, 1, 1)
    assert read is not None
    assert read.batch == Batch(["b"], keys=[None], timestamps=[2], offsets=range(1, 2))
    assert source.serde(Json()).decode("b") == "b"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one entry for every value"):
        ListSource([1, 2], keys=[b"x"])
    with pytest.raises(ValueError, match="2 lists for 3 partitions"):
        ListSource([[1], [2]], partitions=3)
