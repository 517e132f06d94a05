"""What type checkers know of declared types, aggregations, joins and tasks; pytest builds what it says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, assert_type

import msgspec

from samza_dsl import (
    App,
    Json,
    MessageStream,
    Options,
    OutputStream,
    Pane,
    ProcessContext,
    String,
    Table,
    aggregate,
    approximate_distinct,
    collect,
    count,
    daily,
    distinct,
    first,
    fold,
    last,
    maximum,
    mean,
    quantile,
    quantiles,
    ranges,
    reduce,
    top_k,
    total,
    tumbling,
)


class Order(msgspec.Struct, tag=True):
    number: int
    country: str
    euros: float


class Refund(msgspec.Struct, tag=True):
    order: int


@dataclass
class Stats:
    n: int
    euros: float


app = App("declared")
orders = app.input("orders", value=Order, key=str)
customers = app.table("customers", value=dict[str, int], key=lambda row: row["number"])


def parse(text: str) -> Order:
    return msgspec.json.decode(text, type=Order)


def euros(order: Order) -> Decimal | None:
    return Decimal(str(order.euros)) if order.euros else None


def test_declared_types() -> None:
    assert_type(app.input("lists", value=list[int]), MessageStream[None, list[int]])
    assert_type(app.input("mappings", value=dict[str, float], key=str), MessageStream[str, dict[str, float]])
    assert_type(app.input("pairs", value=Order, key=tuple[str, int]), MessageStream[tuple[str, int], Order])
    assert_type(app.input("computed", value=Order, key=lambda order: order.number), MessageStream[int, Order])
    by_key = app.input("by-key", value=Order, key=lambda order: order.number, partitioned_by_key=True)
    assert_type(by_key, MessageStream[int, Order])
    assert_type(app.input("anything"), MessageStream[Any, Any])
    assert_type(app.input("by-serde", value=Json(Order), key=String()), MessageStream[Any, Any])
    unions: MessageStream[Any, Any] = app.input("unions", value=int | None)
    unions.send_to(app.output("union", value=Order | Refund))
    assert_type(customers, Table[int, dict[str, int]])
    assert_type(app.output("totals", value=float, key=str), OutputStream[float])
    assert_type(app.output("unsaid"), OutputStream[Any])


def remember(order: Order, context: ProcessContext[str, Order]) -> list[int]:
    context.state = order
    return [context.state.number]


def test_declared_state_is_what_the_context_has() -> None:
    assert_type(orders.process(remember, state=Order, op_id="kept"), MessageStream[str, int])
    orders.process(remember, state=Refund, op_id="mistaken")  # type: ignore[arg-type]
    sums = orders.scan(lambda total, order: total + order.euros, init=float, state=float, op_id="scanned")
    assert_type(sums, MessageStream[str, float])


def test_a_lambda_after_map_receives_what_map_returns() -> None:
    lines = app.input("lines", value=str)
    assert_type(lines.map(parse), MessageStream[None, Order])
    assert_type(lines.map(parse).map(lambda order: order.euros), MessageStream[None, float])
    assert_type(
        lines.map(parse).filter(lambda order: order.euros > 1).map(lambda o: o.number), MessageStream[None, int]
    )


def test_aggregations_say_what_is_in_a_pane() -> None:
    hour, day = tumbling(hours=1), daily()
    assert_type(orders.window(hour, total(lambda order: order.euros)), MessageStream[str, Pane[str, float]])
    assert_type(orders.window(hour, total(euros), op_id="sums"), MessageStream[str, Pane[str, Decimal]])
    means = orders.window(hour, mean(euros), op_id="means")
    assert_type(means, MessageStream[str, Pane[str, Decimal | None]])
    most = orders.window(hour, maximum(lambda order: order.euros), op_id="most")
    assert_type(most, MessageStream[str, Pane[str, float | None]])
    both = aggregate(Stats, n=count(), euros=total(lambda order: order.euros))
    assert_type(orders.window(hour, both, op_id="both"), MessageStream[str, Pane[str, Stats]])
    best = orders.window(day, top_k(3, by=lambda order: order.euros), op_id="best")
    assert_type(best, MessageStream[str, Pane[str, list[Order]]])
    assert_type(best.flat_map(lambda pane: pane.value), MessageStream[str, Order])
    assert_type(orders.window(day, collect(), op_id="all"), MessageStream[str, Pane[str, list[Order]]])
    assert_type(orders.window_all(hour, count(), op_id="every"), MessageStream[None, Pane[None, int]])


class Country(msgspec.Struct):
    customers: int
    about: int
    median: float | None
    last: Order


def larger(a: Order, b: Order) -> Order:
    return a if a.euros > b.euros else b


def test_aggregations_of_one_value_or_many() -> None:
    day = daily()
    one = orders.window(day, first(), op_id="first")
    assert_type(one, MessageStream[str, Pane[str, Order]])
    assert_type(orders.window(day, last(), op_id="last"), MessageStream[str, Pane[str, Order]])
    named = orders.window(day, last(lambda order: order.country), op_id="last-country")
    assert_type(named, MessageStream[str, Pane[str, str | None]])
    assert_type(orders.window(day, reduce(larger), op_id="largest"), MessageStream[str, Pane[str, Order]])
    numbers = orders.window(day, distinct(lambda order: order.number), op_id="numbers")
    assert_type(numbers, MessageStream[str, Pane[str, int]])
    about = orders.window(day, approximate_distinct(lambda order: order.number, error=0.01), op_id="about")
    assert_type(about, MessageStream[str, Pane[str, int]])
    median = orders.window(day, quantile(0.5, lambda order: order.euros), op_id="median")
    assert_type(median, MessageStream[str, Pane[str, float | None]])
    spread = orders.window(day, quantiles([0.05, 0.95], lambda order: order.euros), op_id="spread")
    assert_type(spread, MessageStream[str, Pane[str, list[float | None]]])
    together = aggregate(
        Country,
        customers=distinct(lambda order: order.number),
        about=approximate_distinct(lambda order: order.number),
        median=quantile(0.5, lambda order: order.euros),
        last=last(),
    )
    assert_type(orders.window(day, together, op_id="together"), MessageStream[str, Pane[str, Country]])


def add_euros(euros: float, order: Order) -> float:
    return euros + order.euros


def take_euros_away(euros: float, order: Order) -> float:
    return euros - order.euros


def test_a_fold_is_what_it_finishes_as() -> None:
    folded = fold(float, add_euros, finish=lambda euros: str(euros))
    assert_type(orders.window(tumbling(hours=2), folded, op_id="fold"), MessageStream[str, Pane[str, str]])
    both_ways = fold(float, add_euros, remove=take_euros_away)
    assert_type(orders.window(tumbling(hours=2), both_ways, op_id="both-ways"), MessageStream[str, Pane[str, float]])


def test_process_emits_what_its_function_returns() -> None:
    def on_message(order: Order, context: ProcessContext[str, int]) -> Iterable[int]:
        assert_type(context.key, str)
        assert_type(context.state, int)
        return [order.number]

    assert_type(orders.process(on_message, init=int), MessageStream[str, int])


def test_partitioners_know_the_key() -> None:
    by_country = orders.partition_by(lambda order: order.country, by=ranges(["g", "p"]), op_id="by-country")
    assert_type(by_country, MessageStream[str, Order])
    by_number = orders.partition_by(lambda order: order.number, by=lambda key, partitions: key % partitions)
    assert_type(by_number, MessageStream[int, Order])
    assert_type(orders.broadcast(), MessageStream[str, Order])


def with_discount(order: Order, row: dict[str, int] | None) -> float:
    return order.euros * (1 if row is None else row["discount"])


def test_a_left_join_hands_none_over() -> None:
    assert_type(orders.join(customers, with_discount, how="left", op_id="discounts"), MessageStream[str, float])


def mistakes() -> None:
    """Never called; type checkers refuse each line with an ignore, and report an ignore that nothing needs."""
    app.input("wrong", value=Order, timestamp=lambda order: order.at)  # type: ignore[attr-defined]
    orders.map(parse)  # type: ignore[arg-type]
    orders.sink(parse)  # type: ignore[arg-type]
    orders.window(tumbling, count())  # type: ignore[arg-type]
    orders.window(tumbling(hours=1), count)  # type: ignore[arg-type]
    orders.window(tumbling(hours=1), mean(lambda order: order.dollars))  # type: ignore[attr-defined]
    orders.window(tumbling(hours=1), reduce(parse))  # type: ignore[arg-type]
    orders.window(tumbling(hours=1), last(lambda order: order.dollars))  # type: ignore[attr-defined]
    orders.window(tumbling(hours=1), quantile(0.5, lambda order: order.country))  # type: ignore[arg-type,return-value]
    orders.join(customers, lambda order, row: row["a"].upper())  # type: ignore[attr-defined]
    orders.join(orders, with_discount)  # type: ignore[call-overload]
    orders.async_flat_map(lambda order: [order])  # type: ignore[arg-type,return-value]
    orders.branch(lambda order: order.number, into=("a", "b"))  # type: ignore[arg-type,return-value]
    orders.send_to(app.output("stats", value=Stats))  # type: ignore[arg-type]
    orders.async_flat_map(parse, order="some")  # type: ignore[call-overload]


def test_a_length_of_time_is_ms_or_a_timedelta() -> None:
    hour = timedelta(hours=1)
    options = Options(commit_interval_ms=timedelta(seconds=1), max_drain_ms=30_000)
    assert_type(options.commit_interval_ms, int)
    timed = App("timed", options).input(
        "orders", value=Order, key=str, timestamp=lambda order: order.number, unit="s", max_ahead_ms=hour
    )
    windows = tumbling(hour, offset_ms=timedelta(minutes=5))
    assert_type(timed.window(windows, count(), allowed_lateness_ms=hour), MessageStream[str, Pane[str, int]])
    assert_type(timed.deduplicate(lambda order: order.number, within_ms=hour), MessageStream[str, Order])
    assert_type(timed.join(timed, lambda one, other: one, within=(-hour, 0)), MessageStream[str, Order])
