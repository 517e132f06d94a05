"""Runs an application on lists, in memory: what goes in, what comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from operators.io import Input
from planner.graph import Graph
from runtime.bindings import outputs_of
from runtime.run import Run
from runtime.serdes import Tagged
from runtime.systems.lists import ListSink, ListSource
from runtime.systems.memory import MemoryEnvironment
from samza_dsl.app import App


def run(app: App, inputs: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Run `app` on lists until they end, and return the values of its outputs and the bytes of its dead letters.

    An input is a list of values, or a list of such lists, one per partition, for an input declared with several
    `partitions`. A table whose key is not read off its values takes (key, value) pairs. Streams that are not given
    are empty.

    >>> from samza_dsl import App
    >>> app = App("doubling")
    >>> app.input("numbers", value=int).map(lambda n: n * 2).send_to(app.output("doubles", value=int))
    >>> run(app, {"numbers": [1, 2]})
    {'doubles': [2, 4]}
    """
    graph = app.graph()
    sinks = {output.stream: ListSink() for spec in graph.specs.values() for output in outputs_of(spec)}
    environment = MemoryEnvironment()
    bind: dict[str, Any] = {**_sources(graph, inputs), **sinks}
    running = Run(graph, app.options, app.around, environment, bind=bind)
    _to_the_end(running)
    letters = {s.name: running.received(s.name) for s in running.plan.streams if s.role == "dead_letter"}
    return {name: sink.values for name, sink in sinks.items()} | letters


def _to_the_end(run: Run) -> None:
    """Drive a run on an event loop of its own: in another thread where this one has a loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(run.drive())
    else:
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(asyncio.run, run.drive()).result()


def _sources(graph: Graph, inputs: Mapping[str, Sequence[Any]]) -> dict[str, ListSource]:
    found = {}
    for spec in graph.specs.values():
        if isinstance(spec, Input):
            values, partitions = list(inputs.get(spec.stream, ())), spec.partitions or 1
            parts = values if partitions > 1 else [values]
            keys = None
            if spec.key is not None:
                encode = (spec.key or Tagged()).encode
                keys = [[None if key is None else encode(key) for key, _ in part] for part in parts]
                parts = [[value for _, value in part] for part in parts]
            shape: Any = parts if partitions > 1 else parts[0]
            found[spec.stream] = ListSource(
                shape, keys=keys if partitions > 1 else keys and keys[0], partitions=partitions
            )
    unknown = set(inputs) - set(found)
    if unknown:
        raise ValueError(f"the app reads no {', '.join(sorted(unknown))}; it reads {', '.join(sorted(found))}")
    return found
