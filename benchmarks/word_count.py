"""B5: the word count, through a repartitioning by word."""

from __future__ import annotations

from benchmarks.messages import increased, itself, lines, to_count, words_of
from benchmarks.workload import Description, Workload
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App

Counts = list[tuple[str, int]]


class WordCount(Workload):
    """Lines of ten words, and a running count for every word of them."""

    description = Description(
        name="B5",
        title="word count through a partition_by, 10 words a line, in memory",
        messages=200_000,
        quick_scale=0.01,
        bar=1.3,
        pairs=5,
    )

    def prepare(self, messages: int) -> None:
        self.lines = lines(messages)
        self.times = [0] * messages  # records carry a time, as all that are stored do

    def baseline(self) -> Counts:
        results: Counts = []
        append = results.append
        counts: dict[str, int] = {}
        for line in self.lines:
            for word in words_of(line):
                key = itself(word)
                counts[key] = count = increased(counts.get(key), word)
                append(to_count(key, count))
        return results

    def baseline_inlined(self) -> Counts:
        results: Counts = []
        append = results.append
        counts: dict[str, int] = {}
        for line in self.lines:
            for word in line.split():
                counts[word] = count = counts.get(word, 0) + 1
                append((word, count))
        return results

    def ours(self) -> Counts:
        app = App("word-count")
        words = app.input("lines").flat_map(words_of).partition_by(itself, op_id="by-word")
        words.scan(increased, emit=to_count, store="memory", op_id="counting").send_to(app.output("counts"))
        sink = ListSink(columns=())
        bind = {"lines": ListSource(self.lines, self.times), "counts": sink}
        run_blocking(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind, levers=self.levers))
        return sink.values

    def outcome(self, result: Counts) -> Counts:
        return result
