"""B1: a stateless chain over a list in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from benchmarks.messages import is_large, is_wanted, plain_messages, to_pair, weigh
from benchmarks.workload import Description, Workload
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App, Options

Pairs = list[tuple[int, float]]


class StatelessChain(Workload):
    """filter → map → filter → map, from a list of dicts to a list of tuples; the pipeline calls its functions."""

    description = Description(
        name="B1",
        title="stateless filter→map→filter→map, dicts in memory, functions called",
        messages=1_000_000,
        quick_scale=0.003,
        bar=1.0,
    )

    inline: ClassVar[bool] = False

    def prepare(self, messages: int) -> None:
        self.messages = plain_messages(messages)

    def baseline(self) -> Pairs:
        pairs: Pairs = []
        append = pairs.append
        for message in self.messages:
            if is_large(message):
                weighed = weigh(message)
                if is_wanted(weighed):
                    append(to_pair(weighed))
        return pairs

    def baseline_inlined(self) -> Pairs:
        pairs: Pairs = []
        append = pairs.append
        for message in self.messages:
            if message["v"] > 0.1:
                weighed = {"id": message["id"], "v": message["v"], "tag": message["tag"], "w": message["v"] * 2.0}
                if weighed["tag"] != "x":
                    append((weighed["id"], weighed["w"]))
        return pairs

    def ours(self) -> Pairs:
        app = App("stateless-chain", Options(inline=self.inline))
        chain = app.input("messages").filter(is_large).map(weigh).filter(is_wanted).map(to_pair)
        chain.send_to(app.output("pairs"))
        sink = ListSink(columns=())
        bind = {"messages": ListSource(self.messages), "pairs": sink}
        run_blocking(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind, levers=self.levers))
        return sink.values

    def outcome(self, result: Pairs) -> Pairs:
        return result


class InlinedChain(StatelessChain):
    """The same as users get it: what the functions return is written into the generated loop."""

    description = replace(
        StatelessChain.description,
        name="B1i",
        title="the same, functions inlined by the planner, over the loop that calls them",
        bar=0.75,
    )
    inline = True
