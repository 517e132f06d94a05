"""Call graph: the route that a request takes through services (Table 1 of Samza's paper, VLDB 2017)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from samza_dsl import App, Pane, collect, session, testing


class Call(Struct, frozen=True):
    """A service has called another one, on behalf of a request."""

    at_ms: int
    request: str
    caller: str
    callee: str
    ms: int


class Route(Struct, frozen=True):
    """Which services called which ones for a request, and how often, from the first call to the end of the last."""

    request: str
    calls: dict[str, dict[str, int]]
    ms: int


def route(pane: Pane[str, list[Call]]) -> Route:
    """Draw the graph of the calls of one request."""
    graph: dict[str, Counter[str]] = {}
    for call in pane.value:
        graph.setdefault(call.caller, Counter())[call.callee] += 1
    first, last = min(call.at_ms for call in pane.value), max(call.at_ms + call.ms for call in pane.value)
    return Route(pane.key, {caller: dict(sorted(graph[caller].items())) for caller in sorted(graph)}, last - first)


app = App("call-graph")
calls = app.input("calls-*", value=Call, timestamp=lambda call: call.at_ms, max_disorder_ms=1_000)
(
    calls.partition_by(lambda call: call.request, value=Call, op_id="by-request")
    .window(session(seconds=10), collect(), op_id="requests")
    .map(route)
    .send_to(app.output("routes", value=Route))
)

SERVICES = {"web": ("profile", "feed"), "profile": ("members",), "feed": ("members", "posts"), "posts": ("search",)}


def generated(requests: int = 20, seed: int = 0) -> Iterator[Call]:
    """Yield the calls of requests that come a second apart; each service writes what it calls when it is called."""
    chance = random.Random(seed)
    for number in range(requests):
        called = [("web", number * 1_000)]
        while called:
            caller, at_ms = called.pop()
            for callee in SERVICES.get(caller, ()):
                if chance.random() < 0.8:
                    started = at_ms + chance.randrange(1, 50)
                    called.append((callee, started))
                    yield Call(started, f"request {number}", caller, callee, chance.randrange(5, 40))


def given() -> dict[str, list[Call]]:
    """Return what each service has written, in a stream of its own."""
    streams: dict[str, list[Call]] = {}
    for call in generated():
        streams.setdefault(f"calls-{call.caller}", []).append(call)
    return streams


if __name__ == "__main__":
    for found in testing.run(app, given())["routes"]:
        told = "; ".join(f"{caller} → {', '.join(callees)}" for caller, callees in found.calls.items())
        print(f"{found.request}, {found.ms} ms: {told}")
