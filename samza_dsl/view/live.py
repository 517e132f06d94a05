"""Shows the progress of a run: a picture that stays in place on a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import StringIO
from typing import Any, Literal, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from planner.model.flow import counted, family, plain, shorten
from planner.model.plan import OperatorPlan
from runtime.model.clock import sleep_ms
from runtime.run.driver import Watched
from samza_dsl.settings import logs
from samza_dsl.view.progress import TROUBLES, Passed, Progress, ReadProgress, told_at_the_end
from samza_dsl.view.readable import duration_of, rate_of, watermark_of

_log = logging.getLogger("samza_dsl")
State = Literal["running", "stopping", "stopped", "done", "begins anew", "failed"]

LINE_EVERY_MS = 3_000
PICTURE_EVERY_MS = 250
WIDE = 100
NOTEBOOK_COLUMNS = 110
NOTEBOOK_HTML = "<pre style=\"line-height:normal;font-family:Menlo,'DejaVu Sans Mono',consolas,monospace\">{code}</pre>"
NAME_WIDTH, NARROW_NAME_WIDTH = 36, 27
BAR_WIDTH, NARROW_BAR_WIDTH = 20, 10
NUMBER_WIDTH = 9
RATE_WIDTH = 6
ALL_ROWS = 1_000_000
COLOURS = {
    "source": "blue",
    "table": "cyan",
    "stateless": "default",
    "async": "yellow",
    "stateful": "magenta",
    "terminal": "green",
}
HELD = "held back by an open transaction"
LOOKS: dict[State, tuple[str, str]] = {
    "running": ("●", "green"),
    "stopping": ("●", "yellow"),
    "stopped": ("■", "yellow"),
    "done": ("✔", "green"),
    "begins anew": ("↻", "yellow"),
    "failed": ("✘", "red"),
}


class View(Protocol):
    """Shows a run, beside it in its event loop, until cancelled at the run's end."""

    async def watch(self, run: Watched) -> None:
        """Show the run."""


class LineView:
    """A line every few seconds, and one at the end: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._warned: set[str] = set()

    async def watch(self, run: Watched) -> None:
        """Show the run."""
        progress = Progress(run.plan)
        parts = [counted(len(run.plan.stages), "stage"), counted(len(run.plan.operators), "operator")]
        self._print(f"{run.plan.app}: running, {', '.join(parts)}")
        try:
            while True:
                await sleep_ms(LINE_EVERY_MS)
                # Sizes of stores are left out: to ask for them several times a second would cost more than it shows.
                progress.take(run.metrics(stores=False))
                self.warn(progress)
                self._print(line_of(progress))
        finally:
            state = finish(progress, run)
            self.warn(progress)
            self._print(summary_of(progress, state))
            for line in told_at_the_end(progress) if not run.failed else ():
                self._print(line)

    def warn(self, progress: Progress) -> None:
        """Print the warnings that were not printed yet."""
        # Each once: in a log a line that comes every three seconds hides all others.
        for warning in progress.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                self._print(f"{progress.plan.app}: warning: {warning}")

    def _print(self, line: str) -> None:
        self._console.print(Text(plain(line)), soft_wrap=True)


class LogView(LineView):
    """The same lines in the log, where that is for programs to read; the library has logged its warnings already."""

    def warn(self, progress: Progress) -> None:
        """Leave the warnings to those who have logged them."""

    def _print(self, line: str) -> None:
        _log.info("%s", line)


class PictureView:
    """A picture of all operators and inputs that stays in place: for terminals."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def watch(self, run: Watched) -> None:
        """Show the run."""
        progress = Progress(run.plan)
        # No thread of its own: numbers are looked at in the loop that changes them.
        with Live(console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    progress.take(run.metrics(stores=False))
                    state: State = "stopping" if run.stopping else "running"
                    live.update(picture_of(progress, state, self._console.size), refresh=True)
                    await sleep_ms(PICTURE_EVERY_MS)
            finally:
                # The last picture stays on the terminal, whole, also where it is longer than the screen.
                live.vertical_overflow = "visible"
                live.update(picture_of(progress, finish(progress, run), (self._console.width, ALL_ROWS)), refresh=True)
                for line in told_at_the_end(progress) if not run.failed else ():
                    self._console.print(Text(plain(line), "yellow"), soft_wrap=True)


class InNotebook:
    """A picture of all operators and inputs in the output of the cell that runs: for notebooks."""

    async def watch(self, run: Watched) -> None:
        """Show the run."""
        # Imported late: only a notebook has IPython.
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
            state = finish(progress, run)
            shown.update(Drawn(progress, state, () if run.failed else told_at_the_end(progress)))


class Drawn:
    """A picture of a run at this moment, as a notebook shows it."""

    def __init__(self, progress: Progress, state: State, told: Iterable[str] = ()) -> None:
        console = Console(width=NOTEBOOK_COLUMNS, record=True, file=StringIO(), force_jupyter=False)
        console.print(picture_of(progress, state, (NOTEBOOK_COLUMNS, ALL_ROWS)))
        for line in told:
            console.print(Text(plain(line), "yellow"))
        self._text = console.export_text(clear=False)
        self._html = console.export_html(inline_styles=True, code_format=NOTEBOOK_HTML)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self._html, "text/plain": self._text}


def finish(progress: Progress, run: Watched) -> State:
    """Take in a run's last numbers, if it has any, and return the state in which it ended."""
    # A run that has failed may have no numbers; its own error is raised elsewhere.
    with suppress(Exception):
        progress.take(run.metrics(), ended=True)
    if run.failed:
        return "begins anew" if run.begins_anew else "failed"
    return "stopped" if run.stopping else "done"


def line_of(progress: Progress) -> str:
    """Return the progress of a run on one line."""
    metrics = progress.metrics
    parts = [
        f"{progress.read:,} read ({rate_of(progress.read_per_second)}/s)",
        f"{progress.written:,} written",
        f"lag {progress.lag:,}",
        f"{progress.in_flight:,} in flight",
        _committed(progress),
        *_unowned(progress),
        f"watermark {watermark_of(progress.watermark)}",
        *_troubles(progress),
    ]
    return f"{progress.plan.app}: {duration_of(metrics.elapsed_ms)}: {', '.join(parts)}"


def summary_of(progress: Progress, state: State) -> str:
    """Return the end of a run on one line."""
    metrics = progress.metrics
    parts = [
        f"{progress.read:,} read ({rate_of(progress.read_per_second)}/s)",
        f"{progress.written:,} written",
        counted(metrics.commits, "commit"),
        *_troubles(progress),
    ]
    word = f"{state} after" if state in ("failed", "begins anew") else f"{state} in"
    return f"{progress.plan.app}: {word} {duration_of(metrics.elapsed_ms)}: {', '.join(parts)}"


def picture_of(progress: Progress, state: State, size: tuple[int, int]) -> RenderableType:
    """Return a run as a few tables for a terminal of so many columns and rows.

    Where there are too few rows, stateless operators are left out; what is then too much is at the bottom.
    """
    stages = {stage: [progress.plan.operator(id) for id in stage.operators] for stage in progress.plan.stages}
    reads = list(progress.inputs())
    # rich cuts off what does not fit, from below, so what says least goes first.
    if sum(len(held) + 2 for held in stages.values()) + len(reads) + 4 > size[1]:
        stages = {stage: [one for one in held if family(one) != "stateless"] for stage, held in stages.items()}
    longest = max(len(name) for name in (*(one.stream for one in reads), *(one.id for one in progress.plan.operators)))
    wide = size[0] >= WIDE
    name_width = min(longest + 3, NAME_WIDTH if wide else NARROW_NAME_WIDTH)
    parts: list[RenderableType] = [
        _heading(progress, state),
        Text(),
        _inputs(reads, name_width, BAR_WIDTH if wide else NARROW_BAR_WIDTH),
    ]
    table = _grid(name_width, -NUMBER_WIDTH, -NUMBER_WIDTH, -RATE_WIDTH, 0)
    for stage, operators in stages.items():
        table.add_row()
        title = Text.assemble((stage.id, "bold"), (f" · {progress.tasks_of(stage)}", "dim"))
        table.add_row(title, *(Text(heading, "dim") for heading in ("in", "out", "per s")))
        for operator in operators:
            table.add_row(*_operator(operator, progress.passed(operator.id), name_width))
    warnings = [Text(f"⚠ {plain(warning)}", "yellow") for warning in progress.warnings]
    return Group(*parts, table, *warnings)


def _heading(progress: Progress, state: State) -> Text:
    glyph, colour = LOOKS[state]
    options, elapsed = progress.plan.options, duration_of(progress.metrics.elapsed_ms)
    facts = [options.guarantee.replace("_", " "), _committed(progress), f"{progress.in_flight:,} in flight"]
    facts += [*_unowned(progress), *_dead(progress)]
    name = (shorten(progress.plan.app, NAME_WIDTH), "bold")
    return Text.assemble(
        (f"{glyph} ", colour), name, (f"  {state}", colour), f"  {elapsed}\n", (f"  {' · '.join(facts)}", "dim")
    )


def _operator(operator: OperatorPlan, passed: Passed, width: int) -> Iterator[RenderableType]:
    yield Text.assemble("  ", ("▍", COLOURS[family(operator)]), shorten(operator.id, width - 3))
    yield f"{passed.received:,}"
    yield "" if operator.terminal and not passed.emitted else f"{passed.emitted:,}"
    yield Text(rate_of(passed.per_second) if passed.per_second >= 1 else "", "dim")
    yield Text(", ".join(f"{number:,} {plain(words)}" for words, number in passed.counted.items()), "yellow")


def _inputs(reads: list[ReadProgress], name_width: int, bar_width: int) -> Table:
    table = _grid(name_width, bar_width, -4, -NUMBER_WIDTH, 0)
    table.add_row(Text("reads", "bold"), "", "", *(Text(heading, "dim") for heading in ("lag", "watermark (UTC)")))
    for one in reads:
        share = one.offset / one.end if one.end else 1.0
        table.add_row(
            Text(f"  {shorten(one.stream, name_width - 2)}"),
            ProgressBar(total=1.0, completed=share, width=bar_width, complete_style="blue", finished_style="green"),
            f"{int(share * 100)}%",
            f"{one.lag:,}",
            _state_of(one),
        )
    return table


def _state_of(one: ReadProgress) -> Text:
    if one.held:
        return Text(f"{one.held:,} {HELD}", "red")
    return Text("ended", "dim") if one.ended else Text(watermark_of(one.watermark) + ", idle" * one.idle)


def _grid(*widths: int) -> Table:
    """Return a table whose columns stay in place while numbers grow; negative widths are those of numbers."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in widths:
        justify: Literal["left", "right"] = "right" if width < 0 else "left"
        table.add_column(justify=justify, min_width=abs(width), no_wrap=True, overflow="ellipsis")
    return table


def _committed(progress: Progress) -> str:
    since = progress.metrics.since_commit_ms
    last = "" if since is None else f", last {duration_of(since)} ago"
    return f"{counted(progress.metrics.commits, 'commit')}{last}"


def _troubles(progress: Progress) -> Iterable[str]:
    metrics = progress.metrics
    jumps = sum(one.jumps for one in metrics.inputs)
    found = [f"{number:,} {words}" for field, words in TROUBLES.items() if (number := metrics.total(field))]
    if jumps:
        found.append(f"event time jumped {counted(jumps, 'time')}")
    if progress.held:
        found.append(f"{progress.held:,} {HELD}")
    return [*found, *_dead(progress)]


def _unowned(progress: Progress) -> list[str]:
    return [f"{counted(progress.unowned, 'task')} in no container"] if progress.unowned else []


def _dead(progress: Progress) -> list[str]:
    deaths, take_overs = progress.metrics.deaths, progress.metrics.take_overs
    died = [f"{counted(deaths, 'container')} died"] if deaths else []
    return [*died, f"{counted(take_overs, 'task')} taken over"] if take_overs else died


def view() -> View:
    """Return the view for the place where output goes: a notebook, a terminal, or a file."""
    console = Console(highlight=False)
    if console.is_jupyter:
        return InNotebook()
    settings = logs.configured()
    if settings is not None and settings.format == "json":
        return LogView(console)
    return PictureView(console) if console.is_terminal else LineView(console)
