"""The beginning and end of aiokafka's clients on brokers that are not ready yet."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.cluster import ClusterMetadata

from runtime.systems.kafka.client.clients import begun, ended
from runtime.systems.kafka.client.thread import KafkaThread

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
