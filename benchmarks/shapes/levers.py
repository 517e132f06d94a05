"""V1: what each lever brings: how long a workload takes that it is for, with the lever left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from statistics import median

from benchmarks.async_calls import AsyncCalls
from benchmarks.embedded_log import EmbeddedLog
from benchmarks.json_lines import JsonLines
from benchmarks.keyed_count import KeyedCount
from benchmarks.running import run
from benchmarks.running_count import DurableCount, RunningCount
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from benchmarks.stateless_chain import InlinedChain, StatelessChain
from benchmarks.word_count import WordCount
from benchmarks.workload import Workload
from planner.model.levers import ALL, Levers

SHOWN_BY: Mapping[str, type[Workload]] = {
    "fusion": StatelessChain,
    "keyed": RunningCount,
    "reading": RunningCount,
    "folding": KeyedCount,
    "inlining": InlinedChain,
    "scalars": InlinedChain,
    "columns": EmbeddedLog,
    "batches": StatelessChain,
    "hot_state": DurableCount,
    "relays": WordCount,
    "flights": AsyncCalls,
    "together": JsonLines,
    "trust": DurableCount,
}
"""By lever, a workload that it is for."""
SHARE = 0.2
"""How much of a workload's messages are enough to see it."""


class LeftOut(Shape):
    """The time of a pipeline with one lever left out, over that with all of them; both come to the same."""

    description = ShapeDescription(name="V1", title="time with a lever left out ÷ with all", rounds=5, quick_scale=0.01)

    def figures(self) -> Figures:
        """Measure each lever on its workload, with and without it in turn."""
        brings = {lever.name: self._brings(lever.name) for lever in fields(Levers)}
        named = {f"{lever}, {SHOWN_BY[lever].description.name}": ratio for lever, ratio in brings.items()}
        return Figures(None, named)

    def _brings(self, lever: str) -> float:
        kind = SHOWN_BY[lever]
        scratch = self.scratch / lever
        scratch.mkdir()
        workload = kind(kind.description.scaled(SHARE * self.scale), scratch)
        without = Levers(**{lever: False})
        expected = run(workload, workload.ours)
        ratios = []
        for _ in range(self.rounds):
            seconds = {}
            for levers in (ALL, without):
                workload.levers = levers
                ran = run(workload, workload.ours)
                if not ran.same_as(expected):
                    raise AssertionError(f"{kind.description.name} comes to something else without {lever}")
                seconds[levers] = ran.seconds
            ratios.append(seconds[without] / seconds[ALL])
        return median(ratios)
