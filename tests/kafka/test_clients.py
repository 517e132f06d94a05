"""The beginning and end of aiokafka's clients on brokers that are not ready yet, or never answer."""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.consumer import fetcher

from runtime.systems.kafka.client import clients, private_names
from runtime.systems.kafka.client.clients import begun, ended
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.streams.compacted_topic import KafkaTable
from tests.kafka.test_many_tasks import sockets
from tests.kafka.topics import create, produce

MAKE = {
    "producer": lambda address: AIOKafkaProducer(bootstrap_servers=address, transactional_id="begins-early"),
    "consumer": lambda address: AIOKafkaConsumer(bootstrap_servers=address),
    "administrator": lambda address: AIOKafkaAdminClient(bootstrap_servers=address),
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_who_begins_before_a_broker_is_in_its_own_list_waits_for_it(broker, monkeypatch, make):
    update, answers = ClusterMetadata.update_metadata, count()

    def update_early(cluster: ClusterMetadata, metadata: Any) -> Any:
        updated = update(cluster, metadata)
        if next(answers) < 2:
            cluster._brokers.clear()  # as a broker answers that has just started
        return updated

    monkeypatch.setattr(ClusterMetadata, "update_metadata", update_early)

    async def begin() -> None:
        client = await begun(make(broker.bootstrap))
        assert next(answers) >= 3
        await ended(client)

    thread = KafkaThread.acquire()
    try:
        thread.call(begin())
    finally:
        thread.release()


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_who_is_not_answered_is_told_so_in_time_and_leaves_nothing_open(monkeypatch, make):
    monkeypatch.setattr(clients, "STOP_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel takes the connection, and nobody answers
        host, port = silent.getsockname()

        async def begin() -> None:
            await begun(make(f"{host}:{port}"), within_s=0.1)

        before = sockets()
        thread = KafkaThread.acquire()
        try:
            with pytest.raises(TimeoutError):
                thread.call(begin())
        finally:
            thread.release()  # behind it the loop has closed what it was asked to
        assert sockets() <= before


def test_the_private_names_of_aiokafka_that_are_used_are_there():
    assert [*private_names.gone()] == [], (
        "this aiokafka has them no more: mend runtime/systems/kafka/client/private_names.py"
    )


def test_what_is_fetched_is_made_by_the_name_that_is_replaced():
    private_names.keep_fetched()
    assert (
        "MemoryRecords(part_data" in inspect.getsource(fetcher) and fetcher.MemoryRecords is private_names.KeptRecords
    )


def test_what_another_version_has_no_more_is_named():
    of_another = {
        "aiokafka.producer.sender:Sender": ("client", "no_such_name"),
        "aiokafka.producer.sender:NoSuchClass": ("any",),
        "aiokafka.no_such_module:Any": ("any",),
    }
    assert [*private_names.gone(of_another)] == [
        *("aiokafka.producer.sender:Sender.no_such_name", "aiokafka.producer.sender:NoSuchClass"),
        "aiokafka.no_such_module:Any",
    ]


def test_private_names_are_used_in_one_place():
    names = {name for used in private_names.USED.values() for name in used if name.startswith("_")}
    said = re.compile(r"\b(?!self\b|cls\b)\w+\.(" + "|".join(sorted(names)) + r")\b")
    for path in Path(private_names.__file__).parents[1].rglob("*.py"):
        if path.name != "private_names.py":
            assert not said.search(path.read_text()), f"{path} uses a private name of aiokafka"


def test_a_table_that_rests_and_wakes_asks_for_no_other_topic(broker, topics, monkeypatch):
    for number in range(3):
        create(broker, f"{topics}-{number}")
    update, asked = ClusterMetadata.update_metadata, []

    def update_counted(cluster: ClusterMetadata, metadata: Any) -> Any:
        asked.append((cluster, len(metadata.topics)))
        return update(cluster, metadata)

    async def look() -> list[dict[bytes, bytes]]:
        table, found = KafkaTable(KafkaTopic(f"kafka://{broker.bootstrap}/{topics}-0")), []
        try:
            for number in range(4):
                await asyncio.to_thread(produce, broker, f"{topics}-0", (0, b"%d" % number, b"v"))
                found.append(await table.now())
                if not number:
                    asked.clear()  # as it began
                table._rest()
            mine = private_names.connections(table._consumer).cluster
            assert {number for cluster, number in asked if cluster is mine} <= {1}
        finally:
            await table.stop()
        return found

    monkeypatch.setattr(ClusterMetadata, "update_metadata", update_counted)
    thread = KafkaThread.acquire()
    try:
        found = thread.call(look())
    finally:
        thread.release()
    assert [*map(len, found)] == [1, 2, 3, 4]
