"""The publication of the outputs of micro-batches: visible once, however often it is tried."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import msgspec

from operators.core.base import Serde
from runtime.model.checkpoint import SHARED, Checkpoint
from runtime.model.errors import Damaged, SamzaError, system_errors_told
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment
from runtime.ports.sink import PartitionedSink, Sink
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.files.files import KIND_OF_SUFFIX, check_kind_on_spark, open_sink
from runtime.systems.host.durable import make_durable
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.streams.publication import KafkaPublisher
from runtime.units.frames import FrameFile, frames
from runtime.units.shuffle_rows import OutputRows
from runtime.units.staging import gathered, joined
from runtime.units.topic_rows import rows_in

_decode = msgspec.msgpack.Decoder(OutputRows).decode
_encode = msgspec.msgpack.Encoder().encode


class PartDirectory:
    """The directory that an output is bound to, which has a file for each micro-batch that wrote something.

    Raises SamzaError where its suffix tells no kind of file, and where it is to begin and has something in it.
    """

    config = StreamConfig()

    def __init__(self, path: Path, begins: bool) -> None:
        self.path = path.absolute()
        self._kind = KIND_OF_SUFFIX.get(path.suffix.lower())
        if self._kind is None or path.is_file():
            open_sink(path / "part" if path.is_file() else path).close()
            check_kind_on_spark(path)
            raise SamzaError(f"{path} is a file, and a run on Spark that goes on writes a directory of them; name one")
        if begins and path.exists() and any(one.name[0] not in "._" for one in path.iterdir()):
            raise SamzaError(
                f"{path} has something in it already, and nothing was written to it from this checkpoint: remove it, "
                "or bind another path"
            )

    def begin(self) -> Path:
        """Make the place where attempts write to, which other readers take for no data, and return it."""
        with system_errors_told(self.path, "written"):
            self.staging.mkdir(parents=True, exist_ok=True)
        return self.staging

    @property
    def staging(self) -> Path:
        """The directory that attempts write to."""
        return self.path / f".staged{self.path.suffix}"

    def publish(self, batch: int, files: Sequence[str]) -> None:
        """Put what these files hold there as one that comes at once; where it is there already nothing happens."""
        whole = self.path / f"part-{batch:09}{self.path.suffix}"
        # The name has the number of the micro-batch: to publish it again changes nothing.
        if whole.exists() or not files:
            return
        found = [self.staging / name for name in files]
        lost = [file for file in found if not file.exists()]
        if lost:
            raise Damaged(f"{lost[0]} is gone, which a commit of this run on Spark holds: restore it")
        with system_errors_told(self.path, "written"):
            if len(found) == 1 and self._kind != "parquet":
                found[0].replace(whole)
            else:
                unfinished = self.staging / f"{uuid4().hex}{self.path.suffix}"
                if self._kind == "parquet":
                    gathered(found, unfinished)
                else:
                    joined(found, unfinished, has_header=self._kind == "csv")
                # Put together beside it, and visible at once.
                unfinished.replace(whole)
            make_durable(self.path)

    def sweep(self, kept: Iterable[str]) -> None:
        """Remove what attempts wrote that nobody will publish."""
        remove_others(self.staging, kept)


class OfParts(Protocol):
    """An output to which each micro-batch adds a part, of files that attempts have left in its `staging`."""

    config: StreamConfig

    @property
    def staging(self) -> Path:
        """The directory that attempts write to."""

    def begin(self) -> object:
        """Make that place."""

    def publish(self, batch: int, files: Sequence[str]) -> None:
        """Make what these files hold visible, once however often it is called."""

    def sweep(self, kept: Iterable[str]) -> None:
        """Remove what attempts wrote that nobody will publish."""


@dataclass(frozen=True)
class ByEngine:
    """An output that the engine itself writes, a part for each micro-batch.

    It is `opened(place, name, begins)`: in a directory of its own, by a name that no other run has, and told whether
    anything is committed yet. `into` says where it goes.
    """

    opened: Callable[[Path, str, bool], OfParts]
    into: object


class Publisher:
    """Publishes what manifests name: parts of outputs, rows of streams in one commit, and those of bound sinks."""

    def __init__(
        self,
        environment: Environment,
        app: str,
        name: str,
        parts: Mapping[str, OfParts],
        sinks: Mapping[str, tuple[Sink, Serde]],
    ) -> None:
        self.positions: dict[str, int] = {}
        """The position of each sink behind what was published."""
        self._environment, self._app, self._name = environment, app, f"spark={name}"
        self._parts, self._sinks = parts, sinks
        self._generation = environment.generation(app)

    @property
    def published(self) -> int:
        """The last micro-batch whose rows are in the environment, 0 where there is none."""
        return self._outputs().get(self._name, 0)

    def publish(
        self, batch: int, rows: Path | None, files: Mapping[str, Sequence[str]], positions: Mapping[str, int]
    ) -> None:
        """Make a micro-batch visible, be it for the first time or again; `positions` are where it begins in sinks."""
        for stream, found in files.items():
            self._parts[stream].publish(batch, found)
        parts = [*map(_decode, frames(rows))] if rows is not None else []
        for stream, (sink, declared) in self._sinks.items():
            self._give(sink, declared, positions.get(stream, 0), [part for part in parts if part.stream == stream])
            self.positions[stream] = sink.flush()
        appends = [
            Append(part.stream, part.partition, part.batch()) for part in parts if part.stream not in self._sinks
        ]
        # Rows and the number of the micro-batch are one commit, so it is known for sure whether they are there.
        if appends and self.published < batch:
            noted = Checkpoint(self._generation, outputs={**self._outputs(), self._name: batch})
            self._environment.commit(Commit(self._app, self._generation, appends, [], {SHARED: noted}))

    def _outputs(self) -> dict[str, int]:
        return self._environment.checkpoints(self._app).get(SHARED, Checkpoint(0)).outputs

    def _give(self, sink: Sink, declared: Serde, position: int, parts: Iterable[OutputRows]) -> None:
        # Back to where the micro-batch begins there: an attempt that died may have written some of it.
        sink.recover(position)
        encode = sink.serde(declared).encode
        for part in parts:
            batch = part.batch()
            batch.values = [None if value is None else encode(declared.decode(value)) for value in batch.values]
            if isinstance(sink, PartitionedSink):
                sink.write_to(part.partition, batch)
            else:
                sink.write(batch)


def is_something(file: Path) -> bool:
    """Whether an attempt wrote anything to the file, or the directory, that it was given."""
    if file.is_dir():
        return any(one.name[0] not in "._" for one in file.iterdir())
    return file.exists() and file.stat().st_size > 0


def remove_others(directory: Path, kept: Iterable[str]) -> None:
    """Remove all in a directory but what is to be kept."""
    known = set(kept)
    for left in directory.iterdir() if directory.exists() else ():
        if left.name not in known:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def write_rows(parts: Iterable[OutputRows], path: Path) -> bool:
    """Write rows of outputs to a file, durably; return whether there are any."""
    file = FrameFile(path)
    for part in parts:
        file.write(_encode(part))
    if not file.close():
        return False
    make_durable(path.parent)
    return True


class PartTopic:
    """A topic, with the directory where attempts leave rows for it; `name` tells it from those of all other runs."""

    def __init__(self, topic: KafkaTopic, config: StreamConfig, staging: Path, name: str) -> None:
        self.path, self.staging, self.config = topic.address, staging, config
        self._publisher = KafkaPublisher(topic, config, name)

    def begin(self) -> None:
        """Make the place where attempts write to."""
        with system_errors_told(self.staging, "written"):
            self.staging.mkdir(parents=True, exist_ok=True)

    def publish(self, batch: int, files: Sequence[str]) -> None:
        """Write what is not yet committed of a micro-batch."""
        self._publisher.publish(batch, rows_in(self.staging / name for name in files))

    def sweep(self, kept: Iterable[str]) -> None:
        """Remove what attempts wrote that nobody will publish."""
        remove_others(self.staging, kept)

    def close(self) -> None:
        """Let go of the client."""
        self._publisher.close()
