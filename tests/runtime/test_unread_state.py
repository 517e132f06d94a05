"""Stored state that can't be read ends a run, whatever the policies for records say: no record is at fault."""

import sys

import pytest
from msgspec import defstruct

from runtime.model.errors import UnreadState
from samza_dsl import App, MessagePack, collect, dead_letter, produce, retry, session, skip, tumbling

NOW = 3_600_000


def of_state(context, value):
    context.state = value


def in_process(note, look, serde=None):
    def step(stream, made, on_error):
        def work(value, context):
            look(context) if made is None else note(context, made(value))
            return ()

        declared = {} if serde is None else {"state": serde(int | sys.modules[__name__].Kept)}
        return stream.process(work, op_id="keeps", on_error=on_error, **declared)

    return step


def called(stream, made, on_error):
    async def work(value, context):
        context.state = context.state if made is None else made(value)
        return ()

    return stream.async_flat_map(work, init=lambda: None, op_id="keeps", on_error=on_error)


def due(stream, made, on_error):
    def work(value, context):
        if made is not None:
            context.set_timer(NOW - 1)
            context.map("kept")["one"] = made(value)
        return ()

    def on_timer(at_ms, context):
        return [context.map("kept")["one"]]

    return stream.process(work, on_timer=on_timer, op_id="keeps", on_error=on_error)


def windowed(stream, made, on_error):
    values = stream.map(lambda value: value if made is None else made(value))
    return values.window(tumbling(minutes=5), collect(), op_id="keeps", on_error=on_error)


STEPS = {
    "state": in_process(of_state, lambda context: context.state),
    "serde": in_process(of_state, lambda context: context.state, MessagePack),
    "list": in_process(lambda context, one: context.list("kept").append(one), lambda context: [*context.list("kept")]),
    "map": in_process(lambda context, one: context.map("kept").update(a=one), lambda context: context.map("kept")["a"]),
    "map key": in_process(
        lambda context, one: context.map("kept").update({one: 1}), lambda context: [*context.map("kept")]
    ),
    "call": called,
    "timer": due,
    "window": windowed,
}
POLICIES = (skip, dead_letter("lost"), retry(1, then=skip))


def app_of(step, made, on_error):
    app = App("unread")
    stream = app.input("in", value=int, key=lambda value: value % 2, timestamp=lambda value: value)
    if step == "task":

        def work(message, context):
            context.get(message.key) if made is None else context.put(message.key, made(message.value))

        app.task(stream, work, op_id="keeps", on_error=on_error)
    else:
        STEPS[step](stream, made, on_error).map(str).send_to(app.output("out", value=str))
    return app


@pytest.mark.parametrize("on_error", POLICIES, ids=["skip", "dead_letter", "retry"])
@pytest.mark.parametrize("step", [*STEPS, "task"])
def test_state_that_cannot_be_read_ends_a_run_whatever_the_policy(step, on_error, tmp_path, monkeypatch):
    """Of a key alone: what lies first, and is looked at when a run begins, can be read."""
    kept = defstruct("Kept", [("of", int)], frozen=True, module=__name__)
    monkeypatch.setattr(sys.modules[__name__], "Kept", kept, raising=False)
    produce("in", [0, 1], data=tmp_path, value=int)
    made = {0: 1, 1: kept(1)}.get
    app_of(step, made, on_error).run(tmp_path, until_now=True)
    now = defstruct("Kept", [("of", int), ("more", int)], frozen=True, module=__name__)
    monkeypatch.setattr(sys.modules[__name__], "Kept", now)
    produce("in", [NOW, NOW + 1], data=tmp_path, value=int)
    unread = r"'keeps' at .*: (its state|an entry lies under a key that) can't be read: "
    with pytest.raises(UnreadState, match=unread + r".*( gives no default|required field `more`)"):
        app_of(step, None, on_error).run(tmp_path, until_now=True)


def of_serde(stream, declared, on_error):
    def work(value, context):
        context.state = (context.state or 0) + value
        return ()

    return stream.process(work, op_id="keeps", on_error=on_error, state=declared)


def of_calls(stream, declared, on_error):
    async def work(value, context):
        context.state = (context.state or 0) + value
        return ()

    return stream.async_flat_map(work, init=lambda: None, op_id="keeps", on_error=on_error, state=declared)


def of_scan(stream, declared, on_error):
    return stream.scan(lambda state, value: (state or 0) + value, op_id="keeps", on_error=on_error, state=declared)


@pytest.mark.parametrize("on_error", POLICIES, ids=["skip", "dead_letter", "retry"])
@pytest.mark.parametrize("step", [of_serde, of_calls, of_scan])
def test_state_of_a_serde_that_is_declared_no_more_ends_a_run_whatever_the_policy(step, on_error, tmp_path):
    for declared in (MessagePack(int), None):
        app = App("unread")
        stream = app.input("in", value=int, key=lambda value: value % 2)
        step(stream, declared, on_error).map(str).send_to(app.output("out", value=str))
        produce("in", [0, 1], data=tmp_path, value=int)
        if declared is not None:
            app.run(tmp_path, until_now=True)
    unread = r"'keeps' at .*: its state was written with a serde.*; or drop .*: samza-dsl state forget unread keeps"
    with pytest.raises(UnreadState, match=unread):
        app.run(tmp_path, until_now=True)


def test_keys_that_lie_under_a_former_class_end_a_run_whatever_the_policy(tmp_path, monkeypatch):
    for fields in ([("of", int)], [("of", int), ("more", int, 5)]):
        kept = defstruct("Kept", fields, frozen=True, module=__name__)
        monkeypatch.setattr(sys.modules[__name__], "Kept", kept, raising=False)
        made = kept if len(fields) == 1 else None
        app = app_of("map key", made, skip)
        produce("in", [0, 1], data=tmp_path, value=int)
        if made is not None:
            app.run(tmp_path, until_now=True)
    unread = r"'keeps' at .*: an entry lies under Kept\(of=0, more=5\) as its class was in a run before"
    with pytest.raises(UnreadState, match=unread):
        app.run(tmp_path, until_now=True)


def timed(stream):
    return stream.process(
        lambda value, context: context.set_timer(1) or (), on_timer=lambda at, context: (), op_id="it"
    )


KEYED = {
    "timer": timed,
    "window": lambda stream: stream.window(tumbling(minutes=5), collect(), op_id="it"),
    "session": lambda stream: stream.window(session(minutes=5), collect(), op_id="it"),
    "as of": lambda stream: stream.join_asof(stream, lambda left, right: left, op_id="it"),
}


@pytest.mark.parametrize("step", KEYED)
def test_keys_of_state_that_cannot_be_read_end_a_run_with_its_operator(step, tmp_path, monkeypatch):
    for fields, at in (("of",), 0), (("of", "more"), NOW):
        kept = defstruct("Kept", [(field, int) for field in fields], frozen=True, module=__name__)
        monkeypatch.setattr(sys.modules[__name__], "Kept", kept, raising=False)
        app = App("unread")
        stream = app.input("in", value=int, timestamp=lambda value: value)
        keyed = stream.partition_by(lambda value, kept=kept, fields=fields: kept(*[0 for _ in fields]), op_id="by")
        KEYED[step](keyed).map(str).send_to(app.output("out", value=str))
        produce("in", [at], data=tmp_path, value=int)
        if at == 0:
            app.run(tmp_path, until_now=True)
    with pytest.raises(
        UnreadState, match=r" 'it' at .*: a key of its state can't be read: .*; or drop .* forget unread it"
    ):
        app.run(tmp_path, until_now=True)
