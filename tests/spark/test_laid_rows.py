"""What workers lay down of a table, and what is read of it: no Spark is needed for that."""

import tempfile
from contextlib import closing, suppress
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.encoding.serdes import Bytes, Json, String
from runtime.model.errors import Damaged, SamzaError
from runtime.ports.streams import OUTSIDE, Append, Control, StreamConfig
from runtime.systems.files.archive import archive_stream
from runtime.systems.files.files import open_source
from runtime.systems.files.places.locations import DataFile
from runtime.systems.files.table_files import OWN, PlainRows, StoredRows
from runtime.units import laid_rows
from runtime.units.carried_error import WorkerFailed, told
from runtime.units.growing import GrowingLines
from runtime.units.laid_rows import GROUP, LaidRows, Laying, lay_down
from runtime.units.splits import Splits
from tests.runtime.test_archive import read_all, stored, times
from tests.scale import examples
from tests.simulation.crash import memory


def batches(rows, size, **columns):
    """Return rows as a task gets them of Spark, so many in a batch."""
    schema = pa.schema([*columns.items()])
    found = [pa.RecordBatch.from_pylist(rows[start : start + size], schema) for start in range(0, len(rows), size)]
    return iter(found or [schema.empty_table().to_batches(max_chunksize=1)][0])


def laid(laying, task, given):
    return [LaidRows(*row.values()) for batch in lay_down(laying, task, given) for row in batch.to_pylist()]


GROUPED = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99)), max_size=30).map(sorted)


@given(rows=GROUPED, size=st.integers(1, 9), at_once=st.integers(1, 7))
@settings(deadline=None, max_examples=examples(60, 3_000))
def test_each_group_is_one_file_with_its_rows_in_order(rows, size, at_once):
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(laid_rows, "ROWS_AT_ONCE", at_once)
        given_rows = [{"n": n, GROUP: group} for group, n in rows]
        found = laid(Laying(Path(directory), "t"), 0, batches(given_rows, size, n=pa.int64(), **{GROUP: pa.string()}))
        assert [one.group for one in found] == sorted({group for group, _ in rows})
        splits = Splits([DataFile(Path(one.file)) for one in found]) if found else None
        for number, (one, (_, group)) in enumerate(zip(found, groupby(rows, lambda row: row[0]), strict=True)):
            expected = [n for _, n in group]
            assert one.rows == len(expected)
            values = splits.read(number, 0).batch.values
            assert [msgspec.json.decode(value)["n"] for value in values] == expected


def test_what_another_attempt_has_written_is_not_in_the_way(tmp_path):
    first, second = (laid(Laying(tmp_path, "t"), 3, batches([{"n": 1}], 1, n=pa.int64())) for _ in range(2))
    assert [one.group for one in first + second] == ["3", "3"]
    assert len({one.file for one in first + second}) == 2


def absent_at_times(always):
    """Return records of one field that is there always, each other one of which is absent, as Spark makes them."""
    mask = pa.array([place % 2 == 1 for place in range(len(always))])
    return pa.StructArray.from_arrays([always], fields=[pa.field("of", always.type, False)], mask=mask)


def test_what_is_there_always_may_lie_in_what_is_absent(tmp_path):
    records = absent_at_times(absent_at_times(pa.array([1, None, None, None])))
    lists = pa.ListArray.from_arrays([0, 2, 4], records)
    maps = pa.MapArray.from_arrays([0, 1, 2], ["k", "k"], records.slice(0, 2))
    rows = pa.record_batch({"lists": lists, "maps": maps, "records": records.slice(1, 2)})
    (found,) = laid(Laying(tmp_path, "t"), 0, iter([rows]))
    read = pq.read_table(found.file).to_pylist(maps_as_pydicts="strict")
    record = {"of": {"of": 1}}
    assert read[0] == {"lists": [record, None], "maps": {"k": record}, "records": None}
    empty = {"of": {"of": None}}
    assert read[1] == {"lists": [empty, None], "maps": {"k": None}, "records": empty}


LINES = st.lists(st.binary(max_size=5).filter(lambda line: b"\n" not in line), max_size=20)


@given(lines=LINES, size=st.integers(1, 5))
def test_lines_are_written_as_they_are(lines, size):
    with tempfile.TemporaryDirectory() as directory:
        laying = Laying(Path(directory), "t", suffix=".jsonl")
        rows = [{"value": line, GROUP: "f"} for line in lines]
        found = laid(laying, 0, batches(rows, size, value=pa.binary(), **{GROUP: pa.string()}))
        assert [Path(one.file).read_bytes() for one in found] == (
            [b"".join(line + b"\n" for line in lines)] if lines else []
        )


OFFSETS = st.sets(st.integers(0, 60), min_size=1).map(sorted)


@given(offsets=OFFSETS, reads=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 20))), at_once=st.integers(1, 9))
@settings(deadline=None, max_examples=examples(60, 3_000))
def test_rows_are_read_from_any_offset_on(offsets, reads, at_once):
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(laid_rows, "ROWS_AT_ONCE", at_once)
        rows = [{"n": -one, "samza_dsl_offset": one} for one in offsets]
        laying = Laying(Path(directory), "t", offsets=True)
        (one,) = laid(laying, 0, batches(rows, 4, n=pa.int64(), samza_dsl_offset=pa.int32()))
        assert (one.first, one.last) == (offsets[0], offsets[-1])
        source = StoredRows([DataFile(Path(one.file))])
        assert source.offsets(0) == (offsets[0], offsets[-1] + 1, True)
        # One after the other, as they come, and then from anywhere.
        reads = [*((offset, 2) for offset in offsets), *reads]
        for offset, size in reads:
            expected = [other for other in offsets if other >= offset]
            if offset > offsets[-1] + 1:
                with pytest.raises(Damaged, match="fewer than"):
                    source.read(0, offset, size)
                continue
            read = source.read(0, offset, size)
            if not expected:
                assert read is None
                continue
            assert read.batch.offsets == expected[: len(read.batch)]
            assert 1 <= len(read.batch) <= size and read.next_offset == read.batch.offsets[-1] + 1
            assert [msgspec.json.decode(value)["n"] for value in read.batch.values] == [
                -one for one in read.batch.offsets
            ]
        source.close()


@given(rows=st.lists(st.tuples(stored, stored, times), min_size=1, max_size=20), data=st.data())
@settings(deadline=None, max_examples=examples(40, 3_000))
def test_the_rows_of_an_archive_are_read_as_the_archive_is(rows, data):
    """From any offset on, with what producers told of event time behind some, or by itself."""
    told = {place: data.draw(times) for place in data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=4))}
    environment = memory()
    environment.create_stream("s", StreamConfig(partitions=1))
    for place, (key, value, at) in enumerate(rows):
        control = Control(OUTSIDE, told[place]) if place in told else None
        batch = Batch([value], [key], [at]) if data.draw(st.booleans()) or control is None else Batch([])
        environment.append([Append("s", 0, batch, control)])
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch)
        archive_stream(environment, "s", path / "archive", "parquet", data.draw(st.integers(1, 30)))
        table = pa.concat_tables([pq.read_table(file) for file in sorted((path / "archive").glob("*.parquet"))])
        own = {"_timestamp": OWN["_timestamp_ms"]} | OWN
        given_rows = table.drop_columns(["_partition"]).rename_columns({n: own[n] for n in table.column_names[1:]})
        (one,) = laid(Laying(path, "t", offsets=True), 0, iter(given_rows.to_batches(data.draw(st.integers(1, 9)))))
        source, archived = StoredRows([DataFile(Path(one.file))]), open_source(path / "archive")
        assert source.serde(String()) == String()
        offset, most = data.draw(st.integers(*source.offsets(0)[:2])), data.draw(st.integers(1, 5))
        found, expected = (
            read_all(lambda at, most: each.read(0, at, most), offset, most)  # noqa: B023
            for each in (source, archived)
        )
        assert found[:2] == expected[:2]
        source.close()


@pytest.mark.parametrize(
    ("offsets", "error"),
    [([1, 1], "have the same _offset"), ([2, 1], "have the same _offset"), ([1, None], "has no _offset")],
)
@pytest.mark.parametrize("size", [1, 2])
def test_offsets_that_do_not_rise_are_refused(tmp_path, offsets, error, size):
    rows = [{"samza_dsl_offset": one} for one in offsets]
    with pytest.raises(WorkerFailed) as failed:
        laid(Laying(tmp_path, "bind={'t': ...}", offsets=True), 0, batches(rows, size, samza_dsl_offset=pa.int64()))
    same = told(failed.value)
    assert isinstance(same, SamzaError) and error in str(same)


@pytest.mark.parametrize(
    ("serde", "kind", "values"),
    [
        (String(), pa.string(), ["a", 'é"', ""]),
        (Bytes(), pa.binary(), [b"\x00\xff", b""]),
        (Json(int), pa.int32(), [1, -1]),
        (Json(float | None), pa.float64(), [1.5, None, float("inf")]),
        (Json(list[int]), pa.list_(pa.int64()), [[1], []]),
    ],
)
def test_a_single_column_is_the_record(tmp_path, serde, kind, values):
    (one,) = laid(Laying(tmp_path, "t"), 0, batches([{"only": value} for value in values], 2, only=kind))
    source = PlainRows([DataFile(Path(one.file))])
    decode = source.serde(serde).decode
    assert [decode(value) for value in source.read(0, 0).batch.values] == values


def test_folders_that_name_fields_do_not_grow(tmp_path):
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.jsonl").write_text("1\n")
    with pytest.raises(SamzaError, match="has fields in the names of its folders, and a run with a checkpoint reads"):
        GrowingLines.at(tmp_path, None)


def test_each_file_of_folders_has_their_fields_in_the_declared_types(tmp_path):
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "a.jsonl").write_text('{"n": 1}\n')
    splits = Splits.at(tmp_path)
    decode = splits.serde(Json(dict[str, int])).decode
    assert [decode(splits.read(number, 0).batch.values[0])["day"] for number in (0, 1)] == [1, 2]


NESTED = st.recursive(
    st.sampled_from([pa.int32(), pa.string(), pa.binary()]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda kinds: pa.struct([(f"f{place}", one) for place, one in enumerate(kinds)])
        ),
    ),
    max_leaves=4,
)


def values_of(kind):
    if pa.types.is_map(kind):
        found = st.lists(st.tuples(st.just("k"), values_of(kind.item_type)), max_size=2)
    elif pa.types.is_list(kind):
        found = st.lists(values_of(kind.value_type), max_size=2)
    elif pa.types.is_struct(kind):
        found = st.fixed_dictionaries({one.name: values_of(one.type) for one in kind})
    else:
        return st.none() | st.just({pa.int32(): 1, pa.string(): "ä", pa.binary(): b"b"}[kind])
    return st.none() | found


def children(array):
    """Return an array's own buffers, and the arrays within it."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return array.buffers()[:2], [array.values]
    if pa.types.is_struct(kind):
        return array.buffers()[:1], [array.field(place) for place in range(kind.num_fields)]
    return array.buffers(), []


def as_sent(array):
    """Return an array as Arrow's Java before 19 sends it: behind one of no lists or texts is what comes next."""
    buffers, within = children(array)
    if not len(array):
        buffers = [buffers[0], *(one and pa.py_buffer(b"\x7f" * 64).slice(0, 0) for one in buffers[1:])]
    return pa.Array.from_buffers(array.type, len(array), buffers, children=[*map(as_sent, within)])


def offsets_lacking(array):
    buffers, within = children(array)
    if pa.types.is_list(array.type) or pa.types.is_map(array.type):
        yield from [array.type] * (buffers[1].size < 4 * (len(array) + 1))
    for one in within:
        yield from offsets_lacking(one)


@given(drawn=NESTED.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(values_of(kind), max_size=3))))
@settings(deadline=None, max_examples=examples(100, 5_000))
def test_lists_that_lack_an_offset_have_it(drawn):
    kind, values = drawn
    told = pa.array(values, kind)
    sent = pa.record_batch([as_sent(told)], ["c"])
    (found,) = laid_rows.with_offsets(sent).columns
    assert [*offsets_lacking(found)] == []
    assert found.equals(told)
    assert laid_rows.with_offsets(sent).nbytes >= 0


def test_a_worker_lays_down_lists_that_lack_an_offset(tmp_path):
    """PySpark 3.5 to 4.1 sends them so."""
    kind = pa.list_(pa.list_(pa.list_(pa.string())))
    rows = pa.record_batch([as_sent(pa.array([[], None], kind))], ["c"])
    assert [*offsets_lacking(rows.column(0))]
    (found,) = laid(Laying(tmp_path, "t"), 0, iter([rows]))
    assert pq.read_table(found.file).to_pylist() == [{"c": []}, {"c": None}]


@settings(deadline=None, max_examples=examples(40, 2_000))
@given(
    st.lists(
        st.tuples(st.sampled_from(["a,b", "b,a", "a", ""]), st.lists(st.integers(0, 9), max_size=2)),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_csv_that_each_worker_opens_by_itself_is_read_as_in_a_local_run_or_refused(tmp_path_factory, files, data):
    """One serde reads the rows of all files: of another header values would come to each other's fields."""
    directory = tmp_path_factory.mktemp("csv")
    for place, (header, rows) in enumerate(files):
        lines = (
            [header, *(",".join(f"{one}{number}" for one in header.split(",")) for number in rows)] if header else []
        )
        (directory / f"{place}.csv").write_text("".join(f"{line}\n" for line in lines))
    order = data.draw(st.permutations(range(len(files))))

    def read(opened):
        """Return the rows by their partitions; None where they are refused."""
        with suppress(SamzaError), closing(opened()) as source:
            serde = source.serde(Json(dict[str, str]))
            found = {one: source.read(one, 0) for one in order}
            return {one: [*map(serde.decode, got.batch.values)] if got else [] for one, got in found.items()}
        return None

    live = read(lambda: open_source(directory))
    assert read(lambda: Splits.at(directory)) == live
