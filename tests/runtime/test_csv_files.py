"""CSV as it is found: quotes, line breaks, empty fields, and records that are none."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.encoding.serdes import Bytes, Json
from runtime.model.errors import SamzaError, SerdeError
from runtime.ports.source import Source
from runtime.systems.files import record_files
from runtime.systems.files.files import open_sink, open_source


def bytes_of(source: Source) -> list[bytes]:
    """Return the original records."""
    values: list[bytes] = []
    while read := source.read(0, len(values), 3):
        values += read.batch.values
    return values


def decoded(source: Source, kind: Any) -> list[Any]:
    return list(map(source.serde(Json(kind)).decode, bytes_of(source)))


@given(
    cells=st.lists(st.tuples(st.text(), st.sampled_from(["", '"', "a\nb", "é,", '5" pipe', "\r"])), min_size=1),
    size=st.integers(1, 60),
)
def test_csv_of_any_text_survives(cells: list[tuple[str, str]], size: int) -> None:
    rows = [{"a": a, "b,\n": b} for a, b in cells]
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.multiple(record_files, BLOCK=size, LARGE_BLOCK=4 * size, MANY=2),
    ):
        path = Path(directory, "in.csv")
        sink = open_sink(path)
        encode = sink.serde(Json(dict[str, str])).encode
        sink.write(Batch(list(map(encode, rows))))
        sink.flush()
        source = open_source(path)
        assert decoded(source, dict[str, str]) == rows
        serde = source.serde(Json(dict[str, str]))
        assert [serde.encode(row) for row in rows] == bytes_of(source)


@dataclass
class Flight:
    carrier: str
    delay: float | None
    cancelled: bool = False
    stops: int = 0
    route: list[str] | None = None


def test_csv_fields_become_what_the_type_says(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(
        b"\xef\xbb\xbfcarrier,delay,cancelled,stops,route,tailnum\r\n"
        b'"A ""A""\r\nline",-1.5,true,2,"[""JFK"", ""LAX""]",N1\r\n'
        b"\r\n"
        b",,,,,\r\n"
        b"UA,nan,0,1.0,,N2"
    )
    source = open_source(path)
    first, second, third = decoded(source, Flight)
    assert first == Flight('A "A"\r\nline', -1.5, True, 2, ["JFK", "LAX"])
    assert second == Flight("", None)
    assert (third.delay != third.delay, third.cancelled, third.stops, third.route) == (True, False, 1, None)
    assert bytes_of(source)[0].startswith(b'"A ""A""\r\nline",-1.5')
    assert decoded(source, Any)[1] == dict.fromkeys(
        ["carrier", "delay", "cancelled", "stops", "route", "tailnum"], None
    )
    assert source.serde(Bytes()) == Bytes()


def test_malformed_csv_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'a,b\n1,2\n3\n"4"x,5\n6,x\n\xff,7\n8,9\n10,"open\n11,12\n')
    source = open_source(path)
    decode = source.serde(Json(dict[str, int])).decode
    values = bytes_of(source)
    assert [decode(values[0]), decode(values[5])] == [{"a": 1, "b": 2}, {"a": 8, "b": 9}]
    assert values[6] == b'10,"open\n11,12\n'
    for value, error in [
        (values[1], "1 fields where the header names 2"),
        (values[2], "malformed"),
        (values[3], "Expected `int`"),
        (values[4], "utf-8"),
        (values[6], "unexpected end"),
    ]:
        with pytest.raises((SerdeError, msgspec.MsgspecError, UnicodeError), match=error):
            decode(value)


def test_a_csv_field_may_be_larger_than_the_csv_module_expects(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"a\n" + b"x" * 300_000 + b"\n")
    assert len(decoded(open_source(path), dict[str, str])[0]["a"]) == 300_000


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"a,a\n", "names a more than once"), (b"\xff,a\n", "no CSV header"), (b'"a"b,c\n', "no CSV header")],
)
def test_a_bad_csv_header_is_refused(tmp_path: Path, content: bytes, error: str) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(SamzaError, match=error):
        open_source(path)
