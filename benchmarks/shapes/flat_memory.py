"""M1: the anonymous memory of a long run stays what it was at a tenth of it."""

from __future__ import annotations

import asyncio

from benchmarks.durable import MOST_STORED, committing, preload_log
from benchmarks.embedded_log import PASSING, chained, encode_json
from benchmarks.memory import anonymous_mib
from benchmarks.messages import plain_messages
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.run import Run, run_blocking

LOOK_SECONDS = 0.02


class FlatMemory(Shape):
    """10 million messages through B6: the highest memory in the last million over that in the first."""

    description = ShapeDescription(
        name="M1", title="anonymous memory at 10M messages through B6 ÷ at 1M", bar=1.1, rounds=1, quick_scale=0.02
    )

    def figures(self) -> Figures:
        messages = self.scaled(10_000_000)
        records = list(map(encode_json, plain_messages(MOST_STORED)))
        whole, rest = divmod(messages, MOST_STORED)
        preload_log(self.scratch, "messages", [*[records] * whole, records[:rest]])
        seen: list[tuple[int, float]] = []

        async def watch(run: Run) -> None:
            while True:
                seen.append((run.metrics(stores=False).inputs[0].offset, anonymous_mib() or 0))
                await asyncio.sleep(LOOK_SECONDS)

        app = chained(committing(MOST_STORED, int(MOST_STORED * PASSING)))
        run_blocking(app.graph(), app.options, app.around, self.scratch, watch=watch)
        first = max(mib for offset, mib in seen if offset <= messages / 10)
        last = max(mib for offset, mib in seen if offset >= messages * 9 / 10)
        return Figures(last / first if first else None, {"MiB at a tenth": first, "MiB at the end": last})
