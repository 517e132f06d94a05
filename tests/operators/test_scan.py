"""A scan against a reference that keeps states in a dict, alone and fused with what is around it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.scan import Scan, ScanOperator
from planner.model.errors import PlanError
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.model.errors import OperatorFailure
from runtime.stores.memory import MemoryStore
from samza_dsl import App, skip, testing

WHATS = ("add", "extend", "remove")
MESSAGES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(WHATS)), max_size=8)
STEPS = st.lists(st.tuples(st.sampled_from(("process", "commit", "restart", "fail")), MESSAGES), max_size=12)


def step(state, what):
    if what == "remove":
        return None
    if type(state) is list and what == "extend":
        state.append(1)
        return state
    return [*state, 1] if type(state) is list else (state or 0) + 1


def size_of(state):
    return len(state) if type(state) is list else state


def follow(messages, states, init):
    """Yield what a message leaves of its key's state."""
    for key, what in messages:
        after = None if what == "remove" else states.get(key, 0) + 1
        states.update({key: after} if after is not None else {})
        if after is None:
            states.pop(key, None)
        yield key, after


@given(STEPS, st.sampled_from((int, list, None)), st.booleans(), st.integers(0, 3))
def test_states_are_the_references_through_commits_restarts_and_failures(steps, init, emits, most_held):
    emit = (lambda key, state: (key, size_of(state))) if emits else None
    spec = Scan(step=step, init=init, emit=emit)

    def build():
        return ScanOperator(spec, spec.functions(), store, KeySerde(String()), Tagged(), most_held)

    store, states = MemoryStore(), {}
    store.durable = True
    scan = build()
    for what, messages in steps:
        if what == "fail":
            scan.write_back()
            store.savepoint()
        elif what != "process":
            scan.write_back()
            scan = build() if what == "restart" else scan
        expected = [*follow(messages, dict(states) if what == "fail" else states, init)]
        batch = Batch([what for _, what in messages], [k for k, _ in messages], *[[0] * len(messages)] * 2)
        out = scan.process(batch) or Batch([], [])
        assert out.keys == [key for key, _ in expected]
        found = zip(out.keys, out.values, strict=True)
        assert [one if emits else (key, size_of(one)) for key, one in found] == expected
        if what == "fail":
            store.rollback()
            scan.forget()
    scan.write_back()
    kept = {place[1:].decode(): size_of(state) for place, state in store.range()}
    assert {key: n for key, n in kept.items() if n} == {key: n for key, n in states.items() if n}


KEYED = st.lists(st.tuples(st.sampled_from(["a", "b", 1, True, None, (1, 2)]), st.integers(0, 9)), max_size=20)


@given(KEYED, st.sampled_from(("memory", "lmdb")), st.booleans())
def test_running_totals_are_those_of_a_dict_in_any_place_of_a_pipeline(records, store, awaits):
    """Awaiting ones are taken by the operator itself, and others by the loop of their stage."""
    app = App("totals")
    numbers = app.input("numbers", value=list, key=lambda pair: tuple(pair[0]) if type(pair[0]) is list else pair[0])
    some = numbers.filter(lambda pair: pair[0] is not None and pair[1] != 5).map(lambda pair: pair[1])
    totals = some.scan(lambda total, n: total + n, init=int, emit=lambda key, total: (key, total), store=store)
    shown = totals.filter(lambda pair: pair[1] % 3 != 0).map(lambda pair: [type(pair[0]).__name__, *pair])
    shown.send_to(app.output("totals"))
    if awaits:

        async def nothing(n):
            return []

        some.async_flat_map(nothing).sink(print)
    states, expected = {}, []
    for key, n in records:
        if key is not None and n != 5:
            place = type(key), key
            states[place] = states.get(place, 0) + n
            if states[place] % 3:
                expected.append([type(key).__name__, key, states[place]])
    with testing.running(app, {"numbers": [[list(k) if type(k) is tuple else k, n] for k, n in records]}) as run:
        run.end("numbers")
        assert run.received("totals") == expected
        assert {m.operator: (m.received, m.emitted) for m in run.metrics().operators}[totals.spec.op_id] == (
            len([1 for key, n in records if key is not None and n != 5]),
        ) * 2


def test_what_goes_on_is_not_changed_by_later_steps():
    app = App("lists")
    numbers = app.input("numbers", value=int, key=lambda n: n % 2)

    def gather(seen, n):
        seen.append(n)
        return seen

    gathered = numbers.scan(gather, init=list).partition_by(len, partitions=1)
    gathered.send_to(app.output("seen"))
    assert testing.run(app, {"numbers": [1, 2, 3, 4]})["seen"] == [[1], [2], [1, 3], [2, 4]]


def test_a_record_that_fails_leaves_no_step():
    app = App("failing")
    numbers = app.input("numbers", value=int, key=lambda n: 0)

    def add(total, n):
        return total + 10 // n

    numbers.scan(add, init=int, on_error=skip).send_to(app.output("totals"))
    assert testing.run(app, {"numbers": [1, 0, 5]})["totals"] == [10, 12]


def test_an_error_names_the_operator_and_the_record():
    app = App("failing")
    numbers = app.input("numbers", value=int, key=lambda n: 0)
    numbers.scan(lambda total, n: 1 // n, op_id="divide").send_to(app.output("totals"))
    with pytest.raises(
        OperatorFailure, match=r"scan 'divide' at .*test_scan.py:\d+: ZeroDivisionError.* on numbers/0 at 1; "
    ):
        testing.run(app, {"numbers": [1, 0, 5]})


def test_messages_without_a_key_are_refused():
    app = App("keyless")
    app.input("numbers", value=int).scan(lambda total, n: n).sink(print)
    with pytest.raises(PlanError, match="no key"):
        app.plan()
