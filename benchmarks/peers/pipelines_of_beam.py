"""Apache Beam on its runner in this process, bounded: what is windowed or combined is told at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from benchmarks.keyed_count import WINDOW_MS
from benchmarks.messages import (
    increased,
    is_large,
    is_wanted,
    key_of,
    spread_key_of,
    time_of,
    to_count,
    to_pair,
    weigh,
    words_of,
)
from benchmarks.peers.case import Case, by_key, final_counts, none_late

logging.disable(logging.WARNING)

MESSAGES: list[Any] = []
RESULTS: list[Any] = []
"""What goes in and comes out: the runner's worker is a thread of this process."""


class Keep(beam.DoFn):
    def process(self, result: Any) -> None:
        RESULTS.append(result)


COUNT = beam.DoFn.StateParam(ReadModifyWriteStateSpec("count", VarIntCoder()))


class Running(beam.DoFn):
    def process(self, pair: tuple[Any, Any], state: Any = COUNT) -> Iterator[Any]:
        count = increased(state.read())
        state.write(count)
        yield to_count(pair[0], count)


class Pane(beam.DoFn):
    def process(self, pair: tuple[Any, int], window: Any = beam.DoFn.WindowParam) -> Iterator[Any]:
        yield pair[0], int(window.start.micros // 1_000), int(window.end.micros // 1_000), pair[1]


def taken(_: Any) -> list[Any]:
    return MESSAGES


def run(build: Callable[[Any], Any], messages: list[Any], create: bool = False) -> list[Any]:
    MESSAGES[:], RESULTS[:] = messages, []
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as pipeline:
        source = beam.Create(messages, reshuffle=False) if create else beam.Impulse()
        read = pipeline | source
        build(read if create else read | "take" >> beam.FlatMap(taken)) | "keep" >> beam.ParDo(Keep())
    return list(RESULTS)


def chain(messages: Any) -> Any:
    weighed = messages | beam.Filter(is_large) | "weigh" >> beam.Map(weigh)
    return weighed | "wanted" >> beam.Filter(is_wanted) | "pair" >> beam.Map(to_pair)


def windows(messages: Any) -> Any:
    timed = messages | beam.Map(lambda message: TimestampedValue((key_of(message), 1), time_of(message) / 1_000))
    counts = timed | beam.WindowInto(FixedWindows(WINDOW_MS / 1_000)) | beam.CombinePerKey(sum)
    return counts | beam.ParDo(Pane())


def running(messages: Any) -> Any:
    return messages | beam.Map(lambda message: (spread_key_of(message), 1)) | beam.ParDo(Running())


def word_count(lines: Any) -> Any:
    return lines | beam.FlatMap(words_of) | beam.Map(lambda word: (word, 1)) | beam.CombinePerKey(sum)


def panes(results: list[Any]) -> list[Any]:
    return sorted(results, key=lambda pane: (pane[1], pane[0]))


CASES = {
    "B1": Case(lambda workload: run(chain, workload.messages), 100_000, "read by one `FlatMap`"),
    "B1 Create": Case(lambda workload: run(chain, workload.messages, create=True), 30_000, "read by `Create`"),
    "B2": Case(
        lambda workload: run(windows, workload.messages),
        50_000,
        "`CombinePerKey`, told at the end; bounded, so that no message is late",
        results=panes,
        expected=none_late,
    ),
    "B3": Case(
        lambda workload: run(running, workload.messages),
        5_000,
        "a stateful function; every key is new; the order of different keys is not kept",
        results=lambda results: by_key(None, results),
        expected=by_key,
    ),
    "B5": Case(
        lambda workload: run(word_count, workload.lines),
        20_000,
        "`CombinePerKey`: last counts only",
        results=sorted,
        expected=final_counts,
    ),
}
