"""Data popularity: the categories that matter most, by a model of relevance (Table 1 of Samza's paper, VLDB 2017)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from msgspec import Struct

from samza_dsl import App, Context, Pane, testing, top_k, total, tumbling


class Read(Struct, frozen=True):
    """Someone has read an item."""

    at_ms: int
    item: str
    seconds: float
    shared: bool


class Item(Struct, frozen=True):
    """What the table says about an item."""

    category: str
    words: int


class Scored(Struct, frozen=True):
    """How relevant a read was, from 0 to 1."""

    category: str
    relevance: float


class Relevance:
    """A logistic model, which each task loads when it begins."""

    def open(self, context: Context) -> None:
        """Load what was learned elsewhere."""
        self.bias, self.per_word, self.if_shared = -2.0, 6.0, 1.5

    def __call__(self, read: Read, item: Item) -> Scored:
        """Judge a read by how long it took for each word."""
        score = self.bias + self.per_word * min(read.seconds / item.words, 1) + self.if_shared * read.shared
        return Scored(item.category, 1 / (1 + math.exp(-score)))


app = App("data-popularity")
items = app.table("items", key=str, value=Item, broadcast=True)
(
    app.input("reads", value=Read, timestamp=lambda read: read.at_ms)
    .join(items, Relevance(), on=lambda read: read.item)
    .partition_by(lambda scored: scored.category, value=Scored, op_id="by-category")
    .window(tumbling(minutes=10), total(lambda scored: scored.relevance), op_id="relevance")
    .window_all(
        tumbling(minutes=10),
        top_k(3, by=lambda category: category.value, then=lambda category: category.key),
        op_id="most-popular",
    )
    .send_to(app.output("popular", value=Pane[None, list[Pane[str, float]]]))
)

CATEGORIES = ("python", "jobs", "travel", "music", "health", "news")
ITEMS = {f"item {n}": Item(CATEGORIES[n % len(CATEGORIES)], 200 + 37 * n % 500) for n in range(30)}


def generated(minutes: int = 30, seed: int = 0) -> Iterator[Read]:
    """Yield a read a second; one in fifty is of an item that is not in the table."""
    chance = random.Random(seed)
    for second in range(minutes * 60):
        item = "gone" if second % 50 == 0 else f"item {int(chance.triangular(0, 30, 6))}"
        yield Read(second * 1_000, item, chance.expovariate(1 / 120), chance.random() < 0.1)


def given() -> dict[str, list]:
    return {"items": [testing.Record(item, name, 0) for name, item in ITEMS.items()], "reads": [*generated()]}


if __name__ == "__main__":
    for pane in testing.run(app, given())["popular"]:
        told = ", ".join(f"{category.key} {category.value:.1f}" for category in pane.value)
        print(f"{pane.start // 60_000:>3} min: {told}")
