"""Record batches of Kafka as columns, from what aiokafka's C code decodes, without an object of Python per record."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from operators.core.base import Batch
from runtime.model.garbage import collector_resting
from runtime.systems.kafka.client.clients import Fetched
from runtime.systems.kafka.client.private_names import (
    KeptRecords,
    fetches_to,
    keep_fetched,
    leniently_read,
    read_as,
    records_in,
    wait_for_fetches,
)

if TYPE_CHECKING:
    from aiokafka.consumer.fetcher import PartitionRecords
    from aiokafka.record.default_records import DefaultRecordBatch
    from aiokafka.record.memory_records import MemoryRecords

_headers = attrgetter("headers")


class BatchRows:
    """The records of one batch as columns, which aiokafka takes for one record with the offset of the last."""

    __slots__ = ("columns", "offset")

    def __init__(self, columns: Batch) -> None:
        self.columns = columns
        self.offset = columns.offsets[-1] if columns.offsets else -1


class _Batches:
    """The batches fetched of a partition, each iterated as one record. aiokafka judges what may be read of them."""

    def __init__(self, records: MemoryRecords | KeptRecords) -> None:
        self.has_next = records.has_next
        self._next_batch = records.next_batch
        self._raw = records.raw if isinstance(records, KeptRecords) else None

    def next_batch(self) -> _Whole | DefaultRecordBatch | None:
        """Return the next batch, as a whole unless it has a transaction's marker."""
        batch = self._next_batch()
        return batch if batch is None or batch.is_control_batch else _Whole(batch, self._raw)


class _Whole:
    """A batch that is iterated as one record."""

    def __init__(self, batch: DefaultRecordBatch, raw: bytes | None = None) -> None:
        self._batch, self._raw = batch, raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[BatchRows]:
        with collector_resting():
            # Objects per record live for a moment only, in C-made lists: the collector would walk them for nothing.
            columns = _columns(self._records())
        if columns.values:  # else compaction has left none
            yield BatchRows(columns)

    def _records(self) -> Sequence[Fetched]:
        try:
            return [*self._batch]
        except UnicodeDecodeError:
            if self._raw is None:
                raise
            # Any producer may write such a name, and a run that ends at it would end at it for good.
            return leniently_read(self._raw, self._batch.base_offset)


class _Fetched(OrderedDict[object, object]):
    """The fetches that a consumer has not yet given out, by partition."""

    def __setitem__(self, place: object, found: object) -> None:
        records = records_in(found)
        if records is not None:
            read_as(records, _Batches, partial(_not_before, records))
        super().__setitem__(place, found)


def by_batches(consumer: object) -> None:
    """Make a consumer, which has begun and reads nothing yet, give batches; `rows_of` has what is in them.

    Another client, which has no such inside, gives records as it does.
    """
    keep_fetched()
    fetches_to(consumer, _Fetched())


def hold_back(consumer: object, wait_ms: int) -> None:
    """Let brokers hold back for so long the answer that there is nothing new, and with it whatever else is asked.

    It is for the next fetches. Another client does as it was told when it began.
    """
    wait_for_fetches(consumer, wait_ms)


def rows_of(found: Sequence[Fetched | BatchRows]) -> Batch:
    """Return what a consumer gave of a partition, batches or records, as columns: keys always, headers if any."""
    if not found or type(found[0]) is not BatchRows:
        return _columns(cast("Sequence[Fetched]", found))
    batches = cast("Sequence[BatchRows]", found)
    if len(batches) == 1:
        return batches[0].columns
    return Batch.gather((one.columns, 0, len(one.columns)) for one in batches)


def _columns(records: Sequence[Fetched]) -> Batch:
    offsets: Sequence[int] = range(records[0].offset, records[-1].offset + 1) if records else []
    if len(offsets) != len(records):
        offsets = [record.offset for record in records]
    return Batch(
        [record.value for record in records],
        keys=[record.key for record in records],
        timestamps=[record.timestamp for record in records],
        offsets=offsets,
        headers=[dict(record.headers) or None for record in records] if any(map(_headers, records)) else None,
    )


def _not_before(fetched: PartitionRecords, place: object, rows: BatchRows) -> BatchRows:
    """Return of the batch that was fetched what lies at or behind the position, which may be in its midst."""
    columns, first = rows.columns, fetched.next_fetch_offset
    assert columns.offsets is not None
    if columns.offsets[0] >= first:
        return rows
    # A batch is fetched whole, also where reading begins in its midst.
    before = sum(offset < first for offset in columns.offsets)
    return BatchRows(columns.slice(before, len(columns)))
