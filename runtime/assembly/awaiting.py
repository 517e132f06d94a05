"""Lets a lane await: gives it what keeps messages in flight, who makes the calls, and how many there may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from operators.core.policies import fail
from planner.checks.single_calls import makes_one_call
from planner.model.graph import Graph
from planner.model.plan import Options
from runtime.functions.calls import Asked, Calls
from runtime.task.calls_in_flight import Flights
from runtime.task.in_flight import CARRIED, Units
from runtime.task.lane import Lane

MOST_CALLS = 2**62
"""What a message of several calls may make at once is bounded by the operators alone."""


def let_await(
    lane: Lane, graph: Graph, options: Options, on_returned: Callable[[], None], located: bool, as_columns: bool
) -> None:
    """Give a lane what it awaits with: columns where they are enough, else units.

    Where it is `located`, something below asks for the places of records.
    """
    only = makes_one_call(lane.chain.stage, graph) if as_columns else None
    if only is None:
        _go_on_as_units(lane, graph, options, on_returned)
        return
    carried = [name for name in CARRIED if name not in ("offsets", "origins") or located]
    flights = lane.units = Flights(lane.chain, lane.guard, only, carried, on_returned)
    ended = flights.ended if lane.chain.stage.by_key else None
    _bound(lane, graph, options, options.max_in_flight)
    flights.pool = _calls(lane, graph, only, lane.width, flights.told, ended)


def _go_on_as_units(lane: Lane, graph: Graph, options: Options, on_returned: Callable[[], None]) -> None:
    units = lane.units = Units(lane.chain, {}, on_returned)
    for id in lane.chain.awaits:
        units.pools[id] = _calls(lane, graph, id, MOST_CALLS, partial(units.returned, id))
    _bound(lane, graph, options, MOST_CALLS)
    fans_out = [id for id in lane.chain.stage.operators if graph.specs[id].fans_out]
    lane.one_at_a_time = any(graph.below(id) & lane.chain.awaits for id in fans_out)
    if any(graph.specs[id].terminal for id in lane.chain.awaits):
        lane.limit = units.most_begun = lane.width


def _calls(
    lane: Lane,
    graph: Graph,
    id: str,
    most: int,
    told: Callable[[Asked], None],
    ended: Callable[[Asked, int], None] | None = None,
) -> Calls:
    spec, function = graph.specs[id], lane.chain.exits[id].call  # type: ignore[attr-defined]
    timeout_ms = spec.call_timeout_ms(len(lane.chain.stage.bases) * lane.chain.stage.buckets)
    return Calls(id, function, min(spec.most_calls, most), timeout_ms, spec.on_error or fail, told, ended)


def _bound(lane: Lane, graph: Graph, options: Options, most: int) -> None:
    """Say how many messages may be in flight in a lane: as many as run at once, as often as a commit may wait."""
    drain_ms = lane.chain.stage.drain_ms
    rounds = options.max_drain_ms // drain_ms if drain_ms else 1
    if drain_ms and options.guarantee == "exactly_once":
        lane.most_rounds = rounds
    widths = [graph.specs[id].most_calls for id in lane.chain.awaits]
    lane.width = min(*widths, most)
    lane.limit = lane.width * max(rounds, 1)


def feed_ahead(lanes: Iterable[Lane], options: Options) -> None:
    """Let as many messages wait for their turn as calls run, so that calls follow each other without a pause.

    In a task of which several lanes await they would run where another one's should.
    """
    awaiting = [lane for lane in lanes if lane.units is not None]
    if len(awaiting) == 1 and isinstance(awaiting[0].units, Flights):
        (lane,) = awaiting
        lane.limit = min(lane.limit, 2 * lane.width)
        lane.ahead = lane.limit - lane.width
    for lane in awaiting:
        # While all calls run that may, there is time until more messages must come, and many at once are cheaper.
        spare = min(lane.limit, options.max_in_flight + lane.ahead) - lane.width
        lane.fewest = 1 if lane.one_at_a_time else max(spare // 4, 1)
