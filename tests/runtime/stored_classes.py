"""Classes whose values an earlier version stored, in stored_before.json and stored_before.tar.gz."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

from msgspec import Struct

from samza_dsl import App, count, tumbling


class Tier(enum.Enum):
    BASIC = "basic"
    GOLD = "gold"


class Point(NamedTuple):
    x: int
    y: float


class Buy(Struct):
    member: str
    eur: float
    tags: list[str] = []


class Flat(Struct, frozen=True):
    number: int
    name: str = "n"
    many: tuple[int, ...] = ()


class Listed(Struct, array_like=True):
    number: int
    name: str = "n"


@dataclasses.dataclass
class Card:
    visits: int
    tier: Tier
    last: Any = None


@dataclasses.dataclass
class Sum:
    eur: float = 0.0
    visits: int = 0


VALUES = [
    *(None, True, 7, -1.5, "text", b"bytes", 2**80, [1, "a", None], (1, (2.5, "b")), {"a": 1, "b": None}),
    *({1: "one", (2, 3): [4]}, {1, 2, 3}, frozenset({"x"}), Tier.GOLD, Point(1, 2.5), Buy("ann", 2.5, ["x"])),
    *(
        Flat(3, "f", (1, 2)),
        Listed(4, "l"),
        Card(2, Tier.GOLD, Buy("bob", 1.0)),
        Card(1, Tier.BASIC, (1, 2)),
        Sum(2.5, 2),
    ),
    {"of": Card(1, Tier.BASIC), "all": [Flat(1), Point(3, 4.5)]},
]


def shop() -> App:
    """Return an application whose state and streams hold such values."""
    app = App("shop")
    buys = app.input("buys", value=Buy, key=lambda buy: buy.member, timestamp=lambda buy: int(buy.eur * 1_000))

    def visit(buy: Buy, context: Any) -> list[str]:
        seen = context.state
        context.state = Card((seen.visits if seen else 0) + 1, Tier.GOLD if seen else Tier.BASIC, buy)
        context.map("by tier")[context.state.tier] = Point(context.state.visits, buy.eur)
        return [f"{buy.member} {context.state.visits} {seen.last.eur if seen else '-'}"]

    def total(held: Sum | None, buy: Buy) -> Sum:
        held = held or Sum()
        return Sum(held.eur + buy.eur, held.visits + 1)

    buys.process(visit, op_id="visits").send_to(app.output("visits", value=str))
    again = buys.partition_by(lambda buy: buy.member[0], value=Buy, op_id="by-initial")
    again.scan(total, op_id="totals").map(lambda held: f"{held.visits} {held.eur}").send_to(
        app.output("totals", value=str)
    )
    (
        buys.window(tumbling(minutes=1), count(), op_id="per-minute")
        .map(lambda pane: f"{pane.key} {pane.value}")
        .send_to(app.output("per-minute", value=str))
    )
    return app
