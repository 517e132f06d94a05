"""Files of Avro and Arrow, and compressed ones: read and written, also by independent libraries, and cut back."""

import bz2
import dataclasses
import datetime as dt
import gzip
import io
import lzma
import tempfile
import zlib
from contextlib import closing, nullcontext, suppress
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Generic, NotRequired, TypedDict, TypeVar
from unittest import mock
from uuid import UUID

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from pyarrow import feather

from operators.core.base import Batch
from planner.model.errors import PlanError
from runtime.encoding.formats.avro_container import MAGIC, head_of_file, long_of
from runtime.encoding.serdes import Json, encode_all
from runtime.model.errors import Damaged, SamzaError, SerdeError
from runtime.systems.files import avro_files, parquet
from runtime.systems.files.files import open_sink, open_source
from runtime.systems.files.places.contents import PACKING, content_of
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, dead_letter
from samza_dsl.formats import Avro, digits
from tests.formats.typed_values import INT64, TEXT, is_same, records
from tests.scale import examples

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
UNPACKED = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".zst": lambda data: zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read(),
}


class Order(msgspec.Struct, frozen=True):
    id: int
    note: str | None = None


def read_all(path, kind, at_once=3):
    source = open_source(path)
    decode = source.serde(Json(kind)).decode
    found = []
    while read := source.read(0, len(found), at_once):
        found += map(decode, read.batch.values)
    assert source.offsets(0).end == len(found)
    back = [decode(source.read(0, n, 1).batch.values[0]) for n in reversed(range(0, len(found), 97))]
    assert all(map(is_same, found[::97][::-1], back))
    source.close()
    return found


def write_all(path, kind, parts, then=()):
    """Write parts, each with a flush, and go back to the end of the first parts before the last ones."""
    sink = open_sink(path)
    serde = sink.serde(Json(kind))
    positions = [0]
    for part in parts:
        sink.write(Batch(encode_all(serde, list(part))))
        positions.append(sink.flush())
    sink.close()
    for back, part in then:
        sink = open_sink(path)
        serde = sink.serde(Json(kind))
        sink.recover(positions[back])
        sink.write(Batch(encode_all(serde, list(part))))
        sink.flush()
        sink.close()


@given(st.data())
@settings(max_examples=examples(72, 4_000), suppress_health_check=SLOW)
def test_records_of_any_type_come_back_from_a_container_and_fastavro_reads_it(data):
    kind, values = data.draw(records())
    rows = data.draw(st.lists(values, max_size=6))
    try:
        avro = Avro(kind)
    except PlanError:
        return
    with tempfile.TemporaryDirectory() as directory, mock.patch.object(avro_files, "ROWS_PER_BLOCK", 2):
        path = Path(directory, "out.avro")
        write_all(path, kind, [rows, rows], [(1, rows[:3])])
        expected = rows + rows[:3]
        found = read_all(path, kind)
        assert len(found) == len(expected) and all(map(is_same, expected, found))
        with path.open("rb") as file:
            reader = fastavro.reader(file, return_record_name=True, return_record_name_override=True)
            assert all(map(is_same, expected, avro._codec.made([*reader])))


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_what_fastavro_wrote_is_read(tmp_path, codec):
    schema = {
        "type": "record",
        "name": "Theirs",
        "namespace": "org",
        "fields": [{"name": "id", "type": "int"}, {"name": "more", "type": "string"}],
    }
    with (tmp_path / "in.avro").open("wb") as file:
        fastavro.writer(file, schema, [{"id": n, "more": "x"} for n in range(5_000)], codec, sync_interval=999)
    assert read_all(tmp_path / "in.avro", Order, 700) == [Order(n) for n in range(5_000)]
    assert read_all(tmp_path / "in.avro", dict[str, Any], 700)[7] == {"id": 7, "more": "x"}


PACKED = {
    "deflate": lambda data: zlib.compress(data, wbits=-15),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "snappy": lambda data: pa.Codec("snappy").compress(data, asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
    "zstandard": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


@pytest.mark.parametrize("codec", PACKED)
def test_blocks_are_unpacked_unless_they_stand_for_more_than_anybody_writes(tmp_path, codec, monkeypatch):
    sync, path = bytes(range(16)), tmp_path / "in.avro"
    data = b"".join(Avro(Order).encode(Order(n)) for n in range(999))
    packed = PACKED[codec](data)
    block = long_of(999) + long_of(len(packed)) + packed + sync
    path.write_bytes(head_of_file(Avro(Order).text, sync, codec) + block)
    monkeypatch.setattr(avro_files, "LONGEST_BLOCK", len(data))
    assert read_all(path, Order, 700) == [Order(n) for n in range(999)]
    monkeypatch.setattr(avro_files, "LONGEST_BLOCK", len(data) - 1)
    with pytest.raises(Damaged, match=f"stands for more than {len(data) - 1:,} bytes"):
        read_all(path, Order)


def test_blocks_of_records_that_take_no_byte_say_no_more_than_is_read(tmp_path):
    sync, path = bytes(range(16)), tmp_path / "in.avro"
    for count, is_read in ((9_000, True), (1 << 62, False)):
        path.write_bytes(head_of_file('"null"', sync, "null") + long_of(count) + long_of(0) + sync)
        with nullcontext() if is_read else pytest.raises(Damaged, match="records that take no byte"):
            assert len(open_source(path).read(0, 0, 10_000).batch) == count


def test_a_head_without_an_end_is_told(tmp_path):
    (tmp_path / "in.avro").write_bytes(MAGIC + b"\x80" * 99)
    with pytest.raises(Damaged, match="no head of Avro"):
        open_source(tmp_path / "in.avro")


def test_files_of_several_schemas_are_read_each_by_its_own(tmp_path):
    write_all(tmp_path / "1.avro", Order, [[Order(1, "x")]])
    write_all(tmp_path / "2.avro", dict[str, int], [[{"id": 2}]])
    other = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    with (tmp_path / "2.avro").open("wb") as file:
        fastavro.writer(file, other, [{"id": 2}])
    found: list[Order] = []
    app = App("reading")
    app.input("in", value=Order).sink(found.append)
    app.run(tmp_path / "data", bind={"in": tmp_path / "*.avro"})
    assert sorted(found, key=lambda order: order.id) == [Order(1, "x"), Order(2)]


def digits_of(precision, scale):
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


MEANINGS = [
    *("int", {"type": "int", "logicalType": "date"}, {"type": "int", "logicalType": "time-millis"}),
    *(
        "long",
        *({"type": "long", "logicalType": f"{name}-micros"} for name in ("time", "timestamp", "local-timestamp")),
    ),
    *({"type": "long", "logicalType": f"{name}-millis"} for name in ("timestamp", "local-timestamp")),
    *("bytes", digits_of(9, 0), digits_of(9, 2), digits_of(9, 4)),
    *("string", {"type": "string", "logicalType": "uuid"}),
]
ENCODED = {"int": b"\x08", "long": b"\x08", "bytes": b"\x02\x04", "string": b"\x48" + str(UUID(int=1)).encode()}
WITHIN = {
    "alone": lambda kind: kind,
    "optional": lambda kind: ["null", kind],
    "array": lambda kind: {"type": "array", "items": kind},
    "record": lambda kind: {"type": "record", "name": "Inner", "fields": [{"name": "inner", "type": kind}]},
}
BEFORE = {"optional": (b"\x02", b""), "array": (b"\x02", b"\x00")}


@given(st.lists(st.sampled_from(MEANINGS), min_size=2, max_size=4), st.sampled_from([*WITHIN]))
@settings(max_examples=examples(60, 2_000))
def test_each_file_is_read_by_its_own_schema_whatever_tells_that_of_another(kinds, within):
    before, behind = BEFORE.get(within, (b"", b""))
    with tempfile.TemporaryDirectory() as directory:
        wanted = []
        for number, kind in enumerate(kinds):
            fields = [{"name": "at", "type": WITHIN[within](kind)}]
            schema = msgspec.json.encode({"type": "record", "name": "R", "fields": fields}).decode()
            record = before + ENCODED[kind if isinstance(kind, str) else kind["type"]] + behind
            head, sync = head_of_file(schema, bytes(16), "null"), bytes(16)
            file = Path(directory, f"{number}.avro")
            file.write_bytes(head + long_of(1) + long_of(len(record)) + record + sync)
            wanted += fastavro.reader(io.BytesIO(file.read_bytes()))
        source = open_source(Path(directory, "*.avro"))
        decode = source.serde(Json(dict[str, Any])).decode
        found = [decode(source.read(place, 0, 1).batch.values[0]) for place in range(len(kinds))]
        source.close()
    assert found == wanted


@pytest.mark.parametrize(
    ("kinds", "values"),
    [
        ([Annotated[Decimal, digits(9, 2)], Annotated[Decimal, digits(9, 4)]], [Decimal("1.25")] * 2),
        ([int, dt.datetime], [5, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
        ([str, UUID], ["x", UUID(int=1)]),
    ],
)
def test_a_file_that_was_begun_with_another_meaning_is_not_gone_on_with(kinds, values, tmp_path):
    (earlier, later), (first, second) = kinds, values
    file = tmp_path / "out.avro"
    write_all(file, earlier, [[first], [first]], [(1, [first])])
    sink = open_sink(file)
    serde = sink.serde(Json(later))
    sink.recover(file.stat().st_size)
    sink.write(Batch([serde.encode(second)]))
    with pytest.raises(SamzaError, match="begun with another schema"):
        sink.flush()
    assert read_all(file, earlier) == [first, first]


class Chain(msgspec.Struct):
    next: "Chain | None" = None


class Tree(msgspec.Struct):
    within: "list[Tree]" = []


class Named(msgspec.Struct):
    within: "dict[str, Named]" = {}


class Nothing(msgspec.Struct):
    within: list[None] = []


NESTED = {
    "unions": (Chain, lambda depth: b"\2" * depth + b"\0"),
    "arrays": (Tree, lambda depth: b"\2" * depth + b"\0" * (depth + 1)),
    "maps": (Named, lambda depth: b"\2\2a" * depth + b"\0" * (depth + 1)),
    "arrays of nothing": (Nothing, lambda depth: long_of(depth * 10_000) + b"\0" * bool(depth)),
}


@pytest.mark.parametrize("shape", NESTED)
@given(blocks=st.lists(st.lists(st.sampled_from((0, 1, 3, 99, 300, 3_000)), min_size=1, max_size=5), min_size=1))
@settings(max_examples=examples(12, 400), deadline=None)
def test_a_record_too_deep_is_for_the_policy_and_those_behind_it_are_read(shape, blocks):
    kind, made = NESTED[shape]
    sync, app = bytes(16), App("deep")
    head = head_of_file(Avro(kind).text, sync, "null")
    written = [b"".join(map(made, block)) for block in blocks]
    parts = [
        long_of(len(block)) + long_of(len(data)) + data + sync for block, data in zip(blocks, written, strict=True)
    ]
    rows = app.input("in", value=kind, on_error=dead_letter("letters"))
    rows.map(lambda row: 1).send_to(app.output("out", value=int))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.avro"
        path.write_bytes(head + b"".join(parts))
        run = app.run(Path(folder) / "data", bind={"in": str(path), "out": f"{folder}/out.jsonl"})
        depths = [depth for block in blocks for depth in block]
        assert len((Path(folder) / "out.jsonl").read_text().split()) == sum(depth < 250 for depth in depths)
        assert run is not None


def test_a_run_writes_avro_and_goes_on_with_it(tmp_path):
    from samza_dsl import produce

    for part in (range(5), range(5, 9)):
        produce("in", [Order(n) for n in part], data=tmp_path / "data", end=part.stop == 9, value=Order)
        app = App("writing")
        app.input("in", value=Order).send_to(app.output("out", value=Order))
        app.run(tmp_path / "data", bind={"out": tmp_path / "out.avro"}, until_now=True)
    assert read_all(tmp_path / "out.avro", Order) == [Order(n) for n in range(9)]


@pytest.mark.parametrize("cut", [3, 40, -5])
def test_a_damaged_container_is_told(tmp_path, cut):
    path = tmp_path / "in.avro"
    write_all(path, Order, [[Order(n) for n in range(9)]])
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    with pytest.raises(Damaged, match=r"in\.avro"):
        read_all(path, Order)
    changed = bytearray(data)
    changed[-20] ^= 255
    path.write_bytes(changed)
    with pytest.raises(Damaged, match=r"in\.avro"):
        read_all(path, Order)


def test_another_schema_is_not_written_behind_the_first(tmp_path):
    path = tmp_path / "out.avro"
    write_all(path, Order, [[Order(1)]])
    sink = open_sink(path)
    serde = sink.serde(Avro(dict[str, int]))
    sink.recover(path.stat().st_size)
    sink.write(Batch([serde.encode({"id": 1})]))
    with pytest.raises(SamzaError, match="begun with another schema"):
        sink.flush()
    for declared in (Json(), Json(object)):
        with pytest.raises(SamzaError, match=r"declare|may hold anything"):
            open_sink(tmp_path / "new.avro").serde(declared)
    with pytest.raises(SerdeError, match="tombstone"):
        sink.write(Batch([None]))


@given(st.lists(st.builds(Order, INT64, st.none() | TEXT), max_size=9), st.sampled_from([".arrow", ".feather"]))
@settings(max_examples=examples(36, 2_000), suppress_health_check=SLOW)
def test_rows_come_back_from_arrow_and_pyarrow_reads_them(rows, suffix):
    with tempfile.TemporaryDirectory() as directory, mock.patch.object(parquet, "ROWS_PER_PART", 4):
        path = Path(directory, f"out{suffix}")
        write_all(path, Order, [rows, rows], [(1, rows[:3])])
        found = [order for part in sorted(path.iterdir()) for order in read_all(part, Order)]
        assert found == rows + rows[:3]
        tables = [feather.read_table(part) for part in sorted(path.iterdir())]
        assert [Order(**row) for table in tables for row in table.to_pylist()] == found


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_what_pyarrow_wrote_is_read(tmp_path, compression):
    table = pa.table({"id": range(30_000), "note": ["x"] * 30_000})
    feather.write_feather(table, tmp_path / "in.feather", compression=compression, chunksize=20_000)
    expected = [Order(n, "x") for n in range(30_000)]
    assert read_rows(tmp_path / "in.feather") == expected
    with pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7_000)
    assert read_rows(tmp_path / "stream.arrow") == expected


def read_rows(path):
    found: list[Order] = []
    app = App("reading")
    app.input("in", value=Order).sink(found.append)
    app.run(path.with_name(f"data-{path.name}"), bind={"in": path})
    return found


def test_what_is_no_arrow_is_told(tmp_path):
    (tmp_path / "in.arrow").write_bytes(b"no arrow at all")
    with pytest.raises(SamzaError, match="as Arrow"):
        read_rows(tmp_path / "in.arrow")


@given(
    st.lists(st.lists(st.builds(Order, INT64, st.none() | TEXT), max_size=4), max_size=4),
    st.sampled_from([".gz", ".bz2", ".zst"]),
    st.sampled_from([".jsonl", ".csv"]),
)
@settings(max_examples=examples(48, 2_000), suppress_health_check=SLOW)
def test_compressed_files_come_back_cut_where_they_were_committed(parts, packed, kind):
    lines = [[Order(one.id, None if kind == ".csv" and not one.note else one.note) for one in part] for part in parts]
    with tempfile.TemporaryDirectory() as directory:
        path, plain = Path(directory, f"out{kind}{packed}"), Path(directory, f"out{kind}")
        back = len(lines) // 2
        for where in (path, plain):
            write_all(where, Order, lines, [(back, lines[0])] if lines else [])
        expected = [one for part in (lines[:back] + lines[:1]) for one in part]
        if path.exists():
            assert UNPACKED[packed](path.read_bytes()) == plain.read_bytes()
            assert read_all(path, Order) == read_all(plain, Order) == expected


@given(
    st.sampled_from([".gz", ".bz2"]), st.lists(st.binary(min_size=1, max_size=99), min_size=1, max_size=3), st.data()
)
@settings(max_examples=examples(120, 5_000), deadline=None)
def test_a_compressed_file_with_a_wrong_bit_is_no_shorter_one(suffix, parts, data):
    packed = bytearray(b"".join(map(PACKING[suffix], parts)))
    bit = data.draw(st.integers(0, len(packed) * 8 - 1))
    packed[bit // 8] ^= 1 << bit % 8
    whole = b"".join(parts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"in.jsonl{suffix}")
        path.write_bytes(packed)
        with suppress(Damaged):
            # To its end, where the checksum is: what a wrong bit makes of it may be longer.
            assert content_of(path).read(0, 1 << 20) == whole


def test_positions_of_compressed_files_rise(tmp_path):
    sink = open_sink(tmp_path / "out.jsonl.gz")
    serde = sink.serde(Json(int))
    sizes = []
    for n in range(3):
        sink.write(Batch([serde.encode(n)]))
        sizes.append(sink.flush())
    assert sizes == sorted(set(sizes)) and sizes[-1] == (tmp_path / "out.jsonl.gz").stat().st_size
    assert list(accumulate(sizes))


@pytest.mark.parametrize("name", ["out.parquet.gz", "out.avro.zst", "out.xls", "out.gz", "out.json"])
def test_what_is_no_kind_of_file_is_told(tmp_path, name):
    with pytest.raises(SamzaError, match="can't tell what"):
        open_sink(tmp_path / name)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow", "avro"])
def test_a_value_of_another_type_is_told_with_the_line_and_the_next_run_goes_on(tmp_path, suffix):
    def copying(made):
        app = App("odd")
        app.input("numbers", value=int).map(made).send_to(app.output("rows", value=Order))
        return app

    bind = {"numbers": [1, 2], "rows": tmp_path / f"rows.{suffix}"}
    with pytest.raises(SamzaError, match=r"test_files\.py:\d+.*Expected `int`, got `str`"):
        copying(lambda number: Order("x" if number == 2 else number)).run(tmp_path / "data", bind=bind)
    copying(Order).run(tmp_path / "data", bind=bind)
    found = App("reading")
    found.input("rows", value=Order).send_to(found.output("read", value=Order))
    assert found.run(bind={"rows": bind["rows"]}, data=tmp_path / "other").received("read") == [Order(1), Order(2)]


MICROS = pa.timestamp("us")


class Moments(msgspec.Struct, frozen=True):
    at: dt.datetime | None
    stops: list[dict[str, dt.datetime | None]] = []


MOMENTS = st.builds(
    Moments,
    at=st.none() | st.datetimes(),
    stops=st.lists(st.fixed_dictionaries({"at": st.datetimes()}), max_size=2),
)


@given(rows=st.lists(MOMENTS, min_size=1, max_size=5), is_legacy=st.booleans())
@settings(deadline=None, max_examples=examples(40, 1_000))
def test_times_in_parquet_that_spark_has_written_are_points_in_time(rows, is_legacy):
    """Spark writes INT96 where nothing else is set, which Arrow reads as times without a zone, from 1677 to 2262."""
    columns = pa.table(
        [[row.at for row in rows], [row.stops for row in rows]],
        schema=pa.schema([("at", MICROS), ("stops", pa.list_(pa.struct([("at", MICROS)])))]),
    )
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "moments.parquet")
        pq.write_table(columns, path, use_deprecated_int96_timestamps=is_legacy, store_schema=False)
        found = read_all(path, Moments)
    zone = dt.UTC if is_legacy else None
    told = [[at and at.replace(tzinfo=zone) for at in (row.at, *(stop["at"] for stop in row.stops))] for row in rows]
    assert [[row.at, *(stop["at"] for stop in row.stops)] for row in found] == told


OLD, NEW = (b"org.apache.spark.legacyDateTime", b""), (b"org.apache.spark.version", b"3.5.1")


@given(
    rows=st.lists(MOMENTS, min_size=1, max_size=4),
    days=st.lists(st.dates(), max_size=4),
    said=st.sampled_from([OLD, NEW, (b"org.apache.spark.version", b"2.4.8"), (b"org.apache.spark.legacyINT96", b"")]),
)
@settings(deadline=None, max_examples=examples(40, 1_000))
def test_files_of_the_calendar_of_old_versions_of_spark_are_read_where_it_is_the_same(rows, days, said):
    """Such as `datetimeRebaseModeInWrite=LEGACY` writes: their days before 1582 are others in Arrow and Python."""
    days = [days[place] if place < len(days) else None for place in range(len(rows))]
    schema = pa.schema(
        [("at", MICROS), ("stops", pa.list_(pa.struct([("at", MICROS)]))), ("day", pa.date32())], dict([said])
    )
    columns = pa.table([[row.at for row in rows], [row.stops for row in rows], days], schema=schema)
    times = [at for row in rows for at in (row.at, *(stop["at"] for stop in row.stops)) if at]
    is_old = any(at < dt.datetime(1900, 1, 1) for at in times)
    is_old |= any(day is not None and day < dt.date(1582, 10, 15) for day in days)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "moments.parquet")
        pq.write_table(columns, path)
        if is_old and said != NEW:
            with pytest.raises(SamzaError, match="are of the calendar of Spark before 3"):
                read_all(path, Moments)
        else:
            assert [row.at for row in read_all(path, Moments)] == [row.at for row in rows]


T = TypeVar("T")


class Boxed(Struct, Generic[T], frozen=True):
    of: T


class Seats(Struct, frozen=True):
    rows: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ((1, 2), (3, 4))


class Linked(TypedDict, total=False):
    n: int
    rest: "Linked"


class Branch(Struct, frozen=True):
    n: int
    parts: tuple["Branch", ...] = ()


TYPES_IN_TYPES = {
    "generic in generic": (Boxed[Boxed[tuple[int, ...]]], Boxed(Boxed((1, 2)))),
    "generic of one": (Boxed[int], Boxed(3)),
    "tuples by default": (Seats, Seats()),
    "tuples": (Seats, Seats((5,), ((6, 7),))),
    "dict that holds itself": (Linked, {"n": 1, "rest": {"n": 2}}),
    "record that holds itself": (Branch, Branch(1, (Branch(2),))),
}


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow", "avro"])
@pytest.mark.parametrize("shape", TYPES_IN_TYPES)
def test_types_in_types_come_back_or_are_refused_with_the_output(shape, suffix, tmp_path):
    kind, value = TYPES_IN_TYPES[shape]
    found = []
    writes, reads = App("writes"), App("reads")
    writes.input("numbers", value=int).map(lambda n: value).send_to(writes.output("rows", value=kind))
    reads.input("rows", value=kind).sink(found.append)
    place = tmp_path / f"rows.{suffix}"
    is_refused = "record that holds itself" in shape and suffix in ("parquet", "arrow")
    with pytest.raises(SamzaError, match=r"'rows' at .*Branch holds itself") if is_refused else nullcontext():
        writes.run(tmp_path / "writes", bind={"numbers": [1], "rows": place})
    if is_refused:
        return
    reads.run(tmp_path / "reads", bind={"rows": place})
    assert found == [value]


@given(st.data(), st.sampled_from([".jsonl", ".csv", ".parquet", ".arrow"]))
@settings(max_examples=examples(100, 4_000), deadline=None, suppress_health_check=SLOW)
def test_rows_of_any_types_come_back_as_they_were_or_are_refused_as_they_are_written(data, suffix):
    kind, values = data.draw(records(2, data.draw(st.sampled_from(["struct", "dataclass"]))))
    rows = data.draw(st.lists(values, min_size=1, max_size=4))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, f"out{suffix}")
        try:
            write_all(path, kind, [rows])
        except SamzaError:
            return
        parts = sorted(path.iterdir()) if path.is_dir() else [path]
        back = [value for part in parts for value in read_all(part, kind)]
    if suffix == ".csv":
        rows, back = ([*map(empty_as_none, some)] for some in (rows, back))
    assert len(back) == len(rows) and all(map(is_same, rows, back))


def empty_as_none(row: Any) -> list[Any]:
    """Return the fields of a row as cells of CSV tell them, which have no None."""
    names = getattr(type(row), "__struct_fields__", None) or [one.name for one in dataclasses.fields(row)]
    return [None if (value := getattr(row, name)) in ("", b"") else value for name in names]


class Required(TypedDict):
    id: int


class Numbered(Required, total=False):
    size: int
    parts: list["Numbered"]


class Labelled(Required, total=False):
    name: str


class Sized(TypedDict, total=False):
    size: int
    named: Labelled


class Unclear(Required):
    name: NotRequired[str | None]


def trees(depth: int) -> st.SearchStrategy[Any]:
    parts = {"parts": st.lists(trees(depth - 1), max_size=2)} if depth else {}
    return st.fixed_dictionaries({"id": INT64}, optional={"size": INT64, **parts})


class Holding(Struct):
    id: int
    named: Labelled | None
    sized: Sized


def dicts_within() -> st.SearchStrategy[Any]:
    named = st.fixed_dictionaries({"id": INT64}, optional={"name": st.text(max_size=3)})
    sized = st.fixed_dictionaries({}, optional={"size": INT64, "named": named})
    return st.builds(Holding, id=INT64, named=st.none() | named, sized=sized)


@given(
    st.lists(st.lists(dicts_within(), min_size=1, max_size=3), min_size=1, max_size=3),
    st.sampled_from([".parquet", ".arrow", ".avro"]),
)
@example([[Holding(1, None, {})]], ".parquet")
@settings(max_examples=examples(60, 2_000), deadline=None, suppress_health_check=SLOW)
def test_dicts_within_records_may_lack_all_of_their_keys(commits, suffix):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, f"out{suffix}")
        write_all(path, Holding, commits)
        parts = sorted(path.iterdir()) if path.is_dir() else [path]
        assert [value for part in parts for value in read_all(part, Holding)] == [
            one for rows in commits for one in rows
        ]


@given(st.lists(trees(2), min_size=1, max_size=5), st.sampled_from([".csv", ".parquet", ".arrow", ".avro"]))
@settings(max_examples=examples(60, 2_000), deadline=None, suppress_health_check=SLOW)
def test_keys_that_dicts_lack_are_not_there_when_they_are_read(rows, suffix):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, f"out{suffix}")
        write_all(path, Numbered, [rows])
        parts = sorted(path.iterdir()) if path.is_dir() else [path]
        assert [value for part in parts for value in read_all(part, Numbered)] == rows


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "avro"])
def test_a_key_that_may_be_none_or_not_be_there_has_no_column(suffix, tmp_path):
    for kind in (Unclear, list[Unclear]):
        made = msgspec.defstruct("Holding", [("rows", kind)])
        with pytest.raises(SamzaError, match=r"name.* may be None or not be there"):
            open_sink(tmp_path / f"out.{suffix}").serde(Json(made))


class Mixed(Struct):
    id: int | str
    share: float | str = ""
    is_late: bool | str = ""


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Mixed, Mixed(1), "the field 'id' may be text as well, as which 1 is read"),
        (Mixed, Mixed("1", 1.5), "the field 'share' may be text as well, as which 1.5 is read"),
        (Mixed, Mixed("1", "", True), "the field 'is_late' may be text as well, as which True is read"),
        (Labelled, {"id": 1}, "the key 'name' is not there"),
        (Unclear, {"id": 1}, "the key 'name' is not there"),
        (dict[str, int], {}, "a record without fields has no line"),
    ],
)
def test_what_csv_would_read_as_another_value_is_for_the_policy(kind, value, words, tmp_path):
    good = {Mixed: Mixed("x", "1.5", "true"), dict[str, int]: {"n": 1}}.get(kind, {"id": 2, "name": "n"})
    app = App("writes")
    app.input("numbers", value=int).map(lambda n: [value, good][n]).send_to(
        app.output("rows", value=kind), on_error=dead_letter("refused")
    )
    app.run(tmp_path / "data", bind={"numbers": [0, 1], "rows": tmp_path / "rows.csv"})
    assert read_all(tmp_path / "rows.csv", kind) == [good]
    with closing(LogEnvironment(tmp_path / "data")) as log:
        (letter,) = log.read("refused", 0, 0, 9).batch.headers
    assert words in letter["error"].decode()
