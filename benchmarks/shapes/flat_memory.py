"""M1: the anonymous memory of a long run stays what it was at a tenth of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.durable import MOST_STORED, check_stored, committing, preload_log
from benchmarks.embedded_log import PASSING, chained, encode_json, passing
from benchmarks.figures import Chart
from benchmarks.memory import anonymous_mib
from benchmarks.messages import plain_messages
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription, apart
from runtime.run.run import Run, run_blocking

LOOK_SECONDS = 0.02
PARTS = 10


class FlatMemory(Shape):
    """10 million messages through B6: the highest memory in the last million over that in the first."""

    description = ShapeDescription(
        name="M1", title="anonymous memory at 10M messages through B6 ÷ at 1M", bar=1.1, rounds=1, quick_scale=0.02
    )

    def figures(self) -> Figures:
        messages = self.scaled(10_000_000)
        apart(preload, self.scratch, messages)
        seen: list[tuple[int, float]] = []

        async def watch(run: Run) -> None:
            while True:
                seen.append((run.metrics(stores=False).inputs[0].offset, anonymous_mib() or 0))
                await asyncio.sleep(LOOK_SECONDS)

        app = chained(committing(MOST_STORED, int(MOST_STORED * PASSING)))
        run_blocking(app.pipeline(), self.scratch, watch=watch)
        seen.append((messages, anonymous_mib() or 0))
        highest = [0.0] * PARTS
        for offset, mib in seen:
            part = min(offset * PARTS // messages, PARTS - 1)
            highest[part] = max(highest[part], mib)
        first, last = highest[0], highest[-1]
        points = [(messages * part / PARTS / 1e6, round(mib, 1)) for part, mib in enumerate(highest, 1)]
        chart = Chart("million messages", "anonymous memory, MiB", {"ours": points})
        whole, rest = divmod(messages, MOST_STORED)
        made = plain_messages(MOST_STORED)
        check_stored(self.scratch, "pairs", passing(made) * whole + passing(made[:rest]))
        return Figures(last / first if first else None, {"MiB at a tenth": first, "MiB at the end": last}, chart)


def preload(path: Path, messages: int) -> None:
    records = list(map(encode_json, plain_messages(MOST_STORED)))
    whole, rest = divmod(messages, MOST_STORED)
    preload_log(path, "messages", [*[records] * whole, records[:rest]])
