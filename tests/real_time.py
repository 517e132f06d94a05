"""Runs on a real event loop, for what is about other threads: these can't be hurried by a virtual clock."""

import asyncio
from collections.abc import Callable

from runtime.model.clock import sleep_ms
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App


def run_in_real_time(app: App, inputs):
    """Run `app` on lists until they end, as `testing.run` does, and return the values of its outputs."""
    sinks = {stream.name: ListSink() for stream in app.plan().streams if stream.role == "output"}
    sources = {
        stream.name: ListSource(inputs[stream.name], partitions=stream.partitions or 1)
        for stream in app.plan().streams
        if stream.role in ("input", "table")
    }
    run = Run(app.pipeline(), MemoryEnvironment(), RunSettings(bind=sources | sinks))
    asyncio.run(run.drive())
    return {name: sink.values for name, sink in sinks.items()}


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that other threads bring about."""
    while not holds():
        await sleep_ms(10)
