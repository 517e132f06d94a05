"""A stateful operator that was told something else since records were read: it is said, with what was and what is."""

import logging.handlers
import os
import re
import subprocess
import sys
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from operators.core.base import Batch
from planner.model.errors import PlanError
from runtime.job.job_model import JOB
from runtime.job.parameters import PARAMETERS, changes_of, to_note
from runtime.opening.stored_state import forget, move
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import (
    App,
    after_count,
    collect,
    count,
    counted,
    daily,
    hopping,
    quantile,
    session,
    sliding,
    total,
    tumbling,
)
from tests.simulation.crash import memory, run_once
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import Cluster
from tests.specs import specs

PROJECT = Path(__file__).parents[2]


def app_of(step, **of_input):
    app = App("changing")
    told = {"value": int, "key": lambda n: n % 2, "timestamp": lambda n: n, **of_input}
    step(app.input("numbers", **told)).map(str).send_to(app.output("out", value=str))
    return app


def windowed(windows, aggregation=None, **how):
    return app_of(lambda numbers: numbers.window(windows, aggregation or count(), op_id="it", **how))


def once(within_ms):
    return app_of(lambda numbers: numbers.deduplicate(lambda n: n, within_ms=within_ms, op_id="it"))


def scanned(**how):
    return app_of(lambda numbers: numbers.scan(lambda n, one: (n or 0) + one, op_id="it", **how))


def processed(**how):
    return app_of(lambda numbers: numbers.process(lambda n, context: [n], op_id="it", **how))


def joined(within, **how):
    return app_of(lambda numbers: numbers.join(numbers, lambda a, b: 1, within=within, op_id="it", **how))


def nearest(**how):
    return app_of(lambda numbers: numbers.join_asof(numbers, lambda a, b: 1, op_id="it", **how))


def as_of(retention_ms, how="inner"):
    app = App("changing")
    numbers = app.input("numbers", value=int, key=int)
    table = app.table("table", value=int, key=int, retention_ms=retention_ms)
    numbers.join(table, lambda n, row: n, how=how, op_id="it").send_to(app.output("out"))
    return app


def together(how="inner"):
    app = App("changing")
    numbers = app.input("numbers", value=int, key=lambda n: n % 2, timestamp=lambda n: n)
    joined = numbers.join_windows(numbers, tumbling(seconds=1), lambda a, b: 1, how=how, op_id="it")
    joined.map(str).send_to(app.output("out", value=str))
    return app


def of_tables(how):
    app = App("changing")
    numbers, table = (app.table(name, value=int, key=int) for name in ("numbers", "table"))
    numbers.join(table, lambda a, b: 1, how=how, op_id="it").changes().send_to(app.output("out"))
    return app


def named_by(how):
    app = App("changing")
    numbers, table = (app.table(name, value=int, key=int) for name in ("numbers", "table"))
    numbers.join(table, lambda a, b: 1, on=abs, how=how, op_id="it").changes().send_to(app.output("out"))
    return app


def own(how="inner", **said):
    app = App("changing")
    numbers = app.input("numbers", value=int, key=lambda n: n % 2)
    table = numbers.to_table("it" if said else "rows", **said)
    numbers.join(table, lambda n, row: 1, how=how, op_id="joined" if said else "it").send_to(app.output("out"))
    return app


def looked_into(value):
    app = App("changing")
    table = app.table("table", value=value, key=int)
    app.input("numbers", value=int, key=int).join(table, lambda n, row: 1).send_to(app.output("out"))
    return app


def own_task(store):
    app = App("changing")
    numbers = app.input("numbers", value=int)
    app.task(numbers, lambda message, context: None, store=store, op_id="it")
    return app


def awaited(**how):
    app = App("changing")

    async def called(n, context):
        context.state = n
        return [n]

    numbers = app.input("numbers", value=int, key=lambda n: n % 2)
    numbers.async_flat_map(called, op_id="it", **how).send_to(app.output("out"))
    return app


CHANGES = {
    "length": (lambda: windowed(tumbling(minutes=5)), lambda: windowed(tumbling(minutes=1)), "300000.*60000"),
    "kind": (lambda: windowed(tumbling(seconds=5)), lambda: windowed(session(seconds=5)), "Tumbling.*Sessions"),
    "gap": (lambda: windowed(session(seconds=5)), lambda: windowed(session(seconds=6)), "gap_ms=5000.*gap_ms=6000"),
    "hop": (
        lambda: windowed(hopping(seconds=4, every_ms=1_000)),
        lambda: windowed(hopping(seconds=4, every_ms=2_000)),
        "every_ms=1000.*every_ms=2000",
    ),
    "look back": (lambda: windowed(sliding(seconds=1)), lambda: windowed(sliding(seconds=2)), "1000.*2000"),
    "number": (lambda: windowed(counted(3)), lambda: windowed(counted(4)), "number=3.*number=4"),
    "days": (lambda: windowed(daily()), lambda: windowed(daily("Asia/Tokyo")), "UTC.*Tokyo"),
    "aggregation": (
        lambda: windowed(tumbling(seconds=1), count()),
        lambda: windowed(tumbling(seconds=1), collect()),
        "aggregation was count from int, and is collect",
    ),
    "its argument": (
        lambda: windowed(tumbling(seconds=1), quantile(0.5, lambda n: n)),
        lambda: windowed(tumbling(seconds=1), quantile(0.9, lambda n: n)),
        r"0\.5.*0\.9",
    ),
    "lateness": (
        lambda: windowed(tumbling(seconds=1)),
        lambda: windowed(tumbling(seconds=1), allowed_lateness_ms=5),
        "allowed_lateness_ms was 0, and is 5",
    ),
    "early panes": (
        lambda: windowed(tumbling(seconds=1)),
        lambda: windowed(tumbling(seconds=1), early=after_count(2)),
        "early was None, and is .*2",
    ),
    "emit": (
        lambda: windowed(tumbling(seconds=1), allowed_lateness_ms=5),
        lambda: windowed(tumbling(seconds=1), allowed_lateness_ms=5, emit="final"),
        "emit was 'all', and is 'final'",
    ),
    "within": (lambda: once(5), lambda: once(6), "within_ms was 5, and is 6"),
    "ttl": (lambda: processed(ttl_ms=5_000), lambda: processed(ttl_ms=6_000), "ttl_ms was 5000, and is 6000"),
    "type of state": (lambda: scanned(), lambda: scanned(state=int), "state was None, and is .*int"),
    "store": (lambda: scanned(store="memory"), lambda: scanned(), "store was 'memory', and is 'lmdb'"),
    "emitting": (lambda: scanned(), lambda: scanned(emit=lambda k, n: n), "emit was None, and is a function"),
    "bounds": (lambda: joined((-1, 1)), lambda: joined((-1, 2)), "high_ms was 1, and is 2"),
    "own table": (lambda: own(), lambda: own("left"), "left was False, and is True"),
    "own rows": (lambda: own(state=float), lambda: own(state=int), "state was .*float.*, and is .*int"),
    "newest": (lambda: joined((-1, 1)), lambda: joined((-1, 1), keep="latest"), "keep was 'all', and is 'latest'"),
    "outer": (lambda: joined((-1, 1)), lambda: joined((-1, 1), how="left"), "how was 'inner', and is 'left'"),
    "tolerance": (lambda: nearest(tolerance=5), lambda: nearest(tolerance=6), "tolerance_ms was 5, and is 6"),
    "direction": (
        lambda: nearest(tolerance=5),
        lambda: nearest(tolerance=5, direction="nearest"),
        "direction was 'backward', and is 'nearest'",
    ),
    "nearest or none": (nearest, lambda: nearest(how="left"), "how was 'inner', and is 'left'"),
    "retention": (lambda: as_of(1_000), lambda: as_of(2_000), "retention_ms was 1000, and is 2000"),
    "left join": (lambda: as_of(1_000), lambda: as_of(1_000, "left"), "how was 'inner', and is 'left'"),
    "windows' join": (together, lambda: together("outer"), "inner join of 2.*outer join of 2"),
    "tables' join": (lambda: of_tables("inner"), lambda: of_tables("left"), "how was 'inner', and is 'left'"),
    "foreign key's join": (lambda: named_by("inner"), lambda: named_by("left"), "how was 'inner', and is 'left'"),
    "rows of a table": (lambda: looked_into(int), lambda: looked_into(float), "value was .*int.*, and is .*float"),
    "task": (lambda: own_task("memory"), lambda: own_task("lmdb"), "store was 'memory', and is 'lmdb'"),
    "awaited state": (lambda: awaited(), lambda: awaited(state=int), "state was None"),
    "type of keys": (
        lambda: app_of(lambda n: n.partition_by(lambda n: n, op_id="by").scan(lambda a, b: b, op_id="it")),
        lambda: app_of(
            lambda n: n.partition_by(lambda n: n, key_type=int, op_id="by").scan(lambda a, b: b, op_id="it")
        ),
        r"keys was Tagged\(type=Any\), and is .*int",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_parameter_is_told_that_was_changed_since_records_were_read(change):
    before, after, said = CHANGES[change]
    environment = memory()
    run_on(environment, before(), end=True)
    told = {one.operator: one.what for one in opened_again(after(), environment.checkpoints("changing"))}
    assert re.search(said, "; ".join(told.get("it") or told["table"]))
    assert not opened_again(before(), environment.checkpoints("changing"))


def test_each_kind_of_operator_that_keeps_state_is_among_the_changes():
    tried = {spec.kind for before, _, _ in CHANGES.values() for spec in before().graph().specs.values()}
    kinds = {one.kind for one in specs() if one.stateful is not False}
    assert kinds - tried <= {"remote_join"}, "which keeps nothing"


def opened_again(app, checkpoints):
    """Return what has changed for another version of an app, which is not run: its state may be refused."""
    graph, noted = app.graph(), checkpoints[JOB]
    words = {**noted.meanings, PARAMETERS: to_note(graph, checkpoints)}
    return changes_of(graph, {**checkpoints, JOB: replace(noted, meanings=words)})


def run_on(environment, app, values=(1, 2), end=False):
    for name in ("numbers", "table"):
        if name not in environment.streams():
            environment.create_stream(name, StreamConfig())
        if values:
            data = [b"%d" % value for value in values]
            environment.append([Append(name, 0, Batch(data, keys=data))])
        if end:
            environment.end_stream(name)
    return run_once(app, environment, until_now=True)


@contextmanager
def on_memory(path):
    yield memory()


@contextmanager
def on_log(path):
    with closing(LogEnvironment(path / "log")) as environment:
        yield environment


@contextmanager
def on_kafka(path):
    with simulated(Cluster()), closing(opened(path / "kafka")) as environment:
        yield environment


@pytest.mark.parametrize("where", [on_memory, on_log, on_kafka])
def test_what_was_changed_is_told_wherever_streams_lie_until_something_is_read(where, tmp_path, caplog):
    with where(tmp_path) as environment:
        run_on(environment, once(5))
        assert not caplog.messages
        for _ in range(2):
            (change,) = run_on(environment, once(6), values=()).metrics().changes
            assert change.what == ("within_ms was 5, and is 6",)
        (message,) = caplog.messages
        assert re.search(r"deduplicate 'it' at .*test_parameters.py:\d+ .*within_ms was 5, and is 6", message)
        assert "samza-dsl reset changing" in message
        run_on(environment, once(6), values=(3,))
        assert not run_on(environment, once(6), values=()).metrics().changes
        assert len(caplog.messages) == 1


@given(st.lists(st.tuples(st.sampled_from([5, 6, 7]), st.booleans()), min_size=1, max_size=8))
def test_told_is_what_differs_from_the_last_run_that_has_read_something(runs):
    environment, read_with = memory(), None
    for within_ms, reads in runs:
        (change,) = run_on(environment, once(within_ms), values=(1,) * reads).metrics().changes or (None,)
        is_other = read_with is not None and read_with != within_ms
        assert (change is not None) == is_other
        assert change is None or change.what == (f"within_ms was {read_with}, and is {within_ms}",)
        read_with = within_ms if reads else read_with


def test_an_operator_that_is_new_is_told_where_its_input_was_read_before():
    environment = memory()
    run_on(environment, once(5))
    app = app_of(lambda n: n.deduplicate(lambda n: n, within_ms=5, op_id="it").scan(lambda a, b: b, op_id="new"))
    (change,) = run_on(environment, app, values=()).metrics().changes
    assert (change.operator, change.is_new) == ("new", True)


def test_nothing_is_told_after_a_reset_nor_of_what_has_read_nothing(caplog):
    environment = memory()
    run_on(environment, once(5), values=())
    assert not run_on(environment, once(6), values=(1,)).metrics().changes
    environment.reset("changing")
    assert not run_on(environment, once(7), values=()).metrics().changes
    assert not caplog.messages


def test_state_that_was_moved_takes_along_what_its_operator_was_told():
    environment = memory()
    run_on(environment, once(5))
    move(environment, "changing", "it", "that")
    app = app_of(lambda numbers: numbers.deduplicate(lambda n: n, within_ms=6, op_id="that"))
    (change,) = run_on(environment, app, values=()).metrics().changes
    assert (change.operator, change.is_new, change.what) == ("that", False, ("within_ms was 5, and is 6",))


def test_state_that_would_be_read_otherwise_is_an_error_that_says_how_to_compute_all_again():
    environment = memory()
    run_on(environment, windowed(tumbling(minutes=5)))
    with pytest.raises(PlanError, match=r"300000.*60000.*state forget changing it; or .* samza-dsl reset changing"):
        run_on(environment, windowed(tumbling(minutes=1)))


def test_what_an_input_reads_times_by_is_told_where_state_goes_by_it():
    def app(step, **how):
        return app_of(lambda numbers: step(numbers), **how)

    def kept(numbers):
        return numbers.deduplicate(lambda n: n, within_ms=5, op_id="it")

    def plain(numbers):
        return numbers.map(abs)

    for step, said in ((kept, [("max_disorder_ms was 0, and is 5",)]), (plain, [])):
        environment = memory()
        run_on(environment, app(step))
        changed = opened_again(app(step, max_disorder_ms=5), environment.checkpoints("changing"))
        assert [one.what for one in changed] == said


@dataclass(frozen=True)
class Shops:
    """Windows of one's own, with fields whose own words differ from process to process."""

    names: frozenset[str]
    length: object

    def assign(self, key, timestamp, value):
        return [(timestamp, timestamp + 1)]


def with_odd_parameters():
    """Return an app, parameters of which Python tells by order of hash, or by address."""
    return windowed(Shops(frozenset("abcdefgh"), lambda value: 1), early=after_count(2))


@pytest.mark.ci
def test_the_words_are_the_same_in_each_process():
    program = (
        "from tests.runtime.test_parameters import with_odd_parameters\n"
        "from runtime.job.parameters import parameters_of\n"
        "graph = with_odd_parameters().graph()\n"
        "print(parameters_of(graph), graph.specs['it'].meaning())"
    )
    seeds = [{**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(PROJECT)} for seed in (1, 2, 3)]
    told = {
        subprocess.run([sys.executable, "-c", program], env=seed, capture_output=True, check=True, text=True).stdout
        for seed in seeds
    }
    assert len(told) == 1


def test_what_does_not_change_results_is_not_told():
    def app(**how):
        return awaited(**how)

    environment = memory()
    run_on(environment, app())
    assert not opened_again(app(timeout_ms=999, max_in_flight=3), environment.checkpoints("changing"))


def two(first, second, ids=("one", "two"), keep="scan"):
    """Return an app with two operators of one kind, which keep state by these ids; None where there is none of it."""
    app = App("changing")
    numbers = app.input("numbers", value=int, key=lambda n: n % 2, timestamp=lambda n: n)
    for id, function in zip(ids, (first, second), strict=True):
        if function is None:
            continue
        kept = {
            "scan": lambda function=function, id=id: numbers.scan(function, init=int, op_id=id),
            "process": lambda function=function, id=id: numbers.process(function, op_id=id),
            "total": lambda function=function, id=id: numbers.window(tumbling(hours=1), total(function), op_id=id),
            "named": lambda function=function, id=id: numbers.window(
                tumbling(hours=1), total(partial(function, 1)), op_id=id
            ),
        }[keep]()
        kept.map(str).send_to(app.output(f"out-{id}", value=str))
    return app


def times(number):
    return lambda *values: values[-1] * number


def kept_then(context, value):
    context.state = value


FUNCTIONS = {
    "scan": (lambda state, n: state + n, lambda state, n: state + 1),
    "scan ": (times(2), times(3)),
    "process": (
        lambda n, context: kept_then(context, n) or [n],
        lambda n, context: kept_then(context, n + 1) or [n],
    ),
    "total": (lambda n: n, lambda n: n + 1),
    "total ": (times(2), times(3)),
    "named": (lambda a, n: a + n, lambda a, n: a - n),
}


def exchanged(environment, app):
    """Return who is told, as an app begins, to call what another one called."""
    handler = logging.handlers.BufferingHandler(1_000)
    logging.getLogger("samza_dsl").addHandler(handler)
    try:
        run_on(environment, app, values=())
    finally:
        logging.getLogger("samza_dsl").removeHandler(handler)
    texts = [record.getMessage() for record in handler.buffer]
    found = (re.search(r"'(\w+)' at .* calls what '(\w+)' called", text) for text in texts)
    return {(one[1], one[2]) for one in found if one}


@pytest.fixture(params=FUNCTIONS)
def kept(request):
    """Return an environment in which two operators have kept state, their functions, and what makes an app of such."""
    environment, keep = memory(), request.param.strip()
    run_on(environment, two(*FUNCTIONS[request.param], keep=keep))
    return environment, *FUNCTIONS[request.param], lambda *both, **how: two(*both, keep=keep, **how)


def test_operators_that_have_exchanged_their_ids_are_told_once(kept):
    environment, a, b, made = kept
    assert exchanged(environment, made(b, a)) == {("one", "two"), ("two", "one")}
    assert exchanged(environment, made(b, a)) == set()


def test_an_operator_that_was_given_the_id_of_one_that_is_gone_is_told(kept):
    environment, _, b, made = kept
    forget(environment, "changing", ["two"])
    assert exchanged(environment, made(b, None)) == {("one", "two")}


def test_functions_that_have_changed_or_stand_elsewhere_are_no_exchange(kept):
    environment, a, b, made = kept
    for after in (made(a, b), made(b, a, ids=("two", "one")), made(a, lambda *values: values[-1]), made(a, a)):
        assert exchanged(environment, after) == set()


def test_state_that_was_moved_with_its_functions_is_no_exchange(kept):
    environment, a, b, made = kept
    for source, target in (("one", "spare"), ("two", "one"), ("spare", "two")):
        move(environment, "changing", source, target)
    assert exchanged(environment, made(b, a)) == set()
