"""Opens an application for containers, behind a run of its own where its state lies by former partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from planner.model.levers import Levers
from runtime.job.pipeline import Pipeline
from runtime.model.errors import Repartitioned
from runtime.model.state_choice import State
from runtime.opening.opening import Opened, open_application
from runtime.ports.environment import Environment
from runtime.run.run import Run
from runtime.run.settings import RunSettings


def opened_where_it_lies(
    environment: Environment,
    pipeline: Pipeline,
    bound: Mapping[str, object],
    *,
    levers: Levers,
    from_start: bool = False,
    state: State = None,
) -> Opened:
    """Open an application, whose state is moved before, in this process, where its streams have other partitions."""
    while True:
        opened = open_application(environment, pipeline, bound, levers=levers, from_start=from_start, state=state)
        if opened.moving is None:
            return opened
        opened.bindings.close()
        from_start, state = False, None
        with suppress(Repartitioned):
            asyncio.run(Run(pipeline, environment, RunSettings(bind=bound, levers=levers)).drive())
