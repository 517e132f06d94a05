"""Records a live view as an animated picture: of the main job, python scripts/record.py DATA docs/run.svg.

With `split` for DATA it is that of a run whose task is split under load: python scripts/record.py split docs/split.svg.
"""

from __future__ import annotations

import asyncio
import io
import re
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from flights import pipeline

from runtime.model.assignment import Scale
from runtime.model.clock import sleep_ms
from runtime.run.run import Run
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, produce
from samza_dsl.view.live import picture_of
from samza_dsl.view.progress import Progress

EVERY_MS = 400
SECONDS_PER_FRAME = 0.8
FRAMES = 8
LAST_FRAME_SECONDS = 4.0
COLUMNS, ROWS = 92, 60


def frame(progress: Progress, state: str, number: int, title: str = "samza-dsl run examples/flights.py") -> str:
    """Return the terminal at one moment as an SVG of its own."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(picture_of(progress, state, (COLUMNS, ROWS)))  # type: ignore[arg-type]
    svg = console.export_svg(title=title, unique_id=f"frame{number}")
    without_fonts = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # they would be fetched from elsewhere
    return re.sub(r"<!--.*?-->", "", without_fonts)


def animate(frames: list[str]) -> str:
    """Put frames into one picture that shows them in turn."""
    total = SECONDS_PER_FRAME * (len(frames) - 1) + LAST_FRAME_SECONDS
    shown = []
    for number, svg in enumerate(frames):
        start = SECONDS_PER_FRAME * number / total * 100
        end = 100 if number == len(frames) - 1 else SECONDS_PER_FRAME * (number + 1) / total * 100
        rule = (
            f"@keyframes f{number}{{0%{{opacity:0}}{start:.3f}%{{opacity:1}}{end:.3f}%{{opacity:0}}100%{{opacity:0}}}}"
        )
        if number == len(frames) - 1:
            rule = f"@keyframes f{number}{{0%{{opacity:0}}{start:.3f}%{{opacity:1}}100%{{opacity:1}}}}"
        style = f"<style>{rule}#f{number}{{animation:f{number} {total:.2f}s step-end infinite}}</style>"
        shown.append(f'{style}<g id="f{number}">{svg}</g>')
    box = re.search(r'viewBox="([^"]*)"', frames[-1])
    assert box is not None
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box[1]}">{"".join(shown)}</svg>\n'


def main(data: Path, out: Path) -> None:
    """Run the main job on loaded data from its start, and write the picture."""
    frames: list[str] = []

    async def record(run: Run) -> None:
        progress = Progress(run.plan)
        while True:
            progress.take(run.metrics(stores=False))
            frames.append(frame(progress, "running", len(frames)))
            await sleep_ms(EVERY_MS)

    run = pipeline().run(data, from_start=True, state="reset", watch=record)
    progress = Progress(run.plan)
    progress.take(run.metrics(), ended=True)
    every = max(1, len(frames) // FRAMES)
    kept = [*frames[::every], frame(progress, "done", len(frames))]
    out.write_text(animate(kept))


SPLIT_AT_S, SECONDS, PER_SECOND = 8.0, 24.0, 300
COMMANDS = "samza-dsl run orders.py", "samza-dsl scale orders.py --factor 4"


def enriched(order: dict[str, int]) -> dict[str, int]:
    """Stand for a client that blocks for 5 ms."""
    time.sleep(0.005)
    return order


def orders() -> App:
    """Return an application that processes 200 records a second in each task, and counts them by their user."""
    app = App("orders", Options(threads=4, commit_interval_ms=100))
    seen = app.input("orders", value=dict, key=str).map(enriched, op_id="enrich")
    seen.scan(lambda seen, order: seen + 1, init=int, op_id="count").send_to(app.output("counts", value=int))
    return app


async def split(data: str) -> str:
    """Run it while more comes than one task can do, split the task, and return the picture."""
    frames, sent, title = list[str](), 0, COMMANDS[0]
    async with orders().running(data) as run:
        began, progress = time.monotonic(), Progress(run.plan)
        while (now := time.monotonic() - began) < SECONDS:
            before, sent = sent, int(now * PER_SECOND)
            rows = [{"user": number % 50} for number in range(before, sent)]
            await asyncio.to_thread(produce, "orders", rows, key=lambda row: f"user {row['user']}", data=data)
            if now > SPLIT_AT_S and title != COMMANDS[1]:
                title = COMMANDS[1]
                with closing(LogEnvironment(data)) as log:
                    log.ask_scale("orders", Scale(4))
            if progress.plan is not run.plan:
                progress = Progress(run.plan)
            if run.tasks:
                progress.take(run.metrics(stores=False))
                frames.append(frame(progress, "running", len(frames), title))
            await sleep_ms(EVERY_MS)
    return animate(frames[:: max(1, len(frames) // FRAMES)])


if __name__ == "__main__":
    if sys.argv[1] == "split":
        with tempfile.TemporaryDirectory() as data:
            Path(sys.argv[2]).write_text(asyncio.run(split(data)))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
