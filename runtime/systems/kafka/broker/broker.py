"""A real Kafka broker on this machine: one node, no container, reached from here alone."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
from contextlib import ExitStack
from pathlib import Path

import msgspec

from runtime.model.clock import SystemClock
from runtime.model.errors import SamzaError
from runtime.systems.host.locks import is_locked, lock, locked
from runtime.systems.kafka.broker.jars import LIGHT, archive_classes, copy_formatted, jars, java_command, mapped

HOST = "127.0.0.1"
START_MS = 60_000.0
STOP_MS = 20_000.0
LOOK_MS = 20.0
_API_VERSIONS = struct.pack(">ihhihc", 11, 18, 0, 7, 1, b"p")
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=logs
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=2
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
log.cleaner.dedupe.buffer.size=8388608
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
"""


class Broker(msgspec.Struct, frozen=True):
    """A broker that runs: where clients find it, and its process."""

    port: int
    controller_port: int
    pid: int

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap_servers` of clients."""
        return f"{HOST}:{self.port}"


def running(directory: Path) -> Broker | None:
    """Return the broker that runs in a directory: it is alive as long as it holds the lock of a file there."""
    try:
        said = msgspec.json.decode((directory / "broker.json").read_bytes(), type=Broker)
    except (OSError, msgspec.DecodeError):
        return None
    return said if is_locked(directory / "lock") else None


def start(directory: Path, port: int | None = None, heap_mb: int = 512) -> Broker:
    """Start a broker on what a directory holds, or return the one that runs there; raises SamzaError.

    Without `port` it is the one of last time, or one that the kernel chooses.
    """
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    # Two that start at once get one broker: the second finds it running.
    with locked(directory / "starting"):
        found = running(directory)
        if found is not None:
            if port not in (None, found.port):
                raise SamzaError(
                    f"the broker in {directory} runs on port {found.port}: stop it before, or leave the port"
                )
            return found
        library, java = jars(), java_command()
        copy_formatted(library, directory / "logs")
        port, controller_port = _ports(directory, port)
        said = _PROPERTIES.format(host=HOST, port=port, controller_port=controller_port)
        (directory / "server.properties").write_text(said)
        logs = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"
        options = *LIGHT, *mapped(library), f"-Xmx{heap_mb}m", *logs
        command = [java, *options, "-cp", f"{library}/*", "kafka.Kafka", "server.properties"]
        (directory / "broker.json").unlink(missing_ok=True)  # until it answers, none runs
        process = _launch(command, directory)
        broker = Broker(port, controller_port, process.pid)
        try:
            _await(process, broker, directory)
            (directory / "broker.json").write_bytes(msgspec.json.encode(broker))
            archive_classes(library, directory)
        except BaseException:
            process.kill()
            process.wait()
            raise
        process.returncode = 0  # it lives on without us, and Popen is not to warn of that
        return broker


def stop(directory: Path, kill: bool = False) -> Broker | None:
    """Stop the broker that runs in a directory, cleanly or at once, and return it; its data stays."""
    directory = directory.absolute()
    found = running(directory)
    if found is None:
        return None
    os.kill(found.pid, signal.SIGKILL if kill else signal.SIGTERM)
    clock = SystemClock()
    until_ms = clock.elapsed_ms() + STOP_MS
    while running(directory) is not None:
        if clock.elapsed_ms() > until_ms:
            os.kill(found.pid, signal.SIGKILL)
        clock.pause_ms(LOOK_MS)
    return found


def _launch(command: list[str], directory: Path) -> subprocess.Popen[bytes]:
    """Start a process that holds the lock of the directory for as long as it lives."""
    with ExitStack() as stack:
        # The process inherits the descriptor, so that the lock lasts as long as it lives: process numbers are given
        # again, locks are not.
        held = lock(directory / "lock", wait=True)
        assert held is not None
        stack.callback(os.close, held)
        log = stack.enter_context((directory / "kafka.log").open("ab"))
        return subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[held],
            start_new_session=True,
        )


def _await(process: subprocess.Popen[bytes], broker: Broker, directory: Path) -> None:
    clock = SystemClock()
    until_ms = clock.elapsed_ms() + START_MS
    while not _answers(broker.port):
        if process.poll() is not None or clock.elapsed_ms() > until_ms:
            said = "\n".join((directory / "kafka.log").read_text(errors="replace").splitlines()[-20:])
            raise SamzaError(f"Kafka did not start in {directory}; the end of its kafka.log:\n{said}")
        clock.pause_ms(LOOK_MS)


def _answers(port: int) -> bool:
    """Whether a broker answers what every client asks first, which versions it speaks."""
    try:
        with socket.create_connection((HOST, port), 0.5) as client:
            client.settimeout(2)
            client.sendall(_API_VERSIONS)
            with client.makefile("rb") as answer:
                return answer.read(10)[4:] == struct.pack(">ih", 7, 0)
    except OSError:
        return False


def _ports(directory: Path, port: int | None) -> tuple[int, int]:
    """Return the ports of clients and controller: those of last time where they are free and none is asked for."""
    try:
        former = msgspec.json.decode((directory / "broker.json").read_bytes(), type=Broker)
        wanted = [port or former.port, former.controller_port]
    except (OSError, msgspec.DecodeError):
        wanted = [port or 0, 0]
    with ExitStack() as stack:
        found = []
        for place, number in enumerate(wanted):
            taken = stack.enter_context(socket.socket())
            # Bound and let go of again, so that the kernel finds a free one. Who restarts gets the old ports, which
            # clients know.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind((HOST, number))
            except OSError as error:
                if place == 0 and port:
                    raise SamzaError(f"port {port} is taken ({error.strerror}): give another one, or none") from error
                taken.bind((HOST, 0))
            found.append(taken.getsockname()[1])
    return found[0], found[1]
