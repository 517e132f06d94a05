"""Values that are made of whole columns are those that each row's JSON decodes to, and raw rows are as stored."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.encoding.columns import Columns
from runtime.encoding.formats.rows import wrong_names
from runtime.encoding.serdes import Json, decoded
from runtime.model.errors import SamzaError
from runtime.systems.files.files import open_source
from runtime.systems.files.plain_columns import in_microseconds, values_in
from runtime.systems.files.schemas import columns_in
from samza_dsl import App
from tests.scale import examples

INTS = st.integers(-(2**63), 2**63 - 1)
COLUMNS = {
    "int": (pa.int64(), INTS),
    "small": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "float": (pa.float64(), st.floats()),
    "single": (pa.float32(), st.floats(width=32)),
    "str": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
    "bool": (pa.bool_(), st.booleans()),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from("abc")),
}
TYPES = [int, float, str, bool, int | None, float | None, str | None, bool | None, Any, int | str]
TYPES += [Annotated[int, msgspec.Meta(ge=0)], list[int]]
NAMES = ("a", "b", "c", "d")


@st.composite
def tables(draw):
    """Draw a table, some of whose columns have nulls."""
    rows, found = draw(st.integers(1, 12)), {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True)):
        kind, values = COLUMNS[draw(st.sampled_from(sorted(COLUMNS)))]
        values = values | st.none() if draw(st.booleans()) else values
        found[name] = pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)
    return pa.table(found)


@st.composite
def kinds(draw, names):
    """Draw a type for rows: mostly a Struct with about the fields that there are, some with defaults or other names."""
    if draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from([Any, dict, dict[str, Any], dict[str, int]]))
    fields = draw(st.lists(st.sampled_from(names) if draw(st.booleans()) else st.sampled_from(NAMES), unique=True))
    made = [(name, draw(st.sampled_from(TYPES))) for name in fields]
    how = draw(
        st.sampled_from(
            [{}, {}, {"forbid_unknown_fields": True}, {"kw_only": True}, {"rename": "upper"}, {"tag": True}]
        )
    )
    if draw(st.booleans()):
        made = [(*field, None) for field in made]
    return msgspec.defstruct("Row", made, frozen=draw(st.booleans()), **how)


def outcomes(make, rows):
    """Return what comes of each row: its value, with its type and those of its fields, or that it can't be decoded."""
    found = []
    for row in rows:
        try:
            value = make(row)
        except msgspec.ValidationError:
            found.append("malformed")
        else:
            found.append((type(value), repr(value)))
    return found


@given(st.data())
@settings(max_examples=examples(150, 20_000))
def test_what_is_made_of_columns_is_what_the_json_of_each_row_is_decoded_to(tmp_path_factory, data):
    table = data.draw(tables())
    kind = data.draw(kinds(table.column_names))
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(table, path)
    source = open_source(path)
    serde = source.serde(Json(kind))
    if wrong_names(kind, columns_in({field.name: field.type for field in table.schema})):
        with pytest.raises(SamzaError, match=r"is read, so that|nothing of"):
            source.read(0, 0)
        return
    columns = source.read(0, 0).batch.values
    assert isinstance(columns, Columns) and len(columns) == len(table)
    one_by_one = outcomes(serde.decode, columns.rows())
    if "malformed" in one_by_one:
        with pytest.raises(msgspec.ValidationError):
            decoded(serde, columns)
    else:
        assert [(type(value), repr(value)) for value in decoded(serde, columns)] == one_by_one
    start = data.draw(st.integers(0, len(table) - 1))
    assert [*columns[start:]] == columns.rows()[start:]
    source.close()


NANOSECONDS = st.integers(0, 2**61)
HOLDING = {
    "plain": (lambda kind: kind, lambda one: one, lambda one: one),
    "in a list": (pa.list_, lambda one: [one, None], lambda one: one[0]),
    "in a large list": (pa.large_list, lambda one: [None, one], lambda one: one[1]),
    "in a list of one": (lambda kind: pa.list_(kind, 1), lambda one: [one], lambda one: one[0]),
    "in a map": (lambda kind: pa.map_(pa.string(), kind), lambda one: [("a", one)], lambda one: dict(one)["a"]),
    "in a record": (lambda kind: pa.struct([("at", kind)]), lambda one: {"at": one}, lambda one: one["at"]),
    "in records": (
        lambda kind: pa.list_(pa.struct([("at", kind)])),
        lambda one: [{"at": one}],
        lambda one: one[0]["at"],
    ),
}


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC")], ids=str)
@pytest.mark.parametrize("held", HOLDING)
@given(times=st.lists(NANOSECONDS, min_size=1, max_size=5), is_finer=st.booleans())
@settings(max_examples=examples(20, 2_000))
def test_times_in_nanoseconds_end_at_microseconds_which_is_told_where_digits_go(
    tmp_path_factory, kind, held, times, is_finer
):
    times = times if is_finer else [one // 1_000 * 1_000 for one in times]
    within, put, found = HOLDING[held]
    told = []
    column = in_microseconds(pa.array([put(one) for one in times], within(kind)), told.append)
    began = datetime(1970, 1, 1, tzinfo=UTC if kind.tz else None)
    assert [found(one) for one in column.to_pylist()] == [began + timedelta(microseconds=one // 1_000) for one in times]
    assert bool(told) == any(one % 1_000 for one in times)


@pytest.mark.parametrize("held", HOLDING)
@pytest.mark.parametrize(
    ("keys", "found", "wrong"),
    [
        (pa.bool_(), [True], "the columns seen hold maps by keys that no text stands for"),
        (pa.struct([("a", pa.int64())]), [{"a": 1}], "the columns seen hold maps by keys that no text stands for"),
        (pa.string(), ["a", "a"], "one of the columns seen holds a map that has a key twice"),
    ],
)
def test_maps_that_no_dict_of_a_record_stands_for_are_told(tmp_path, held, keys, found, wrong):
    within, put, _ = HOLDING[held]
    column = pa.array([put([(key, 1) for key in found])], within(pa.map_(keys, pa.int64())))
    pq.write_table(pa.table({"n": [1], "seen": column}), tmp_path / "seen.parquet")
    app = App("reading")
    app.input("rows", value=dict).send_to(app.output("out", value=dict))
    with pytest.raises(SamzaError, match=wrong):
        app.run(bind={"rows": tmp_path / "seen.parquet"}, data=tmp_path / "data")


def test_digits_that_go_are_told_once_with_the_column(tmp_path, caplog):
    for number in range(2):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"when_it_was": pa.array([1_700_000_000_123_456_789] * 2, pa.timestamp("ns"))}), path)
        source = open_source(path)
        source.serde(Json(Any)).decode_table(source.read(0, 0).batch.values)
        source.close()
    (told,) = caplog.messages
    assert "the column 'when_it_was' holds times in nanoseconds" in told
    assert "1700000000123456789" in told


class Bounded(msgspec.Struct):
    """A class whose field is more than its type says."""

    a: Annotated[int, msgspec.Meta(le=3)]


class Plain(msgspec.Struct):
    """A class of one plain field."""

    a: int


@pytest.mark.parametrize("kind", [Bounded, int, list])
def test_only_what_the_constructor_alone_makes_is_made_of_columns(kind):
    table = pa.table({"a": [1, 2]})
    assert values_in(table, kind) is None
    assert values_in(table, Plain) == [Plain(1), Plain(2)]
