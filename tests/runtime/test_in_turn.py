"""Values that a loop decodes as it comes to them come to what they do when all are decoded before."""

import tempfile
from pathlib import Path

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from planner.levers import Levers
from runtime.errors import SamzaError
from runtime.run import run_blocking
from runtime.systems.memory import MemoryEnvironment
from runtime.undecoded import Undecoded
from samza_dsl import App, Options, dead_letter, fail, skip


class Number(msgspec.Struct):
    n: int


POLICIES = st.sampled_from([fail, skip, dead_letter("bad")])
MALFORMED = [b"{", b'{"n": "seven"}', b"null", b"17", b'{"m": 1}', b"\xff"]
NO_RECORDS = [b"", b"  ", b"\t\r"]
LINES = st.lists(
    st.one_of(
        st.integers(0, 12).map(lambda n: b'{"n": %d}' % n),
        st.integers(0, 12).map(lambda n: b'  {"n": %d}\r' % n),
        st.sampled_from(MALFORMED + NO_RECORDS),
    ),
    max_size=20,
)
STEPS = {
    "struct": lambda stream, policy: stream.map(lambda one: Number(one.n + 1), on_error=policy),
    "filter": lambda stream, policy: stream.filter(lambda one: one.n % 3 != 0, on_error=policy),
    "divide": lambda stream, policy: stream.map(lambda one: Number(8 // (one.n - 4)), on_error=policy),
    "strange": lambda stream, policy: stream.map(lambda one: Number(2j if one.n == 5 else one.n), on_error=policy),
}
CASES = st.tuples(
    LINES,
    POLICIES,
    st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=2) | st.none(),
    POLICIES,
    st.sampled_from([1, 4, 100]),
)


def outcome(lines, on_error, steps, others, policy, batch_records, **levers):
    app = App("in-turn", Options(batch_records=batch_records))
    numbers = app.input("numbers", value=Number, on_error=on_error)
    branches = {"out": steps, **({"others": others} if others is not None else {})}
    for name, chosen in branches.items():
        stream = numbers
        for step in chosen:
            stream = STEPS[step](stream, policy)
        stream.send_to(app.output(name), on_error=policy)
    failure, run, environment = None, None, MemoryEnvironment()
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder, f"{name}.jsonl") for name in ("numbers", *branches)}
        paths["numbers"].write_bytes(b"\n".join(lines))
        try:
            run = run_blocking(app.graph(), app.options, (), environment, bind=paths, levers=Levers(**levers))
        except SamzaError as error:
            failure = str(error).replace(folder, "")
        written = {name: path.read_bytes() for name, path in paths.items() if path.exists()}
    bad = environment.read("bad", 0, 0) if "bad" in environment.streams() else None
    counted = None if run is None else (run.metrics().operators, run.metrics().inputs)
    return failure, counted, written, bad and (bad.batch.values, bad.batch.headers)


@given(CASES)
@example(([b'{"n": 1}', b"{", b'{"n": 2}'], skip, ["struct"], None, fail, 100))
@example(([b'{"n": 1}', b'{"n": 4}', b"{"], dead_letter("bad"), ["divide"], [], skip, 100))
def test_what_is_decoded_in_turn_comes_to_what_is_decoded_before(case):
    assert outcome(*case) == outcome(*case, in_turn=False)


def test_a_loop_decodes_where_nobodys_code_sees_a_value(monkeypatch):
    made = []
    begin = Undecoded.__init__
    monkeypatch.setattr(Undecoded, "__init__", lambda self, *given: (made.append(given), begin(self, *given))[1])
    outcome([b'{"n": 1}'], fail, ["struct", "filter"], ["filter"], fail, 100)
    assert made
    made.clear()
    outcome([b'{"n": 1}'], fail, ["struct"], None, fail, 100, in_turn=False)
    outcome([b'{"n": 1}'], fail, ["struct"], None, fail, 100, inlining=False)  # functions are called
    assert not made


def test_from_the_first_malformed_record_on_all_are_decoded_before(monkeypatch):
    seen = []
    begin = Undecoded.__init__
    monkeypatch.setattr(
        Undecoded, "__init__", lambda self, stored, how: (seen.append(stored), begin(self, stored, how))[1]
    )
    outcome([b'{"n": 1}', b"{", b'{"n": 2}', b'{"n": 3}'], skip, ["struct"], None, fail, 1)
    assert seen == [[b'{"n": 1}'], [b"{"]]
