"""Values that are encoded together come to what each by itself comes to, and so does what can't be encoded."""

import copy
import dataclasses
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.model.levers import Levers
from runtime.job.pipeline import Pipeline
from runtime.model.errors import OperatorFailure, SamzaError
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.files import parquet
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSource
from samza_dsl import App, Options, dead_letter, fail, skip
from samza_dsl.formats import Avro
from tests.scale import examples


class Number(msgspec.Struct):
    n: int


def steps(stream, chosen, policy):
    for step in chosen:
        if step == "struct":
            stream = stream.map(lambda one: Number(one.n + 1), on_error=policy)
        elif step == "filter":
            stream = stream.filter(lambda one: one.n % 3 != 0, on_error=policy)
        elif step == "divide":
            stream = stream.map(lambda one: Number(8 // (one.n - 4)), on_error=policy)
        elif step == "strange":  # which JSON has no word for
            stream = stream.map(lambda one: Number(2j if one.n == 5 else one.n), on_error=policy)
        elif step == "scan":
            stream = stream.scan(lambda total, one: total + one.n, init=int, emit=lambda _, total: Number(total))
    return stream


def outcome(chosen, others, is_none, policy, numbers, batch_records, **levers):
    app = App("together", Options(batch_records=batch_records))
    found = steps(app.input("numbers", value=Number, key=lambda one: one.n % 3), chosen, policy)
    last = found.map(lambda one: None if one.n == 7 else one) if is_none else found
    last.send_to(app.output("out"), on_error=policy)
    steps(found, others, policy).send_to(app.output("others"), on_error=policy)
    failure, environment = None, MemoryEnvironment()
    with tempfile.TemporaryDirectory() as folder:
        out, others = Path(folder, "out.jsonl"), Path(folder, "others.jsonl")
        bind = {"numbers": numbers, "out": out, "others": others}
        run = None
        try:
            run = run_blocking(
                Pipeline(app.graph(), app.options), environment, RunSettings(bind=bind, levers=Levers(**levers))
            )
        except OperatorFailure as error:
            failure = str(error)
        counted = None if run is None else run.metrics().operators
        written = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    bad = environment.read("bad", 0, 0) if "bad" in environment.streams() else None
    return failure, counted, written, bad and (bad.batch.values, bad.batch.headers)


kinds = st.lists(st.sampled_from(["struct", "filter", "divide", "strange", "scan"]), max_size=3)


cases = st.tuples(
    kinds,
    kinds,
    st.booleans(),
    st.sampled_from([fail, skip, dead_letter("bad")]),
    st.lists(st.builds(Number, st.integers(0, 12)), max_size=20),
    st.sampled_from([1, 4, 100]),
)


@given(cases)
def test_values_that_are_encoded_together_come_to_what_each_comes_to(case):
    assert outcome(*case) == outcome(*case, together=False)


def test_what_a_function_that_is_called_returns_is_encoded_before_the_next_call(tmp_path):
    app = App("reusing")
    one = Number(0)

    def again(number):
        one.n = number
        return one

    app.input("numbers", value=int).map(again).send_to(app.output("out"))
    app.run(tmp_path / "data", bind={"numbers": [1, 2, 3], "out": tmp_path / "out.jsonl"})
    assert (tmp_path / "out.jsonl").read_text() == '{"n":1}\n{"n":2}\n{"n":3}\n'


class Row(msgspec.Struct):
    n: Any
    text: Any = "a"


class Typed(msgspec.Struct):
    n: int
    text: str | None


class Frozen(msgspec.Struct, frozen=True):
    n: int
    text: str | None


@dataclasses.dataclass
class Data:
    n: int
    text: str | None


@dataclasses.dataclass(frozen=True)
class FrozenData:
    n: int
    text: str | None


@dataclasses.dataclass(slots=True, frozen=True)
class SlottedData:
    n: int
    text: str | None


class WithBytes(msgspec.Struct):
    n: int
    text: bytes


class WithTags(msgspec.Struct):
    n: int
    text: list[str]


class Held(msgspec.Struct):
    text: list[str]


class FrozenHeld(msgspec.Struct, frozen=True):
    text: bytes | None


@dataclasses.dataclass(frozen=True)
class HeldData:
    text: list[str] | None


class WithRecord(msgspec.Struct):
    n: int
    text: Held


class WithFrozen(msgspec.Struct, frozen=True):
    n: int
    text: FrozenHeld | None


class WithMany(msgspec.Struct, frozen=True):
    n: int
    text: list[Held] | None


@dataclasses.dataclass
class WithTuple:
    n: int
    text: tuple[HeldData, ...]


@dataclasses.dataclass(slots=True, frozen=True)
class WithDict:
    n: int
    text: dict[str, list[str]]


class WithTexts(TypedDict):
    n: int
    text: list[str] | None


WITHIN = {
    WithRecord: Held,
    WithFrozen: FrozenHeld,
    WithMany: lambda text: [Held(text)],
    WithTuple: lambda text: (HeldData(text),),
    WithDict: lambda text: {"a": text},
}
"""By the kinds whose text lies deeper, what it lies in."""


class Keys(TypedDict):
    n: int
    text: str | None


class Changes:
    """Functions that return values, and change what they have returned before."""

    def __init__(self, kind, changes):
        self.kind, self.changes, self.sent, self.calls = kind, changes, [], 0

    def __call__(self, row):
        self.calls += 1
        if self.sent and self.changes(row.n):
            self._change(self.sent[-1])
        if row.text == "again" and self.sent:
            return self.sent[-1]
        if row.text == "none":
            return None
        if row.text == "divide":
            raise ZeroDivisionError(str(row.n))
        # A copy: what it changes of the record that it was given would be there where it is called again for it.
        text = WITHIN.get(self.kind, lambda text: text)(copy.copy(row.text))
        fields = {"n": row.n, "text": text}
        made = dict(fields) if self.kind in (Any, dict[str, Any], Keys, WithTexts) else self.kind(**fields)
        self.sent.append(made)
        return made

    def _change(self, value):
        with suppress(AttributeError):
            if isinstance(value, dict):
                value["n"] = value["later"] = 99
            else:
                value.n = 99
        text = value["text"] if isinstance(value, dict) else value.text
        if self.kind in WITHIN:
            (within,) = [text] if isinstance(text, Held | FrozenHeld) else text.values() if type(text) is dict else text
            text = within.text if hasattr(within, "text") else within
        is_declared = self.kind in (WithBytes, WithTags, WithTexts, Any, dict[str, Any], *WITHIN)
        if isinstance(text, list | bytearray) and is_declared:
            text.extend(b"z" if isinstance(text, bytearray) else ["z"])


def called_outcome(kind, to, rows, changes, policy, batch_records, **levers):
    app = App("called", Options(batch_records=batch_records))
    changing = Changes(kind, changes)
    made = app.input("rows", value=Row).map(lambda row: changing(row), on_error=policy)
    if len(rows) % 2:
        made = made.filter(lambda one: one is None or repr(one).count("n=7") == 0, on_error=policy)
    value = Avro(kind) if to == "avro" else kind
    made.send_to(app.output("out", value=value), on_error=policy)
    failure, environment, run = None, MemoryEnvironment(), None
    with tempfile.TemporaryDirectory() as folder:
        bind = {"rows": ListSource([copy.deepcopy(row) for row in rows])}
        bind |= {} if to == "avro" else {"out": Path(folder, "out.parquet")}
        settings = RunSettings(bind=bind, levers=Levers(**levers))
        try:
            run = run_blocking(Pipeline(app.graph(), app.options), environment, settings)
        except SamzaError as error:
            failure = type(error), str(error).replace(folder, "")
        written = repr(
            [pq.read_table(file).to_pylist() for file in sorted(Path(folder).rglob("*.parquet")) if file.is_file()]
        )
    read = environment.read("out", 0, 0) if to == "avro" and failure is None else None
    out = read and read.batch.values
    bad = environment.read("bad", 0, 0) if "bad" in environment.streams() else None
    counted = None if run is None else run.metrics().operators
    return failure, counted, written, out, bad and (bad.batch.values, bad.batch.headers), changing.calls


TEXTS = st.sampled_from(["a", "b", "again", None, "none", "divide", "\ud800", 1, 2.5, object, True])
TEXTS |= st.builds(list, st.just("xy")) | st.builds(bytearray, st.just(b"ab")) | st.just(b"c")
NUMBERS = st.integers(0, 9) | st.sampled_from([2**63, -(2**70), 1.5, "1", None])
KINDS = [Typed, Frozen, Data, FrozenData, SlottedData, WithBytes, WithTags, Keys, dict[str, Any], Any]
KINDS += [*WITHIN, WithTexts]


@pytest.mark.parametrize(
    ("kind", "to"), [*((kind, "parquet") for kind in KINDS), (Typed, "avro"), (Data, "avro"), (WithMany, "avro")]
)
@example([Row(1.5, ["x", "y"])], 1, fail, 1)
@example([Row(-(2**70), ["x", "y"]), Row(0, ["x", "y"])], 1, skip, 2)
@settings(max_examples=examples(30, 1_000))
@given(
    rows=st.lists(st.builds(Row, NUMBERS, TEXTS), min_size=1, max_size=8)
    | st.lists(st.builds(Row, st.integers(0, 9), st.sampled_from(["a", "again"])), min_size=1, max_size=8),
    often=st.integers(1, 4),
    policy=st.sampled_from([fail, skip, dead_letter("bad")]),
    batch_records=st.sampled_from([1, 2, 1_000]),
)
def test_what_functions_change_later_is_written_as_it_was_sent(kind, to, rows, often, policy, batch_records):
    def changes(number):
        return not isinstance(number, str) and number is not None and number % often == 0

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parquet, "FEW", 2)
        case = kind, to, rows, changes, policy, batch_records
        failure, *found, calls = called_outcome(*case)
        failure_by_itself, *found_by_itself, calls_by_itself = called_outcome(*case, together=False)
    if failure is not None and batch_records > 1:  # of several reasons either may be told first
        assert failure_by_itself is not None
        return
    # What failed was called for again, each time with what was called before it: what is returned again may differ.
    if calls != calls_by_itself and any(row.text == "again" for row in rows):
        return
    assert (failure, found) == (failure_by_itself, found_by_itself)
    if failure is None and found[-1] is None and policy is fail:
        assert calls == calls_by_itself == len(rows)
