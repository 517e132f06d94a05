"""The ports of bound outputs: files, lists and topics that are written in the place of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from operators.core.base import Batch, Serde
from operators.core.protocols import CheckedProtocol


class Limit(Protocol):
    """The limit on the size of a record that a place takes."""

    @property
    def where(self) -> str:
        """The place, as a person knows it."""

    @property
    def bytes(self) -> int:
        """The bytes that a record may take."""

    @property
    def setting(self) -> str:
        """The name of the setting that says so there."""

    def size(self, batch: Batch, row: int) -> int:
        """Return the bytes of a record there."""


class Sink(Protocol):
    """A bound output that is not a stream of the environment: written before the commit, taken back after a crash."""

    name: str
    columns: frozenset[str]
    """The columns that it keeps beside the values: "keys", "timestamps"."""
    partitions: int

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that makes this sink's values, given the one that the pipeline declares."""

    def recover(self, position: int) -> None:
        """Drop everything beyond `position`, as an earlier `flush` returned it; 0 empties the sink."""

    def write(self, batch: Batch) -> None:
        """Take rows, in order; they need not be durable yet."""

    def flush(self) -> int:
        """Make all rows durable and return the position that the commit records."""

    def close(self) -> None:
        """Release everything; a second call does nothing."""


@runtime_checkable
class PartitionedSink(Sink, Protocol, metaclass=CheckedProtocol):
    """A bound output of several partitions, to which rows are routed as in a stream of the environment."""

    def write_to(self, partition: int, batch: Batch) -> None:
        """Take rows for a partition, in order; they need not be durable yet."""


@runtime_checkable
class GatheringSink(Sink, Protocol, metaclass=CheckedProtocol):
    """A bound output that takes many values as one, such as the lines or the columns of all of them."""

    def together(self, serde: Serde) -> Callable[[list[object]], list[object]] | None:
        """Return what encodes values at once, into ones that each stand for several rows, where the serde allows it."""


@runtime_checkable
class LimitedSink(Protocol, metaclass=CheckedProtocol):
    """A bound output that limits the size of a record."""

    def limit(self) -> Limit | None:
        """Return the limit, or None where it is not known."""
