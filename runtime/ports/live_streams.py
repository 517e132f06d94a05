"""The ports of streams on brokers, which others write to at any time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from runtime.ports.sink import Limit
from runtime.ports.streams import Offsets, Read, StreamConfig


class ReadingPort(Protocol):
    """The records that one reader of partitions has fetched ahead in the background."""

    def offsets(self, stream: str, partition: int) -> Offsets:
        """Return the readable range of a partition."""

    def read(self, stream: str, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, waiting for what is known to be there; None at the end."""

    def look(self, stream: str, partitions: Collection[int]) -> None:
        """Ask for the ranges of partitions that are about to be read, so that they are `known`."""

    def known(self, stream: str, partition: int) -> Offsets:
        """Return the readable range of a partition as it is known here; no broker is asked."""

    def expect(self, stream: str, offsets: Mapping[int, int]) -> None:
        """Announce the offsets that partitions are about to be read from, so that none waits for another."""

    def fetched(self, stream: str, partition: int, offset: int) -> Read | None:
        """Return rows from `offset` on that have arrived here; None where none have, even if some are `known`.

        Raises `Unavailable` where known rows do not arrive for long.
        """

    def unheard_ms(self, stream: str, partition: int, offset: int) -> float:
        """Return the ms for which it has been unknown whether something lies at or beyond an offset."""

    def held(self, stream: str, partition: int) -> OpenTransaction | None:
        """Return the open transaction that holds records back, as of the last fetch; None if none does."""


class FetchPort(ReadingPort, Protocol):
    """The records that are fetched ahead; a listener hears of them."""

    def listen(self, tell: Callable[[], None]) -> None:
        """Call `tell`, from any thread, whenever there may be more to read."""

    def reader(self, number: int) -> ReadingPort:
        """Return what reads for one of several tasks that share partitions, each at its own pace; 0 is this itself."""


class OpenTransaction(NamedTuple):
    """An open transaction, which has held back the records at `first` <= offset < `end` for at least `for_ms`.

    `where` names the partition to a person, and `advice` says how to end the transaction.
    """

    first: int
    end: int
    for_ms: float
    where: str = ""
    advice: str = ""


class TransactionPort(Protocol):
    """The ranges of streams whose writers have transactions: records behind an open one can't be read yet."""

    def written(self, stream: str) -> list[int]:
        """Return the end of each partition as it is written, by transactions that are still open as well."""

    def settled(self, stream: str) -> list[Offsets]:
        """Return the ranges that hold all that is written by now; transactions that are open are waited for.

        Raises `HeldBack` where others leave some open.
        """


class BrokerPort(Protocol):
    """The knowledge of brokers about streams, and the rights that they give to this process."""

    def limits(self, streams: Collection[str]) -> Mapping[str, Limit]:
        """Return the limits on the size of records by stream, as far as they are known."""

    def check_rights(self, app: str, read: Collection[str], written: Collection[str]) -> None:
        """Raise `EnvironmentFault` where this process may not read some streams, or not commit to those it writes."""

    def is_stamped(self, stream: str) -> bool:
        """Whether the time of a stream's records is when they were taken, whatever their writers have said."""

    def described(self, stream: str) -> StreamConfig:
        """Return the present configuration of a stream, whoever has made it."""

    def lost_stores(self, app: str) -> Mapping[str, str]:
        """Return the stores of an application of which less is there than was committed, with what is wrong."""

    def ranges(self) -> dict[str, list[Offsets]]:
        """Return the readable range of each partition of all streams; whether one has ended is not looked at."""
