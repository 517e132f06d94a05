"""Shows how a run goes: a picture that stays in place on a terminal, and a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Literal, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from planner.flow import counted, family, plain, shorten
from planner.plan import OperatorPlan
from runtime.clock import sleep_ms
from runtime.driving import Watched
from samza_dsl.progress import TROUBLES, Passed, Progress, Read
from samza_dsl.readable import duration_of, rate_of, watermark_of

State = Literal["running", "stopping", "stopped", "done", "failed"]

LINE_EVERY_MS = 3_000
PICTURE_EVERY_MS = 250
WIDE = 100
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
LOOKS: dict[State, tuple[str, str]] = {
    "running": ("●", "green"),
    "stopping": ("●", "yellow"),
    "stopped": ("■", "yellow"),
    "done": ("✔", "green"),
    "failed": ("✘", "red"),
}


class View(Protocol):
    """Shows a run beside which it runs, until it is cancelled at the run's end."""

    async def watch(self, run: Watched) -> None:
        """Show the run."""


class Lines:
    """A line every few seconds, and one at the end: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def watch(self, run: Watched) -> None:
        """Show the run."""
        progress = Progress(run.plan)
        parts = [counted(len(run.plan.stages), "stage"), counted(len(run.plan.operators), "operator")]
        self._print(f"{run.plan.app}: running, {', '.join(parts)}")
        try:
            while True:
                await sleep_ms(LINE_EVERY_MS)
                progress.take(run.metrics(stores=False))
                self._print(line_of(progress))
        finally:
            self._print(summary_of(progress, finish(progress, run)))

    def _print(self, line: str) -> None:
        self._console.print(Text(plain(line)), soft_wrap=True)


class Picture:
    """A picture of all operators and inputs that stays in place: for terminals."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def watch(self, run: Watched) -> None:
        """Show the run."""
        progress = Progress(run.plan)
        with Live(console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    progress.take(run.metrics(stores=False))
                    state: State = "stopping" if run.stopping else "running"
                    live.update(picture_of(progress, state, self._console.size), refresh=True)
                    await sleep_ms(PICTURE_EVERY_MS)
            finally:
                live.vertical_overflow = "visible"
                live.update(picture_of(progress, finish(progress, run), (self._console.width, ALL_ROWS)), refresh=True)


def finish(progress: Progress, run: Watched) -> State:
    """Take in a run's last numbers, where it has any, and return how it ended."""
    with suppress(Exception):
        progress.take(run.metrics(), ended=True)
    if run.failed:
        return "failed"
    return "stopped" if run.stopping else "done"


def line_of(progress: Progress) -> str:
    """Return how a run goes, on one line."""
    metrics = progress.metrics
    parts = [
        f"{progress.read:,} read ({rate_of(progress.read_per_second)}/s)",
        f"{progress.written:,} written",
        f"lag {progress.lag:,}",
        f"{progress.in_flight:,} in flight",
        _committed(progress),
        f"watermark {watermark_of(progress.watermark)}",
        *_troubles(progress),
    ]
    return f"{progress.plan.app}: {duration_of(metrics.elapsed_ms)}: {', '.join(parts)}"


def summary_of(progress: Progress, state: State) -> str:
    """Return how a run ended, on one line."""
    metrics = progress.metrics
    parts = [
        f"{progress.read:,} read ({rate_of(progress.read_per_second)}/s)",
        f"{progress.written:,} written",
        counted(metrics.commits, "commit"),
        *_troubles(progress),
    ]
    word = "failed after" if state == "failed" else f"{state} in"
    return f"{progress.plan.app}: {word} {duration_of(metrics.elapsed_ms)}: {', '.join(parts)}"


def picture_of(progress: Progress, state: State, size: tuple[int, int]) -> RenderableType:
    """Return a run as a few tables for a terminal of so many columns and rows.

    Where there are too few rows, stateless operators are left out; what is then too much is at the bottom.
    """
    stages = {stage: [progress.plan.operator(id) for id in stage.operators] for stage in progress.plan.stages}
    reads = list(progress.inputs())
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
    return Group(*parts, table)


def _heading(progress: Progress, state: State) -> Text:
    glyph, colour = LOOKS[state]
    options, elapsed = progress.plan.options, duration_of(progress.metrics.elapsed_ms)
    facts = [options.guarantee.replace("_", " "), _committed(progress), f"{progress.in_flight:,} in flight"]
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


def _inputs(reads: list[Read], name_width: int, bar_width: int) -> Table:
    table = _grid(name_width, bar_width, -4, -NUMBER_WIDTH, 0)
    table.add_row(Text("reads", "bold"), "", "", *(Text(heading, "dim") for heading in ("lag", "watermark (UTC)")))
    for one in reads:
        share = one.offset / one.end if one.end else 1.0
        table.add_row(
            Text(f"  {shorten(one.stream, name_width - 2)}"),
            ProgressBar(total=1.0, completed=share, width=bar_width, complete_style="blue", finished_style="green"),
            f"{int(share * 100)}%",
            f"{one.lag:,}",
            Text("ended", "dim") if one.ended else Text(watermark_of(one.watermark) + ", idle" * one.idle),
        )
    return table


def _grid(*widths: int) -> Table:
    """Columns, those of numbers with a negative width, that stay where they are while the numbers grow."""
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
    return [f"{number:,} {words}" for field, words in TROUBLES.items() if (number := metrics.total(field))]


def view() -> View:
    """Return the view that suits where the output goes."""
    console = Console(highlight=False)
    if console.is_jupyter:
        from samza_dsl.live_in_notebook import InNotebook

        return InNotebook()
    return Picture(console) if console.is_terminal else Lines(console)
