"""Runs an application over history, beside the live one, under a name of its own that leaves nothing but results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from planner.model.graph import Graph
from runtime.assembly.history import beside
from runtime.job.pipeline import Pipeline
from runtime.model.history import HistorySpan
from runtime.opening.deletion import check_not_shared
from runtime.opening.rewind import begin_anew
from runtime.ports.environment import Environment, LiveEnvironment, own_whole
from runtime.reprocessing.handover import Handover, check_can_be_handed_over, hand_over
from runtime.reprocessing.merge import Merges, merge_all
from runtime.reprocessing.takeover import Place
from runtime.reprocessing.takeover import take_over as take_over_in
from runtime.run.driver import Watched
from runtime.run.settings import Cluster, open_environment

R = TypeVar("R", bound=Watched)


@dataclass(frozen=True)
class Recomputation:
    """One run over history beside the live one, under a name of its own: its span, and what becomes of its results."""

    name: str
    span: HistorySpan
    handover: str | Path | None
    merges: Merges


def recompute(
    run: Callable[[Graph, HistorySpan, Mapping[str, str]], R],
    graph: Graph,
    data: str | Path | Environment,
    asked: Recomputation,
    cluster: Cluster = None,
) -> R:
    """Run an application over history by `run`, then hand over or merge what is asked for, and drop the rest.

    A run that was stopped or has failed goes on where it was when it is asked for again.
    """
    own, to = beside(graph, asked.name), None if asked.handover is None else Path(asked.handover)
    # Before the run, which may take hours: what can't be handed over then is refused now.
    if to is not None:
        check_can_be_handed_over(graph, to)
    mergings = asked.merges.of(graph, own.app)
    done = run(own, replace(asked.span, hands_over=to is not None), asked.merges.bind(own.app))
    if not done.stopping:
        environment = open_environment(data, cluster)
        with closing(environment) if isinstance(data, str | Path) else nullcontext():
            own_whole(environment, own.app)
            if to is not None:
                hand_over(environment, own, done.plan, graph.app, to)
            # Positions and state are dropped last: until then a run that is asked for again goes on where this one was.
            merge_all(environment, mergings)
            begin_anew(environment, own.app, done.plan)
            for app in (own.app, *(merging.app for merging in mergings)):
                if isinstance(environment, LiveEnvironment):
                    environment.reclaim(app)
    return done


def take_over(
    pipeline: Pipeline,
    data: str | Path | Environment,
    handover: str | Path,
    *,
    at: Mapping[str, Place] | None = None,
    bind: Mapping[str, object] | None = None,
    cluster: Cluster = None,
) -> Handover:
    """Let an application, which must not be running, go on from a handover when it runs next."""
    environment = open_environment(data, cluster)
    with closing(environment) if isinstance(data, str | Path) else nullcontext():
        check_not_shared(environment, pipeline.graph.app)
        how = pipeline.graph, pipeline.options, Path(handover)
        return take_over_in(environment, *how, wrapped=pipeline.wrapped, at=at or {}, bind=bind or {})
