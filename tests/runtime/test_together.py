"""Values that are encoded together come to what each by itself comes to, and so does what can't be encoded."""

import tempfile
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from planner.model.levers import Levers
from runtime.job.pipeline import Pipeline
from runtime.model.errors import OperatorFailure
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, Options, dead_letter, fail, skip


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
