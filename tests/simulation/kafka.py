"""A Kafka cluster in this process, on virtual time, in the place of a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from runtime.model.errors import EnvironmentFault
from runtime.systems.kafka import environment as kafka
from runtime.systems.kafka.client import admin as kafka_admin
from runtime.systems.kafka.client.thread import cancel_others
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.kafka.coordination import (
    group as kafka_group,
)
from runtime.systems.kafka.coordination import (
    members as kafka_members,
)
from runtime.systems.kafka.coordination import (
    shared_runs as kafka_runs,
)
from runtime.systems.kafka.environment import KafkaEnvironment
from runtime.systems.kafka.state import standby as kafka_standby
from runtime.systems.kafka.streams import compacted_topic as kafka_tables
from runtime.systems.kafka.streams import (
    fetcher as kafka_fetcher,
)
from runtime.systems.kafka.streams import (
    publication as kafka_published,
)
from runtime.systems.kafka.streams import (
    ranges as kafka_ranges,
)
from runtime.systems.kafka.streams import (
    sink as kafka_sink,
)
from runtime.systems.kafka.streams import (
    streams as kafka_streams,
)
from tests.simulation.kafka_brokers import PROCESS, Cluster, Died, Thread
from tests.simulation.kafka_clients import Admin, Consumer, Producer
from tests.simulation.loop import BESIDE


@contextmanager
def simulated(cluster: Cluster) -> Iterator[Thread]:
    """Have all that is done with Kafka during a block be done with a simulated cluster."""
    thread = Thread(cluster)
    replaced = {
        "AIOKafkaConsumer": lambda **how: Consumer(cluster, **how),
        "AIOKafkaProducer": lambda **how: Producer(cluster, **how),
        "AIOKafkaAdminClient": lambda **how: Admin(cluster, **how),
        "SharedClients": lambda: SimpleNamespace(share=lambda producer: None),
        "KafkaThread": thread,
        "monotonic_ms": lambda: cluster.loop.time() * 1_000,
        "wall_clock_ms": cluster.clock_ms,
        "threading": SimpleNamespace(Condition=thread.condition),
    }
    modules = (
        *(kafka_fetcher, kafka_tables, kafka_streams, kafka_sink, kafka_admin),
        *(kafka_runs, kafka_group, kafka_members, kafka_standby, kafka_ranges, kafka_published),
    )
    with ExitStack() as stack:
        stack.enter_context(patch.object(kafka, "KafkaThread", thread))
        for module in modules:
            for name, instead in replaced.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, instead))
        stack.callback(cluster.loop.close)
        stack.callback(lambda: thread.call(cancel_others()))  # what the dead were in the midst of
        BESIDE.append(thread.following)
        stack.callback(BESIDE.remove, thread.following)
        yield thread
        assert not cluster.connections, "connections are left open"


def opened(directory: Path, host: str | None = None) -> KafkaEnvironment:
    """Return the environment of a process on a host, whose state is in a directory."""
    return KafkaEnvironment(KafkaCluster("kafka://simulated:9092"), directory, host)


def cut_changelogs(cluster: Cluster) -> None:
    """Remove all that changelogs hold."""
    for topic in (one for name, one in cluster.topics.items() if name.endswith("-changelog")):
        for partition in topic.partitions:
            partition.purge(partition.end)


def close_or_die(cluster: Cluster, environment: KafkaEnvironment, work: Callable[[], object]) -> None:
    """Have a process do something and end well, or be gone where a trouble of the brokers strikes it."""
    try:
        work()
    except (Died, EnvironmentFault):
        die(cluster, environment)
    else:
        environment.close()


def die(cluster: Cluster, environment: KafkaEnvironment) -> None:
    """Have a process be gone that has an environment: what it has begun on the brokers stays as it is."""
    for fetcher in environment._streams._fetchers.values():
        if fetcher._pumping is not None:
            fetcher._pumping.cancel()
            fetcher._thread = None
    environment._streams._fetchers.clear()
    for announced in environment._announced:
        announced._joining.cancel()
        # Else what it has not yet begun would open a connection behind its end.
        environment._streams._thread.call(asyncio.wait([announced._joining]))
    environment._announced.clear()
    environment._owners.clear()
    environment._streams._thread = SimpleNamespace(call=lambda work: work.close())
    environment.close()
    cluster.connections = {one: process for one, process in cluster.connections.items() if process != PROCESS.get()}
    cluster.dying()
    cluster.dead.discard(PROCESS.get())
