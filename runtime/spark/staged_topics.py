"""What a bounded run has for topics: staged until all of it is through, then published, also by who comes after it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from runtime.errors import Damaged, EnvironmentFault, Owned, SamzaError
from runtime.metrics import RunMetrics
from runtime.spark.publishing import is_something, remove_others
from runtime.spark.rows import Part
from runtime.spark.topic_rows import SUFFIX, rows_in, write_told
from runtime.systems.base import StreamConfig, system_errors_told
from runtime.systems.kafka_topic import KafkaTopic
from runtime.systems.log_locks import lock
from runtime.systems.record_files import make_durable, replace_durably

UNPUBLISHED = "unpublished"
LOCK = "lock"
TOLD = f"told{SUFFIX}"


class Unpublished(msgspec.Struct, frozen=True):
    """What is left of a run that is through: its `id`, its topics and files by output, and what it came to."""

    id: str
    topics: dict[str, str]
    files: dict[str, list[str]]
    metrics: RunMetrics


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
                remove_others(self._directory, [LOCK])
                for stream in topics:
                    self.staging(stream).mkdir()
        except BaseException:
            self.close()
            raise

    def staging(self, stream: str) -> Path:
        """Return the directory that takes the files of all attempts for an output."""
        return self._directory / f"{stream}{SUFFIX}"

    def note(self, files: Mapping[str, Iterable[str]], parts: Iterable[Part], metrics: RunMetrics) -> None:
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
                make_durable(self.staging(stream))
            replace_durably(self._directory / UNPUBLISHED, msgspec.msgpack.encode(self.unpublished), f".{uuid4().hex}")

    def go_on(self) -> RunMetrics:
        """Publish what is left, and return what that run came to."""
        from runtime.systems.kafka_published import KafkaPublisher

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
            if not (self._directory / UNPUBLISHED).exists():
                remove_others(self._directory, [LOCK])
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
        from runtime.systems.kafka_table import ranges_now

        for stream, topic in self.topics.items():
            found = ranges_now(topic, self._configs[stream].partitions)
            if any(found.starts[number] < end for number, end in found.ends.items()):
                raise SamzaError(
                    f"the topic {topic.address} holds records already, and a run on Spark writes the whole of its "
                    f"outputs: bind {stream!r} to another topic"
                )


def place_of(data: Path, app: str) -> Path:
    """Return where an application's rows for topics wait."""
    return data / "spark" / app


def drop_unpublished(directory: Path) -> None:
    """Have nobody publish what is left of a run."""
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
