"""PyFlink on a cluster in one JVM, with parallelism 1: functions run in another process, or in threads of the JVM."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

# its threads run the Python that the venv was made with, which does not know the venv
os.environ["PYTHONPATH"] = os.pathsep.join((os.environ.get("PYTHONPATH", ""), sysconfig.get_paths()["purelib"]))

from pyflink.common import Configuration, Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AsyncDataStream, AsyncFunction, FilterFunction, KeyedProcessFunction
from pyflink.datastream import StreamExecutionEnvironment as Environment
from pyflink.datastream.functions import AggregateFunction, ProcessWindowFunction
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.datastream.window import TumblingEventTimeWindows

from benchmarks.async_calls import IN_FLIGHT
from benchmarks.keyed_count import WINDOW_MS
from benchmarks.messages import (
    DISORDER_MS,
    increased,
    is_large,
    is_wanted,
    itself,
    key_of,
    look_up,
    spread_key_of,
    time_of,
    to_count,
    to_pair,
    weigh,
    words_of,
)
from benchmarks.peers.case import Case, by_id, by_key, emitted_by_key, panes_on_time


class Keep(FilterFunction):
    """Write the results to a file, when all are there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, context: Any) -> None:
        self._results: list[Any] = []

    def filter(self, result: Any) -> bool:
        self._results.append(result)
        return False

    def close(self) -> None:
        self._path.write_bytes(msgspec.msgpack.encode(self._results))


class Times(TimestampAssigner):
    def extract_timestamp(self, message: Any, record_timestamp: int) -> int:
        return time_of(message)


class Counting(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, message: Any, count: int) -> int:
        return increased(count)

    def get_result(self, count: int) -> int:
        return count

    def merge(self, one: int, other: int) -> int:
        return one + other


class Pane(ProcessWindowFunction):
    def process(self, key: Any, context: Any, counts: Any) -> Iterator[Any]:
        yield key, context.window().start, context.window().end, next(iter(counts))


class Running(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, message: Any, context: Any) -> Iterator[Any]:
        count = increased(self._count.value())
        self._count.update(count)
        yield to_count(context.get_current_key(), count)


class Calls(AsyncFunction):
    async def async_invoke(self, message: Any) -> list[Any]:
        return await look_up(message)


def executed(build: Callable[[Any], Any], workload: Any, messages: list[Any], mode: str, **settings: str) -> list[Any]:
    """Start a cluster, run a job on it, and end it."""
    configuration = Configuration()
    for name in ("python.executable", "python.client.executable"):
        configuration.set_string(name, sys.executable)
    configuration.set_string("python.execution-mode", mode)
    for name, value in settings.items():
        configuration.set_string(name.replace("__", ".").replace("_", "-"), value)
    environment = Environment.get_execution_environment(configuration)
    environment.set_parallelism(1)
    path = workload.scratch / "results"
    path.unlink(missing_ok=True)
    build(environment.from_collection(messages)).filter(Keep(path)).print()
    environment.execute("workload")
    return msgspec.msgpack.decode(path.read_bytes())  # type: ignore[no-any-return]


def chain(messages: Any) -> Any:
    return messages.filter(is_large).map(weigh).filter(is_wanted).map(to_pair)


def windows(messages: Any) -> Any:
    watermarks = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(DISORDER_MS))
    keyed = messages.assign_timestamps_and_watermarks(watermarks.with_timestamp_assigner(Times()))
    windowed = keyed.key_by(key_of, key_type=Types.LONG()).window(
        TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS))
    )
    return windowed.aggregate(Counting(), Pane())


def running(messages: Any) -> Any:
    return messages.key_by(spread_key_of, key_type=Types.LONG()).process(Running())


def word_count(lines: Any) -> Any:
    words = lines.flat_map(words_of, output_type=Types.STRING())
    return words.key_by(itself, key_type=Types.STRING()).process(Running())


def calls(messages: Any) -> Any:
    return AsyncDataStream.unordered_wait(messages, Calls(), Time.seconds(20), IN_FLIGHT, Types.PICKLED_BYTE_ARRAY())


def durable(workload: Any) -> list[Any]:
    path = workload.scratch / "checkpoints"
    shutil.rmtree(path, ignore_errors=True)
    return executed(
        running,
        workload,
        workload.messages,
        "process",
        state__backend__type="rocksdb",
        execution__checkpointing__interval="1s",
        execution__checkpointing__dir=path.as_uri(),
    )


def on_messages(build: Callable[[Any], Any], mode: str) -> Callable[[Any], list[Any]]:
    return lambda workload: executed(build, workload, workload.messages, mode)


def pairs(results: list[Any]) -> list[Any]:
    return by_key(None, [tuple(result) for result in results])


STARTS = "with the start of its cluster"

CASES = {
    "B1": Case(on_messages(chain, "process"), 100_000, f"process mode, {STARTS}", results=pairs, expected=by_key),
    "B1 threads": Case(on_messages(chain, "thread"), 100_000, f"thread mode, {STARTS}", results=pairs, expected=by_key),
    "B2": Case(
        on_messages(windows, "thread"),
        50_000,
        f"thread mode, {STARTS}; watermarks come every 200 ms, so the late key is left out",
        results=panes_on_time,
        pairs=2,
    ),
    "B3": Case(on_messages(running, "thread"), 50_000, f"thread mode, {STARTS}", results=pairs, expected=by_key),
    "B3d": Case(
        durable,
        5_000,
        f"process mode, {STARTS}; RocksDB, and a checkpoint every second",
        results=pairs,
        expected=emitted_by_key,
        pairs=2,
    ),
    "B4": Case(on_messages(calls, "process"), 20_000, f"process mode, {STARTS}", results=by_id, pairs=2),
    "B5": Case(
        lambda workload: executed(word_count, workload, workload.lines, "thread"),
        10_000,
        f"thread mode, {STARTS}",
        results=pairs,
        expected=by_key,
        pairs=2,
    ),
}
