"""Data enriching: a stream of orders with what a table knows of them (Table 1 of Samza's paper, VLDB 2017)."""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec import Struct

from samza_dsl import App, testing


class Order(Struct, frozen=True):
    """An item that comes along, with no more than it needs."""

    at_ms: int
    customer: str
    cents: int


class Customer(Struct, frozen=True):
    """What the table has of a customer: a stream of changes, of which the last one counts."""

    name: str
    country: str


class Enriched(Struct, frozen=True):
    """The order, with more to it."""

    order: Order
    name: str
    country: str


def enriched(order: Order, customer: Customer) -> Enriched:
    return Enriched(order, customer.name, customer.country)


app = App("data-enriching")
orders = app.input("orders", value=Order, timestamp=lambda order: order.at_ms)
customers = app.table("customers", key=str, value=Customer)
by_customer = orders.partition_by(lambda order: order.customer, key_type=str, value=Order, op_id="by-customer")
by_customer.join(customers, enriched).send_to(app.output("enriched", value=Enriched))
(
    by_customer.join(customers, lambda order, customer: None if customer else order, how="left", op_id="unknown")
    .filter(lambda order: order is not None)
    .send_to(app.output("without-a-customer", value=Order))
)

CUSTOMERS = {
    f"c{number}": Customer(f"Customer {number}", ("France", "India", "Peru")[number % 3]) for number in range(50)
}


def generated(orders: int = 200, seed: int = 0) -> Iterator[Order]:
    """Yield orders, a few of which are of customers that nobody knows."""
    chance = random.Random(seed)
    for number in range(orders):
        yield Order(number * 100, f"c{chance.randrange(52)}", chance.randrange(100, 10_000))


def given() -> dict[str, list]:
    return {"customers": [testing.Record(row, key, 0) for key, row in CUSTOMERS.items()], "orders": [*generated()]}


if __name__ == "__main__":
    results = testing.run(app, given())
    for one in results["enriched"]:
        print(f"{one.order.at_ms:>6} ms: {one.order.cents / 100:6.2f} from {one.name} in {one.country}")
    print(f"{len(results['without-a-customer'])} orders of customers that nobody knows")
