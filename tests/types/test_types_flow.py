"""What type checkers know of a pipeline: mypy and pyright read this file, and pytest builds what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard, assert_type

from samza_dsl import App, KeyContext, MessageStream, Pane, count, mean, tumbling

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


def test_joins_know_the_row() -> None:
    assert_type(views.join(pages, with_title, on=lambda view: view.page), MessageStream[str, str])
    left = views.join(pages, lambda view, page: page, on=lambda view: view.page, how="left")
    assert_type(left, MessageStream[str, Page | None])


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
    views.send_to(app.output("titles", value=str))  # type: ignore[arg-type]
    views.async_flat_map(with_title)  # type: ignore[arg-type]
    views.async_flat_map(since, init=str)  # type: ignore[misc]
    views.async_flat_map(since, init=float, order="none")  # type: ignore[call-overload]
    views.join(pages, with_title, on=lambda view: view.page, how="left")  # type: ignore[call-overload]
    views.join(views, with_both, within=(0, 1), how="left")  # type: ignore[call-overload]
    views.join(views, lambda view, other: other.page)  # type: ignore[call-overload]
    titles = views.map(lambda view: view.page)
    views.merge(titles)  # type: ignore[arg-type]
