"""A/B testing: what a new feature changes, by splitting and counting (Table 1 of Samza's paper, VLDB 2017)."""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec import Struct

from samza_dsl import App, Pane, aggregate, approximate_distinct, count, mean, testing, total, tumbling

VERSIONS = ("old", "new")


class Visit(Struct, frozen=True):
    """A member has seen a page, in the old or the new version that its tag says, and may have clicked."""

    at_ms: int
    member: int
    tag: str
    seconds: float
    clicked: bool


class Metrics(Struct, frozen=True):
    """What a version comes to in ten minutes."""

    visits: int
    members: int
    clicks: int
    mean_seconds: float


def version(visit: Visit) -> tuple[str, ...]:
    """Choose the branch of a visit by its tag; visits without one of them are in no branch."""
    return tuple(name for name in VERSIONS if visit.tag == f"checkout-{name}")


app = App("ab-testing")
visits = app.input("visits", value=Visit, timestamp=lambda visit: visit.at_ms)
metrics = aggregate(
    Metrics,
    visits=count(),
    members=approximate_distinct(lambda visit: visit.member),
    clicks=total(lambda visit: visit.clicked),
    mean_seconds=mean(lambda visit: visit.seconds),
)
for name, branch in visits.branch(version, into=VERSIONS).items():
    (
        branch.window_all(tumbling(minutes=10), metrics, op_id=f"metrics-{name}").send_to(
            app.output(f"metrics-{name}", value=Pane[None, Metrics])
        )
    )


def generated(minutes: int = 30, seed: int = 0) -> Iterator[Visit]:
    """Yield two visits a second; every third is of the new version, which is clicked at more often."""
    chance = random.Random(seed)
    for number in range(minutes * 120):
        name = "new" if number % 3 == 0 else "old"
        tag = "search" if number % 10 == 9 else f"checkout-{name}"
        clicked = chance.random() < (0.3 if name == "new" else 0.2)
        yield Visit(number * 500, chance.randrange(5_000), tag, chance.expovariate(1 / 20), clicked)


if __name__ == "__main__":
    results = testing.run(app, {"visits": [*generated()]})
    for old, new in zip(results["metrics-old"], results["metrics-new"], strict=True):
        rates = [pane.value.clicks / pane.value.visits for pane in (old, new)]
        print(f"{old.start // 60_000:>3} min: {rates[0]:.1%} of old visits clicked, {rates[1]:.1%} of new ones")
