"""A process operator against a reference that keeps state and timers in a dict and a list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.base import MAX_TIMESTAMP, Batch
from operators.process import Process, ProcessOperator
from runtime.errors import OperatorFailure
from runtime.stores.memory import MemoryStore
from samza_dsl import App, testing

EVENTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 40))
    | st.tuples(st.just("watermark"), st.integers(0, 60))
    | st.just(("restart", 0)),
    max_size=40,
)


def on_message(value, context):
    context.state = (context.state or 0) + 1
    context.set_timer(context.timestamp + 10)
    if context.timestamp % 5 == 0:
        context.delete_timer(context.timestamp + 10)
    return [(context.key, context.state)]


def on_timer(at_ms, context):
    if at_ms < 30:
        context.set_timer(at_ms + 25)
    return [(context.key, at_ms)]


def driven(events):
    store = MemoryStore()
    spec = Process(on_message=on_message, on_timer=on_timer)

    def build():
        return ProcessOperator(spec, {"on_message": on_message, "on_timer": on_timer}, store, bytes.decode)

    process, out = build(), []
    for what, at in [*events, ("watermark", MAX_TIMESTAMP)]:
        if what == "restart":
            process = build()
            continue
        if what == "watermark":
            emitted = process.on_watermark(at)
            assert process.next_due() > at
        else:
            emitted = process.process(Batch([at], [what.encode()], [at], [at]))
        if emitted is not None:
            assert [key.decode() for key in emitted.keys] == [key for key, _ in emitted.values]
            out += emitted.values
    return out


def expected(events):
    counts, timers, out = {}, set(), []
    for what, at in [*events, ("watermark", MAX_TIMESTAMP)]:
        if what == "watermark":
            while timers and min(timers)[0] <= at:
                due, key = min(timers)
                timers.remove((due, key))
                if due < 30:
                    timers.add((due + 25, key))
                out.append((key, due))
        elif what != "restart":
            counts[what] = counts.get(what, 0) + 1
            (timers.discard if at % 5 == 0 else timers.add)((at + 10, what))
            out.append((what, counts[what]))
    return out


@given(EVENTS)
def test_state_and_timers_are_the_references_also_after_a_restart(events):
    assert driven(events) == expected(events)


@given(st.lists(st.sampled_from("abc"), max_size=20))
def test_state_that_is_changed_in_place_is_kept(words):
    def gather(word, context):
        context.state.append(word)
        return [len(context.state)]

    app = App("laws")
    words_in = app.input("words", value=str, key=lambda word: word, timestamp=lambda word: 0)
    words_in.process(gather, init=list).send_to(app.output("out", value=int))
    out = testing.run(app, {"words": words})["out"]
    assert out == [words[: row + 1].count(word) for row, word in enumerate(words)]


def test_a_timer_without_a_function_for_it_is_refused_where_it_is_set():
    app = App("timers")
    numbers = app.input("numbers", value=int, key=abs, timestamp=abs)
    numbers.process(lambda n, context: context.set_timer(10**9), op_id="it").sink(print)
    told = (
        r"process 'it' at .*: ValueError: process\(...\) has no function for a timer; write instead: process\(..., on_t"
    )
    with pytest.raises(OperatorFailure, match=told + "imer=lambda at_ms, context: .*, on numbers/0 at 0"):
        testing.run(app, {"numbers": [1]})
