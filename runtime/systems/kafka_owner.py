"""An application that this process owns, or has a share in: how it comes to be so, and its transactions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from aiokafka.structs import OffsetAndMetadata, TopicPartition

from operators.base import Batch
from runtime.errors import SamzaError
from runtime.systems.base import Commit, is_fenced
from runtime.systems.kafka_changelog import PARTITIONS, Changelog, entries_of
from runtime.systems.kafka_clients import STOP_S, ended
from runtime.systems.kafka_ledger import (
    Claim,
    Ledger,
    forgotten,
    ledger_of,
    look,
    said_of_changelog,
    said_of_checkpoints,
    said_of_claims,
    said_of_generation,
    said_of_given,
    said_of_stores,
    settle,
)
from runtime.systems.kafka_members import KafkaMembers
from runtime.systems.kafka_sink import send_all
from runtime.systems.kafka_streams import KafkaStreams
from runtime.systems.kafka_table import KafkaTable, range_of
from runtime.systems.kafka_writers import Writers

TRANSACTION_S = 55.0
"""How long a transaction may take: Kafka itself rolls it back after 60 s."""


class Owner:
    """The producers of an application's transactions, and what is committed."""

    def __init__(self, producer: Any, generation: int, ledger: Ledger, writers: Writers | None = None) -> None:
        self.producer = producer
        self.generation = generation
        self.ledger = ledger
        self.writers = writers
        """What writes for tasks that commit by themselves; else the one producer does for all."""
        self.members: KafkaMembers | None = None
        self.taken: dict[int, int] = {}
        """The generations of tasks where there is one container."""
        self.has_all = False
        """Whether the state of all tasks is here."""
        self.consumed: dict[tuple[str, int], int] = {}
        self.commits = 0
        self.failure: SamzaError | None = None
        """What the first commit has failed of, after which there are no others."""

    def writer(self, task: int | None = None) -> Any:
        """Return the producer of a task's transactions, or of those that are of no single task."""
        return self.producer if self.writers is None or task is None else self.writers.of(task)

    def again(self) -> SamzaError:
        """Return what commits are told of which an earlier one has failed."""
        assert self.failure is not None
        return type(self.failure)(str(self.failure))

    async def end(self) -> None:
        """Let go of all producers."""
        if self.writers is not None:
            await self.writers.end()
        if self.producer is not None:
            await ended(self.producer)


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


async def claim_all(streams: KafkaStreams, app: str, owner: Owner, tasks: Collection[int]) -> dict[int, int]:
    """Have each task commit by itself, under a transactional id that the next owner will find, and fence.

    Returns the tasks' generations. Raises `Fenced` where the next owner is there already.
    """
    table = KafkaTable(streams.topic(ledger_of(app)))
    try:
        owner.writers = Writers(streams, app, owner.generation, "")
        await owner.writers.begin(tasks)
        ledger = owner.ledger
        while missing := tasks - owner.taken.keys():
            claims = [Claim(task, ledger.newest_of(task) + 1, "", owner.generation, 0, alone=True) for task in missing]
            await streams.say(ledger_of(app), said_of_claims(claims))
            ledger = await settle(streams, app, table, lambda claim: claim.run < owner.generation)
            if ledger.generation != owner.generation:
                raise is_fenced(app, owner.generation, ledger.generation)
            owner.taken |= {claim.task: claim.generation for claim in claims if ledger.claims[claim.task] == claim}
        outlived = [key for task in tasks for key in ledger.outlived.get(task, ())]
        if outlived:
            await streams.say(ledger_of(app), forgotten(outlived))
    finally:
        await table.stop()
    return owner.taken


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


def records_of(
    streams: KafkaStreams, commit: Commit, ledger: Ledger, kept: Mapping[int, Collection[str]]
) -> dict[tuple[str, int], Batch]:
    """Return all that a commit writes: what it appends, to changelogs what has changed, and how far all was read."""
    pending = streams.records_of(commit.appends)
    for writes in commit.state:
        for place, rows in entries_of(commit.app, writes).items():
            pending.setdefault(place, Batch([], [])).extend(rows)
    said = said_of_checkpoints(commit.checkpoints)
    said.extend(said_of_stores(kept))
    if len(said):
        pending[ledger_of(commit.app), 0] = said
    return pending


def add_changelog(streams: KafkaStreams, app: str, store: str) -> Changelog:
    """Make a changelog for a store, and return the one that it has: where several make one, it is the first."""
    changelog, ledger = Changelog(secrets.token_hex(8)), ledger_of(app)
    streams.create(changelog.topic(app, store), changelog.config, own=True)
    streams.write(ledger, said_of_changelog(store, changelog))
    return streams.call(ledger, all_of(streams, app)).changelogs[store]  # type: ignore[no-any-return]


async def let_go(streams: KafkaStreams, app: str, owner: Owner) -> None:
    """End what an owner writes with; tasks that are its own need not be fenced by the next one."""
    await owner.end()
    if owner.taken and owner.failure is None:
        async with asyncio.timeout(STOP_S):
            await streams.say(ledger_of(app), said_of_given(owner.taken))


async def seen(streams: KafkaStreams, app: str) -> Ledger:
    """Return what is committed now, as far as no transaction is open."""
    table = KafkaTable(streams.topic(ledger_of(app)))
    try:
        return await look(table)
    finally:
        await table.stop()


async def all_of(streams: KafkaStreams, app: str) -> Ledger:
    """Return the ledger with all that was written; who is in the midst of a transaction is waited for."""
    table = KafkaTable(streams.topic(ledger_of(app)))
    try:
        return await settle(streams, app, table, lambda claim: False)
    finally:
        await table.stop()


async def empty(streams: KafkaStreams, name: str) -> None:
    """Remove all that a changelog holds."""
    starts, ends = await range_of(streams.topic(name), PARTITIONS)
    below = {(name, number): end for number, end in ends.items() if starts[number] < end}
    if below:
        await streams.purge(below)


def stores_of(commit: Commit, ledger: Ledger) -> dict[int, frozenset[str]]:
    """Return the stores of those tasks that write to some for the first time."""
    found: dict[int, frozenset[str]] = {}
    for writes in commit.state:
        known = found.get(writes.task, ledger.kept.get(writes.task, frozenset()))
        if writes.store not in known:
            found[writes.task] = known | {writes.store}
    return found
