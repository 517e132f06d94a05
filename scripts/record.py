"""Records the live view of the main job as an animated picture: python scripts/record.py DATA docs/run.svg."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from flights import pipeline

from runtime.model.clock import sleep_ms
from runtime.run.run import Run
from samza_dsl.view.live import picture_of
from samza_dsl.view.progress import Progress

EVERY_MS = 400
SECONDS_PER_FRAME = 0.8
FRAMES = 8
LAST_FRAME_SECONDS = 4.0
COLUMNS, ROWS = 92, 60


def frame(progress: Progress, state: str, number: int) -> str:
    """Return the terminal at one moment as an SVG of its own."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(picture_of(progress, state, (COLUMNS, ROWS)))  # type: ignore[arg-type]
    svg = console.export_svg(title="samza-dsl run examples/flights.py", unique_id=f"frame{number}")
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
