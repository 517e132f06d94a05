"""Orders and their payments, each of which may come twice: deduplicated, and joined outer within half an hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from benchmarks.programs.kit.hand import Hand
from benchmarks.programs.kit.program import Program, Stream
from samza_dsl import App, duration_ms

DISORDER = 10_000
SAME = 600_000
EARLIEST, LATEST = -60_000, 1_800_000
"""A payment may be told a minute before its order was placed, and half an hour after."""


class Order(Struct, frozen=True):
    """A customer wants something."""

    at_ms: int
    order: str
    customer: str
    cents: int


class Payment(Struct, frozen=True):
    """An order was paid, or a part of it."""

    at_ms: int
    payment: str
    order: str
    cents: int


class Settled(Struct, frozen=True):
    """An order with a payment, an order without one, or a payment of which nobody knows the order."""

    order: str
    customer: str | None
    cents: int | None
    payment: str | None
    paid_cents: int | None


def generate(messages: int, seed: int) -> dict[str, list[Any]]:
    """Make orders 100 ms apart, most of them paid within 20 minutes; one record in fifty comes twice."""
    chance = Random(seed)
    orders: list[tuple[int, Order]] = []
    payments: list[tuple[int, Payment]] = []
    for number in range(messages // 2):
        at = number * 100
        order = Order(at, f"order-{number}", f"customer-{chance.randrange(10_000)}", chance.randrange(100, 90_000))
        orders.append((at + chance.randrange(DISORDER), order))
        paid = chance.random()
        for part in range(0 if paid < 0.04 else 2 if paid > 0.96 else 1):
            paid_at = max(at + chance.randrange(EARLIEST // 2, 1_200_000), 0)
            of = order.order if chance.random() > 0.01 else f"nobody-{number}"
            payment = Payment(paid_at, f"payment-{number}-{part}", of, order.cents)
            payments.append((paid_at + chance.randrange(DISORDER), payment))
    return {"orders": told(orders, chance), "payments": told(payments, chance)}


def told(records: list[tuple[int, Any]], chance: Random) -> list[Any]:
    """Return records as they come, some of them twice: the copy soon after, and in time."""
    twice = [(min(told_at + 2_000, record.at_ms + DISORDER - 1), record) for told_at, record in records]
    again = [one for one in twice if chance.random() < 0.02]
    return [record for _, record in sorted(records + again, key=lambda one: one[0])]


def settled(order: Order | None, payment: Payment | None) -> Settled:
    of = order.order if order else payment.order if payment else ""
    ordered = (order.customer, order.cents) if order else (None, None)
    paid = (payment.payment, payment.cents) if payment else (None, None)
    return Settled(of, *ordered, *paid)


def pipeline(workspace: Path) -> App:
    app = App("orders")
    orders = app.input("orders", key=str, value=Order, timestamp=lambda order: order.at_ms, max_disorder_ms=DISORDER)
    payments = app.input(
        "payments", key=str, value=Payment, timestamp=lambda paid: paid.at_ms, max_disorder_ms=DISORDER
    )
    once = duration_ms(minutes=10)
    (
        orders.deduplicate(lambda order: order.order, within_ms=once, op_id="orders-once")
        .join(
            payments.deduplicate(lambda paid: paid.payment, within_ms=once, op_id="payments-once"),
            settled,
            within=(EARLIEST, LATEST),
            how="outer",
            state=(Order, Payment),
            op_id="settle",
        )
        .send_to(app.output("settled", value=Settled))
    )
    return app


class ByHand(Hand):
    """Orders and payments by the order's name, with whether they have met; deques say what goes when."""

    keeps = ("orders", "payments", "seen", "leaving_orders", "leaving_payments", "leaving_seen")

    def __init__(self) -> None:
        super().__init__()
        self.orders: dict[str, list[Any]] = {}  # [order, whether it has met a payment]
        self.payments: dict[str, list[list[Any]]] = {}
        self.seen: set[str] = set()
        self.leaving_orders: deque[tuple[int, str]] = deque()
        self.leaving_payments: deque[tuple[int, str]] = deque()
        self.leaving_seen: deque[tuple[int, str]] = deque()
        self.out["settled"] = []

    def takes(self) -> dict[str, Callable[[list[Any], int], int]]:
        return {"orders": self.take_orders, "payments": self.take_payments}

    def take_orders(self, orders: list[Order], watermark: int) -> int:
        seen, out = self.seen, self.out["settled"]
        for order in orders:
            at, name = order.at_ms, order.order
            if name not in seen:
                seen.add(name)
                self.leaving_seen.append((at, name))
                if at >= watermark:
                    has_met = False
                    for paid in self.payments.get(name, ()):
                        payment = paid[0]
                        if EARLIEST <= payment.at_ms - at <= LATEST:
                            has_met = paid[1] = True
                            out.append(Settled(name, order.customer, order.cents, payment.payment, payment.cents))
                    self.orders[name] = [order, has_met]
                    self.leaving_orders.append((at, name))
            if at - DISORDER > watermark:
                watermark = at - DISORDER
        return watermark

    def take_payments(self, payments: list[Payment], watermark: int) -> int:
        seen, out = self.seen, self.out["settled"]
        for payment in payments:
            at, name = payment.at_ms, payment.payment
            if name not in seen:
                seen.add(name)
                self.leaving_seen.append((at, name))
                if at >= watermark:
                    placed, has_met = self.orders.get(payment.order), False
                    if placed is not None and EARLIEST <= at - placed[0].at_ms <= LATEST:
                        has_met = placed[1] = True
                        order = placed[0]
                        out.append(Settled(order.order, order.customer, order.cents, name, payment.cents))
                    self.payments.setdefault(payment.order, []).append([payment, has_met])
                    self.leaving_payments.append((at, payment.order))
            if at - DISORDER > watermark:
                watermark = at - DISORDER
        return watermark

    def advance(self, watermark: int) -> None:
        out = self.out["settled"]
        while self.leaving_orders and self.leaving_orders[0][0] + LATEST < watermark:
            order, has_met = self.orders.pop(self.leaving_orders.popleft()[1])
            if not has_met:
                out.append(Settled(order.order, order.customer, order.cents, None, None))
        while self.leaving_payments and self.leaving_payments[0][0] - EARLIEST < watermark:
            name = self.leaving_payments.popleft()[1]
            payments = self.payments[name]
            payment, has_met = payments.pop(0)
            if not has_met:
                out.append(Settled(name, None, None, payment.payment, payment.cents))
            if not payments:
                del self.payments[name]
        while self.leaving_seen and self.leaving_seen[0][0] + SAME <= watermark:
            self.seen.discard(self.leaving_seen.popleft()[1])


PROGRAM = Program(
    name="orders",
    title="orders and payments: deduplicate → outer join within half an hour",
    messages=300_000,
    streams={
        "orders": Stream(Order, key=lambda order: order.order, carried=True),
        "payments": Stream(Payment, key=lambda payment: payment.order, carried=True),
    },
    outputs=("settled",),
    generate=generate,
    pipeline=pipeline,
    by_hand=lambda workspace: ByHand(),
    is_on_kafka=True,
)
