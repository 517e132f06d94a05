"""Wherever the public API takes a length of time, it takes a timedelta, which is the same as so many ms."""

import inspect
from contextlib import closing, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_overloads, is_typeddict
from unittest.mock import patch

import pytest
from hypothesis import Phase, find, given, seed, settings
from hypothesis import strategies as st

import samza_dsl
from operators.windows.window_types import PARTS_MS
from runtime.queries.state_query import StateQuery
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, PlanError, SamzaError, Spark, count, dead_letter, laws, testing, tumbling
from samza_dsl.fluent import arguments
from samza_dsl.fluent.pace import Pace

LENGTH, MS = timedelta(minutes=5), 300_000
TIMES = {"now_ms", "start_ms", "watermark_ms"}
"""What is a time, and not a length of it."""
OTHERS = {"Input", "TableInput", "Trigger", "Watermark", "Window", "checked_ms", "whole_ms"}
"""What the kit imports and is not for users, what calls a user's trigger, and an event with a time."""


def numbers(app, **how):
    return app.input("in", **({"value": int, "key": lambda n: 0, "timestamp": lambda n: n} | how))


def specs_of(app):
    """Return the whole numbers that an application's specs hold, those of outputs included."""
    specs = app.graph().specs.values()
    things = [*specs, *(spec.output for spec in specs if hasattr(spec, "output"))]
    return [{name: one for name, one in vars(thing).items() if type(one) is int} for thing in things]


def of_app(make):
    def build(length):
        app = App("durations")
        make(app, length)
        return specs_of(app)

    return build


def of_stream(make):
    def build(app, length):
        made = make(numbers(app), length)
        if made is not None:
            made.send_to(app.output("out"))

    return of_app(build)


def input_with(name):
    return of_app(lambda app, length: numbers(app, **{name: length}))


def table_with(name):
    how = {"value": int, "key": str, "retention_ms": 1}
    return of_app(lambda app, length: app.table("rows", **(how | {name: length})))


def remote_with(name):
    async def fetch(keys):
        return {}

    return lambda length: replaced(samza_dsl.remote_table(fetch, **{name: length}).rows)


def replaced(rows):
    return {name: one for name, one in vars(rows).items() if not callable(one)}


def options_with(name):
    def build(length):
        app = App("a", Options(threads=1, **{name: length}))
        numbers(app).send_to(app.output("out"))
        return app.options, app.graph() and None

    return build


def positional(make, **least):
    """Return what is made of a timedelta as it is, and of ms by their name."""
    return lambda length: make(
        *[length] * isinstance(length, timedelta),
        **least | ({} if isinstance(length, timedelta) else {"milliseconds": length}),
    )


def timers(call):
    """Return when timers and alarms go off which `call` sets or takes back, with the message's time and the clock 0."""

    def build(length):
        app, called = App("timers"), []

        def on_message(value, context):
            call(context, length)

        def on_time(at_ms, context):
            called.append(at_ms)

        numbers(app).process(on_message, on_timer=on_time, on_alarm=on_time).send_to(app.output("out"))
        testing.run(app, {"in": [0]})
        return called

    return build


def advanced(length):
    app = App("waiting")
    numbers(app).send_to(app.output("out"))
    with testing.running(app) as run:
        positional(run.advance_time)(length)
        return run.now_ms


def driven(length):
    events = [testing.Record(1, timestamp=2 * MS), testing.Record(2, timestamp=MS)]
    late = partial(testing.drive, lambda s: {"out": s.window(tumbling(minutes=1), count(), late=dead_letter("late"))})
    return late(events, key=lambda n: 0, max_disorder_ms=length)


def drawn(name):
    """Return what draws events from the same numbers each time: of the same lengths of time they are the same."""

    def build(length):
        found = []

        @seed(0)
        @settings(max_examples=50, database=None, phases=[Phase.generate])
        @given(laws.events(lambda key, at_ms: at_ms, **{"step_ms": 2 * MS, "keys": ["a"], "max_size": 3, name: length}))
        def draw(events):
            found.append(events)

        draw()
        return found

    return build


def watermarked(length):
    records = st.just([testing.Record(1, timestamp=2 * MS)])
    return find(laws.watermarked(records, max_disorder_ms=length), lambda found: testing.Watermark(MS) in found)


async def look_up(n):
    return [n]


async def write(n):
    return None


def waited(ask):
    """Return for how long state is waited for, and how often, where it is asked for in some way."""

    def build(length):
        app, seen = App("asked"), []
        numbers(app).scan(max, init=int, op_id="most").send_to(app.output("out"))
        app.input("more", value=int, key=abs).process(lambda n, context: [], op_id="kept").send_to(app.output("none"))

        def wait(self, environment, until_ms, patience_ms, wanted):
            seen.append(patience_ms)
            return iter(())

        with (
            TemporaryDirectory() as folder,
            closing(LogEnvironment(Path(folder))) as log,
            patch.object(StateQuery, "_waits", wait),
        ):
            ask(StateQuery(app.graph(), lambda: nullcontext(log)), {"in": 0}, length)
        return seen

    return build


TAKEN = {
    "App.input max_disorder_ms": input_with("max_disorder_ms"),
    "App.output retention_ms": of_app(lambda app, one: numbers(app).send_to(app.output("out", retention_ms=one))),
    "App.table max_disorder_ms": table_with("max_disorder_ms"),
    "App.table retention_ms": table_with("retention_ms"),
    "App.task timeout_ms": of_app(lambda app, one: app.task(numbers(app), print, op_id="task", timeout_ms=one)),
    "MessageStream.async_flat_map timeout_ms": of_stream(lambda s, one: s.async_flat_map(look_up, timeout_ms=one)),
    "MessageStream.deduplicate within_ms": of_stream(lambda s, one: s.deduplicate(abs, within_ms=one)),
    "MessageStream.join within": of_stream(lambda s, one: s.join(s.map(abs), max, within=(-one, one))),
    "MessageStream.join_asof tolerance": of_stream(lambda s, one: s.join_asof(s.map(abs), max, tolerance=one)),
    "MessageStream.join_windows allowed_lateness_ms": of_stream(
        lambda s, one: s.join_windows(s.map(abs), tumbling(hours=1), max, allowed_lateness_ms=one)
    ),
    "MessageStream.process ttl_ms": of_stream(lambda s, one: s.process(lambda n, context: [n], ttl_ms=one)),
    "MessageStream.sink timeout_ms": of_stream(lambda s, one: s.sink(write, timeout_ms=one)),
    "MessageStream.window allowed_lateness_ms": of_stream(
        lambda s, one: s.window(tumbling(hours=1), count(), allowed_lateness_ms=one)
    ),
    "MessageStream.window_all allowed_lateness_ms": of_stream(
        lambda s, one: s.window_all(tumbling(hours=1), count(), allowed_lateness_ms=one)
    ),
    **{f"Options {name}": options_with(name) for name in ("blocking_timeout_ms", "commit_interval_ms", "max_drain_ms")},
    **{f"Pace {name}": input_with(name) for name in Pace.__annotations__ if name.endswith("_ms")},
    "ProcessContext.delete_alarm at_ms": timers(lambda c, one: [c.set_alarm(MS), c.set_alarm(1), c.delete_alarm(one)]),
    "ProcessContext.delete_timer at_ms": timers(lambda c, one: [c.set_timer(MS), c.set_timer(1), c.delete_timer(one)]),
    "ProcessContext.set_alarm at_ms": timers(lambda context, one: context.set_alarm(one)),
    "ProcessContext.set_timer at_ms": timers(lambda context, one: context.set_timer(one)),
    "QueriedState.get timeout_ms": waited(lambda q, at, one: q.state("most").get(1, at_least=at, timeout_ms=one)),
    "QueriedState.list timeout_ms": waited(
        lambda q, at, one: q.state("kept").list(1, "l", at_least=at, timeout_ms=one)
    ),
    "QueriedState.map timeout_ms": waited(lambda q, at, one: q.state("kept").map(1, "m", at_least=at, timeout_ms=one)),
    "QueriedState.range timeout_ms": waited(lambda q, at, one: [*q.state("most").range(at_least=at, timeout_ms=one)]),
    "StateQuery.looked timeout_ms": waited(lambda q, at, one: q.looked(at, one, q.state("most").shape, 1)),
    "StateQuery.pages timeout_ms": waited(lambda q, at, one: [*q.pages(at, one, q.state("most").shape, None, None)]),
    "StateQuery.wait_for timeout_ms": waited(lambda query, at, one: query.wait_for(at, one)),
    "StateQuery.waits timeout_ms": waited(lambda query, at, one: [*query.waits(at, one)]),
    "Spark interval_ms": lambda one: Spark(checkpoint="kept", interval_ms=one),
    "TestRun.advance_time length": advanced,
    "AdvanceTime ms": testing.AdvanceTime,
    "after_delay length": positional(samza_dsl.after_delay),
    "drive max_disorder_ms": driven,
    "duration_ms length": positional(samza_dsl.duration_ms),
    "events late_ms": drawn("late_ms"),
    "events max_disorder_ms": drawn("max_disorder_ms"),
    "events step_ms": drawn("step_ms"),
    "every length": lambda one: samza_dsl.every(
        print, one if isinstance(one, timedelta) else timedelta(milliseconds=one)
    ),
    "hopping every_ms": lambda one: samza_dsl.hopping(hours=1, every_ms=one),
    "hopping length": positional(samza_dsl.hopping, every_ms=1),
    "hopping offset_ms": lambda one: samza_dsl.hopping(hours=1, every_ms=1, offset_ms=one),
    "produce retention_ms": None,
    **{
        f"remote_table {name}": remote_with(name) for name in ("absent_ttl_ms", "batch_wait_ms", "timeout_ms", "ttl_ms")
    },
    "retry backoff_ms": lambda one: samza_dsl.retry(2, backoff_ms=one),
    "session length": positional(samza_dsl.session),
    "sliding length": positional(samza_dsl.sliding),
    "tumbling length": positional(samza_dsl.tumbling),
    "tumbling offset_ms": lambda one: samza_dsl.tumbling(hours=1, offset_ms=one),
    "watermarked max_disorder_ms": watermarked,
}
"""What is made of a length of time, by where it is said: of 300,000 ms and of five minutes it is the same."""


def is_length(name):
    return name not in TIMES and (name.endswith("_ms") or name in ("ms", "within", "tolerance", "length"))


def public():
    """Yield all that the package, the kit and the laws have for users, by name."""
    for module in (samza_dsl, testing, laws):
        for name, thing in vars(module).items():
            if name.startswith("_") or name in OTHERS or not callable(thing) or not hasattr(thing, "__module__"):
                continue
            yield name, thing
            if inspect.isclass(thing):
                members = inspect.getmembers(thing, inspect.isfunction)
                yield from ((f"{name}.{one}", member) for one, member in members if not one.startswith("_"))


def lengths():
    """Yield each parameter of the public API that is a length of time, with what it is said to be."""
    for name, thing in public():
        versions = get_overloads(thing) if inspect.isfunction(thing) else []
        try:
            signatures = [inspect.signature(one) for one in (thing, *versions)]
        except (TypeError, ValueError):
            continue
        for parameter in (one for signature in signatures for one in signature.parameters.values()):
            if is_length(parameter.name):
                yield f"{name} {parameter.name}", str(parameter.annotation)
    for name, kind in Pace.__annotations__.items():
        if is_length(name):
            yield f"Pace {name}", str(kind)


def options():
    """Yield each length of time among the keyword arguments that overloads share, with what it is said to be."""
    for kind in filter(is_typeddict, vars(arguments).values()):
        said = kind.__annotations__.items()
        yield from ((f"{kind.__name__} {name}", str(one)) for name, one in said if is_length(name))


def test_every_length_of_time_is_said_to_be_a_timedelta_as_well():
    wrong = {
        where: kind
        for where, kind in (*lengths(), *options())
        if not any(word in kind for word in ("Duration", "timedelta", "Bounds")) and not where.startswith("Options ")
    }
    assert not wrong, f"say Duration, and convert it by ms_said or whole_ms: {wrong}"


def test_no_length_of_time_is_forgotten_here():
    found = {where for where, _ in lengths()} - {"MessageStream.asyncFlatMap timeout_ms"}
    assert found == TAKEN.keys()


@pytest.mark.parametrize("where", [where for where, make in TAKEN.items() if make is not None])
def test_a_timedelta_is_the_same_as_so_many_ms(where):
    assert TAKEN[where](LENGTH) == TAKEN[where](MS)


@pytest.mark.parametrize("length", [timedelta(microseconds=1_500), 1.5, timedelta(minutes=5, microseconds=1)], ids=str)
@pytest.mark.parametrize("where", [where for where, make in TAKEN.items() if make is not None])
def test_no_length_of_time_is_rounded(where, length):
    with pytest.raises((PlanError, SamzaError, ValueError), match=r"whole ms|whole number|Expected `int"):
        TAKEN[where](length)


@given(ms=st.integers(1, 10**13), unit=st.sampled_from(list(PARTS_MS)))
def test_any_whole_ms_can_be_said_in_any_unit(ms, unit):
    assert samza_dsl.duration_ms(**{unit: ms / PARTS_MS[unit]}) == ms


@given(micros=st.integers(1, 10**13), unit=st.sampled_from([None, *PARTS_MS]))
def test_microseconds_are_whole_ms_or_no_length(micros, unit):
    said = [timedelta(microseconds=micros)] if unit is None else []
    parts = {} if unit is None else {unit: micros / 1_000 / PARTS_MS[unit]}
    with nullcontext() if micros % 1_000 == 0 else pytest.raises(ValueError, match="none of whole ms"):
        assert samza_dsl.duration_ms(*said, **parts) * 1_000 == micros


def test_a_length_beyond_all_time_is_refused():
    with pytest.raises(ValueError, match="is more than"):
        tumbling(days=1e12)


def test_a_stream_is_made_with_its_retention(tmp_path):
    assert samza_dsl.produce("in", [1], data=tmp_path, retention_ms=LENGTH) == 1
    assert samza_dsl.produce("in", [1], data=tmp_path, retention_ms=MS) == 1
    with pytest.raises(PlanError, match="has 300000"):
        samza_dsl.produce("in", [1], data=tmp_path, retention_ms=timedelta(minutes=6))


@pytest.mark.parametrize("length", [timedelta(microseconds=1_500), timedelta(0), timedelta(-1), "5 minutes", 1.5, True])
def test_what_is_no_length_of_time_is_refused(length):
    app = App("durations")
    with pytest.raises(PlanError, match=r"ttl_ms=.* is not a whole number of at least 1, of ms, nor a timedelta"):
        numbers(app).process(lambda n, context: [n], ttl_ms=length)
    if length != timedelta(microseconds=1_500):
        with pytest.raises(ValueError, match="write instead"):
            tumbling(length)


@pytest.mark.parametrize(("said", "advised"), [("1m", 1), (-1, 1), (90, 90), (True, 1), (float("nan"), 1)])
def test_what_is_advised_for_a_bare_number_can_be_written(said, advised):
    with pytest.raises(ValueError, match=f"write instead: minutes={advised}, or a timedelta"):
        tumbling(said)
    assert tumbling(minutes=advised) == tumbling(timedelta(minutes=advised))
