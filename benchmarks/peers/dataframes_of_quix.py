"""Quix Streams without a broker: its composed function and its stores, driven as its application drives them."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextvars import copy_context
from typing import Any
from unittest.mock import MagicMock

from quixstreams.context import set_message_context
from quixstreams.dataframe import DataFrameRegistry, StreamingDataFrame
from quixstreams.models import Topic
from quixstreams.models.messagecontext import MessageContext
from quixstreams.processing import ProcessingContext
from quixstreams.sinks import SinkManager
from quixstreams.state import StateStoreManager
from quixstreams.state.memory import MemoryStore
from quixstreams.state.rocksdb import RocksDBStore

from benchmarks.keyed_count import WINDOW_MS
from benchmarks.messages import (
    DISORDER_MS,
    increased,
    is_large,
    is_wanted,
    key_of,
    spread_key_of,
    time_of,
    to_count,
    to_pair,
    weigh,
)
from benchmarks.peers.case import Case, emitted, panes_on_time

logging.disable(logging.WARNING)

TOPIC, PARTITION = "messages", 0
BEGIN_MS = 1_000_000
"""What is added to times, which may not be negative there; whole windows."""

Build = Callable[[Any], Any]


def frame(workload: Any, store: type[Any]) -> tuple[Any, ProcessingContext]:
    """Return a data frame and what commits it, with a consumer and a producer that do nothing."""
    path = workload.scratch / "quix"
    shutil.rmtree(path, ignore_errors=True)
    states = StateStoreManager(group_id="group", state_dir=str(path), default_store_type=store)
    states.init()
    topics, consumer, producer, topic = MagicMock(), MagicMock(), MagicMock(), MagicMock(spec=Topic)
    topics.stream_id_from_topics.return_value = topic.name = TOPIC
    producer.flush.return_value, producer.offsets = 0, {}
    registry = DataFrameRegistry()
    committing = ProcessingContext(
        commit_interval=3_600.0,
        commit_every=workload.commit_every,
        producer=producer,
        consumer=consumer,
        state_manager=states,
        sink_manager=SinkManager(),
        dataframe_registry=registry,
    )
    made = StreamingDataFrame(topic, topic_manager=topics, registry=registry, processing_context=committing)
    registry.register_root(made)
    return made, committing


def driven(
    workload: Any,
    build: Build,
    key: Build,
    time: Build,
    take: Callable[[Any, Any], None],
    store: type[Any] | None = None,
) -> None:
    """Call the composed function for each message, and look at the commit after it."""
    made, committing = frame(workload, store or MemoryStore)
    composed = build(made).compose(sink=lambda value, key, time, headers: take(key, value))[TOPIC]
    if store is not None:
        committing.state_manager.on_partition_assign(TOPIC, PARTITION, {})
    committing.init_checkpoint()
    for offset, message in enumerate(workload.messages):
        context = copy_context()
        context.run(set_message_context, MessageContext(TOPIC, PARTITION, offset, 100))
        context.run(composed, message, key(message), time(message), None)
        committing.store_offset(TOPIC, PARTITION, offset)
        committing.commit_checkpoint()
    committing.commit_checkpoint(force=True)
    committing.state_manager.close()


def chained(workload: Any) -> list[Any]:
    results: list[Any] = []

    def build(messages: Any) -> Any:
        return messages.filter(is_large).apply(weigh).filter(is_wanted).apply(to_pair)

    driven(workload, build, lambda message: b"", lambda message: 0, lambda key, value: results.append(value))
    return results


def windowed(workload: Any) -> list[Any]:
    results: list[Any] = []

    def build(messages: Any) -> Any:
        window = messages.tumbling_window(WINDOW_MS, grace_ms=DISORDER_MS, on_late=lambda *late: False)
        return window.count().final(closing_strategy="partition")

    def take(key: bytes, pane: dict[str, int]) -> None:
        results.append((int(key), pane["start"] - BEGIN_MS, pane["end"] - BEGIN_MS, pane["value"]))

    driven(
        workload,
        build,
        lambda message: b"%d" % key_of(message),
        lambda message: time_of(message) + BEGIN_MS,
        take,
        RocksDBStore,
    )
    return results


def closed(workload: Any, outcome: list[Any]) -> list[Any]:
    """Leave out the windows that only the end of the input closes."""
    last = max(map(time_of, workload.messages)) - DISORDER_MS
    return [pane for pane in outcome if pane[2] <= last]


def counted(workload: Any, store: type[Any]) -> list[Any]:
    results: list[Any] = []

    def count(message: Any, state: Any) -> Any:
        count = increased(state.get("count"))
        state.set("count", count)
        return to_count(spread_key_of(message), count)

    driven(
        workload,
        lambda messages: messages.apply(count, stateful=True),
        lambda message: b"%d" % spread_key_of(message),
        lambda message: 0,
        lambda key, value: results.append(value),
        store,
    )
    return results


NO_BROKER = "no broker, no encoding: its composed function alone"

CASES = {
    "B1": Case(chained, 300_000, NO_BROKER),
    "B2": Case(
        windowed,
        100_000,
        f"{NO_BROKER}, on RocksDB; windows that are open at the end, and the late key, are left out",
        results=panes_on_time,
        expected=closed,
    ),
    "B3": Case(lambda workload: counted(workload, MemoryStore), 100_000, f"{NO_BROKER}, state in memory"),
    "B3d": Case(
        lambda workload: counted(workload, RocksDBStore),
        100_000,
        f"{NO_BROKER}; RocksDB, not synced and without a changelog, committed every 10,000 messages",
        expected=emitted,
    ),
}
