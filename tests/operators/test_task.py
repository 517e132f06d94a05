"""What a task's function does takes effect as a whole, and is seen by itself at once."""

from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Output
from operators.task import Effects, TaskContext, TaskOperator
from runtime.encoding.serdes import Json, Tagged
from runtime.stores.memory import MemoryStore

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
