"""Site speed: how fast pages load, in windows of five minutes (Table 1 of Samza's paper, VLDB 2017)."""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec import Struct

from samza_dsl import App, Pane, aggregate, count, mean, quantile, testing, tumbling


class Load(Struct, frozen=True):
    """A page has been loaded."""

    at_ms: int
    page: str
    ms: int


class Speed(Struct, frozen=True):
    """How fast a page was within five minutes: quantiles are exact to one per cent."""

    loads: int
    mean_ms: float
    median_ms: float
    p95_ms: float


app = App("site-speed")
(
    app.input("loads", value=Load, timestamp=lambda load: load.at_ms, max_disorder_ms=30_000)
    .partition_by(lambda load: load.page, value=Load, op_id="by-page")
    .window(
        tumbling(minutes=5),
        aggregate(
            Speed,
            loads=count(),
            mean_ms=mean(lambda load: load.ms),
            median_ms=quantile(0.5, lambda load: load.ms),
            p95_ms=quantile(0.95, lambda load: load.ms),
        ),
        op_id="speeds",
    )
    .send_to(app.output("speeds", value=Pane[str, Speed]))
)


def generated(minutes: int = 15, seed: int = 0) -> Iterator[Load]:
    """Yield ten loads a second, up to half a minute out of order; from minute ten on, search is slow."""
    chance = random.Random(seed)
    for second in range(minutes * 60):
        for _ in range(10):
            page = chance.choice(("home", "search"))
            slow = 3 if page == "search" and second >= 600 else 1
            yield Load(second * 1_000 - chance.randrange(30_000), page, round(chance.lognormvariate(5.5, 0.6)) * slow)


if __name__ == "__main__":
    for pane in testing.run(app, {"loads": [*generated()]})["speeds"]:
        speed, minute = pane.value, pane.start // 60_000
        print(f"{minute:>3} min, {pane.key:<6}: mean {speed.mean_ms:4.0f} ms, 95 % within {speed.p95_ms:5.0f} ms")
