"""Card fraud: `process` with a list of a card's recent payments in state, and a timer for each that removes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from benchmarks.programs.kit.hand import Hand
from benchmarks.programs.kit.program import Program, Stream
from samza_dsl import App, ProcessContext

WINDOW = 600_000
DISORDER = 2_000
MOST_PAYMENTS, MOST_CENTS = 8, 60_000
CARDS, HOT = 5_000, 50


class Payment(Struct, frozen=True):
    """A card has paid."""

    at_ms: int
    card: str
    cents: int


class Alert(Struct, frozen=True):
    """A card has paid too often, or too much, within ten minutes."""

    card: str
    at_ms: int
    payments: int
    cents: int


def generate(messages: int, seed: int) -> dict[str, list[Payment]]:
    """Make payments 50 ms apart, up to two seconds out of order; one in twenty is of one of fifty busy cards."""
    chance = Random(seed)
    payments = []
    for number in range(messages):
        card = chance.randrange(HOT) if chance.random() < 0.05 else chance.randrange(CARDS)
        at = number * 50 + DISORDER - chance.randrange(DISORDER)
        payments.append(Payment(at, f"card-{card:05}", int(chance.lognormvariate(8, 1.2))))
    return {"payments": payments}


def check(payment: Payment, context: ProcessContext[str, Any]) -> Iterable[Alert]:
    """Remember a payment, and look at all those of its card within ten minutes."""
    recent = context.list("recent")
    recent.append((payment.at_ms, payment.cents))
    context.set_timer(payment.at_ms + WINDOW)
    within = [cents for at_ms, cents in recent if at_ms > payment.at_ms - WINDOW]
    if len(within) > MOST_PAYMENTS or sum(within) > MOST_CENTS:
        return [Alert(payment.card, payment.at_ms, len(within), sum(within))]
    return []


def forget(at_ms: int, context: ProcessContext[str, Any]) -> Iterable[Alert]:
    """Remove what is ten minutes old."""
    recent = context.list("recent")
    while len(recent) and recent[0][0] <= at_ms - WINDOW:
        recent.drop()
    return []


def pipeline(workspace: Path) -> App:
    app = App("card-fraud")
    (
        app.input("payments", key=str, value=Payment, timestamp=lambda paid: paid.at_ms, max_disorder_ms=DISORDER)
        .process(check, on_timer=forget, op_id="check")
        .send_to(app.output("alerts", value=Alert))
    )
    return app


class ByHand(Hand):
    """A deque of payments for each card, and one of all for the clean-up."""

    keeps = ("cards", "all")

    def __init__(self) -> None:
        super().__init__()
        self.cards: dict[str, deque[tuple[int, int]]] = {}
        self.all: deque[tuple[int, str]] = deque()
        self.out["alerts"] = []

    def takes(self) -> dict[str, Callable[[list[Any], int], int]]:
        return {"payments": self.take}

    def take(self, payments: list[Payment], watermark: int) -> int:
        cards, out, remember = self.cards, self.out["alerts"], self.all.append
        for payment in payments:
            at, card = payment.at_ms, payment.card
            recent = cards.get(card)
            if recent is None:
                recent = cards[card] = deque()
            recent.append((at, payment.cents))
            remember((at, card))
            within = [cents for at_ms, cents in recent if at_ms > at - WINDOW]
            if len(within) > MOST_PAYMENTS or sum(within) > MOST_CENTS:
                out.append(Alert(card, at, len(within), sum(within)))
            if at - DISORDER > watermark:
                watermark = at - DISORDER
        return watermark

    def advance(self, watermark: int) -> None:
        everything, cards, old = self.all, self.cards, watermark - WINDOW
        while everything and everything[0][0] <= old:
            card = everything.popleft()[1]
            recent = cards.get(card)
            while recent and recent[0][0] <= old:
                recent.popleft()
            if not recent:
                cards.pop(card, None)


PROGRAM = Program(
    name="fraud",
    title="card fraud: process with a list in state and a timer for each message",
    messages=100_000,
    streams={"payments": Stream(Payment, key=lambda payment: payment.card, carried=True)},
    outputs=("alerts",),
    generate=generate,
    pipeline=pipeline,
    by_hand=lambda workspace: ByHand(),
    is_on_kafka=True,
)
