"""One broker for all tests of a session, in whichever of its processes they run."""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runtime.systems.kafka.broker import broker as kafka_broker
from runtime.systems.kafka.broker.broker import Broker


@contextmanager
def shared_broker(directory: Path) -> Iterator[Broker]:
    """Have a broker run while any process is in such a block; the last one to leave stops it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield kafka_broker.start(directory)
        finally:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass  # others still use it
            else:
                kafka_broker.stop(directory)


def remove_topics(directory: Path, prefixes: Sequence[str]) -> None:
    """Remove the topics that have one of these in their names from the shared broker, where it runs."""
    from tests.kafka.topics import delete, names  # aiokafka, which the quick tests do without

    broker = kafka_broker.running(directory) if prefixes else None
    if broker is not None:
        delete(broker, *(name for name in names(broker) if any(prefix in name for prefix in prefixes)))
