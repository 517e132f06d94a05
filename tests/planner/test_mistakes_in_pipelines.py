"""Pipelines that can't run as they were put together are refused when they are planned, at the operator to blame."""

import re

import pytest

from planner.model.errors import PlanError
from samza_dsl import App, Options, count, dead_letter, every, mean, ranges, remote_table, retry, skip, tumbling
from tests.planner.refusal import numbers_of, refused


@pytest.fixture
def app():
    return App("mistaken")


@pytest.fixture
def numbers(app):
    return numbers_of(app, key=int)


async def later(value):
    return [value]


def run(message, context):
    """Do nothing."""


HOURLY = tumbling(hours=1)


def test_an_app_that_reads_nothing():
    with pytest.raises(PlanError, match=r"the app 'empty' reads nothing; write instead: app.input\("):
        App("empty").plan()


def test_an_app_that_writes_nothing(app):
    with refused("its messages go nowhere", ".send_to(app.output(...)), .sink(...), or leave it out", app):
        app.input("numbers", value=int)


def test_an_operator_whose_messages_go_nowhere(app, numbers):
    with refused("its messages go nowhere", ".send_to(app.output(...))", app):
        numbers.map(abs).send_to(app.output("out"))
        numbers.map(str)  # here


def test_a_table_that_nobody_joins(app, numbers):
    with refused("nobody joins this table", "stream.join(table, ...), or leave it out", app):
        numbers.sink(print)
        app.table("rows", key=int)  # here


def test_a_table_of_its_own_that_nobody_joins(app, numbers):
    with refused("nobody joins this table", "stream.join(table, ...), or leave it out", app):
        numbers.sink(print)
        numbers.partition_by(abs).to_table("newest")  # here


def test_a_branch_that_nobody_reads_is_dropped(app, numbers):
    numbers.branch(str, into=("1", "2"))["1"].sink(print)
    app.plan()


def test_a_branch_of_which_nobody_reads_any(app, numbers):
    with refused("nobody reads any of its branches", '.branch(...)["late"].send_to(...), or leave it out', app):
        numbers.sink(print)
        numbers.branch(str, into=("1", "2"))  # here


def test_two_inputs_of_one_stream(app, numbers):
    with refused("'numbers' is already read at", "use that stream twice; streams can be shared", app):
        numbers.sink(print)
        app.input("numbers", value=int).sink(print)  # here


def test_two_tables_of_one_stream(app):
    with refused("'rows' is already read at", "streams can be shared", app):
        app.table("rows", key=int)
        app.table("rows", key=str)  # here


@pytest.mark.parametrize(("one", "other"), [("orders-*", "orders-de"), ("o*-de", "orders-*"), ("a?", "?b"), ("*", "a")])
def test_a_pattern_and_a_name_that_may_meet(app, one, other):
    with refused(f"{one!r} and {other!r} at", "patterns and names that lie apart", app):
        app.input(one).sink(print)  # here
        app.input(other).sink(print)


@pytest.mark.parametrize(("one", "other"), [("orders-*", "returns-*"), ("a?", "b?"), ("a?", "abc"), ("*-de", "*-fr")])
def test_patterns_that_lie_apart(app, one, other):
    app.input(one).sink(print)
    app.input(other).sink(print)
    app.plan()


def test_a_merge_with_itself(numbers):
    with refused("merge(...) got one stream twice", ".flat_map(lambda value: (value, value))"):
        numbers.merge(numbers)


def test_a_merge_with_a_stream_twice(numbers):
    with refused("merge(...) got one stream twice", ".flat_map(lambda value: (value, value))"):
        numbers.map(abs).merge(numbers, numbers)


def test_a_merge_with_nothing(numbers):
    with refused("merge() has nothing to merge with", ".merge(other)"):
        numbers.merge()


def test_a_merge_with_a_name(numbers):
    with refused("merge(...) got 'others', which is no MessageStream", "what app.input(...) returns"):
        numbers.merge("others")


def test_a_merge_with_a_stream_of_another_app(numbers):
    with refused("merge(...) got something of the app 'other'", "what app.input(...) of this app returns"):
        numbers.merge(numbers_of(App("other")))


def test_a_join_with_a_table_of_another_app(numbers):
    with refused("join(...) got something of the app 'other'", "what app.table(...) of this app returns"):
        numbers.join(App("other").table("rows", key=int), max, on=abs)


def test_a_join_with_a_stream_at_any_time(app, numbers):
    with refused("needs the time within which messages are joined", "within=(-duration_ms(minutes=5), "):
        numbers.join(app.input("others"), max)


def test_a_join_with_what_is_neither_stream_nor_table(numbers):
    with refused("which is no Table", "what app.table(...) returns"):
        numbers.join("others", max, within=(0, 1))


def test_a_join_with_a_stream_of_another_app(numbers):
    with refused("join(...) got something of the app 'other'", "what app.input(...) of this app returns"):
        numbers.join(App("other").input("others", key=int), max, within=(0, 1))


@pytest.mark.parametrize(
    ("said", "wrong", "instead"),
    [
        ({"within": 5}, "within=5 is no tuple of two whole ms", "within=(-300_000, 600_000)"),
        ({"within": (0, 1.5)}, "within=(0, 1.5) is no tuple of two whole ms", "within=(-300_000, 600_000)"),
        ({"within": (10, -5)}, "its first bound is above its second", "within=(-5, 10)"),
        ({"within": (0, 10**18)}, "is more than any two times lie apart", "within=(-300_000, 600_000)"),
        ({"how": "full"}, "how='full' is not a join of two streams", 'how="inner", "left", "right" or "outer"'),
        ({"keep": "newest"}, "keep='newest' does not say which messages join", 'keep="all" or keep="latest"'),
        ({"on": abs}, "streams are joined by their keys", ".partition_by(...) on both streams, and no on="),
        ({"late": "late"}, "join(late=...) got 'late', which is no DeadLetter", 'late=dead_letter("late-flights")'),
        ({"late": dead_letter("a b")}, "'a b' can't name a stream of dead letters", "letters, digits"),
        ({"store": "disk"}, "store='disk' is not a kind of store", 'store="memory"'),
        ({"with_": abs}, "join(with_=...) calls abs with 2 arguments", "a function of 2 arguments"),
    ],
)
def test_a_join_of_streams_that_can_not_be_meant(app, numbers, said, wrong, instead):
    others = app.input("others", key=int)
    with refused(wrong, instead):
        numbers.join(others, **{"with_": max, "within": (0, 1)} | said)


@pytest.mark.parametrize(
    ("said", "wrong", "instead"),
    [
        ({"direction": "back"}, "direction='back' does not say where", 'direction="backward", "forward" or "nearest"'),
        ({"direction": "forward"}, "would wait for a message that may never come", "tolerance=timedelta(minutes=5)"),
        ({"direction": "nearest"}, "would wait for a message that may never come", "tolerance=timedelta(minutes=5)"),
        ({"tolerance": -1}, "tolerance=-1 is not a whole number of at least 0", "tolerance="),
        ({"tolerance": 1.5}, "tolerance=1.5 is not a whole number", "tolerance="),
        ({"tolerance": 10**18}, "is more than any two times lie apart", "tolerance=300_000"),
        (
            {"how": "outer"},
            "how='outer' would have messages of the other stream",
            'how="inner" or how="left"; or .join(',
        ),
        ({"on": abs}, "the keys of two streams are read off their values", "on=(lambda value: value.id, "),
        ({"on": (abs, 5)}, "partition_by(...) got 5, which is not a function", "partition_by(lambda value: ...)"),
        (
            {"late": "late"},
            "join_asof(late=...) got 'late', which is no DeadLetter",
            'late=dead_letter("late-flights")',
        ),
        ({"store": "disk"}, "store='disk' is not a kind of store", 'store="memory"'),
        ({"state": int}, "join_asof(state=...) got", "state=(Order, Payment)"),
        ({"with_": abs}, "join_asof(with_=...) calls abs with 2 arguments", "a function of 2 arguments"),
    ],
)
def test_an_as_of_join_that_can_not_be_meant(app, numbers, said, wrong, instead):
    others = app.input("others", key=int)
    with refused(wrong, instead):
        numbers.join_asof(others, **{"with_": max} | said)


def test_an_as_of_join_with_what_is_no_stream_of_this_app(app, numbers):
    with refused("join_asof(...) got", "what app.input(...) returns"):
        numbers.join_asof(app.table("rows", key=int), max)
    with refused("join_asof(...) got something of the app 'other'", "what app.input(...) of this app returns"):
        numbers.join_asof(App("other").input("others", key=int), max)


@pytest.mark.parametrize("said", [{"within": (0, 1)}, {"keep": "latest"}])
def test_a_join_with_a_table_that_says_what_only_streams_have(app, numbers, said):
    for table in (app.table("rows", key=int), app.table("versions", key=int, retention_ms=0)):
        with refused("is of a join of two streams", f"no {next(iter(said))}="):
            numbers.join(table, max, **said)


@pytest.mark.parametrize("said", [{"late": dead_letter("late")}, {"store": "memory"}])
def test_a_join_with_a_table_of_the_newest_rows_that_says_what_those_with_versions_have(app, numbers, said):
    with refused("is of joins", f"no {next(iter(said))}="):
        numbers.join(app.table("rows", key=int), max, **said)


def test_a_join_with_a_table_of_versions_by_a_function(app, numbers):
    with refused("is joined by the message's key", ".partition_by(...) on the stream, and no on="):
        numbers.join(app.table("rows", key=int, retention_ms=0), max, on=abs)


async def rows_for(keys):
    return {}


@pytest.mark.parametrize("said", [{"within": (0, 1)}, {"keep": "latest"}])
def test_a_join_with_a_remote_table_that_says_what_only_streams_have(numbers, said):
    with refused("is of a join of two streams", f"no {next(iter(said))}="):
        numbers.join(remote_table(rows_for), max, on=abs, **said)


@pytest.mark.parametrize("said", [{"late": dead_letter("late")}, {"store": "memory"}])
def test_a_join_with_a_remote_table_that_says_what_joins_have_that_keep_messages(numbers, said):
    with refused("is of joins", f"no {next(iter(said))}="):
        numbers.join(remote_table(rows_for), max, on=abs, **said)


def test_a_join_with_a_remote_table_without_a_key_to_ask_for(numbers):
    with refused("is asked for the key that a function says", "on=lambda value: value.id"):
        numbers.join(remote_table(rows_for), max)


@pytest.mark.parametrize("how", ["right", "outer", "full"])
def test_a_join_with_a_remote_table_that_would_need_all_of_it(numbers, how):
    with refused("is not a join of a stream with a table", 'how="inner" or how="left"'):
        numbers.join(remote_table(rows_for), max, on=abs, how=how)


@pytest.mark.parametrize(
    ("name", "least"),
    [("batch_size", 1), ("max_in_flight", 1), ("timeout_ms", 1)]
    + [(name, 0) for name in ("batch_wait_ms", "cache_size", "ttl_ms", "absent_ttl_ms")],
)
def test_a_remote_table_with_a_number_that_is_none(name, least):
    for number in (least - 1, 1.5, "1"):
        with refused(f"{name}={number!r} is not a whole number of at least {least}", f"{name}="):
            remote_table(rows_for, **{name: number})


@pytest.mark.parametrize("rate", [0, -1, "many", True, float("nan")])
def test_a_remote_table_that_may_be_asked_so_often_as_never(rate):
    with refused(f"fetches_per_second={rate!r} is not a number above 0", "fetches_per_second=50"):
        remote_table(rows_for, fetches_per_second=rate)


def test_a_remote_table_in_an_order_that_is_none():
    with refused("order='any' is not an order", 'order="key"'):
        remote_table(rows_for, order="any")


def test_a_remote_table_that_nobody_can_await():
    with refused("which is not async", "async def"):
        remote_table(abs)


def test_a_table_of_versions_in_another_number_of_partitions(app):
    numbers = app.input("numbers", value=int, key=int, partitions=3)
    table = app.table("rows", value=int, key=int, retention_ms=0, partitions=2)
    with refused("so equal keys do not meet", ".partition_by(..., key_type=..., partitions=2) on the stream", app):
        numbers.join(table, max).sink(print)


@pytest.mark.parametrize("said", [{"timestamp": abs}, {"max_disorder_ms": 5}, {"idle_after_ms": 5}])
def test_a_table_of_the_newest_rows_whose_rows_have_times(app, said):
    with refused("a table without retention_ms= has only the newest rows", f"no {next(iter(said))}="):
        app.table("rows", key=int, **said)


def test_a_table_of_versions_that_every_task_has(app):
    with refused("joined by key, and not broadcast", ".partition_by(...) on the stream, and no broadcast=True"):
        app.table("rows", key=int, retention_ms=0, broadcast=True)


@pytest.mark.parametrize("turned", [False, True])
def test_a_join_with_a_stream_without_keys(app, numbers, turned):
    keyless = app.input("keyless", value=int)
    left, right = (keyless, numbers) if turned else (numbers, keyless)
    with refused("its messages have no key", ".partition_by(lambda value: ..., ...) before it", app):
        left.join(right, max, within=(0, 1)).sink(print)


def test_a_join_of_streams_whose_keys_have_different_serdes(app, numbers):
    others = app.input("others", key=str)
    with refused("it joins streams whose keys have different serdes", "key= or key_type= alike on each", app):
        numbers.join(others, max, within=(0, 1)).sink(print)


def test_a_join_of_what_was_repartitioned_with_what_it_was_made_from(app, numbers):
    with refused("would wait for itself", ".partition_by(...) on both, before they meet", app):
        numbers.join(numbers.partition_by(abs, key_type=int), max, within=(0, 1)).sink(print)


def test_an_output_of_another_app(numbers):
    with refused("send_to(...) got something of the app 'other'", "what app.output(...) of this app returns"):
        numbers.send_to(App("other").output("out"))


def test_an_output_by_name(numbers):
    with refused("send_to(...) got 'out', which is no OutputStream", "what app.output(...) returns"):
        numbers.send_to("out")


def test_a_task_of_no_inputs(app):
    with refused("task([]) reads nothing", "task([app.input(...)], ...)"):
        app.task([], run, op_id="mine")


def test_a_task_of_a_name(app):
    with refused("task(...) got 'numbers', which is no MessageStream", "what app.input(...) returns"):
        app.task("numbers", run, op_id="mine")


def test_a_task_of_another_app(app):
    with refused("task(...) got something of the app 'other'", "app.input(...) of this app"):
        app.task([numbers_of(App("other"))], run, op_id="mine")


def test_a_task_with_an_output_that_is_no_list(app, numbers):
    with refused("task(outputs=...) got <samza_dsl.fluent.stream.OutputStream", "outputs=[app.output(...)]"):
        app.task(numbers, run, op_id="mine", outputs=app.output("out"))


def test_a_task_with_an_output_by_name(app, numbers):
    with refused("task(outputs=...) got 'out', which is no OutputStream", "what app.output(...) returns"):
        app.task(numbers, run, op_id="mine", outputs=["out"])


def test_a_task_with_an_output_of_another_app(app, numbers):
    with refused("task(outputs=...) got something of the app 'other'", "app.output(...) of this app"):
        app.task(numbers, run, op_id="mine", outputs=[App("other").output("out")])


def test_a_task_with_a_window_that_is_no_interval(app, numbers):
    with refused("task(window=...) got 10, which is no Every", "window=every(fn, seconds=10)"):
        app.task(numbers, run, op_id="mine", window=10)


def test_an_output_that_is_an_input(app, numbers):
    with refused("the stream 'numbers' is both input and output: it would feed itself", "another stream name", app):
        numbers.send_to(app.output("numbers"))


def test_an_output_that_is_a_table(app, numbers):
    table = app.table("rows", key=int, broadcast=True)
    with refused("the stream 'rows' is both table and output", ".to_table('rows-rows') of what is written there", app):
        numbers.join(table, max, on=abs).send_to(app.output("rows"))


def test_an_output_that_is_an_intermediate_stream(app, numbers):
    with refused("the stream 'mistaken-by-x' is both intermediate and output", "another stream name", app):
        numbers.partition_by(abs, op_id="by-x").send_to(app.output("mistaken-by-x"))


def test_dead_letters_that_are_an_input(app, numbers):
    with refused("the stream 'numbers' is both input and dead_letter", "another stream name", app):
        numbers.map(abs, on_error=dead_letter("numbers")).sink(print)


def test_dead_letters_that_are_an_output(app, numbers):
    with refused("the stream 'out' is both dead_letter and output", "another stream name", app):
        bad = numbers.map(abs, on_error=retry(2, then=dead_letter("out")))
        bad.send_to(app.output("out"))  # here


def test_late_values_that_are_an_output(app, numbers):
    with refused("the stream 'out' is both dead_letter and output", "another stream name", app):
        numbers.window(HOURLY, count(), late=dead_letter("out")).send_to(app.output("out"))


def test_dead_letters_of_a_broadcast_table(app, numbers):
    wrong = "a broadcast table is read anew in every run, and would send its dead letters again each time"
    with refused(wrong, "on_error=skip, or a table without broadcast=True", app):
        table = app.table("rows", key=int, broadcast=True, on_error=dead_letter("bad"))  # here
        numbers.join(table, max, on=abs).sink(print)


@pytest.mark.parametrize("policy", [skip, retry(2, then=skip)])
def test_a_broadcast_table_may_skip(app, numbers, policy):
    numbers.join(app.table("rows", key=int, broadcast=True, on_error=policy), max, on=abs).sink(print)
    app.plan()


def test_an_output_declared_twice(app, numbers):
    with refused("the output 'out' is declared twice", "one app.output(...), used twice", app):
        numbers.send_to(app.output("out"))  # here
        numbers.map(abs).send_to(app.output("out"))


def test_an_output_declared_twice_for_a_task(app, numbers):
    with refused("the output 'out' is declared twice", "one app.output(...), used twice", app):
        numbers.send_to(app.output("out"))  # here
        app.task(numbers, run, op_id="mine", outputs=[app.output("out")])


def test_an_id_that_is_taken(app, numbers):
    with refused("the id 'same' is already that of the map at", 'op_id="by-carrier"', app):
        doubled = numbers.map(abs, op_id="same")
        doubled.map(abs, op_id="same").sink(print)  # here


def test_two_windows_that_would_share_state(app, numbers):
    with refused("the id 'window-numbers' is already that of the window at", 'window(..., op_id="by-carrier")', app):
        numbers.window(HOURLY, count()).sink(print)
        numbers.window(tumbling(hours=2), mean(abs)).sink(print)  # here


TWICE = {
    "to_table('": lambda numbers: numbers.to_table("twice"),
    "join(": lambda numbers: numbers.join(numbers.map(abs), max, within=(0, 1), op_id="twice"),
    "join_asof(": lambda numbers: numbers.join_asof(numbers.map(abs), max, op_id="twice"),
    "join_windows(": lambda numbers: numbers.join_windows(numbers.map(abs), tumbling(seconds=1), max, op_id="twice"),
    "deduplicate(": lambda numbers: numbers.deduplicate(abs, within_ms=1, op_id="twice"),
}


@pytest.mark.parametrize("method", TWICE)
def test_an_id_is_said_by_the_method_that_there_is(method, app):
    numbers = app.input("numbers", value=int, key=int)
    TWICE[method](numbers)
    with pytest.raises(PlanError, match=re.escape(f" .{method}".replace("'", '"'))):
        TWICE[method](numbers)


def test_ids_that_differ_in_punctuation(app, numbers):
    with refused("its id differs from 'a-b' only in punctuation", "a more distinct op_id=", app):
        twice = numbers.map(abs, op_id="a-b")
        twice.map(abs, op_id="a_b").sink(print)  # here


def test_an_intermediate_stream_whose_name_is_too_long():
    app = App("a" * 120)
    with refused("is too long", "a shorter op_id=, or name of the app", app):
        numbers_of(app).partition_by(abs, op_id="b" * 80).sink(print)


def test_a_window_over_messages_without_key(app):
    with refused("its messages have no key", ".partition_by(lambda value: ..., ...) before it, or window_all(", app):
        numbers_of(app).window(HOURLY, count()).sink(print)


def test_process_over_messages_without_key(app):
    with refused("its messages have no key", "or key= on the input", app):
        numbers_of(app).process(max).sink(print)


def test_a_merge_of_messages_with_and_without_key(app):
    keyed, plain = app.input("keyed", value=int, key=abs), app.input("plain", value=int)
    with refused("its messages have no key", ".partition_by(", app):
        keyed.merge(plain).window(HOURLY, count()).sink(print)


def test_a_merge_of_keys_of_different_serdes(app, numbers):
    with refused("it merges streams whose keys have different serdes", "key= or key_type= alike on each", app):
        numbers.merge(app.input("others", value=int, key=str)).sink(print)


def test_an_output_of_keys_of_different_serdes(app, numbers):
    out = app.output("out")
    with refused("messages with keys of different serdes go to 'out'", "key= or key_type= alike", app):
        numbers.send_to(out)  # here
        app.input("others", value=int, key=str).send_to(out)


def test_keys_that_do_not_meet_for_their_partitions(app):
    few, many = (app.input(f"{count}-numbers", value=int, key=int, partitions=count) for count in (2, 4))
    wrong = "streams of 2 partitions by hash and 4 partitions by hash are merged above, so equal keys do not meet"
    with refused(wrong, ".partition_by(...) before it", app):
        few.merge(many).window(HOURLY, count()).sink(print)  # here


def test_keys_that_do_not_meet_for_their_partitioner(app, numbers):
    with refused("1 partitions by hash and 2 partitions by ranges([10])", ".partition_by(...) before it", app):
        by_range = app.input("others", value=int).partition_by(abs, by=ranges([10]), key_type=int)
        by_range.merge(numbers).process(max).sink(print)  # here


AROUND = "it brings messages together with what was repartitioned from them, and would wait for itself"


def test_a_stream_that_meets_what_was_repartitioned_from_it(app, numbers):
    with refused(AROUND, ".partition_by(...) on both, before they meet", app):
        by_abs = numbers.partition_by(abs, key_type=int)
        numbers.merge(by_abs).sink(print)  # here


def test_streams_that_meet_on_a_long_way_round(app, numbers):
    others = app.input("others", value=int, key=int)
    with refused(AROUND, ".partition_by(...) on both, before they meet", app):
        first = numbers.partition_by(abs, op_id="first", key_type=int).merge(others)
        numbers.merge(first.partition_by(abs, op_id="second", key_type=int)).sink(print)  # here


def test_streams_that_are_repartitioned_before_they_meet(app, numbers):
    by_abs = numbers.partition_by(abs, op_id="first")
    by_abs.merge(numbers.partition_by(abs, op_id="second")).sink(print)
    app.plan()


def test_a_table_without_key(app, numbers):
    with refused("a table needs the key of its rows", "key=str, or key=lambda row: row.id", app):
        table = app.table("rows", key=None, broadcast=True)  # here
        numbers.join(table, max, on=abs).sink(print)


def test_a_broadcast_table_joined_by_key(app, numbers):
    table = app.table("rows", key=int, broadcast=True)
    with refused("a broadcast table is looked into by a function", "on=lambda value: value.id", app):
        numbers.join(table, max).sink(print)


def test_a_partitioned_table_joined_by_a_function(app, numbers):
    table = app.table("rows", key=int)
    with refused("on= may ask for any key, and a task has only its own partition", "broadcast=True on the table", app):
        numbers.join(table, max, on=abs).sink(print)


def test_a_join_of_other_partitions(app, numbers):
    table = app.table("rows", key=int, partitions=3)
    wrong = "the stream has 1 partitions and the table 'rows' 3, so equal keys do not meet"
    with refused(wrong, "partitions=3) before it, or broadcast=True", app):
        numbers.join(table, max).sink(print)


def test_a_join_of_other_keys(app, numbers):
    table = app.table("rows", key=str)
    with refused("the stream's keys and those of the table 'rows' have different serdes", "key_type=...", app):
        numbers.join(table, max).sink(print)


def test_a_join_behind_another_partitioner(app, numbers):
    table = app.table("rows", key=int, partitions=2)
    with refused("the stream is partitioned by ranges([10]), the table by hash", "by=hash_ in partition_by", app):
        numbers.partition_by(abs, by=ranges([10])).join(table, max).sink(print)


def test_a_join_with_tables_of_different_partitions(app, numbers):
    tables = [app.table(f"{count}-rows", key=int, partitions=count) for count in (2, 3)]
    wrong, instead = "the stream has 2 partitions and the table '3-rows' 3", "key_type=..., partitions=3) before it"
    with refused(wrong, instead, app):
        joined = numbers.partition_by(abs).join(tables[0], max, op_id="one")
        joined.join(tables[1], max, op_id="other").sink(print)  # here


def test_more_partitions_than_may_be(app, numbers):
    with refused("partitions=300 is above the cap max_partitions=256", "partitions=256", app):
        numbers.partition_by(abs, partitions=300).sink(print)


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_ranges_that_do_not_fill_the_partitions(app, numbers, partitions):
    wrong = f"ranges([10, 20]) makes 3 ranges, and partitions={partitions}"
    with refused(wrong, "partitions=3, or leave it out", app):
        numbers.partition_by(abs, by=ranges([10, 20]), partitions=partitions).sink(print)


def test_ranges_say_how_many_partitions_there_are(app, numbers):
    numbers.partition_by(abs, by=ranges([10, 20]), op_id="by-range").sink(print)
    assert app.plan().stream("mistaken-by-range").partitions == 3


PATIENT = retry(3, backoff_ms=100)


def test_waiting_on_the_event_loop(app, numbers):
    with refused("waiting between retries would block the event loop", "Options(threads=N); or async", app):
        numbers.map(abs, on_error=PATIENT).sink(print)


def test_waiting_in_a_thread():
    app = App("patient", Options(threads=2))
    patient = numbers_of(app).map(abs, on_error=PATIENT)
    patient.sink(print)
    patient.async_flat_map(later).sink(print)
    app.plan()


async def remember(value, context):
    return [value]


@pytest.mark.parametrize("order", ["none", "partition"])
def test_state_where_calls_of_one_key_may_overlap(app, numbers, order):
    with refused(
        f"with order={order!r} two calls for one key may run at once", 'order="key"; or a function of the', app
    ):
        numbers.async_flat_map(remember, order=order).sink(print)


def test_state_of_messages_without_a_key_in_an_async_function(app):
    with refused("its messages have no key", ".partition_by(lambda value: ..., ...) before it", app):
        app.input("numbers", value=int).async_flat_map(remember).sink(print)


def test_two_async_functions_with_state_and_one_name(app, numbers):
    numbers.async_flat_map(remember).sink(print)
    with refused("is already that of the async_flat_map", 'op_id="by-carrier"'):
        numbers.async_flat_map(remember).sink(print)


def test_waiting_for_async_calls_is_no_mistake(app, numbers):
    numbers.async_flat_map(later, on_error=PATIENT, timeout_ms=100).sink(print)
    app.plan()


TOO_LONG = "a commit waits max_drain_ms = 30,000 ms at most"
SHORTER = "a shorter timeout_ms=, fewer retries, or a partition_by between the async operators"


def test_async_calls_that_may_take_too_long(app, numbers):
    with refused(f"a call may take 40,000 ms along this path, and {TOO_LONG}", SHORTER, app):
        numbers.async_flat_map(later, timeout_ms=10_000, on_error=retry(3)).sink(print)


def test_async_calls_that_may_take_too_long_together(app, numbers):
    with refused(f"a call may take 40,000 ms along this path, and {TOO_LONG}", SHORTER, app):
        once = numbers.async_flat_map(later, timeout_ms=20_000, op_id="once")
        once.async_flat_map(later, timeout_ms=20_000).sink(print)  # here


def test_async_calls_of_different_stages_are_not_summed(app, numbers):
    once = numbers.async_flat_map(later, timeout_ms=20_000, op_id="once").partition_by(abs)
    once.async_flat_map(later, timeout_ms=20_000).sink(print)
    assert [stage.drain_ms for stage in app.plan().stages] == [20_000, 20_000]


def test_an_async_sink_that_may_take_too_long(app, numbers):
    with refused(f"a call may take 40,000 ms along this path, and {TOO_LONG}", SHORTER, app):
        numbers.sink(later, timeout_ms=40_000)


def test_an_async_task_that_may_take_too_long(app, numbers):
    async def process(message, context):
        """Do nothing."""

    with refused(f"a call may take 40,000 ms along this path, and {TOO_LONG}", SHORTER, app):
        app.task(numbers, process, op_id="mine", timeout_ms=40_000)


def test_a_plain_task_has_no_timeout(app, numbers):
    app.task(numbers, run, op_id="mine", timeout_ms=40_000, window=every(print, seconds=1))
    app.plan()
