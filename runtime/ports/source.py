"""The ports of bound inputs: files, lists and topics that are read in the place of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from operators.core.base import Serde
from operators.core.protocols import CheckedProtocol
from runtime.ports.live_streams import OpenTransaction
from runtime.ports.streams import Offsets, Read


class Source(Protocol):
    """A bound input that is not a stream of the environment: rows by partition and offset, read again from anywhere."""

    partitions: int

    @property
    def name(self) -> str:
        """The name of the system in checkpoints, as "jsonl" and "csv"."""

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that reads this source's values, given the one that the pipeline declares."""

    def offsets(self, partition: int) -> Offsets:
        """Return the readable range of a partition; a bounded source has always ended."""

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on; None at the end."""

    def close(self) -> None:
        """Release everything; a second call does nothing."""


@runtime_checkable
class UncountedSource(Source, Protocol, metaclass=CheckedProtocol):
    """A bound input whose end is not known before it was read to there, unless all is read for it."""

    def known(self, partition: int) -> Offsets:
        """Return the readable range without reading; it goes up to MAX_TIMESTAMP as long as its end is not known."""

    def expected(self, partition: int) -> int:
        """Return about how many records there are."""


@runtime_checkable
class ReplaceableSource(Source, Protocol, metaclass=CheckedProtocol):
    """A bounded input in whose place another may lie when it is read again, as today's file in that of yesterday's."""

    def stored(self, partition: int, start: int, end: int) -> Iterable[object]:
        """Yield the records from one offset to another, as values that are stored alike each time; fewer at the end."""


@runtime_checkable
class Stamping(Protocol, metaclass=CheckedProtocol):
    """A bound input or output whose records may have another time than their writers gave them."""

    def is_stamped(self) -> bool:
        """Whether the time of its records is when they were taken, whatever their writers have said."""


@runtime_checkable
class TransactionalSource(Source, Protocol, metaclass=CheckedProtocol):
    """A bound input whose writers have transactions: records behind an open one are there, and can't be read yet."""

    def written(self) -> list[int]:
        """Return the end of each partition as it is written, by transactions that are still open as well."""

    def settled(self) -> list[Offsets]:
        """Return the ranges that hold all that is written by now; transactions that are open are waited for.

        Raises `HeldBack` where others leave some open.
        """

    def held(self, partition: int) -> OpenTransaction | None:
        """Return the open transaction that holds records back, as of the last fetch; None if none does."""


@runtime_checkable
class FetchedSource(Source, Protocol, metaclass=CheckedProtocol):
    """A bound input that is fetched ahead from where a reader is, so that each reader needs a fetcher of its own."""

    def reader(self, number: int) -> FetchedSource:
        """Return what reads it for one of several tasks that share its partitions, each at its own pace."""


@runtime_checkable
class LiveSource(Source, Protocol, metaclass=CheckedProtocol):
    """A bound input that has no end: what can be read of it grows."""

    def version(self, partition: int) -> int:
        """Return a number that grows when there may be more to read."""

    def unheard_ms(self, partition: int, offset: int) -> float:
        """Return the ms for which it has been unknown whether something lies at or beyond an offset."""

    def listen(self, tell: Callable[[], None]) -> None:
        """Call `tell`, from any thread, whenever there may be more to read."""


@runtime_checkable
class NamedPartitions(Protocol, metaclass=CheckedProtocol):
    """A bound input whose partitions have names: the number of one is no going on with another in its place."""

    def partition_id(self, partition: int) -> int:
        """Return what tells a partition from others that may have had its number."""
