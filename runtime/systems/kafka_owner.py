"""An application that this process owns, or has a share in: how it comes to be so, and its transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from aiokafka.structs import OffsetAndMetadata, TopicPartition

from operators.base import Batch
from runtime.systems.base import Commit
from runtime.systems.kafka_clients import STOP_S, ended
from runtime.systems.kafka_ledger import Ledger, ledger_of, look, said_of_generation, settle
from runtime.systems.kafka_members import KafkaMembers
from runtime.systems.kafka_sink import send_all
from runtime.systems.kafka_streams import KafkaStreams
from runtime.systems.kafka_table import KafkaTable
from runtime.systems.kafka_thread import KafkaThread

TRANSACTION_S = 55.0
"""How long a transaction may take: Kafka itself rolls it back after 60 s."""


class Owner:
    """The producer of an application's transactions, and what is committed."""

    def __init__(self, producer: Any, generation: int, ledger: Ledger, members: KafkaMembers | None = None) -> None:
        self.producer = producer
        self.generation = generation
        self.ledger = ledger
        self.members = members
        self.has_all = False
        """Whether the state of all tasks is here."""
        self.consumed: dict[tuple[str, int], int] = {}
        self.commits = 0


async def begin(streams: KafkaStreams, app: str) -> Owner:
    """Fence whoever owned it, say that there is a new generation, and read what was committed by then."""
    producer = await streams.producer(app)
    table = KafkaTable(streams.topic(ledger_of(app)))
    try:
        generation = (await look(table)).generation + 1
        async with producer.transaction():
            await send_all(producer, {(ledger_of(app), 0): said_of_generation(generation)})
        ledger = await settle(streams, app, table, lambda claim: claim.run < generation)
    except BaseException:
        await ended(producer)
        raise
    finally:
        await table.stop()
    return Owner(producer, generation, ledger)


async def transact(
    streams: KafkaStreams, producer: Any, pending: Mapping[tuple[str, int], Batch], commit: Commit | None = None
) -> dict[tuple[str, int], int]:
    """Write everything, and where the inputs are, in one transaction; return the offsets behind all of it."""
    async with asyncio.timeout(TRANSACTION_S):
        await producer.begin_transaction()
        ends = await send_all(producer, pending)
        if commit is not None:
            positions = [one for checkpoint in commit.checkpoints.values() for one in checkpoint.positions]
            offsets = {
                TopicPartition(one.stream, one.partition): OffsetAndMetadata(one.offset, "")
                for one in positions
                if one.system == "log" and streams.is_known(one.stream)  # else brokers are asked for ever
            }
            if offsets:
                await producer.send_offsets_to_transaction(offsets, commit.app)
        await producer.commit_transaction()
    return ends


async def write_alone(
    streams: KafkaStreams, producer: Any, pending: Mapping[tuple[str, int], Batch]
) -> dict[tuple[str, int], int]:
    """Write in one transaction, of nobody's application; a producer that could not is stopped."""
    try:
        return await transact(streams, producer, pending)
    except BaseException:
        with suppress(Exception):
            await asyncio.wait_for(producer.abort_transaction(), STOP_S)
        await ended(producer)
        raise


def stop(thread: KafkaThread, producer: Any) -> None:
    """Let go of a producer that has nothing to send; how it ends tells nothing."""
    with suppress(Exception):
        thread.call(ended(producer))


def stores_of(commit: Commit, ledger: Ledger) -> dict[int, frozenset[str]]:
    """Return the stores of those tasks that write to some for the first time."""
    found: dict[int, frozenset[str]] = {}
    for writes in commit.state:
        known = found.get(writes.task, ledger.kept.get(writes.task, frozenset()))
        if writes.store not in known:
            found[writes.task] = known | {writes.store}
    return found
