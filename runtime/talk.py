"""What the process that starts containers and each of its containers say to each other, as lines of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from planner.plan import Options
from runtime.metrics import RunMetrics
from runtime.opening import Share
from runtime.systems.kafka_topic import KafkaCluster, KafkaTopic

LONGEST_LINE_BYTES = 1 << 28


class Start(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What to run: where the application is found, and how; `plan` tells whether it is the same one there.

    Where it runs `beside` itself, it has this name behind its own.
    """

    module: str
    name: str
    data: str
    options: Options
    share: Share
    bind: dict[str, str | KafkaTopic]
    plan: str
    beside: str = ""
    environment: KafkaCluster | None = None
    host_id: str | None = None


class Go(msgspec.Struct, frozen=True, tag=True):
    """All that shall begin together have joined."""


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How far are you? With `metrics` everything shall be told."""

    round: int
    metrics: bool = False


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Complete what is in flight, commit and end."""


class Joined(msgspec.Struct, frozen=True, tag=True):
    """I am one of the containers, and wait."""


class Finished(msgspec.Struct, frozen=True, tag=True):
    """Nothing seems to be left to do here."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How far I am, in answer to a round: whether nothing is left to do, which tasks I have, and what I committed."""

    round: int
    finished: bool
    tasks: tuple[int, ...]
    commits: int
    metrics: RunMetrics | None = None


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """I end with an error: its class, what it says, and the lines of the user's program that it came from."""

    kind: str
    text: str
    lines: tuple[str, ...] = ()


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """I have ended well."""

    metrics: RunMetrics


Said = Joined | Finished | Report | Failed | Ended
Told = Start | Go | Ask | Stop

_encode = msgspec.json.Encoder().encode
_said = msgspec.json.Decoder(Said)
_told = msgspec.json.Decoder(Told)


class Elsewhere(Exception):
    """What raised an error in another process, as the lines of the user's program there."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = list(lines)


class Line:
    """One end of the line between the two processes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, connection: Any) -> Line:
        """Return the end of a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=connection, limit=LONGEST_LINE_BYTES))

    def say(self, message: Said | Told) -> None:
        """Say something; nothing happens where the other one is gone."""
        if not self._writer.is_closing():
            self._writer.write(_encode(message) + b"\n")

    async def hear(self) -> Said | None:
        """Return what a container says next; None when it is gone."""
        line = await self._next()
        return _said.decode(line) if line else None

    async def heed(self) -> Told | None:
        """Return what a container is told next; None when nobody is there any more."""
        line = await self._next()
        return _told.decode(line) if line else None

    async def close(self) -> None:
        """Say the last that was said, and be gone."""
        try:
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except ConnectionError:
            pass

    async def _next(self) -> bytes:
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return b""
        return line if line.endswith(b"\n") else b""


class Rounds:
    """Tells when all containers have come to the end: in two rounds in a row nobody had anything to do or committed.

    In the second each has looked again at what all had committed before the first was over.

    >>> rounds, report = Rounds(2), Report(round=1, finished=True, tasks=(0, 1), commits=3)
    >>> rounds.over({"a": report}), rounds.over({"a": report}), rounds.over({"b": report}), rounds.over({"b": report})
    (False, True, False, True)
    """

    def __init__(self, tasks: int) -> None:
        self._tasks = set(range(tasks))
        self._before: dict[str, int] | None = None

    def over(self, reports: dict[str, Report]) -> bool:
        """Take in a round, by container, and return whether all is done."""
        held = [task for report in reports.values() for task in report.tasks]
        quiet = all(report.finished for report in reports.values()) and set(held) == self._tasks
        commits = {container: report.commits for container, report in reports.items()} if quiet else None
        is_over = commits is not None and commits == self._before
        self._before = commits
        return is_over


def combined(parts: Iterable[RunMetrics]) -> RunMetrics:
    """Return the metrics of containers as those of one run; times are the longest, but for commits, whose add up."""
    found = [*parts]
    since = [part.since_commit_ms for part in found if part.since_commit_ms is not None]
    return RunMetrics(
        operators=tuple(one for part in found for one in part.operators),
        tasks=tuple(sorted((one for part in found for one in part.tasks), key=lambda one: one.task)),
        inputs=tuple(one for part in found for one in part.inputs),
        stores=tuple(sorted((one for part in found for one in part.stores), key=lambda one: (one.store, one.task))),
        commits=sum(part.commits for part in found),
        commit_ms=sum(part.commit_ms for part in found),
        since_commit_ms=min(since, default=None),
        elapsed_ms=max((part.elapsed_ms for part in found), default=0.0),
    )
