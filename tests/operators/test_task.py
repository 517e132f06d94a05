"""What a task's function does takes effect as a whole, and is seen by itself at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Output
from operators.task import Effects, TaskContext, TaskOperator
from runtime.encoding.serdes import Json, Tagged
from runtime.model.errors import OperatorFailure
from runtime.stores.memory import MemoryStore
from samza_dsl import App, testing

STEPS = st.lists(
    st.tuples(st.just("put"), st.integers(0, 4), st.integers())
    | st.tuples(st.just("delete"), st.integers(0, 4), st.none())
    | st.tuples(st.sampled_from(["apply", "drop"]), st.none(), st.none()),
    max_size=30,
)


@given(STEPS)
def test_a_call_sees_its_own_writes_and_others_only_what_was_applied(steps):
    store = MemoryStore()
    operator, applied = TaskOperator(store), {}
    context, seen = TaskContext(0, store, Tagged()), {}
    for what, key, value in steps:
        if what == "put":
            context.put(key, value)
            seen[key] = value
        elif what == "delete":
            context.delete(key)
            seen.pop(key, None)
        else:
            if what == "apply":
                operator.apply(context.effects)
                applied = dict(seen)
            context, seen = TaskContext(0, store, Tagged()), dict(applied)
        assert dict(context.items()) == seen
        assert [context.get(key) for key in range(5)] == [seen.get(key) for key in range(5)]
        others = TaskContext(0, store, Tagged())
        assert dict(others.items()) == applied


def test_what_is_sent_is_told_by_output_with_the_messages_time():
    one, other = Output("one", Json()), Output("other", Json())
    context = TaskContext(0, MemoryStore(), Tagged())
    context.send(one, "a", key="k")
    context.send(other, "b", timestamp=5)
    context.send(one, "c")
    sent = TaskOperator(MemoryStore()).sent([(context.effects, 7, 6)])
    assert sent[one].values == ["a", "c"] and sent[one].keys == ["k", None] and sent[one].timestamps == [7, 7]
    assert sent[other].timestamps == [5] and sent[other].stamps == [6]


def test_requests_are_part_of_the_effects():
    context = TaskContext(3, MemoryStore(), Tagged())
    context.commit()
    context.shutdown()
    assert context.effects == Effects(commit=True, shutdown=True) and context.task == 3


def keyed(process, messages):
    app = App("keyed")
    out = app.output("out", value=int)
    rows = app.input("in", value=list, key=lambda row: row[0])
    app.task(rows, lambda message, context: process(message, context, out), outputs=[out], keyed=True, op_id="it")
    return testing.run(app, {"in": messages})["out"]


def test_a_task_by_key_has_the_state_of_its_messages_keys():
    def process(message, context, out):
        context.put(message.key, context.get(message.key, 0) + message.value[1])
        context.send(out, context.get(message.key))

    assert keyed(process, [["a", 1], ["b", 2], ["a", 3]]) == [1, 2, 4]


WRONG = {
    "get": lambda message, context, out: context.get("other"),
    "put": lambda message, context, out: context.put("other", 1),
    "delete": lambda message, context, out: context.delete("other"),
    "items": lambda message, context, out: list(context.items()),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_task_by_key_is_refused_the_state_of_other_keys(what):
    with pytest.raises(
        OperatorFailure, match=r"'it' at .*test_task.py:\d+.*with keyed=True a message has the state of"
    ):
        keyed(WRONG[what], [["a", 1]])


def test_a_task_by_key_needs_a_key():
    with pytest.raises(OperatorFailure, match=r"a record has no key, and a task with keyed=True needs one"):
        keyed(lambda message, context, out: None, [[None, 1]])


def test_a_task_by_key_puts_nothing_of_its_own_accord():
    store = MemoryStore()
    store.put(Tagged().encode("there"), 1)
    context = TaskContext(0, store, Tagged())
    context.keep_to_known()
    context.put("there", 2)
    assert dict(context.items()) == {"there": 2}
    with pytest.raises(ValueError, match=r"put state at 'new', of which no message has come"):
        context.put("new", 1)
