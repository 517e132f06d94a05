"""The private names of aiokafka that are used, in one place, so that another version of it is looked over at once."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiokafka import AIOKafkaClient, AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.consumer.fetcher import PartitionRecords
    from aiokafka.protocol.api import Request

USED: Mapping[str, tuple[str, ...]] = {
    "aiokafka.admin.client:AIOKafkaAdminClient": ("_client", "_send_request"),
    "aiokafka.consumer.consumer:AIOKafkaConsumer": ("_client", "_fetcher", "_subscription"),
    "aiokafka.consumer.subscription_state:SubscriptionState": ("unsubscribe",),
    "aiokafka.consumer.fetcher:Fetcher": ("_records", "_fetch_max_wait_ms"),
    "aiokafka.consumer.fetcher:FetchResult": ("_partition_records",),
    "aiokafka.record.memory_records:_MemoryRecordsPy": ("_next_slice", "next_batch"),
    "aiokafka.record.default_records:_DefaultRecordBatchPy": ("_maybe_uncompress", "_buffer", "base_offset"),
    "aiokafka.consumer.fetcher:PartitionRecords": ("_records", "_consumer_record", "next_fetch_offset"),
    "aiokafka.producer.producer:AIOKafkaProducer": ("client", "_sender", "_metadata", "_message_accumulator"),
    "aiokafka.producer.sender:Sender": ("client",),
    "aiokafka.producer.message_accumulator:MessageAccumulator": ("_cluster",),
    "aiokafka.client:AIOKafkaClient": ("bootstrap", "cluster", "ready", "set_topics", "force_metadata_update"),
    "aiokafka.conn:OAuthAuthenticator": ("step",),
}
"""By class the attributes that its documentation does not have, or that are replaced."""


def gone(used: Mapping[str, tuple[str, ...]] = USED) -> Iterator[str]:
    """Yield the names that the installed aiokafka has no more: whoever moves to another version mends those first."""
    for place, names in used.items():
        module, _, name = place.partition(":")
        try:
            known = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            yield place
            continue
        # An attribute is found where the class or one above it sets it: objects can't be made without an event loop.
        source = "".join(inspect.getsource(one) for one in known.__mro__ if one.__module__.startswith("aiokafka"))
        for attribute in names:
            if not hasattr(known, attribute) and not re.search(rf"\bself\.{attribute}\b[^=\n]*=", source):
                yield f"{place}.{attribute}"


def connections(client: AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient) -> AIOKafkaClient:
    """Return the client by which a consumer, producer or administrator has its connections."""
    return client.client if hasattr(client, "client") else client._client


async def answer_to(admin: AIOKafkaAdminClient, request: Request, node: int | None = None) -> Any:
    """Return the answer of a broker, or of that of a number, to a request that aiokafka has no method for."""
    return await (admin._send_request(request) if node is None else admin._send_request(request, node))


def use_connections(producer: AIOKafkaProducer, client: Any) -> None:
    """Let a producer that has not begun use a client; the one that its constructor made has opened nothing yet."""
    producer.client = producer._sender.client = client
    producer._metadata = producer._message_accumulator._cluster = client.cluster


def fetches_to(consumer: object, found: object) -> None:
    """Let a consumer, which reads nothing yet, keep in `found` the fetches that it has not given out.

    Another client, which has no such inside, gives records as it does.
    """
    fetcher = getattr(consumer, "_fetcher", None)
    if fetcher is not None and hasattr(fetcher, "_records"):
        fetcher._records = found


def give_up(consumer: Any) -> None:
    """Let a consumer have no partitions any more.

    Its own way has the client ask for the topics of the whole cluster, and `assign` for that of its partitions again.
    """
    subscription = getattr(consumer, "_subscription", None)
    if subscription is not None and hasattr(subscription, "unsubscribe"):
        subscription.unsubscribe()
    else:
        consumer.unsubscribe()


def wait_for_fetches(consumer: object, wait_ms: int) -> None:
    """Set the ms for which brokers may hold back the answer that there is nothing new, for the next fetches."""
    fetcher = getattr(consumer, "_fetcher", None)
    if fetcher is not None and hasattr(fetcher, "_fetch_max_wait_ms"):
        fetcher._fetch_max_wait_ms = wait_ms


def records_in(fetched: object) -> PartitionRecords | None:
    """Return the records of a partition that were fetched; None where an error was."""
    return getattr(fetched, "_partition_records", None)


def read_as(records: PartitionRecords, batches: Any, record: Any) -> None:
    """Let records of a partition be made by other means: `batches(raw)` yields them, `record` says what they are."""
    records._records = batches(records._records)
    records._consumer_record = record


class KeptRecords:
    """The records of one fetch, as aiokafka's C code reads them, with their bytes: it gives these to nobody."""

    def __init__(self, raw: bytes) -> None:
        from aiokafka.record.memory_records import MemoryRecords

        self.raw, records = raw, MemoryRecords(raw)
        self.has_next, self.next_batch = records.has_next, records.next_batch
        self.size_in_bytes = records.size_in_bytes


def keep_fetched() -> None:
    """Let consumers of this process keep the bytes of what they fetch beside the records, and else do as before."""
    from aiokafka.consumer import fetcher

    fetcher.MemoryRecords = KeptRecords


def leniently_read(raw: bytes, base_offset: int) -> list[Any]:
    """Return the records of the batch at an offset; a header's name that is no UTF-8 has escapes for such bytes."""
    from aiokafka.record.default_records import _DefaultRecordBatchPy
    from aiokafka.record.memory_records import _MemoryRecordsPy

    place = _MemoryRecordsPy(raw)
    while True:
        data, found = place._next_slice, place.next_batch()
        assert data is not None and found is not None, "the batch was fetched"
        if found.base_offset == base_offset:
            break
    # By Python, slowly: such a batch is rare, and the C code tells nothing of it.
    batch = _DefaultRecordBatchPy(data)
    batch._maybe_uncompress()
    batch._buffer = _Lenient(batch._buffer)
    return [*batch]


class _Lenient(bytes):
    """Bytes whose parts are decoded whatever they are."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return _LenientText(found) if isinstance(at, slice) else found


class _LenientText(bytes):
    """A part that has an escape for each byte that is no UTF-8."""

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return super().decode("utf-8", "backslashreplace")
