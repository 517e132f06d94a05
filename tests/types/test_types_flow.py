"""What type checkers know of a pipeline: mypy and pyright read this file, and pytest builds what it says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeGuard, assert_type

from samza_dsl import (
    App,
    Assigner,
    Change,
    JoinedTable,
    KeyContext,
    MessageStream,
    Pane,
    RemoteTable,
    Revision,
    after_count,
    after_delay,
    any_of,
    collect,
    count,
    counted,
    dead_letter,
    mean,
    remote_table,
    session,
    sliding,
    tumbling,
    windows_by,
)

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@dataclass(frozen=True)
class View:
    page: str
    seconds: float
    referrer: str | None


@dataclass(frozen=True)
class Flight:
    delay: float | None


@dataclass(frozen=True)
class Page:
    title: str


app = App("types")
views = app.input("views", value=View, key=lambda view: view.page)
pages = app.table("pages", key=str, value=Page, broadcast=True)


def with_title(view: View, page: Page) -> str:
    return f"{page.title}: {view.seconds}"


def with_both(view: View, other: View) -> str:
    return view.page + other.page


async def look_up(view: View) -> list[int]:
    return [len(view.page)]


async def since(view: View, context: KeyContext[str, float]) -> list[float]:
    context.state += view.seconds
    return [context.state]


async def changed(view: View, context: KeyContext[str, View | None]) -> list[tuple[str, View | None]]:
    before, context.state = context.state, view
    return [(context.key, before)]


def test_an_input_says_what_its_messages_are() -> None:
    assert_type(views, MessageStream[str, View])
    assert_type(app.input("unkeyed", value=View), MessageStream[None, View])
    assert_type(app.input("keyed", value=View, key=int), MessageStream[int, View])


def is_departed(flight: Flight | None) -> TypeGuard[Flight]:
    return flight is not None


def is_referred(view: View | Flight) -> TypeIs[View]:
    return isinstance(view, View)


def test_a_filter_narrows_what_its_function_narrows() -> None:
    flights = app.input("flights", value=Flight).map(lambda flight: flight if flight.delay else None)
    assert_type(flights, MessageStream[None, Flight | None])
    assert_type(flights.filter(is_departed), MessageStream[None, Flight])
    assert_type(flights.filter(lambda flight: flight is not None), MessageStream[None, Flight | None])
    mixed = views.map(lambda view: view if view.referrer else Flight(None))
    assert_type(mixed.filter(is_referred), MessageStream[str, View])


def test_functions_of_one_message_pass_their_types_on() -> None:
    assert_type(views.filter(lambda view: view.seconds > 1), MessageStream[str, View])
    assert_type(views.map(lambda view: view.referrer), MessageStream[str, str | None])
    assert_type(views.flat_map(lambda view: view.page.encode()), MessageStream[str, int])
    assert_type(views.flatMap(lambda view: [view.seconds]), MessageStream[str, float])
    assert_type(views.async_flat_map(look_up), MessageStream[str, int])
    assert_type(views.async_flat_map(look_up, remember="titles-2", op_id="remembered"), MessageStream[str, int])


def test_functions_with_state_know_the_key_and_the_state() -> None:
    assert_type(views.async_flat_map(since, init=float, op_id="since"), MessageStream[str, float])
    assert_type(views.async_flat_map(changed, op_id="changed"), MessageStream[str, tuple[str, View | None]])


def test_a_key_changes_its_type() -> None:
    assert_type(views.partition_by(lambda view: len(view.page)), MessageStream[int, View])
    pairs = views.partition_by(lambda view: (view.page, len(view.page)), op_id="by-pair")
    assert_type(pairs, MessageStream[tuple[str, int], View])


def test_streams_divide_and_unite() -> None:
    assert_type(views.merge(views.filter(lambda view: view.page)), MessageStream[str, View])
    parts = views.branch(lambda view: "short" if view.seconds < 1 else "long", into=("short", "long"))
    assert_type(parts["short"], MessageStream[str, View])


def test_windows_know_key_and_result() -> None:
    counted = views.window(tumbling(hours=1), count())
    assert_type(counted, MessageStream[str, Pane[str, int]])
    means = views.window(tumbling(hours=1), mean(lambda view: view.seconds), op_id="means")
    assert_type(means, MessageStream[str, Pane[str, float | None]])
    assert_type(counted.map(lambda pane: pane.value), MessageStream[str, int])
    soon = views.window(session(hours=1), count(), early=any_of(after_count(5), after_delay(minutes=1)), op_id="soon")
    assert_type(soon, MessageStream[str, Pane[str, int]])
    assert_type(soon.map(lambda pane: pane.value).revisions(), MessageStream[str, Revision[int]])


def test_joins_know_the_row() -> None:
    assert_type(views.join(pages, with_title, on=lambda view: view.page), MessageStream[str, str])
    left = views.join(pages, lambda view, page: page, on=lambda view: view.page, how="left")
    assert_type(left, MessageStream[str, Page | None])


def test_joins_with_versions_of_a_table_know_the_row() -> None:
    versions = app.table("page-versions", value=Page, key=str, timestamp=lambda page: 0, retention_ms=60_000)
    by_page = app.input("views-by-page", value=View, key=str)
    inner = by_page.join(versions, with_title, late=dead_letter("late"), op_id="as-of")
    assert_type(inner, MessageStream[str, str])
    left = by_page.join(versions, lambda view, page: page, how="left", store="memory", op_id="left-as-of")
    assert_type(left, MessageStream[str, Page | None])


async def pages_of(names: list[str]) -> dict[str, Page]:
    return {}


def test_joins_with_a_remote_table_know_the_row_and_what_is_asked_for() -> None:
    remote = remote_table(pages_of, ttl_ms=1_000)
    assert_type(remote, RemoteTable[str, Page])
    inner = views.join(remote, with_title, on=lambda view: view.page, op_id="remote")
    assert_type(inner, MessageStream[str, str])
    left = views.join(remote, lambda view, page: page, on=lambda view: view.page, how="left", op_id="left-remote")
    assert_type(left, MessageStream[str, Page | None])


def test_joins_by_windows_know_which_side_may_be_missing() -> None:
    one, two = app.input("one", value=View, key=str), app.input("two", value=Flight, key=str)
    hourly = tumbling(hours=1)
    inner = one.join_windows(two, hourly, lambda view, flight: (view, flight), op_id="in-an-hour")
    assert_type(inner, MessageStream[str, Pane[str, list[tuple[View, Flight]]]])
    outer = one.join_windows(two, hourly, lambda view, flight: (view, flight), how="outer", op_id="any-in-an-hour")
    assert_type(outer, MessageStream[str, Pane[str, list[tuple[View | None, Flight | None]]]])


def test_joins_with_the_nearest_know_whether_it_may_be_missing_and_the_key() -> None:
    quotes, trades = app.input("quotes", value=Flight, key=str), app.input("trades", value=View, key=str)
    inner = trades.join_asof(quotes, lambda view, flight: (view, flight), op_id="nearest")
    assert_type(inner, MessageStream[str, tuple[View, Flight]])
    left = trades.join_asof(
        quotes,
        lambda view, flight: (view, flight),
        how="left",
        direction="nearest",
        tolerance=timedelta(minutes=5),
        op_id="nearest-or-none",
    )
    assert_type(left, MessageStream[str, tuple[View, Flight | None]])
    by_length = trades.join_asof(
        quotes,
        lambda view, flight: (view, flight),
        on=(lambda view: len(view.page), lambda flight: 5),
        how="left",
        op_id="by-length",
    )
    assert_type(by_length, MessageStream[int, tuple[View, Flight | None]])


def test_joins_of_tables_know_both_rows() -> None:
    first, second = app.table("first", value=Page, key=str), app.table("second", value=Flight, key=str)
    inner = first.join(second, lambda page, flight: (page, flight), op_id="both-rows")
    assert_type(inner, JoinedTable[str, tuple[Page, Flight]])
    assert_type(inner.changes(), MessageStream[str, Change[str, tuple[Page, Flight]]])
    outer = first.join(second, lambda page, flight: (page, flight), how="outer", op_id="either-row")
    assert_type(outer, JoinedTable[str, tuple[Page | None, Flight | None]])
    named = inner.join(first, lambda both, page: page, on=lambda both: both[0].title, how="left", op_id="named")
    assert_type(named, JoinedTable[str, Page | None])


def test_joins_with_own_tables_know_which_side_may_be_missing() -> None:
    pages = app.input("kept-pages", value=Page, key=str).to_table("own-pages")
    assert_type(pages, JoinedTable[str, Page])
    assert_type(pages.changes(), MessageStream[str, Change[str, Page]])
    views = app.input("views-of-own", value=View, key=str)
    inner = views.join(pages, lambda view, page: (view, page), op_id="own-inner")
    assert_type(inner, MessageStream[str, tuple[View, Page]])
    left = views.join(pages, lambda view, page: (view, page), how="left", op_id="own-left")
    assert_type(left, MessageStream[str, tuple[View, Page | None]])


def test_joins_of_streams_know_which_side_may_be_missing() -> None:
    flights = app.input("keyed-flights", value=Flight, key=str)
    by_page = app.input("keyed-views", value=View, key=str)
    inner = by_page.join(flights, lambda view, flight: (view, flight), within=(0, 1), op_id="inner")
    assert_type(inner, MessageStream[str, tuple[View, Flight]])
    left = by_page.join(flights, lambda view, flight: (view, flight), within=(0, 1), how="left", op_id="left")
    assert_type(left, MessageStream[str, tuple[View, Flight | None]])
    right = by_page.join(flights, lambda view, flight: (view, flight), within=(0, 1), how="right", op_id="right")
    assert_type(right, MessageStream[str, tuple[View | None, Flight]])
    outer = by_page.join(flights, lambda view, flight: (view, flight), within=(0, 1), how="outer", op_id="outer")
    assert_type(outer, MessageStream[str, tuple[View | None, Flight | None]])


def mistakes() -> None:
    """Never called; type checkers refuse each line with an ignore, and report an ignore that nothing needs."""
    views.map(lambda view: view.pgae)  # type: ignore[attr-defined]
    views.window(tumbling(hours=1), count(), early=5)  # type: ignore[arg-type]
    views.send_to(app.output("titles", value=str))  # type: ignore[arg-type]
    views.async_flat_map(with_title)  # type: ignore[arg-type]
    views.async_flat_map(since, init=str)  # type: ignore[misc]
    views.async_flat_map(since, init=float, order="none")  # type: ignore[call-overload]
    views.join(pages, with_title, on=lambda view: view.page, how="left")  # type: ignore[call-overload]
    views.join(remote_table(pages_of), with_title, on=lambda view: view.seconds)  # type: ignore[arg-type,return-value]
    views.join(views, with_both, within=(0, 1), how="left")  # type: ignore[call-overload]
    views.join(views, lambda view, other: other.page)  # type: ignore[call-overload]
    titles = views.map(lambda view: view.page)
    views.merge(titles)  # type: ignore[arg-type]


@dataclass(frozen=True)
class WhileViewed:
    merges = True

    def assign(self, key: str, timestamp: int, view: View) -> list[tuple[int, int]]:
        return [(timestamp, timestamp + round(view.seconds * 1_000))]


class OfFlights:
    def assign(self, key: str, timestamp: int, flight: Flight) -> list[tuple[int, int]]:
        return []


def test_panes_are_of_the_values_that_any_kind_of_window_has() -> None:
    assert_type(
        views.window(sliding(minutes=30), collect(), op_id="sliding"), MessageStream[str, Pane[str, list[View]]]
    )
    assert_type(views.window(counted(10), count(), op_id="counted"), MessageStream[str, Pane[str, int]])
    assert_type(views.window(WhileViewed(), count(), op_id="own"), MessageStream[str, Pane[str, int]])
    by_page = windows_by(pages, lambda page: tumbling(hours=len(page.title) if page else 1), on=lambda view: view.page)
    assert_type(views.window(by_page, collect(), op_id="by-page"), MessageStream[str, Pane[str, list[View]]])
    assigner: Assigner[str, View] = WhileViewed()
    views.window(assigner, count(), op_id="assigner")
    if TYPE_CHECKING:
        views.window(OfFlights(), count())  # type: ignore[arg-type]
        windows_by(pages, lambda page: page.title)  # type: ignore[union-attr,return-value,arg-type]
