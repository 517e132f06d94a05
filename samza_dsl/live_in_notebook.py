"""Shows how a run goes in a notebook: a picture in the output of its cell, which stays in its place."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from runtime.clock import sleep_ms
from runtime.driving import Watched
from samza_dsl.live import ALL_ROWS, PICTURE_EVERY_MS, State, finish, picture_of
from samza_dsl.progress import Progress

COLUMNS = 110
AS_IT_IS = "<pre style=\"line-height:normal;font-family:Menlo,'DejaVu Sans Mono',consolas,monospace\">{code}</pre>"


class InNotebook:
    """A picture of all operators and inputs in the output of the cell that runs: for notebooks."""

    async def watch(self, run: Watched) -> None:
        """Show the run."""
        from IPython.display import display

        show: Any = display
        progress = Progress(run.plan)
        shown = show(Drawn(progress, "running"), display_id=True)
        try:
            while True:
                progress.take(run.metrics(stores=False))
                shown.update(Drawn(progress, "stopping" if run.stopping else "running"))
                await sleep_ms(PICTURE_EVERY_MS)
        finally:
            shown.update(Drawn(progress, finish(progress, run)))


class Drawn:
    """A picture of a run at this moment, as a notebook shows it."""

    def __init__(self, progress: Progress, state: State) -> None:
        console = Console(width=COLUMNS, record=True, file=StringIO(), force_jupyter=False)
        console.print(picture_of(progress, state, (COLUMNS, ALL_ROWS)))
        self._text = console.export_text(clear=False)
        self._html = console.export_html(inline_styles=True, code_format=AS_IT_IS)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._html, "text/plain": self._text}
