"""Brokers that a test has for itself: several that are one cluster, or one that is told more than others."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from runtime.systems.kafka.broker.broker import _PROPERTIES, HOST, Broker, _await, _ports
from runtime.systems.kafka.broker.jars import LIGHT, copy_formatted, jars, java_command, mapped
from tests.faults.processes import run_quietly

HEAP = "-Xmx256m"
PATIENCE_S = 300
LOGS = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"


@dataclass
class Node:
    """One broker, which is a controller as well."""

    number: int
    directory: Path
    port: int
    controller_port: int
    said: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """Where its partitions lie."""
        return self.directory / "logs"


@contextmanager
def small_disks(brokers: Brokers, size_mib: int) -> Iterator[None]:
    """Give each broker, before it starts, a disk of its own during a block; it takes the rights of root."""
    with ExitStack() as stack:
        for node in brokers.nodes:
            node.data.mkdir()
            run_quietly("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", node.data)
            stack.callback(run_quietly, "umount", "--lazy", node.data)
        yield


@dataclass
class Brokers:
    """A cluster in a directory: what is `said` to each broker comes after what all brokers of ours are told.

    `wrapped` is a command that each is started by, as one that gives it a file system of its own.
    """

    directory: Path
    count: int = 1
    said: Mapping[str, str] = field(default_factory=dict)
    wrapped: Sequence[str] = ()
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number in range(1, self.count + 1):
            directory = self.directory / str(number)
            directory.mkdir(parents=True)
            port, controller_port = _ports(directory, None)
            self.nodes.append(Node(number, directory, port, controller_port, {}))
        copies, in_sync = str(min(self.count, 3)), str(2 if self.count > 2 else 1)
        for node in self.nodes:
            voters = ",".join(f"{one.number}@{HOST}:{one.controller_port}" for one in self.nodes)
            node.said = {"node.id": str(node.number), "controller.quorum.voters": voters}
            for topic in ("offsets.topic", "transaction.state.log"):
                node.said[f"{topic}.replication.factor"] = copies
            node.said |= {
                "default.replication.factor": copies,
                "share.coordinator.state.topic.replication.factor": copies,
            }
            node.said |= {"min.insync.replicas": in_sync, "transaction.state.log.min.isr": in_sync}
            node.said |= self.said

    @property
    def bootstrap(self) -> str:
        """What clients are given as `bootstrap_servers`."""
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def start(self, *numbers: int) -> None:
        """Start brokers, or all, and wait until these answer."""
        nodes = [node for node in self.nodes if node.number in (numbers or range(self.count + 1))]
        for node in nodes:
            self._launch(node)
        for node in nodes:
            assert node.process is not None
            _await(node.process, Broker(node.port, node.controller_port, node.process.pid), node.directory)

    def stop(self, *numbers: int, kill: bool = True) -> None:
        """Stop brokers, or all, at once or cleanly."""
        for node in self.nodes:
            if node.process is not None and node.number in (numbers or range(self.count + 1)):
                if node.process.poll() is None:
                    os.kill(node.process.pid, signal.SIGKILL if kill else signal.SIGTERM)
                node.process.wait()
                node.process = None

    def fill_disk(self, number: int) -> None:
        """Fill the disk of a broker that has one of its own, wait until it has stopped of it, and make room again."""
        (node,) = (node for node in self.nodes if node.number == number)
        assert node.process is not None
        ballast = node.data / "ballast"
        try:
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(1 << 16))
            node.process.wait(PATIENCE_S)
        finally:
            ballast.unlink()

    def leader(self, topic: str, partition: int) -> int:
        """Return the number of the broker that leads a partition, as one that lives says; 0 where none does."""
        (found,) = asyncio.run(self._described([topic]))
        return max(next(one["leader"] for one in found["partitions"] if one["partition"] == partition), 0)

    def are_in_sync(self) -> bool:
        """Whether each broker has all that the others have, as one that lives says."""
        try:
            topics = asyncio.run(self._described())
        except KafkaError:
            return False
        return all(len(one["isr"]) == len(one["replicas"]) for topic in topics for one in topic["partitions"])

    async def _described(self, topics: Sequence[str] | None = None) -> Sequence[Any]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            return await admin.describe_topics(topics)  # type: ignore[no-any-return]
        finally:
            await admin.close()

    def tell(self, *words: str) -> None:
        """Change what the cluster is configured with, as `kafka-configs` does."""
        java = java_command(), *LIGHT, *mapped(jars()), *LOGS
        command = [*java, "-cp", f"{jars()}/*", "kafka.admin.ConfigCommand"]
        where = ["--bootstrap-server", self.bootstrap, "--alter"]
        done = subprocess.run([*command, *where, *words], cwd=self.directory, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def _launch(self, node: Node) -> None:
        library, java = jars(), java_command()
        logs = node.directory / "logs"
        if not (logs / "meta.properties").exists():
            copy_formatted(library, logs)
            identity = f"version=1\ncluster.id=samza-dsl-single-node1\nnode.id={node.number}\n"
            (logs / "meta.properties").write_text(f"{identity}directory.id={secrets.token_urlsafe(16)}\n")
        properties = _PROPERTIES.format(host=HOST, port=node.port, controller_port=node.controller_port)
        more = "\n".join(f"{name}={value}" for name, value in node.said.items())
        (node.directory / "server.properties").write_text(f"{properties}{more}\n")
        options = *LIGHT, *mapped(library), HEAP, *LOGS
        command = [*self.wrapped, java, *options, "-cp", f"{library}/*", "kafka.Kafka", "server.properties"]
        with (node.directory / "kafka.log").open("ab") as log:
            node.process = subprocess.Popen(
                command, cwd=node.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports
