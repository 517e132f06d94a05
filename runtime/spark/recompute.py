"""Runs an application over history on Spark, and hands over what it came to there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.graph import Graph
from planner.plan import Options
from runtime.functions import Around
from runtime.handover import check_can_be_handed_over
from runtime.history import Span, beside
from runtime.spark.batch import SparkRun, run_batch
from runtime.spark.handing_over import StagedHandover
from runtime.spark.session import Spark
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
) -> SparkRun:
    """Run over history to its end, or until it is handed over: all of it is visible then, or nothing."""
    staged = staged_handover(graph, handover)
    span = replace(span, hands_over=staged is not None)
    return run_batch(beside(graph, name), options, around, data, on=on, bind=bind, span=span, handover=staged)


def staged_handover(graph: Graph, handover: str | Path | None) -> StagedHandover | None:
    """Return where a handover is written first; raises SamzaError where it can't be made."""
    if handover is None:
        return None
    check_can_be_handed_over(graph, Path(handover))
    return StagedHandover(Path(handover), graph.app)
