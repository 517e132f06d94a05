"""Runs an application over history, beside the live one: under a name of its own, which leaves nothing but results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from planner.graph import Graph
from planner.plan import Options
from runtime.deletion import check_not_shared
from runtime.driving import Watched
from runtime.handover import Handover, check_can_be_handed_over, hand_over
from runtime.history import Span, beside
from runtime.merging import Merges, merge_all
from runtime.rewind import begin_anew
from runtime.run import Cluster, open_environment
from runtime.systems.base import Environment, LiveEnvironment
from runtime.take_over import Place
from runtime.take_over import take_over as take_over_in

R = TypeVar("R", bound=Watched)


def recompute(
    run: Callable[[Graph, Span, Mapping[str, str]], R],
    graph: Graph,
    data: str | Path | Environment,
    *,
    name: str,
    span: Span,
    handover: str | Path | None,
    merges: Merges,
    cluster: Cluster = None,
) -> R:
    """Have `run` run an application over history, then hand over or merge what is asked for, and forget the rest.

    A run that was stopped or has failed goes on where it was when it is asked for again.
    """
    own, to = beside(graph, name), None if handover is None else Path(handover)
    if to is not None:
        check_can_be_handed_over(graph, to)
    mergings = merges.of(graph, own.app)
    done = run(own, replace(span, hands_over=to is not None), merges.bind(own.app))
    if not done.stopping:
        environment = open_environment(data, cluster)
        with closing(environment) if isinstance(data, str | Path) else nullcontext():
            environment.own(own.app)
            if to is not None:
                hand_over(environment, own, done.plan, graph.app, to)
            merge_all(environment, mergings)
            begin_anew(environment, own.app, done.plan)
            for app in (own.app, *(merging.app for merging in mergings)):
                if isinstance(environment, LiveEnvironment):
                    environment.reclaim(app)
    return done


def take_over(
    graph: Graph,
    options: Options,
    data: str | Path | Environment,
    handover: str | Path,
    *,
    at: Mapping[str, Any] | None = None,
    bind: Mapping[str, Any] | None = None,
    wrapped: bool = False,
    cluster: Cluster = None,
) -> Handover:
    """Have an application, which must not be running, go on from a handover when it runs next."""
    environment = open_environment(data, cluster)
    places: Mapping[str, Place] = at or {}
    with closing(environment) if isinstance(data, str | Path) else nullcontext():
        check_not_shared(environment, graph.app)
        return take_over_in(environment, graph, options, Path(handover), wrapped=wrapped, at=places, bind=bind or {})
