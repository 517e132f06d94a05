"""A run in the output of a notebook's cell: the plan's picture, live, with what is slow below it."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from string import Template
from typing import Any

from planner.model.flow import counted
from planner.picture.drawing import to_svg
from planner.picture.palette import MONO, SANS
from runtime.model.clock import sleep_ms, wall_clock_ms
from runtime.model.errors import SamzaError
from runtime.model.metrics import RunMetrics
from runtime.run.run import Run
from samza_dsl.room.look import Interval, Look, edge_rates, look, state_of
from samza_dsl.view.readable import duration_of, rate_of

LOOK_MS, OVER_MS = 1_000.0, 5_000.0
"""The interval at which a run is looked at, and the time over which rates and shares are told."""
MOST_CAUSES = 5

_STYLE = Template("""
.samza-run { font: 13px/1.5 $sans; } .samza-run code { font-family: $mono; }
.samza-run .scroll { overflow-x: auto; } .samza-run ol { margin: 6px 0 0; padding-left: 24px; }
.samza-run .bad { color: #d3453c; }
""").substitute(sans=SANS, mono=MONO)


class RunPicture:
    """A run at one moment, as a notebook shows it: nothing in it is loaded, and no script runs."""

    def __init__(self, run: Run, span: Interval, found: Look) -> None:
        self._svg = to_svg(run.plan, edge_rates(run.plan, span))
        self._app, self._look = run.plan.app, found

    def _facts(self) -> str:
        now = self._look
        facts = [
            f"{self._app} {now.state}",
            duration_of(now.elapsed_ms),
            f"{rate_of(now.received_per_s)}/s read",
            f"{now.lag:,} to read",
            counted(now.commits, "commit"),
            f"{now.in_flight:,} in flight",
        ]
        return " · ".join(facts)

    def _html(self) -> Iterator[str]:
        yield f'<div class="samza-run"><style>{_STYLE}</style><b>{escape(self._facts())}</b>'
        yield "".join(f'<div class="bad">{escape(alert)}</div>' for alert in self._look.alerts)
        causes = "".join(f"<li>{escape(one.words)}</li>" for one in self._look.causes[:MOST_CAUSES])
        yield f"<div>Where is it slow?</div><ol>{causes}</ol>" if causes else ""
        yield f'<div class="scroll">{self._svg}</div></div>'

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        lines = [self._facts(), *self._look.alerts, *(one.words for one in self._look.causes[:MOST_CAUSES])]
        return {"text/html": "".join(self._html()), "text/plain": "\n".join(lines)}


def show(run: Run) -> None:
    """Show a run in the output of the cell that calls this, and keep that up until the run ends.

    Raises SamzaError outside of a notebook.
    """
    if "IPython" not in sys.modules:
        raise SamzaError(
            "run.show() is for notebooks, and this is none; write instead: app.run(live=True), which shows a run on a "
            "terminal, or look at it in a browser: samza-dsl ui"
        )
    # Imported late: only a notebook has IPython.
    from IPython.display import display

    put: Any = display
    looks: deque[RunMetrics] = deque([RunMetrics()])
    shown = put(_picture(run, looks), display_id=True)
    with suppress(RuntimeError):
        # A run that is over, in a cell without an event loop, stays as it is.
        asyncio.get_running_loop()
        if not run.over:
            task = asyncio.create_task(_keep_up(run, looks, shown))
            _KEPT.add(task)
            task.add_done_callback(_KEPT.discard)


_KEPT: set[asyncio.Task[None]] = set()
"""The tasks that keep pictures up: an event loop alone would let them be collected."""


async def _keep_up(run: Run, looks: deque[RunMetrics], shown: Any) -> None:
    while not run.over:
        await sleep_ms(LOOK_MS)
        # What has ended the run is raised where it is awaited.
        with suppress(Exception):
            shown.update(_picture(run, looks))


def _picture(run: Run, looks: deque[RunMetrics]) -> RunPicture:
    metrics = run.metrics()
    looks.append(metrics)
    while len(looks) > 2 and looks[1].elapsed_ms <= metrics.elapsed_ms - OVER_MS:
        looks.popleft()
    # Of one that is over the rates are those of all of it.
    span = Interval(RunMetrics() if run.over else looks[0], metrics)
    return RunPicture(run, span, look(run.plan, span, state_of(run, run.over), metrics.stores, wall_clock_ms()))
