"""Runs an application over history on Spark, and hands over what it came to there."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.graph import Graph
from planner.plan import Options
from runtime.driving import Watch
from runtime.functions import Around
from runtime.handover import check_can_be_handed_over
from runtime.history import Span, beside
from runtime.merging import Merges, merge_all
from runtime.run import open_environment
from runtime.spark.application import intent_of
from runtime.spark.batch import SparkRun, run_batch
from runtime.spark.handing_over import StagedHandover
from runtime.spark.intent import noted
from runtime.spark.session import Spark
from runtime.spark.staged_topics import place_of, unpublished_in
from runtime.systems.base import Environment


def recompute_on_spark(
    graph: Graph,
    options: Options,
    around: tuple[Around, ...],
    data: str | Path | Environment,
    *,
    on: Spark,
    name: str,
    span: Span,
    handover: str | Path | None,
    bind: Mapping[str, Any] | None,
    merges: Merges,
    watch: Watch | None = None,
) -> SparkRun:
    """Run over history to its end, or until it is handed over: all of it is visible then, or nothing."""
    own = beside(graph, name)
    mergings = merges.of(graph, own.app)
    goes_on = isinstance(data, str | Path) and unpublished_in(place_of(Path(data), own.app)) is not None
    left = noted(intent_of(own, bind or {}, data))
    if mergings and not goes_on and left is None:
        with _opened(data) as environment:
            for merging in mergings:  # what another run has left before all of it was merged
                environment.delete_stream(merging.recomputed)
                environment.reset(merging.app)
    is_there = goes_on or (left is not None and handover is not None and left.has_put(Path(handover)))
    staged = staged_handover(graph, handover) if not is_there else None
    span = replace(span, hands_over=staged is not None)
    bind = {**(bind or {}), **merges.bind(own.app)}
    done = run_batch(own, options, around, data, on=on, bind=bind, span=span, handover=staged, watch=watch)
    if mergings:
        with _opened(data) as environment:
            merge_all(environment, mergings)
    return done


def _opened(data: str | Path | Environment) -> AbstractContextManager[Environment]:
    environment = open_environment(data)
    return closing(environment) if isinstance(data, str | Path) else nullcontext(environment)


def staged_handover(graph: Graph, handover: str | Path | None) -> StagedHandover | None:
    """Return where a handover is written first; raises SamzaError where it can't be made."""
    if handover is None:
        return None
    check_can_be_handed_over(graph, Path(handover))
    return StagedHandover(Path(handover), graph.app)
