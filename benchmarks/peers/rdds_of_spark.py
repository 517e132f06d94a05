"""PySpark: RDDs on two worker processes, whose session stays from run to run; a batch, with last counts only."""

from __future__ import annotations

from operator import add
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.keyed_count import WINDOW_MS
from benchmarks.messages import (
    is_large,
    is_wanted,
    key_of,
    spread_key_of,
    time_of,
    to_pair,
    weigh,
    words_of,
)
from benchmarks.peers.case import Case, final_counts, none_late

WORKERS = 2


def rdd(messages: list[Any]) -> Any:
    session = SparkSession.builder.master(f"local[{WORKERS}]").config("spark.ui.enabled", "false")
    context = session.config("spark.driver.memory", "4g").getOrCreate().sparkContext
    context.setLogLevel("ERROR")
    return context.parallelize(messages, WORKERS)


def chained(workload: Any) -> list[Any]:
    return rdd(workload.messages).filter(is_large).map(weigh).filter(is_wanted).map(to_pair).collect()


def windowed(workload: Any) -> list[Any]:
    keyed = rdd(workload.messages).map(lambda message: ((time_of(message) // WINDOW_MS, key_of(message)), 1))
    return keyed.reduceByKey(add, WORKERS).collect()


def panes(results: list[Any]) -> list[Any]:
    return [(key, number * WINDOW_MS, (number + 1) * WINDOW_MS, count) for (number, key), count in sorted(results)]


def counted(workload: Any) -> list[Any]:
    return rdd(workload.messages).map(lambda message: (spread_key_of(message), 1)).reduceByKey(add, WORKERS).collect()


def word_counts(workload: Any) -> list[Any]:
    return rdd(workload.lines).flatMap(words_of).map(lambda word: (word, 1)).reduceByKey(add, WORKERS).collect()


CASES = {
    "B1": Case(chained, 500_000, "RDDs, two worker processes, a session that stays"),
    "B2": Case(
        windowed, 500_000, "`reduceByKey`: a batch, so that no message is late", results=panes, expected=none_late
    ),
    "B3": Case(counted, 500_000, "`reduceByKey`: last counts only", results=sorted, expected=final_counts),
    "B5": Case(word_counts, 100_000, "`reduceByKey`: last counts only", results=sorted, expected=final_counts),
}
