"""Shows how a run goes: a picture that stays in place on a terminal, and a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from planner.flow import counted, family, plain, shorten
from planner.plan import OperatorPlan, StagePlan
from runtime.clock import sleep_ms
from runtime.errors import SamzaError
from runtime.run import Run
from samza_dsl.progress import TROUBLES, Progress, Read
from samza_dsl.readable import duration_of, rate_of, time_of

State = Literal["running", "stopping", "stopped", "done", "failed"]

LINE_EVERY_MS = 3_000
PICTURE_EVERY_MS = 250
WIDEST = 110
NAME_LENGTH = 44
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

    async def watch(self, run: Run) -> None:
        """Show the run."""


class Lines:
    """A line every few seconds, and one at the end: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def watch(self, run: Run) -> None:
        """Show the run."""
        progress = Progress(run.plan)
        parts = [counted(len(run.plan.stages), "stage"), counted(len(run.plan.operators), "operator")]
        self._print(f"{run.plan.app}: running, {', '.join(parts)}")
        try:
            while True:
                await sleep_ms(LINE_EVERY_MS)
                progress.take(run.metrics())
                self._print(line_of(progress))
        finally:
            self._print(summary_of(progress, finish(progress, run)))

    def _print(self, line: str) -> None:
        self._console.print(Text(plain(line)), soft_wrap=True)


class Picture:
    """A picture of all operators and inputs that stays in place: for terminals."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def watch(self, run: Run) -> None:
        """Show the run."""
        progress = Progress(run.plan)
        with Live(console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    progress.take(run.metrics())
                    live.update(picture_of(progress, "stopping" if run.stopping else "running"), refresh=True)
                    await sleep_ms(PICTURE_EVERY_MS)
            finally:
                live.vertical_overflow = "visible"
                live.update(picture_of(progress, finish(progress, run)), refresh=True)


def finish(progress: Progress, run: Run) -> State:
    """Take in a run's last numbers and return how it ended; one that failed has none."""
    try:
        progress.take(run.metrics(), ended=True)
    except SamzaError:
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
        f"watermark {time_of(progress.watermark)}",
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


def picture_of(progress: Progress, state: State) -> RenderableType:
    """Return a run as a few tables for a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for justify in ("left", "right", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True, overflow="ellipsis")
    for number, stage in enumerate(progress.plan.stages):
        _add_stage(table, progress, stage, number == 0)
    return Group(_heading(progress, state), Text(), table, _inputs(progress), Text())


def _heading(progress: Progress, state: State) -> RenderableType:
    glyph, colour = LOOKS[state]
    plan = progress.plan
    title = Text.assemble(
        (f"{glyph} ", colour),
        (shorten(plan.app, NAME_LENGTH), "bold"),
        (f"  {state}", colour),
        (f"  {duration_of(progress.metrics.elapsed_ms)}", "bold"),
    )
    facts = [plan.options.guarantee.replace("_", " "), _committed(progress), f"{progress.in_flight:,} in flight"]
    return Text.assemble(title, "\n", (f"  {' · '.join(facts)}", "dim"))


def _add_stage(table: Table, progress: Progress, stage: StagePlan, first: bool) -> None:
    columns = ("in", "out", "per s") if first else ("", "", "")
    if not first:
        table.add_row()
    size = Text.assemble((stage.id, "bold"), (f" · {counted(stage.partitions, 'partition')}", "dim"))
    table.add_row(size, *(Text(heading, "dim") for heading in columns))
    for id in stage.operators:
        operator = progress.plan.operator(id)
        passed = progress.passed(id)
        notes = [Text(f"{number:,} {plain(words)}", "yellow") for words, number in passed.counted.items()]
        table.add_row(
            _name(operator),
            f"{passed.received:,}",
            "" if operator.terminal and not passed.emitted else f"{passed.emitted:,}",
            Text(rate_of(passed.per_second), "dim"),
            Text(", ").join(notes),
        )


def _name(operator: OperatorPlan) -> Text:
    return Text.assemble("  ", ("▍", COLOURS[family(operator)]), shorten(operator.id, NAME_LENGTH))


def _inputs(progress: Progress) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("\nreads", no_wrap=True, overflow="ellipsis")
    table.add_column("", width=20)
    table.add_column("", justify="right")
    table.add_column("lag", justify="right", vertical="bottom")
    table.add_column("watermark (UTC)", vertical="bottom")
    for one in progress.inputs():
        share = one.offset / one.end if one.end else 1.0
        bar = ProgressBar(total=1.0, completed=share, width=20, complete_style="blue", finished_style="green")
        table.add_row(
            Text(f"  {shorten(one.stream, NAME_LENGTH)}"), bar, f"{share:.0%}", f"{one.lag:,}", _watermark(one)
        )
    return table


def _watermark(one: Read) -> Text:
    return Text("ended" if one.ended else time_of(one.watermark).removesuffix(".000"), "dim" if one.ended else "")


def _committed(progress: Progress) -> str:
    since = progress.metrics.since_commit_ms
    last = "" if since is None else f", last {duration_of(since)} ago"
    return f"{counted(progress.metrics.commits, 'commit')}{last}"


def _troubles(progress: Progress) -> Iterable[str]:
    metrics = progress.metrics
    return [f"{number:,} {words}" for field, words in TROUBLES.items() if (number := metrics.total(field))]


def view_of(console: Console) -> View:
    """Return the view that suits where the output goes."""
    return Picture(console) if console.is_terminal else Lines(console)
