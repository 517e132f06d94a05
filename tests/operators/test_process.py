"""A process operator against a reference that keeps state and timers in a dict and a list."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP, Batch
from operators.process import Process, ProcessOperator
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.model.errors import OperatorFailure
from runtime.stores.memory import MemoryStore
from samza_dsl import App, testing

AHEAD = st.just(0) | st.integers(0, 40)
"""How far the source of a message is ahead of the operator."""
EVENTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 40), AHEAD)
    | st.tuples(st.just("watermark"), st.integers(0, 60), st.just(0))
    | st.just(("restart", 0, 0)),
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
        return ProcessOperator(
            spec, {"on_message": on_message, "on_timer": on_timer}, store, KeySerde(String()), Tagged()
        )

    process, out, reached = build(), [], 0
    for what, at, ahead in [*events, ("watermark", MAX_TIMESTAMP, 0)]:
        if what == "restart":
            process.write_back()
            process = build()
            continue
        if what == "watermark":
            reached = max(reached, at)
            emitted = process.on_watermark(reached)
            assert process.next_due() > at
        else:
            emitted = process.process(Batch([at], [what], [at], [reached + ahead]))
        if emitted is not None:
            assert emitted.keys == [key for key, _ in emitted.values]
            out += emitted.values
    return out


def expected(events):
    counts, timers, out, reached = {}, set(), [], 0

    def fire(keys, until):
        while due := sorted((due, key) for due, key in timers if due <= until and key in keys):
            at, key = due[0]
            timers.remove((at, key))
            if at < 30:
                timers.add((at + 25, key))
            out.append((key, at))

    for what, at, ahead in [*events, ("watermark", MAX_TIMESTAMP, 0)]:
        if what == "watermark":
            reached = max(reached, at)
            fire("ab", reached)
        elif what != "restart":
            fire(what, reached + ahead)
            counts[what] = counts.get(what, 0) + 1
            (timers.discard if at % 5 == 0 else timers.add)((at + 10, what))
            out.append((what, counts[what]))
            fire(what, reached + ahead)  # what it has set for no later than its stamp
    return out


@given(EVENTS)
@example([("a", 1, 0), ("a", 1, 11), ("a", 1, 0)])  # called for a source that is ahead, asked for by one behind
def test_state_and_timers_are_the_references_also_after_a_restart(events):
    assert driven(events) == expected(events)


MESSAGES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(("add", "extend", "remove", "read", "twice"))))
STEPS = st.lists(st.tuples(st.sampled_from(("process", "commit", "restart", "fail")), MESSAGES), max_size=12)


@given(STEPS, st.sampled_from((int, list, None)), st.integers(0, 3))
def test_states_are_the_references_through_commits_restarts_and_failures(steps, init, most_held):
    def on_message(what, context):
        seen = len(context.state) if type(context.state) is list else context.state
        if what == "remove":
            context.state = None
        elif what != "read":
            change(context, what)
        return {"twice": (seen, seen), "read": None}.get(what, [seen])

    def change(context, what):
        if type(context.state) is list and what == "extend":
            context.state.append(1)
        elif type(context.state) is list:
            context.state = [*context.state, 1]
        else:
            context.state = (context.state or 0) + 1

    def build():
        functions = {"on_message": on_message} | ({"init": init} if init else {})
        return ProcessOperator(
            Process(on_message=on_message, init=init), functions, store, KeySerde(String()), most_held
        )

    def emits(messages, states):
        for key, what in messages:
            before = states.get(key, 0 if init else None)
            yield from {"read": [], "twice": [(key, before)] * 2}.get(what, [(key, before)])
            if what == "remove":
                states.pop(key, None)
            elif what != "read":
                states[key] = (before or 0) + 1

    store, states = MemoryStore(), {}
    store.durable = True
    process = build()
    for what, messages in steps:
        if what == "fail":
            process.write_back()
            store.savepoint()
        elif what != "process":
            process.write_back()
            process = build() if what == "restart" else process
        expected = emits(messages, dict(states) if what == "fail" else states)
        batch = Batch([what for _, what in messages], [k for k, _ in messages], *[[0] * len(messages)] * 2)
        out = process.process(batch) or Batch([], [])
        assert list(zip(out.keys, out.values, strict=True)) == list(expected)
        if what == "fail":
            store.rollback()
            process.forget()
    process.write_back()
    kept = {place[1:].decode(): len(state) if init is list else state for place, state in store.range()}
    assert {key: n for key, n in kept.items() if n} == {key: n for key, n in states.items() if n}


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


def test_state_that_a_generator_sets_as_it_goes_is_kept():
    def counted(word, context):
        context.state += 1
        yield context.state
        context.state += 1

    app = App("generators")
    words_in = app.input("words", value=str, key=lambda word: word, timestamp=lambda word: 0)
    words_in.process(counted, init=int).send_to(app.output("out", value=int))
    assert testing.run(app, {"words": ["a", "a", "b"]})["out"] == [1, 3, 1]


@pytest.mark.parametrize("at_ms", [1.5, "noon", None, 10**20, True])
def test_what_is_no_time_is_refused_as_one(at_ms):
    app = App("timing")
    numbers = app.input("in", value=int, key=str, timestamp=lambda n: n)
    timed = numbers.process(lambda n, context: context.set_timer(at_ms), on_timer=lambda at, context: (), op_id="it")
    timed.send_to(app.output("out"))
    with pytest.raises(OperatorFailure, match="whole ms since the epoch"):
        testing.run(app, {"in": [testing.Record(1, "a")]})
