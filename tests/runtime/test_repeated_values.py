"""Files whose few bytes stand for any number: they are read in small parts, or refused with the file and the limit."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.encoding.columns import Columns
from runtime.model.errors import SamzaError
from runtime.systems.files import schemas
from runtime.systems.files.schemas import batches_in, bounded, open_parquet
from runtime.systems.frames.frame_source import FrameSource
from samza_dsl import App
from tests.scale import examples

FEW_LETTERS = pa.schema({"x": pa.string(), "of": pa.list_(pa.string())})
LENGTHS = (0, 1, 9, 400, 3_000)
texts = st.none() | st.sampled_from(LENGTHS).map(lambda length: "x" * length)
SHAPES = {
    "text": (pa.string(), texts),
    "bytes": (pa.binary(), texts.map(lambda text: None if text is None else text.encode())),
    "list": (pa.list_(pa.string()), st.lists(texts, max_size=4)),
    "map": (pa.map_(pa.string(), pa.string()), st.dictionaries(st.sampled_from("abc"), texts, max_size=3)),
    "record": (
        pa.struct({"a.b": pa.string(), "n": pa.int64()}),
        st.fixed_dictionaries({"a.b": texts, "n": st.integers(0, 9)}),
    ),
    "lists of records": (
        pa.list_(pa.struct({"of": pa.list_(pa.string())})),
        st.lists(st.fixed_dictionaries({"of": st.lists(texts, max_size=3)}), max_size=2),
    ),
    "number": (pa.int64(), st.integers(0, 3)),
    "numbers": (pa.list_(pa.float64()), st.none() | st.sampled_from((0, 1, 40, 200)).map(lambda many: [0.5] * many)),
}


@contextmanager
def limits(at_once: int, of_a_row: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemas, "MOST_AT_ONCE", at_once)
        patch.setattr(schemas, "MOST_OF_A_ROW", of_a_row)
        yield


def size_of(value: object) -> int:
    """Return the bytes of all texts in a value, with so many for each number as a program takes for it."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int | float):
        return schemas.OF_A_VALUE
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(size_of, parts))


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    shapes = draw(st.lists(st.sampled_from(sorted(SHAPES)), min_size=1, max_size=3))
    rows = draw(st.integers(1, 30))
    columns = {}
    for number, shape in enumerate(shapes):
        kind, values = SHAPES[shape]
        made = draw(st.lists(values, min_size=1, max_size=3))
        columns[f"{shape}.{number}"] = pa.array([made[draw(st.integers(0, len(made) - 1))] for _ in range(rows)], kind)
    return pa.table(columns)


@given(tables(), st.sampled_from((1, 7, 100)), st.sampled_from((500, 5_000, 10**6)))
@settings(max_examples=examples(100, 3_000), deadline=None)
def test_rows_of_parquet_come_whole_and_few_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, table: pa.Table, group: int, at_once: int
) -> None:
    path = tmp_path_factory.mktemp("bomb") / "rows.parquet"
    pq.write_table(table, path, row_group_size=group)
    found: list[dict[str, object]] = []
    with limits(at_once, 10**9), open_parquet(path) as file:
        for batch in batches_in(file, 8, range(file.num_row_groups), None, path):
            assert batch.schema.types == table.schema.types
            rows = batch.to_pylist()
            assert len(rows) == 1 or sum(size_of([*row.values()]) for row in rows) <= at_once
            found += rows
    assert found == table.to_pylist()


@pytest.mark.parametrize("empty", [1, 7, 9_000])
def test_texts_behind_rows_of_none_are_measured(tmp_path: Path, empty: int) -> None:
    path = tmp_path / "rows.parquet"
    rows: list[list[str]] = [[]] * empty + [["x" * 400]] * 40
    pq.write_table(pa.table({"texts": pa.array(rows, pa.list_(pa.string()))}), path)
    with limits(1_000, 10**9), open_parquet(path) as file:
        read = [batch.to_pylist() for batch in batches_in(file, 8, range(file.num_row_groups), None, path)]
    assert [row["texts"] for batch in read for row in batch] == rows
    assert max(sum(len(text) for row in batch for text in row["texts"]) for batch in read) <= 1_000


def encoded(column: pa.ChunkedArray) -> list[pa.Array]:
    """Return a column as those that may have a value once for many rows."""
    whole = column.combine_chunks()
    ways = [whole]
    if pa.types.is_string(whole.type):
        ways += [whole.dictionary_encode(), whole.cast(pa.string_view()), whole.cast(pa.large_string())]
        ways.append(pc.run_end_encode(whole))
    if pa.types.is_list(whole.type) and pa.types.is_string(whole.type.value_type):
        ways.append(pa.ListArray.from_arrays(whole.offsets, whole.values.dictionary_encode()))
        ways.append(pa.ListViewArray.from_arrays([0] * len(whole), [len(whole.values)] * len(whole), whole.values))
    return ways


def test_two_columns_of_one_name_are_read_as_two(tmp_path: Path) -> None:
    path, table = tmp_path / "rows.parquet", pa.table([["x" * 400] * 9, ["y"] * 9], names=["a", "a"])
    pq.write_table(table, path)
    for at_once in (500, 10**6):
        with limits(at_once, 10**9), open_parquet(path) as file:
            read = [*batches_in(file, 8, range(file.num_row_groups), None, path)]
        assert pa.Table.from_batches(read).equals(table)


@given(tables(), st.data(), st.sampled_from((500, 5_000)))
@settings(max_examples=examples(100, 3_000), deadline=None)
def test_rows_of_arrow_are_parted_by_what_they_stand_for(table: pa.Table, data: st.DataObject, at_once: int) -> None:
    columns = [data.draw(st.sampled_from(encoded(column))) for column in table.columns]
    batch = pa.RecordBatch.from_arrays(columns, names=table.column_names)
    first = data.draw(st.integers(0, len(batch) - 1))
    with limits(at_once, 10**9):
        parts = [*bounded(batch.slice(first), "rows")]
    assert [row for part in parts for row in part.to_pylist()] == batch.slice(first).to_pylist()
    for part in parts:
        assert len(part) == 1 or sum(size_of([*row.values()]) for row in part.to_pylist()) <= at_once


@given(tables(), st.integers(1, 40), st.sampled_from((500, 5_000, 10**9)))
@settings(max_examples=examples(50, 500), deadline=None)
def test_rows_of_a_frame_are_read_few_at_a_time(table: pa.Table, asked: int, at_once: int) -> None:
    source, found = FrameSource(table, "rows"), list[dict[str, object]]()
    with limits(at_once, 10**9):
        while (read := source.read(0, len(found), asked)) is not None:
            columns = cast("Columns", read.batch.values)
            found += columns.table.to_pylist()
            assert read.next_offset == len(found) and len(columns) == len(columns.table)
            assert len(columns) == 1 or sum(map(size_of, columns.table.to_pylist())) <= at_once
    assert found == table.to_pylist()


def repeated(kind: str) -> pa.Table:
    """Return rows that stand for far more than they take."""
    if kind == "a dictionary":
        return pa.table({"x": pa.DictionaryArray.from_arrays(pa.array([0] * 9_000, pa.int32()), ["a" * 50_000])})
    if kind == "a row's dictionary":
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * 9_000, pa.int32()), ["a" * 50_000])
        return pa.table({"x": pa.ListArray.from_arrays(pa.array([0, 9_000], pa.int32()), texts)})
    if kind == "runs":
        return pa.table({"x": pa.ListArray.from_arrays([0, 10**8], pa.repeat(pa.scalar(0, pa.int8()), 10**8))})
    return pa.table({"x": [bytes(11 * 10**7)]})


@pytest.mark.parametrize("stored", [True, False], ids=["by Arrow", "by others"])
@pytest.mark.parametrize("kind", ["a row's dictionary", "runs", "a page"])
def test_a_small_file_that_stands_for_too_much_is_refused_by_name(
    kind: str, stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "MOST_OF_A_CHUNK", 10**8)
    path = tmp_path / "bomb.parquet"
    pq.write_table(repeated(kind), path, compression="zstd", store_schema=stored)
    assert path.stat().st_size < 100_000
    app = App("bomb")
    app.input("in").map(str).send_to(app.output("out", value=str))
    with pytest.raises(SamzaError, match=r"bomb\.parquet.* stands? for [\d,]+.* up to [\d,]+ are read"):
        app.run(tmp_path / "data", bind={"in": str(path), "out": str(tmp_path / "out.jsonl")})


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_rows_that_repeat_a_long_text_are_read_to_the_last(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "MOST_AT_ONCE", 10**6)
    path, table = tmp_path / f"rows{suffix}", repeated("a dictionary").slice(0, 300)
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    app = App("long")
    app.input("in").map(lambda row: len(row["x"])).send_to(app.output("out", value=int))
    out = tmp_path / "out.jsonl"
    app.run(tmp_path / "data", bind={"in": str(path), "out": str(out)})
    assert out.read_text().split() == ["50000"] * 300


@given(
    rows=st.lists(st.tuples(texts, st.lists(texts, max_size=3)), max_size=60),
    of_a_chunk=st.sampled_from([1_000, 20_000, 10**9]),
    at_once=st.integers(1, 70),
    per_group=st.integers(1, 80),
)
@settings(deadline=None, max_examples=examples(40, 400))
def test_texts_that_begin_as_those_before_are_read_few_at_a_time(
    rows: list[tuple[str | None, list[str | None]]], of_a_chunk: int, at_once: int, per_group: int
) -> None:
    table, file = pa.table({"x": [x for x, _ in rows], "of": [of for _, of in rows]}, FEW_LETTERS), io.BytesIO()
    encoded = dict.fromkeys(("x", "of.list.element"), "DELTA_BYTE_ARRAY")
    pq.write_table(table, file, row_group_size=per_group, use_dictionary=False, column_encoding=encoded)
    read, bound = list[pa.RecordBatch](), pq.ParquetFile.iter_batches

    def noted(*asked: Any, **said: Any) -> Iterator[pa.RecordBatch]:
        for batch in bound(*asked, **said):
            read.append(batch)
            yield batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemas, "MOST_OF_A_CHUNK", of_a_chunk)
        patch.setattr(pq.ParquetFile, "iter_batches", noted)
        whole = pq.ParquetFile(file)
        found = [*batches_in(whole, at_once, range(whole.num_row_groups), None, Path("few"))]
    assert [row for batch in found for row in batch.to_pylist()] == table.to_pylist()
    assert all(len(batch) <= 1 or size_of(batch.column(0).to_pylist()) <= of_a_chunk for batch in read)
