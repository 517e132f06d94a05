"""B1: a stateless chain over a list in memory."""

from __future__ import annotations

from benchmarks.messages import is_large, is_wanted, plain_messages, to_pair, weigh
from benchmarks.workload import Description, Workload
from runtime.run import run_blocking
from runtime.systems.lists import ListSink, ListSource
from runtime.systems.memory import MemoryEnvironment
from samza_dsl import App

Pairs = list[tuple[int, float]]


class StatelessChain(Workload):
    """filter → map → filter → map, from a list of dicts to a list of tuples."""

    description = Description(
        name="B1",
        title="stateless filter→map→filter→map, dicts in memory",
        messages=1_000_000,
        quick_messages=3_000,
        bar=1.0,
    )

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

    def ours(self) -> Pairs:
        app = App("stateless-chain")
        chain = app.input("messages").filter(is_large).map(weigh).filter(is_wanted).map(to_pair)
        chain.send_to(app.output("pairs"))
        sink = ListSink()
        bind = {"messages": ListSource(self.messages), "pairs": sink}
        run_blocking(app.graph(), app.options, app.around, MemoryEnvironment(), bind=bind)
        return sink.values

    def outcome(self, result: Pairs) -> Pairs:
        return result
