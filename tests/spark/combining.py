"""What can be folded before a shuffle, drawn: records with disorder and late ones, their windows and aggregations."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from planner.columnar.combining import combined
from planner.columnar.spark_ways import spark_ways
from planner.model.plan import whole as planned_whole
from planner.passes import plan as make_plan
from samza_dsl import (
    App,
    aggregate,
    count,
    daily,
    hopping,
    maximum,
    mean,
    minimum,
    ranges,
    session,
    top_k,
    total,
    tumbling,
    whole,
)

NUMBERS = (0, 1, -7, 2**70, 0.1, 1e300, -0.5)


class Seen(msgspec.Struct, frozen=True):
    """What flows."""

    key: Any
    at: int
    number: float | None


AGGREGATIONS = {
    "count": count,
    "total": lambda: total(lambda seen: seen.number),
    "mean": lambda: mean(lambda seen: seen.number),
    "maximum": lambda: maximum(lambda seen: seen.number),
    "minimum": lambda: minimum(lambda seen: seen.number),
    "top_k": lambda: top_k(2, by=lambda seen: seen.at, then=lambda seen: repr(seen)),
    "aggregate": lambda: aggregate(dict, n=count(), most=maximum(lambda seen: seen.number)),
}
WINDOWS = {
    "tumbling": tumbling(milliseconds=25),
    "hopping": hopping(milliseconds=30, every_ms=10),
    "daily": daily("America/New_York"),
    "whole": whole(),
    "sessions": session(milliseconds=25),
}
KEYS = {
    "texts": st.sampled_from(["", "a", "b", "é", "a" * 40]),
    "ints": st.sampled_from([0, -1, 300, 2**40]),
    "any": st.sampled_from(["a", "1", 1, 1.0, True, 7]),
}


class Choices(msgspec.Struct, frozen=True):
    """One application, and the records of each of its partitions."""

    windows: str
    aggregation: str
    lateness_ms: int
    is_final: bool
    is_filtered: bool
    by_ranges: bool
    disorder_ms: int
    tasks: int
    parts: list[list[Seen]]


@st.composite
def choices(draw: st.DrawFn) -> Choices:
    """Draw an application."""
    aggregation, windows = draw(st.sampled_from([*AGGREGATIONS])), draw(st.sampled_from([*WINDOWS]))
    lateness_ms = draw(st.sampled_from([0, 0, 40])) if windows != "whole" else 0
    kind = draw(st.sampled_from([*KEYS]))
    numbers = st.sampled_from(NUMBERS if aggregation in ("total", "mean", "count") else NUMBERS[:4])
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        now, part = 0, []
        for _ in range(draw(st.integers(0, 12))):
            now += draw(st.integers(0, 30))
            at = max(now - draw(st.sampled_from([0, 0, 0, 20, 90])), 0)
            part.append(Seen(draw(KEYS[kind]), at, draw(st.none() | numbers)))
        parts.append(part)
    return Choices(
        windows=windows,
        aggregation=aggregation,
        lateness_ms=lateness_ms,
        is_final=lateness_ms > 0 and (aggregation != "count" or windows == "sessions" or draw(st.booleans())),
        is_filtered=draw(st.booleans()),
        by_ranges=kind == "ints" and draw(st.booleans()),
        disorder_ms=draw(st.sampled_from([0, 15])),
        tasks=draw(st.integers(1, 3)),
        parts=parts,
    )


def app_of(one: Choices) -> App:
    """Say it in the DSL."""
    app = App("combining")
    seen: Any = app.input("seen", value=Seen, timestamp=lambda seen: seen.at, max_disorder_ms=one.disorder_ms)
    if one.is_filtered:
        seen = seen.filter(lambda seen: seen.number != 1)
    how = {"by": ranges([0, 300])} if one.by_ranges else {"partitions": one.tasks}
    keyed = seen.partition_by(lambda seen: seen.key, op_id="by-key", **how)
    late: Any = {"allowed_lateness_ms": one.lateness_ms, "emit": "final" if one.is_final else "all"}
    late = late if one.lateness_ms else {}
    panes = keyed.window(WINDOWS[one.windows], AGGREGATIONS[one.aggregation](), op_id="windows", **late)
    panes.map(repr).send_to(app.output("panes", value=str))
    return app


def ways_of(app: App, **kinds: object) -> dict[str, str]:
    """Return how each operator runs on Spark, where inputs have records of these kinds."""
    graph = combined(app.graph())
    plan = make_plan(graph, planned_whole(app.options), wrapped=bool(app.around))
    return spark_ways(plan, graph, kinds, wrapped=bool(app.around))
