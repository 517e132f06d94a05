"""Makes a failing scenario smaller: whatever can be left out without its failure going away is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from samza_dsl import Options
from tests.simulation.scenario import Scenario
from tests.strategies import Pipeline, partition_of

MOST_TRIES = 400


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Return a smaller scenario that fails as well.

    >>> from tests.simulation.scenario import scenario
    >>> small = shrink(scenario(7), lambda smaller: True)
    >>> len(small.pipeline.nodes), small.parts, small.processes
    (1, ((),), ((),))
    """
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in candidates(scenario):
            tries += 1
            if tries > MOST_TRIES:
                return scenario
            if fails(candidate):
                scenario, smaller = candidate, True
                break
    return scenario


def candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios that are a little smaller, the boldest first."""
    if len(scenario.processes) > 1:
        yield from (replace(scenario, processes=(faults,)) for faults in scenario.processes)
    for number, faults in enumerate(scenario.processes):
        for place in range(len(faults)):
            fewer = (*faults[:place], *faults[place + 1 :])
            yield replace(scenario, processes=_with(scenario.processes, number, fewer))
    for number in range(len(scenario.asks)):
        yield replace(scenario, asks=(*scenario.asks[:number], *scenario.asks[number + 1 :]))
    if scenario.flood is not None:
        yield replace(scenario, flood=None)
    if scenario.arriving:
        yield replace(scenario, arriving=False, flood=None)
    if scenario.bound:
        yield replace(scenario, bound=False)
    if scenario.jumps:
        yield replace(scenario, jumps=scenario.jumps[1:])
    yield from _smaller_pipelines(scenario)
    if scenario.pipeline.partitions > 1 and scenario.flood is None:
        count = scenario.pipeline.partitions - 1
        fewer_partitions = replace(scenario.pipeline, partitions=count)
        for number in range(scenario.pipeline.partitions):
            events = [*chain(*scenario.parts[:number], *scenario.parts[number + 1 :])]
            parts = tuple(tuple(one for one in events if partition_of(one.key, count) == n) for n in range(count))
            yield replace(scenario, pipeline=fewer_partitions, parts=parts)
    for number, part in enumerate(scenario.parts):
        half = len(part) // 2
        for kept in ((), part[:half], part[half:], *((*part[:n], *part[n + 1 :]) for n in range(len(part)))):
            if len(kept) < len(part):
                yield replace(scenario, parts=_with(scenario.parts, number, kept))
    plain = Options(guarantee=scenario.options.guarantee)
    if scenario.options != plain:
        yield replace(scenario, options=plain)


def _smaller_pipelines(scenario: Scenario) -> Iterator[Scenario]:
    pipeline = scenario.pipeline
    for place in range(len(pipeline.nodes) - 1, 0, -1):
        found = _without(pipeline, place)
        if found is not None:
            yield replace(scenario, pipeline=found)
    for place, node in enumerate(pipeline.nodes):
        if node.poison:
            nodes = _with(pipeline.nodes, place, replace(node, poison=""))
            yield replace(scenario, pipeline=replace(pipeline, nodes=nodes))
    for change in ({"nulls": False}, {"disorder_ms": 0}):
        if replace(pipeline, **change) != pipeline:  # type: ignore[arg-type]
            yield replace(scenario, pipeline=replace(pipeline, **change))  # type: ignore[arg-type]


def _without(pipeline: Pipeline, gone: int) -> Pipeline | None:
    """Return the pipeline without an operator, whose children take its parent's messages; None where they can't."""
    node = pipeline.nodes[gone]
    children = pipeline.children(gone)
    if node.kind in ("branch", "left", "right") and children:
        return None
    if any(pipeline.nodes[child].kind == "merge" for child in children):
        return None

    def place_of(old: int) -> int:
        old = (*node.parents, 0)[0] if old == gone else old
        return old - (old > gone)

    nodes = tuple(
        replace(one, parents=tuple(map(place_of, one.parents)))
        for place, one in enumerate(pipeline.nodes)
        if place != gone
    )
    return replace(pipeline, nodes=nodes)


def _with(items: tuple, place: int, item: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:place], item, *items[place + 1 :])
