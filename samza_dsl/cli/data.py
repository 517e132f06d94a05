"""The place where commands work: a data directory that exists, unless the command makes it, or a Kafka cluster."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from runtime.model.errors import SamzaError
from runtime.ports.environment import Environment, directory_of
from runtime.ports.streams import StreamConfig
from runtime.run.settings import open_environment
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.log.recovery import DATA_FILE
from samza_dsl.cli.errors import SAID_ELSEWHERE, Mistake
from samza_dsl.cli.settings import kafka_said
from samza_dsl.fluent.checks import DATA

DataOption = Annotated[Path, typer.Option("--data", metavar="DIR", help="The directory of the embedded log.")]
EnvironmentOption = Annotated[
    str | None,
    typer.Option("--environment", metavar="kafka://HOST:PORT", help="A Kafka cluster, in place of the embedded log."),
]
KafkaOption = Annotated[
    Path | None,
    typer.Option(
        "--kafka-options",
        metavar="FILE",
        help="TOML with what Kafka's clients need: security_protocol, sasl_..., ssl_...",
    ),
]
DEFAULT = Path(DATA)


def exists(path: Path) -> bool:
    """Whether there is a data directory at `path`."""
    return (path / DATA_FILE).is_file()


def options_in(path: Path | None) -> dict[str, object]:
    """Return the options for Kafka's clients that settings say, and those in a file of them.

    Raises `Mistake` where it can't be read.
    """
    if path is None:
        return kafka_said()
    try:
        return {**tomllib.loads(path.read_text()), **kafka_said()}
    except (OSError, ValueError) as error:
        raise Mistake(f"--kafka-options {path} can't be read as TOML: {error}") from error


def cluster_at(address: str, options: Mapping[str, object]) -> KafkaCluster:
    """Return the cluster at an address; raises `Mistake` where that, or an option of its clients, names nothing."""
    try:
        cluster = KafkaCluster(address, options)
        cluster.topic(cluster.registry).client()  # certificates are read, and what is odd is told before anything runs
    except SamzaError as error:
        raise Mistake(str(error)) from None
    return cluster


def check_of_a_cluster(address: str | None, options: Path | None) -> None:
    """Refuse options of Kafka's clients that were typed where there is no cluster; a file may say them for all."""
    if address is None and options is not None and "--kafka-options" not in SAID_ELSEWHERE.get({}):
        raise Mistake("--kafka-options is about a Kafka cluster: add --environment kafka://HOST:PORT, or leave it out")


@contextmanager
def opened(
    path: Path, address: str | None = None, options: Path | None = None, *, may_be_new: bool = False
) -> Iterator[Environment]:
    """Open the data directory at `path`, or the cluster at an address, for a block.

    Raises `Mistake` where there is no such directory, which `may_be_new` makes instead.
    """
    check_of_a_cluster(address, options)
    directory_of(path)
    # To open a directory makes one: a mistyped path would answer with an empty list.
    if address is None and not may_be_new and not exists(path):
        raise Mistake(
            f"there is no data directory at {path}: a run makes one, and `samza-dsl streams produce` too; "
            "say where it is with --data DIR, or name a Kafka cluster with --environment kafka://HOST:PORT"
        )
    cluster = None if address is None else cluster_at(address, options_in(options))
    with closing(open_environment(path, cluster)) as environment:
        yield environment


def config_of(environment: Environment, stream: str) -> StreamConfig:
    """Return a stream's configuration; raises `Mistake`, with the streams that there are, for another name."""
    streams = environment.streams()
    if stream not in streams:
        known = ", ".join(sorted(streams)) or "none yet"
        raise Mistake(f"there is no stream {stream!r} in {environment}; its streams: {known}")
    return streams[stream]
