"""What can be given to another process, so that it can open it as well: paths, and addresses of topics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.graph import Graph
from runtime.bindings import ANOTHER, outputs_of
from runtime.errors import SamzaError
from runtime.systems.kafka_topic import KafkaCluster, KafkaTopic, topic_of


def places(graph: Graph, bind: Mapping[str, Any]) -> dict[str, str | KafkaTopic]:
    """Return what is bound, so that other processes can open it; raises SamzaError for what they can't."""
    topics = {stream: topic for stream, what in bind.items() if (topic := topic_of(what)) is not None}
    for stream, topic in topics.items():
        check_can_be_given(topic, f"bind={{{stream!r}: {topic!r}}}")
    others = {stream: what for stream, what in bind.items() if isinstance(what, str) and what.startswith(ANOTHER)}
    files = {stream: what for stream, what in bind.items() if stream not in topics and stream not in others}
    return {**topics, **others, **_paths(graph, files)}


def check_can_be_given(what: KafkaTopic | KafkaCluster | None, said: str) -> None:
    """Refuse what has an object that is of this process alone; raises SamzaError."""
    if what is not None and "ssl_context" in what.options:
        raise SamzaError(
            f"{said}: an ssl_context can't be given to other processes; write instead: "
            'options={"ssl_cafile": ...}, or run containers=1'
        )


def _paths(graph: Graph, bind: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of bound files, in full; raises SamzaError for what is none."""
    written = {output.stream for spec in graph.specs.values() for output in outputs_of(spec)}
    for stream, what in bind.items():
        if stream in written:
            raise SamzaError(
                f"bind={{{stream!r}: {what!r}}}: one process writes a bound output, and there are several containers; "
                f"leave it in the data directory, where samza-dsl streams show {stream} shows it, or run containers=1"
            )
        if not isinstance(what, str | Path):
            raise SamzaError(
                f"bind={{{stream!r}: ...}}: every container opens what is bound, and can't open a "
                f'{type(what).__name__} of this process; write instead: bind={{{stream!r}: "{stream}.jsonl"}}, or '
                "run containers=1"
            )
    return {stream: os.path.abspath(what) for stream, what in bind.items()}
