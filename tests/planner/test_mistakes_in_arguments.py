"""Arguments that can't be meant are refused at the call that has them."""

import dataclasses

import msgspec
import pytest

from operators.windows.window_types import Tumbling
from samza_dsl import (
    App,
    Json,
    MessagePack,
    Options,
    String,
    aggregate,
    collect,
    count,
    daily,
    dead_letter,
    every,
    ranges,
    retry,
    skip,
    top_k,
    tumbling,
)
from tests.planner.refusal import numbers_of, refused


@pytest.fixture
def app():
    return App("mistaken")


@pytest.fixture
def numbers(app):
    return numbers_of(app, key=int)


class Plain:
    """A class whose fields nobody knows."""


class Left(msgspec.Struct):
    pass


class Right(msgspec.Struct):
    pass


@dataclasses.dataclass
class Holds:
    plain: Plain


LETTERS = "up to 200 letters, digits, '.', '_' and '-'"
BAD_NAMES = ("", "a b", "../a", ".a", "a" * 201, "a/b", 3, None, "é", "a..b")
NO_COUNTS = (0, -1, True, "3", 1.5)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_the_name_of_an_application(name):
    with refused(f"{name!r} can't name an application", LETTERS):
        App(name)


@pytest.mark.parametrize("name", [*BAD_NAMES, "a/*"])
def test_the_name_of_an_input(app, name):
    with refused(f"{name!r} can't name a stream", LETTERS):
        app.input(name, value=int)


@pytest.mark.parametrize("name", [*BAD_NAMES, "orders-*"])
def test_the_name_of_a_table(app, name):
    with refused(f"{name!r} can't name a stream", LETTERS):
        app.table(name, key=str)


@pytest.mark.parametrize("name", [*BAD_NAMES, "orders-?"])
def test_the_name_of_an_output(app, name):
    with refused(f"{name!r} can't name a stream", LETTERS):
        app.output(name)


@pytest.mark.parametrize("name", [name for name in BAD_NAMES if name is not None])
def test_the_id_of_an_operator(app, numbers, name):
    with refused(f"{name!r} can't name an operator", LETTERS):
        numbers.map(abs, op_id=name)


def test_the_id_of_a_merge(numbers):
    with refused("'a b' can't name an operator", LETTERS):
        numbers.merge(numbers.map(abs), op_id="a b")


def test_the_id_of_a_task(app, numbers):
    with refused("'a b' can't name an operator", LETTERS):
        app.task(numbers, lambda message, context: None, op_id="a b")


@pytest.mark.parametrize("name", ["a b", 5, ""])
def test_the_name_of_a_dead_letter_stream(app, numbers, name):
    with refused(f"{name!r} can't name a stream of dead letters", LETTERS):
        numbers.map(abs, on_error=retry(2, then=dead_letter(name)))


def test_the_name_of_a_stream_for_late_values(numbers):
    with refused("'a b' can't name a stream of dead letters", LETTERS):
        numbers.window(tumbling(hours=1), count(), late=dead_letter("a b"))


@pytest.mark.parametrize("partitions", NO_COUNTS)
def test_partitions_of_an_input(app, partitions):
    with refused(f"partitions={partitions!r} is not a whole number of at least 1", "partitions=1"):
        app.input("numbers", value=int, partitions=partitions)


@pytest.mark.parametrize("option", ["retention_ms", "retention_bytes"])
@pytest.mark.parametrize("limit", NO_COUNTS)
def test_retention_of_an_output(app, option, limit):
    with refused(f"{option}={limit!r} is not a whole number of at least 1", f"{option}=1"):
        app.output("out", **{option: limit})


def test_compression_of_an_output(app):
    with refused("compression='gzip' is not a kind of compression", 'compression="zstd"'):
        app.output("out", compression="gzip")


@pytest.mark.parametrize("partitions", NO_COUNTS)
def test_partitions_elsewhere(app, numbers, partitions):
    with refused(f"partitions={partitions!r} is not a whole number", "partitions=1"):
        app.table("rows", key=str, partitions=partitions)
    with refused(f"partitions={partitions!r} is not a whole number", "partitions=1"):
        app.output("out", partitions=partitions)
    with refused(f"partitions={partitions!r} is not a whole number", "partitions=1"):
        numbers.partition_by(abs, partitions=partitions)
    with refused(f"partitions={partitions!r} is not a whole number", "partitions=1"):
        numbers.broadcast(partitions=partitions)


@pytest.mark.parametrize("disorder", [-1, None, 1.5, True, "1"])
def test_negative_disorder(app, disorder):
    with refused(f"max_disorder_ms={disorder!r} is not a whole number of at least 0", "max_disorder_ms=1"):
        app.input("numbers", value=int, max_disorder_ms=disorder)


@pytest.mark.parametrize("priority", [None, 1.5, True, "high"])
def test_a_priority_that_is_no_number(app, priority):
    with refused(f"priority={priority!r} is not a whole number", "priority=1"):
        app.input("numbers", value=int, priority=priority)


async def later(value):
    return [value]


@pytest.mark.parametrize("number", [*NO_COUNTS, None])
@pytest.mark.parametrize("limit", ["max_in_flight", "timeout_ms"])
def test_limits_of_async_operators(app, numbers, limit, number):
    with refused(f"{limit}={number!r} is not a whole number of at least 1", f"{limit}=1"):
        numbers.async_flat_map(later, **{limit: number})
    with refused(f"{limit}={number!r} is not a whole number of at least 1", f"{limit}=1"):
        numbers.sink(later, **{limit: number})
    with refused(f"{limit}={number!r} is not a whole number of at least 1", f"{limit}=1"):
        app.task(numbers, lambda message, context: None, op_id="mine", **{limit: number})


def test_an_order_that_is_none(numbers):
    with refused("order='keys' is not an order", 'order="key", "partition" or "none"'):
        numbers.async_flat_map(later, order="keys")


@pytest.mark.parametrize("value", [3, "int", {"a": 1}, Left(), lambda value: value])
def test_a_value_that_is_no_type(app, value):
    with refused(f"value got {value!r}: Type", "value=list[int], a Struct or dataclass"):
        app.input("numbers", value=value)


@pytest.mark.parametrize("value", [Plain, list[Plain], Holds, Plain | None])
def test_a_type_that_json_can_not_hold(app, value):
    with refused(f"value got {value!r}, and Plain is no Struct, dataclass or plain type", "Json(MyStruct)"):
        app.input("numbers", value=value)


def test_a_union_that_json_can_not_tell_apart(app):
    with refused("If a type union contains multiple Struct types", "Json(MyStruct)"):
        app.output("numbers", value=Left | Right)


@pytest.mark.parametrize("serde", [Json, String, MessagePack])
def test_a_class_of_serdes(app, serde):
    with refused(f"value got the class {serde.__name__}, not a serde", f"value={serde.__name__}()"):
        app.input("numbers", value=serde)


def test_a_key_that_is_no_type(app, numbers):
    with refused("key got 3: Type", "key=str"):
        app.input("others", value=int, key=3)
    with refused("key got 'id': Type", "key=str"):
        app.table("rows", key="id")
    with refused("key got <function", "key=str"):
        app.output("out", key=later)
    with refused("key_type got 'id': Type", "key_type=str"):
        numbers.partition_by(abs, key_type="id")


def test_a_repartitioned_value_that_is_no_type(numbers):
    with refused("value got 3: Type", "value=str"):
        numbers.partition_by(abs, value=3)
    with refused("value got 3: Type", "value=str"):
        numbers.broadcast(value=3)


@pytest.mark.parametrize("declared", [int, dict, list[int], tuple[str, int], str | None, object, Left, None, Json(int)])
def test_types_and_serdes_are_no_mistake(app, declared):
    app.input("numbers", value=declared, key=declared).send_to(app.output("out", value=declared, key=declared))
    app.plan()


@pytest.mark.parametrize("policy", ["skip", None, 3, dead_letter, Exception])
def test_no_policy(app, numbers, policy):
    with refused(f"on_error={policy!r} is not a policy", "on_error=skip, dead_letter('name') or retry(3)"):
        numbers.map(abs, on_error=policy)
    with refused(f"on_error={policy!r} is not a policy", "on_error=skip"):
        app.input("others", value=int, on_error=policy)
    with refused(f"on_error={policy!r} is not a policy", "on_error=skip"):
        app.table("rows", key=int, on_error=policy)


@pytest.mark.parametrize("times", [0, -1, True, "3", None])
def test_retries_that_are_none(times):
    with refused(f"retry(times={times!r}) is not a whole number of at least 1", "times=3"):
        retry(times)


def test_a_negative_backoff():
    with refused("retry(backoff_ms=-1) is not a whole number of at least 0", "backoff_ms=3"):
        retry(3, backoff_ms=-1)


@pytest.mark.parametrize("then", [retry(2), None, "skip", dead_letter])
def test_a_last_resort_that_is_none(then):
    with refused(f"retry(then={then!r}) is no last resort", "then=fail, skip or dead_letter('name')"):
        retry(3, then=then)


@pytest.mark.parametrize("windows", [Tumbling, tumbling, 3_600_000, "hourly", None])
def test_no_window(numbers, windows):
    with refused(f"window(...) got {windows!r}, which is not a kind of window", "tumbling(hours=1)"):
        numbers.window(windows, count())


def test_no_window_over_all(numbers):
    with refused("window(...) got <function tumbling", "tumbling(hours=1)"):
        numbers.window_all(tumbling, count())


@pytest.mark.parametrize("late", [skip, "late-flights", dead_letter])
def test_late_values_to_no_dead_letter_stream(numbers, late):
    with refused(f"window(late=...) got {late!r}, which is no DeadLetter", 'late=dead_letter("late-flights")'):
        numbers.window(tumbling(hours=1), count(), late=late)


@pytest.mark.parametrize("method", ["window", "window_all"])
def test_a_store_that_is_none(app, numbers, method):
    with refused("store='disk' is not a kind of store", 'store="lmdb" or store="memory"'):
        getattr(numbers, method)(tumbling(hours=1), count(), store="disk")
    with refused("store='disk' is not a kind of store", 'store="lmdb" or store="memory"'):
        numbers.process(lambda value, context: None, store="disk")
    with refused("store='disk' is not a kind of store", 'store="lmdb" or store="memory"'):
        app.task(numbers, lambda message, context: None, op_id="mine", store="disk")


def test_tumbling_windows_without_length():
    with refused("tumbling windows of 0 ms are no windows", "tumbling(hours=1)"):
        tumbling()


def test_tumbling_windows_of_negative_length():
    with refused("tumbling windows of -1000 ms are no windows", "tumbling(hours=1)"):
        tumbling(seconds=-1)


@pytest.mark.parametrize("hours", ["1", None, True, float("nan"), float("inf")])
def test_a_length_of_time_that_is_none(hours):
    with refused(f"hours={hours!r} is not a length of time", "hours=1"):
        tumbling(hours=hours)


def test_an_offset_that_is_no_whole_number():
    with refused("offset_ms=0.5 is not a whole number, of ms, nor a timedelta of whole ms", "offset_ms=1"):
        tumbling(hours=1, offset_ms=0.5)


@pytest.mark.parametrize("tz", ["New York", "", None, 3])
def test_a_time_zone_that_is_none(tz):
    with refused(f"daily(tz={tz!r}) is no time zone", 'daily(tz="America/New_York") or daily()'):
        daily(tz=tz)


@pytest.mark.parametrize("k", [0, -1, True, "3", 1.5])
def test_a_top_of_none(k):
    with refused(f"top_k({k!r}, ...) is not a whole number of at least 1", "top_k(10, by=...)"):
        top_k(k, by=abs)


def test_an_aggregation_that_is_none():
    with refused("aggregate(all=...) got [], which is no aggregation", "all=count()"):
        aggregate(dict, n=collect(), all=[])


@pytest.mark.parametrize("bounds", [[2, 1], [1, 1], [1, "a"]])
def test_ranges_that_do_not_rise(bounds):
    with refused(f"the bounds in ranges({bounds!r}) do not rise", "each bound above the one before it"):
        ranges(bounds)


@pytest.mark.parametrize("bounds", [[], "hp", 10, None])
def test_ranges_without_bounds(bounds):
    with refused(f"ranges({bounds!r}) has no bounds", "ranges([10, 20]), which makes three ranges"):
        ranges(bounds)


@pytest.mark.parametrize("seconds", [0, -1])
def test_an_interval_that_is_none(seconds):
    with refused("ms is too often", "every(fn, seconds=10)"):
        every(print, seconds=seconds)


def test_an_interval_of_no_time():
    with refused("seconds='10' is not a length of time", "seconds=1"):
        every(print, seconds="10")


@pytest.mark.parametrize("into", ["late", (), ("late", "late"), (1, 2)])
def test_branches_without_names(numbers, into):
    with refused(f"into={into!r} does not name the branches", 'into=("late", "on_time")'):
        numbers.branch(lambda value: "late", into=into)


@pytest.mark.parametrize("how", ["outer", "right", None, True])
def test_a_join_that_is_none(app, numbers, how):
    table = app.table("rows", key=int, broadcast=True)
    with refused(f"how={how!r} is not a join of a stream with a table", 'how="inner" or how="left"'):
        numbers.join(table, lambda value, row: row, on=abs, how=how)


def test_a_broadcast_that_is_neither_yes_nor_no(app):
    with refused("table(broadcast=...) got 'yes', which is no bool", "broadcast=True"):
        app.table("rows", key=int, broadcast="yes")


@pytest.mark.parametrize(
    ("name", "value"), [("commit_interval_ms", 0), ("threads", -1), ("max_in_flight", 0), ("max_partitions", 0)]
)
def test_an_option_out_of_range(name, value):
    with refused(f"{name}={value} is not a whole number of at least", f"{name}=1"):
        App("mistaken", Options(**{name: value}))


@pytest.mark.parametrize(
    ("name", "value"), [("guarantee", "at_most_once"), ("threads", "4"), ("batch_records", None), ("threads", True)]
)
def test_an_option_of_another_kind(name, value):
    with refused(f"{name}={value!r} in Options(...)", f"{name}={getattr(Options(), name)!r}"):
        App("mistaken", Options(**{name: value}))


def test_a_watch_without_threads():
    with refused("blocking_timeout_ms= has no effect without threads=", "threads=1, blocking_timeout_ms=500"):
        App("mistaken", Options(blocking_timeout_ms=500))


@pytest.mark.parametrize("options", [{"threads": 4}, "fast", 0])
def test_options_that_are_none(options):
    with refused(f"App(options=...) got {options!r}, which is no Options", "Options(commit_interval_ms=500)"):
        App("mistaken", options)
