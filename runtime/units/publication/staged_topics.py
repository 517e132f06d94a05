"""Rows of a bounded run for topics: staged until all is through, then published, also by who comes after it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from runtime.model.errors import Damaged, EnvironmentFault, Owned, SamzaError, system_errors_told
from runtime.model.metrics import RunMetrics
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, StagingEnvironment
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.host.durable import make_durable, replace_durably
from runtime.systems.host.locks import lock
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.units.frames import frames
from runtime.units.publication.publishing import is_something, remove_others
from runtime.units.shuffle_rows import AttemptReport, OutputRows
from runtime.units.topic_rows import SUFFIX, rows_in, write_told

UNPUBLISHED = "unpublished"
LOCK = "lock"
TOLD = f"told{SUFFIX}"


class Unpublished(msgspec.Struct, frozen=True):
    """The remains of a run that is through: its `id`, its topics and files by output, and what it came to."""

    id: str
    topics: dict[str, str]
    files: dict[str, list[str]]
    metrics: RunMetrics


INPUTS = "inputs"
"""The directory of inputs that were laid down, beside those that wait: no stream's has this name."""


class StagedTopics:
    """Topics as outputs of one application in a directory that all workers see, under `data`.

    Where an earlier run had come to publishing, `unpublished` says what is left of it. Raises `Owned`, and SamzaError
    where that is of other topics, or where a topic that is to begin holds something.
    """

    def __init__(
        self,
        data: Path | None,
        app: str,
        topics: Mapping[str, KafkaTopic],
        configs: Mapping[str, StreamConfig],
    ) -> None:
        self.topics, self._app, self._configs = dict(topics), app, dict(configs)
        self._is_temporary = data is None
        whole = Path(tempfile.mkdtemp(prefix="samza-dsl-")) if data is None else place_of(data, app)
        self._directory = whole.absolute()
        with system_errors_told(self._directory, "made"):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = lock(self._directory / LOCK, wait=False)
        if self._lock is None:
            raise Owned(f"{app!r} runs on Spark already, with rows for topics in {self._directory}: wait for its end")
        try:
            self.unpublished = self._read()
            if self.unpublished is None:
                self._check_empty()
                remove_others(self._directory, [LOCK, INPUTS])
                for stream in topics:
                    self.staging(stream).mkdir()
        except BaseException:
            self.close()
            raise

    def staging(self, stream: str) -> Path:
        """Return the directory that takes the files of all attempts for an output."""
        return self._directory / f"{stream}{SUFFIX}"

    def note(self, files: Mapping[str, Iterable[str]], parts: Iterable[OutputRows], metrics: RunMetrics) -> None:
        """Note that what these files and parts hold is to be published: whoever comes after a death goes on."""
        written = {stream: [Path(file).name for file in found] for stream, found in files.items()}
        for stream in write_told(parts, TOLD, self.staging):
            written.setdefault(stream, []).append(TOLD)
        for stream, names in written.items():
            written[stream] = [name for name in names if is_something(self.staging(stream) / name)]
        topics = {stream: topic.address for stream, topic in self.topics.items()}
        self.unpublished = Unpublished(uuid4().hex, topics, written, metrics)
        with system_errors_told(self._directory, "written"):
            for stream in self.topics:
                # Files first, then the note that names them: from the note on the run is through.
                make_durable(self.staging(stream))
            replace_durably(self._directory / UNPUBLISHED, msgspec.msgpack.encode(self.unpublished), f".{uuid4().hex}")

    def go_on(self) -> RunMetrics:
        """Publish what is left, and return what that run came to."""
        from runtime.systems.kafka.streams.publication import KafkaPublisher

        left = self.unpublished
        assert left is not None
        with ExitStack() as stack:
            publishers = []
            for stream, topic in self.topics.items():
                name = f"{self._app}.{left.id}.{stream}"
                publisher = stack.enter_context(closing(KafkaPublisher(topic, self._configs[stream], name)))
                files = [self.staging(stream) / file for file in left.files.get(stream, ())]
                publisher.publish(1, rows_in(files))
                publishers.append(publisher)
            with system_errors_told(self._directory, "written"):
                # Only when all topics have everything: until then whoever comes next publishes on.
                (self._directory / UNPUBLISHED).unlink()
                make_durable(self._directory)
            for publisher in publishers:
                with suppress(EnvironmentFault):  # what is noted of a run that is over harms nobody
                    publisher.forget()
        self.unpublished = None
        return left.metrics

    def close(self) -> None:
        """Remove what nobody will publish, and let others run the application; a second call does nothing."""
        if self._lock is not None:
            # Else the files are what the next one publishes.
            if not (self._directory / UNPUBLISHED).exists():
                remove_others(self._directory, [LOCK, INPUTS])
            os.close(self._lock)
            self._lock = None
            if self._is_temporary:
                shutil.rmtree(self._directory, ignore_errors=True)

    def _read(self) -> Unpublished | None:
        found = unpublished_in(self._directory)
        topics = {stream: topic.address for stream, topic in self.topics.items()}
        if found is not None and found.topics != topics:
            known = ", ".join(found.topics.values())
            raise SamzaError(
                f"a run of {self._app!r} on Spark was stopped while it published to {known}, where readers have seen a "
                f"part of it: run it so once more, or remove {self._directory}"
            )
        return found

    def _check_empty(self) -> None:
        from runtime.systems.kafka.streams.compacted_topic import ranges_now

        for stream, topic in self.topics.items():
            found = ranges_now(topic, self._configs[stream].partitions)
            if any(found.starts[number] < end for number, end in found.ends.items()):
                raise SamzaError(
                    f"the topic {topic.address} holds records already, and a run on Spark writes the whole of its "
                    f"outputs: bind {stream!r} to another topic"
                )


def place_of(data: Path, app: str) -> Path:
    """Return where an application's rows for topics wait, and its inputs lie that only Spark opens."""
    return data / "spark" / app


def drop_unpublished(directory: Path) -> None:
    """Drop what is left of a run, so that nobody publishes it."""
    (directory / UNPUBLISHED).unlink(missing_ok=True)


def unpublished_in(directory: Path) -> Unpublished | None:
    """Return what is left of a run that had come to publishing; None where nothing is. Raises `Damaged`."""
    path = directory / UNPUBLISHED
    if not path.exists():
        return None
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Unpublished)
    except msgspec.DecodeError as error:
        raise Damaged(f"{path} does not say what is left to publish: {error}; restore it") from error


_decode = msgspec.msgpack.Decoder(OutputRows).decode


class StagedRows:
    """The directory under `data` where attempts of one application write rows; what others have left there goes."""

    def __init__(self, data: Path, app: str) -> None:
        self.directory = (place_of(data, app) / "rows").absolute()
        self.remove()
        with system_errors_told(self.directory, "made"):
            self.directory.mkdir(parents=True)

    def remove(self) -> None:
        """Remove what attempts have written."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with suppress(OSError):  # rows for topics lie beside it
            self.directory.parent.rmdir()


class ToldRows:
    """The rows of attempts that count for the driver, as often as they are asked for, one part at a time in memory.

    It is what they have told it themselves, and what lies in their files.
    """

    def __init__(self, parts: Iterable[OutputRows], reports: Sequence[AttemptReport]) -> None:
        self._parts = parts
        self._files = [Path(report.rows) for report in reports if report.rows is not None]

    def __iter__(self) -> Iterator[OutputRows]:
        yield from self._parts
        for file in self._files:
            yield from map(_decode, frames(file))


class Filling:
    """Fills streams that are there and empty, of which no more is in memory than the environment holds there."""

    def __init__(self, environment: Environment, app: str, generation: int) -> None:
        self._environment, self._app, self._generation = environment, app, generation
        self._rows: Counter[tuple[str, int]] = Counter()
        self._held: list[Append] = []

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        """By stream and partition, the number of rows that were taken."""
        return [(stream, partition, rows) for (stream, partition), rows in self._rows.items()]

    def take(self, appends: Iterable[Append]) -> None:
        """Take rows on; nobody sees them yet."""
        counted = self._counted(appends)
        if isinstance(self._environment, StagingEnvironment):
            self._environment.stage(self._app, self._generation, counted)
        else:
            self._held += counted

    def publish(self) -> None:
        """Make all that was taken visible."""
        if not self._rows:
            return
        if isinstance(self._environment, StagingEnvironment):
            self._environment.publish(self._app, self._generation)
        else:
            self._environment.commit(Commit(self._app, self._generation, self._held, [], {}))

    def discard(self) -> None:
        """Remove what nobody will publish."""
        if isinstance(self._environment, StagingEnvironment):
            with suppress(EnvironmentFault):  # else whoever owns the application next does
                self._environment.discard(self._app)

    def _counted(self, appends: Iterable[Append]) -> Iterator[Append]:
        for append in appends:
            self._rows[append.stream, append.partition] += len(append.batch)
            yield append
