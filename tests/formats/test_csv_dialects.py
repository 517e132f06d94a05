"""CSV of any dialect: what is written comes back, and other readers read it, however blocks are cut."""

import csv
import tempfile
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from unittest import mock

import msgspec
import pyarrow.csv
import pydantic
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.encoding.lines import ObjectLines
from runtime.encoding.serdes import Json
from runtime.model.errors import Damaged, SamzaError, SerdeError
from runtime.systems.files import record_files
from runtime.systems.files.csv_files import CsvRow
from runtime.systems.files.files import check_bound_on_spark, open_sink, open_source
from samza_dsl import App, skip
from samza_dsl.formats import CsvFiles
from tests.scale import examples

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
ENCODINGS = ("utf-8", "latin-1", "cp1252", "utf-16", "utf-16-be", "utf-8-sig", "shift_jis")


class Trip(msgspec.Struct, frozen=True):
    where: str
    km: int | None
    note: str | None = None


@st.composite
def dialects(draw):
    delimiter, quote, escape = draw(st.permutations([",", ";", "\t", "|", "'", '"', "\\", "§"]))[:3]
    nulls = draw(st.sampled_from([("",), ("NA",), ("\\N", ""), ("null", "NULL")]))
    header = draw(st.sampled_from([None, ("where", "km", "note"), ("note", "where", "km")]))
    encoding = draw(st.sampled_from(["utf-8", "latin-1", "utf-16", "utf-16-be"]))
    return {
        "delimiter": delimiter,
        "quote": quote,
        "escape": draw(st.sampled_from([None, escape])),
        "nulls": nulls,
        "skip_spaces": draw(st.booleans()),
        "header": header,
        "encoding": encoding,
    }


CELLS = st.text(st.sampled_from(list("ab1,;\t|'\"\\§ \né")), max_size=6)


@given(
    dialects(),
    st.lists(st.tuples(CELLS, st.none() | st.integers(-9, 9), st.none() | CELLS), min_size=1, max_size=6),
    st.integers(1, 60),
)
@settings(max_examples=examples(300, 10_000), suppress_health_check=SLOW)
def test_rows_of_any_dialect_come_back(dialect, cells, size):
    nulls = dialect["nulls"]
    # A text that stands for None is None where None may be, as ever in CSV.
    rows = [Trip(where, km, None if note in nulls else note) for where, km, note in cells]
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.multiple(record_files, BLOCK=size, LARGE_BLOCK=4 * size, MANY=2),
    ):
        files = CsvFiles(Path(directory, "trips.txt"), **dialect)
        for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            sink = open_sink(files)
            encode = sink.serde(Json(Trip)).encode
            sink.write(Batch(list(map(encode, half))))
            sink.flush()
        source = open_source(files)
        decode = source.serde(Json(Trip)).decode
        found = []
        while read := source.read(0, len(found), 3):
            found += map(decode, read.batch.values)
        assert found == rows
        with Path(files.path).open(encoding=files.encoding, newline="") as file:
            read = [row for row in csv.reader(file, strict=True, **files.form) if row]
        names = list(dialect["header"] or read.pop(0))
        assert [dict(zip(names, row, strict=True))["where"] for row in read] == [row.where for row in rows]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_others_have_written_is_read(tmp_path, encoding):
    text = "where;km;note\r\nOslo;7;x\r\n'a;\r\nb';NA;''\r\n"
    (tmp_path / "in.csv").write_bytes(text.encode(encoding))
    files = CsvFiles(tmp_path / "in.csv", ";", "'", encoding=encoding, nulls=("NA",))
    found: list[Trip] = []
    app = App("reading")
    app.input("in", value=Trip).sink(found.append)
    app.run(tmp_path / "data", bind={"in": files})
    assert found == [Trip("Oslo", 7, "x"), Trip("a;\r\nb", None, "")]


class Defaulted(msgspec.Struct, frozen=True):
    id: int
    cents: int = 0
    note: str = ""


@pytest.mark.parametrize("header", ["id, cents, note", "id ,cents,note", "\tid,cents,note", '"id", "cents", "note"'])
def test_a_header_with_spaces_is_told_where_its_fields_would_take_their_defaults(tmp_path, header):
    (tmp_path / "in.csv").write_text(f"{header}\n1, 5, a\n")
    for kind in (Defaulted, pydantic.create_model("Model", id=int, cents=(int, 0), note=(str, ""))):
        app = App("spaced")
        app.input("in", value=kind).sink(print)
        with pytest.raises(
            SamzaError, match=r"in\.csv names .*, with spaces, and .* is read: say CsvFiles\(path, skip"
        ):
            app.run(tmp_path / "data", bind={"in": tmp_path / "in.csv"})


def test_names_that_have_spaces_are_read_as_they_are(tmp_path):
    (tmp_path / "in.csv").write_text("id, cents\n1,5\n")
    kind = msgspec.defstruct("Odd", [("id", int), ("cents", int)], rename={"cents": " cents"})
    for value, expected in ((kind, kind(1, 5)), (dict[str, int], {"id": 1, " cents": 5})):
        app, found = App("odd"), []
        app.input("in", value=value).sink(found.append)
        app.run(tmp_path / value.__name__, bind={"in": tmp_path / "in.csv"})
        assert found == [expected]


class Tagged(pydantic.BaseModel):
    """A model whose own validators read text."""

    tags: list[str]
    ones: pydantic.Json[list[int]]
    either: list[int]
    price: dict[str, Decimal] = pydantic.Field(validation_alias="Price")

    @pydantic.field_validator("tags", mode="before")
    @classmethod
    def split(cls, value):
        return value.split("|") if isinstance(value, str) else value


def test_cells_that_a_model_reads_itself_are_left_to_it(tmp_path):
    price = "0.1234567890123456789012345"
    (tmp_path / "in.csv").write_text(f'tags,ones,either,Price\na|b,[1],[2],"{{""a"": {price}}}"\n[a,[],{{,{{}}\n')
    app, found = App("models"), []
    app.input("in", value=Tagged, on_error=skip).sink(found.append)
    app.run(tmp_path / "data", bind={"in": tmp_path / "in.csv"})
    assert found == [Tagged(tags=["a", "b"], ones="[1]", either=[2], Price={"a": Decimal(price)})]


class Price(msgspec.Struct, frozen=True):
    price: Decimal


class Offer(msgspec.Struct, frozen=True):
    id: int
    prices: tuple[Decimal, ...]
    best: Price | None = None


class PricedModel(pydantic.BaseModel, frozen=True):
    id: int
    prices: tuple[Decimal, ...]
    best: dict[str, Decimal] | None = None


class Holder(msgspec.Struct, frozen=True):
    held: PricedModel


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@given(NUMBERS)
@example("0.12345678901234567890")
@example("12345678901234.567")
@example("1e-400")
@settings(max_examples=examples(100, 2_000))
def test_decimals_within_others_keep_their_digits(text):
    """In CSV and in JSON lines, with models of pydantic, too, which make a float of each number by themselves."""
    row = f'{{"id": 1, "prices": [{text}], "best": {{"price": {text}}}}}'.encode()
    cells = f'1,[{text}],"{{""price"": {text}}}"'.encode()
    for kind in (Offer, PricedModel):
        csv_row = CsvRow(("id", "prices", "best"), kind)
        lines = Json(kind).decode_lines(ObjectLines.of(row))
        for found in (csv_row.decode(cells), Json(kind).decode(row), *lines):
            best = found.best.price if kind is Offer else found.best["price"]
            assert [*found.prices, best] == [Decimal(text)] * 2
    [held] = Json(list[Holder]).decode(b'[{"held": %b}]' % row)
    assert held.held.prices[0] == Decimal(text)


@pytest.mark.parametrize("cell", ["[1", '[1],"id":7', "", "[0.5]x", "[1e400]"])
def test_a_cell_that_is_no_json_of_its_own_is_an_error_of_the_record(cell):
    kind = msgspec.defstruct("Floats", [("id", int), ("all", list[float])])
    with pytest.raises((SerdeError, msgspec.MsgspecError)):
        CsvRow(("id", "all"), kind).decode(b"1," + b'"%b"' % cell.replace('"', '""').encode())


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_spaces_behind_delimiters_are_skipped_where_that_is_said(tmp_path, size):
    text = 'id,  cents, note\n1, 5, Oslo\n2,7, "a, \n b"\n 3, 8,"  c"\n4, , a "b" c\n'
    (tmp_path / "in.csv").write_text(text)
    app, found = App("spaced"), []
    app.input("in", value=Defaulted).sink(found.append)
    with mock.patch.multiple(record_files, BLOCK=size, LARGE_BLOCK=4 * size, MANY=2):
        app.run(tmp_path / "data", bind={"in": CsvFiles(tmp_path / "in.csv", skip_spaces=True)})
    rows = [(1, 5, "Oslo"), (2, 7, "a, \n b"), (3, 8, "  c"), (4, 0, 'a "b" c')]
    assert found == [Defaulted(*row) for row in rows]


def test_spaces_in_front_of_a_text_are_not_written_where_they_would_not_be_read(tmp_path):
    files = CsvFiles(tmp_path / "out.csv", quote=None, skip_spaces=True)
    for wrong in (Trip(" Oslo", 1), Trip("a", 1, " ")):
        sink = open_sink(files)
        encode = sink.serde(Json(Trip)).encode
        with pytest.raises(SerdeError, match=r"begins with a space.*say quote="):
            sink.write(Batch([encode(wrong)]))
    sink = open_sink(files)
    sink.write(Batch([sink.serde(Json(Trip)).encode(Trip("a b ", 1))]))
    sink.flush()
    source = open_source(files)
    assert source.serde(Json(Trip)).decode(source.read(0, 0, 9).batch.values[0]) == Trip("a b ", 1)


@pytest.mark.parametrize("kind", [Defaulted, dict, str])
@pytest.mark.parametrize(("said", "is_there"), [(",", ";"), (",", "\t"), (",", "|"), (";", ",")])
def test_a_file_of_another_delimiter_is_told_by_its_header(said, is_there, kind, tmp_path):
    (tmp_path / "in.csv").write_text(f"id{is_there}cents\n1{is_there}5\n")
    app = App("delimited")
    app.input("in", value=kind).sink(print)
    with pytest.raises(SamzaError) as told:
        app.run(tmp_path / "data", bind={"in": CsvFiles(tmp_path / "in.csv", said)})
    assert f"say CsvFiles(path, delimiter={is_there!r})" in str(told.value)


@pytest.mark.parametrize("text", ['"id;cents"\n5\n', "id\n5\n"])
def test_a_file_of_one_column_is_read(text, tmp_path):
    (tmp_path / "in.csv").write_text(text)
    app, found = App("delimited"), []
    app.input("in", value=dict).sink(found.append)
    app.run(tmp_path / "data", bind={"in": tmp_path / "in.csv"})
    assert [[*one.values()] for one in found] == [["5"]]


def test_what_is_written_arrow_reads(tmp_path):
    files = CsvFiles(tmp_path / "out.csv", "\t", escape="\\", encoding="latin-1", nulls=("NA",))
    rows = [Trip("Ærø\t1", 5, 'say "x"'), Trip("b", None)]
    app = App("writing")
    app.input("in", value=Trip).send_to(app.output("out", value=Trip))
    app.run(tmp_path / "data", bind={"in": rows, "out": files})
    table = pyarrow.csv.read_csv(
        tmp_path / "out.csv",
        read_options=pyarrow.csv.ReadOptions(encoding="latin-1"),
        parse_options=pyarrow.csv.ParseOptions(delimiter="\t", escape_char="\\", double_quote=False),
        convert_options=pyarrow.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True),
    )
    assert [Trip(**row) for row in table.to_pylist()] == rows


def test_without_quotes_what_needs_them_is_refused(tmp_path):
    sink = open_sink(CsvFiles(tmp_path / "out.csv", ";", quote=None))
    encode = sink.serde(Json(Trip)).encode
    sink.write(Batch([encode(Trip('a "quoted" word', 1))]))
    with pytest.raises(SerdeError, match="without quotes"):
        sink.write(Batch([encode(Trip("a;b", 1))]))
    other = open_sink(CsvFiles(tmp_path / "latin.csv", encoding="latin-1"))
    row = other.serde(Json(Trip)).encode(Trip("日本", 1))
    with pytest.raises(SerdeError, match="say another encoding"):
        other.write(Batch([row]))


def test_bytes_of_another_encoding_are_told(tmp_path):
    (tmp_path / "in.csv").write_bytes("where,km\nÆ,1\n".encode("latin-1") * 3)
    with pytest.raises(Damaged, match="another encoding"):
        open_source(CsvFiles(tmp_path / "in.csv", encoding="utf-16")).offsets(0)


@pytest.mark.parametrize(
    "said",
    [
        {"delimiter": ""},
        {"delimiter": "::"},
        {"delimiter": '"'},
        {"quote": "\n"},
        {"encoding": "klingon"},
        {"header": ("a", "a")},
        {"nulls": "NA"},
        {"nulls": ()},
    ],
)
def test_what_no_dialect_has_is_refused(said):
    with pytest.raises(SamzaError, match="CsvFiles"):
        CsvFiles("in.csv", **said)


def test_a_run_on_spark_has_no_dialects():
    with pytest.raises(SamzaError, match="a run on Spark has CSV with commas"):
        check_bound_on_spark({"trips": CsvFiles("in.csv", ";")})


@given(st.binary(max_size=80), dialects())
@example(b"\xff\xfe", {"encoding": "utf-16"})
@settings(max_examples=examples(100, 3_000))
def test_hostile_bytes_make_rows_or_an_error_of_ours(data, dialect):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "in.csv")
        path.write_bytes(data)
        with suppress(SamzaError):
            source = open_source(CsvFiles(path, **dialect))
            decode = source.serde(Json(dict[str, str | None])).decode
            for record in ((read := source.read(0, 0, 100)) and read.batch.values) or ():
                with suppress(SerdeError):
                    decode(record)
