"""Rows for a sink of a connector, given to it as an outbox does."""

from __future__ import annotations

from collections.abc import Sequence

from samza_dsl.connectors import PositionedSink, SinkOwner, SinkRow


def deliver(sink: PositionedSink, owner: SinkOwner, rows: Sequence[SinkRow], at_once: int) -> None:
    """Write rows, so many at a time, each time behind the position that the sink has come to, and close it."""
    position = sink.claim(owner)
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        sink.write(owner, some, position, position + len(some))
        position += len(some)
    sink.close()
