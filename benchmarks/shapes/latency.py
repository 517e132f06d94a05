"""L1: from append to committed output, at half of the peak rate, for three commit intervals."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from time import perf_counter

import msgspec

from benchmarks.durable import MOST_STORED, committing, preload_log
from benchmarks.embedded_log import PASSING, chained, encode_json
from benchmarks.figures import Chart
from benchmarks.messages import plain_messages
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.ports.streams import StreamConfig
from runtime.run.run import run_blocking
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options

INTERVALS_MS = (10, 100, 1_000)
PEAK_MESSAGES = 500_000
SECONDS = 10


class Latency(Shape):
    """B6, while another process appends every 10 ms and sees by the checkpoint what is committed."""

    description = ShapeDescription(
        name="L1", title="B6 at half of its peak rate, from append to committed output", rounds=1, quick_scale=0.02
    )

    def figures(self) -> Figures:
        messages = self.scaled(PEAK_MESSAGES)
        records = list(map(encode_json, plain_messages(MOST_STORED)))
        preload_log(self.scratch / "peak", "messages", [records] * (messages // MOST_STORED or 1))
        app = chained(committing(MOST_STORED, int(MOST_STORED * PASSING)))
        began = perf_counter()
        run_blocking(app.pipeline(), self.scratch / "peak")
        half = int(messages / (perf_counter() - began) / 2)
        curve: dict[str, float] = {"messages/s": half}
        lines: dict[str, list[tuple[float, float]]] = {}
        for interval_ms in INTERVALS_MS:
            app = chained(Options(commit_interval_ms=interval_ms))
            found = asyncio.run(self._at(app, self.scratch / f"{interval_ms}", half))
            for name, value in found.items():
                curve[f"{interval_ms} ms: {name} in ms"] = value
                lines.setdefault(name, []).append((interval_ms, round(value, 2)))
        return Figures(None, curve, Chart("commit interval, ms", "latency, ms", lines, log="xy"))

    async def _at(self, app: App, path: Path, rate: int) -> dict[str, float]:
        log = LogEnvironment(path)
        log.create_stream("messages", StreamConfig())
        log.close()
        async with app.running(path) as run:
            command = ["-m", "benchmarks.shapes.appender", str(path), str(rate), str(SECONDS * self.scale)]
            process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
            shown, _ = await process.communicate()
            await run.ended()
        return msgspec.json.decode(shown, type=dict[str, float])
