"""The writer of what is taken in from outside: its transactional id fences who has written under it before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from operators.core.base import Batch
from runtime.model.errors import EnvironmentFault, Fenced, SamzaError, TooLarge
from runtime.ports.streams import Append
from runtime.systems.kafka.client.clients import Producer, ended
from runtime.systems.kafka.client.kafka_errors import TOO_LARGE
from runtime.systems.kafka.coordination.owner import FENCED, transact
from runtime.systems.kafka.streams.streams import KafkaStreams


class KafkaAppender:
    """Writes rows in transactions of its own, under the name that whoever comes next begins with.

    Invariant: after a transaction of which nobody knows whether it was committed it writes nothing more, as a producer
    that begins again would fence one that has come since.
    """

    def __init__(self, streams: KafkaStreams, name: str, changed: Callable[[], None]) -> None:
        self._streams, self._name, self._changed = streams, name, changed
        self._failure: SamzaError | None = None
        self._producer: Producer | None = streams.call(streams.registry, streams.producer(name))

    def append(self, appends: Sequence[Append]) -> None:
        """Write rows in one transaction.

        Raises `TooLarge` where brokers do not take a row, and nothing of them is there: it goes on behind that. Else
        all that is written later fails as well, with `Fenced` where another one has begun under this name.
        """
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))
        pending = self._streams.records_of(appends)
        try:
            ends = self._streams.call(next(iter(pending))[0], self._written(pending))
        except TooLarge:
            raise
        except EnvironmentFault as error:
            self._failure = error
            if isinstance(error.__cause__, FENCED):
                self._failure = Fenced(f"Another run has begun to write as {self._name!r}: that goes on, not this")
            raise self._failure from error
        self._streams.reached(ends, appends)
        self._changed()

    def close(self) -> None:
        """Let go of the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(SamzaError):
                self._streams.call(self._name, ended(producer))

    async def _written(self, pending: Mapping[tuple[str, int], Batch]) -> dict[tuple[str, int], int]:
        assert self._producer is not None, "nothing is written behind the end"
        try:
            return await transact(self._streams, self._producer, pending)
        except TOO_LARGE:
            await self._producer.abort_transaction()
            raise
