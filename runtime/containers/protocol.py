"""The messages between the process that starts containers and each of its containers, as lines of JSON."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import TypeVar

import msgspec

from operators.core.wording import encodable_all
from planner.model.errors import PlanError
from planner.model.graph import Graph
from planner.model.plan import Options
from runtime.assembly.distinct_places import ANOTHER
from runtime.model import errors
from runtime.model.errors import Elsewhere, ExitAsked, SamzaError, command
from runtime.model.metrics import ContainerMetrics, RunMetrics, added
from runtime.opening.opening import Share
from runtime.ports.connectors import ConnectedSource, DeliveredSink, PulledSource, PushedSource
from runtime.queries.state_requests import StateAnswer, StateRequest
from runtime.systems.connectors.outbox import outbox_of
from runtime.systems.connectors.schemes import connected_at, is_connected
from runtime.systems.kafka.client.topic import KafkaCluster, KafkaTopic, topic_of

# A plan with its bindings, or the metrics of thousands of tasks, are far beyond the 64 KiB that asyncio lets a line
# have.
LONGEST_LINE_BYTES = 1 << 28


class Start(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Run this application, in this way; `plan` is the digest of the plan that the container must come to.

    Where it runs `beside` itself, it has this name behind its own. With `opentelemetry` it tells its durations and
    calls to the providers of its process.
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
    state_address: str = ""
    opentelemetry: bool = False


class Go(msgspec.Struct, frozen=True, tag=True):
    """Begin: all containers that shall begin together have joined."""


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Tell how far you are; with `metrics`, all of your numbers."""

    round: int
    metrics: bool = False


class AskNumbers(msgspec.Struct, frozen=True, tag=True):
    """Tell all of your numbers at once."""


class CommitNow(msgspec.Struct, frozen=True, tag=True):
    """Commit as soon as you can."""


class AskState(msgspec.Struct, frozen=True, tag=True):
    """Answer this request for the state of your tasks."""

    number: int
    request: StateRequest


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Complete what is in flight, commit and end."""


class Joined(msgspec.Struct, frozen=True, tag=True):
    """I am one of the containers, and wait."""


class Finished(msgspec.Struct, frozen=True, tag=True):
    """Nothing seems to be left to do here."""


class Holds(msgspec.Struct, frozen=True, tag=True):
    """I have these tasks now."""

    tasks: tuple[int, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """I answer a round: whether nothing is left to do, my tasks, and the number of my commits."""

    round: int
    finished: bool
    tasks: tuple[int, ...]
    commits: int
    metrics: RunMetrics | None = None


class ToldNumbers(msgspec.Struct, frozen=True, tag=True):
    """I tell my numbers."""

    metrics: RunMetrics


class ToldState(msgspec.Struct, frozen=True, tag=True):
    """I answer the request for state of this number."""

    number: int
    answer: StateAnswer


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """I end with an error: its class, what it says, and the lines of the user's program that it came from.

    Where these asked the process to end, `code` is the exit code.
    """

    kind: str
    text: str
    lines: tuple[str, ...] = ()
    code: int = 1


class Idle(msgspec.Struct, frozen=True, tag=True):
    """My run is over, and I can take part in another one; who says nothing more has me end."""


class EndedWell(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """I have ended well."""

    metrics: RunMetrics


Said = Joined | Finished | Holds | Report | ToldNumbers | ToldState | Failed | EndedWell | Idle
Told = Start | Go | Ask | AskNumbers | AskState | CommitNow | Stop

_encode = msgspec.json.Encoder().encode
_said = msgspec.json.Decoder(Said)
_told = msgspec.json.Decoder(Told)


def _written(message: Said | Told) -> bytes:
    """Encode a message; what users have named by text that is no UTF-8, a counter or a path, is written as its code."""
    try:
        return _encode(message)
    # Paths and counters may have surrogates: rarely, so only a failure pays for the walk.
    except UnicodeEncodeError:
        return _encode(encodable_all(msgspec.to_builtins(message)))


class Connection:
    """One end of the line between the two processes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, connection: socket) -> Connection:
        """Return the end of a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=connection, limit=LONGEST_LINE_BYTES))

    def say(self, message: Said | Told) -> None:
        """Send a message; nothing happens where the other one is gone."""
        if not self._writer.is_closing():
            self._writer.write(_written(message) + b"\n")

    async def hear(self) -> Said | None:
        """Return the next message of a container; None when it is gone."""
        line = await self._next()
        return _said.decode(line) if line else None

    async def heed(self) -> Told | None:
        """Return the next message to a container; None when the starter is gone."""
        line = await self._next()
        return _told.decode(line) if line else None

    async def close(self) -> None:
        """Send what is still to be sent, and close the line."""
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
        # A process that is killed in the midst of a line has said nothing.
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
        # By container: with one sum a death and a commit elsewhere could make up for each other.
        commits = {container: report.commits for container, report in reports.items()} if quiet else None
        is_over = commits is not None and commits == self._before
        self._before = commits
        return is_over


def held_by(reports: Mapping[str, Report]) -> set[int]:
    """Return the tasks that those who have answered a round have."""
    return {task for report in reports.values() for task in report.tasks}


def combined(parts: Iterable[RunMetrics]) -> RunMetrics:
    """Return the metrics of containers as those of one run; times are the longest, but for commits, whose add up."""
    found = [*parts]
    since = [part.since_commit_ms for part in found if part.since_commit_ms is not None]
    return RunMetrics(
        operators=tuple(one for part in found for one in part.operators),
        tasks=tuple(sorted((one for part in found for one in part.tasks), key=lambda one: one.task)),
        inputs=tuple(one for part in found for one in part.inputs),
        stores=tuple(sorted((one for part in found for one in part.stores), key=lambda one: (one.store, one.task))),
        containers=_by_name(one for part in found for one in part.containers),
        commits=sum(part.commits for part in found),
        commit_ms=sum(part.commit_ms for part in found),
        since_commit_ms=min(since, default=None),
        elapsed_ms=max((part.elapsed_ms for part in found), default=0.0),
        deaths=sum(part.deaths for part in found),
        restarts=sum(part.restarts for part in found),
        take_overs=sum(part.take_overs for part in found),
        warnings=tuple(dict.fromkeys(warning for part in found for warning in part.warnings)),
    )


def what_adds_up(told: RunMetrics, slots: int = sys.maxsize) -> RunMetrics:
    """Return of the numbers of a container that is gone those that count on, in the place of so many slots."""
    return RunMetrics(
        operators=told.operators,
        containers=tuple(one for one in told.containers if int(one.container) < slots),
        commits=told.commits,
        commit_ms=told.commit_ms,
        take_overs=told.take_overs,
    )


def error_of(failed: Failed) -> Exception:
    """Return the error that a container has ended with, as if it had been raised here."""
    kind = PlanError if failed.kind == PlanError.__name__ else getattr(errors, failed.kind, None)
    error = kind(failed.text) if kind is not None else SamzaError(f"{failed.kind}: {failed.text}")
    if isinstance(error, ExitAsked):
        error.code = failed.code
    error.__cause__ = Elsewhere(failed.lines) if failed.lines else None
    return error


def _by_name(containers: Iterable[ContainerMetrics]) -> tuple[ContainerMetrics, ...]:
    """Return the containers, each once: what adds up of one that is gone is counted with the one in its place."""
    found: dict[str, ContainerMetrics] = {}
    for one in containers:
        before = found.get(one.container)
        if before is not None:
            one = msgspec.structs.replace(
                one,
                commits=before.commits + one.commits,
                commit_ms=before.commit_ms + one.commit_ms,
                rebalances=before.rebalances + one.rebalances,
                restored=before.restored + one.restored,
                moved=before.moved + one.moved,
                busy_ms=dict(Counter(before.busy_ms) + Counter(one.busy_ms)),
                histograms=added([*before.histograms, *one.histograms]),
            )
        found[one.container] = one
    return tuple(found[name] for name in sorted(found))


Place = TypeVar("Place", KafkaTopic, KafkaCluster)


def places(graph: Graph, bind: Mapping[str, object]) -> dict[str, str | KafkaTopic]:
    """Return the bindings as other processes can open them; raises SamzaError for those that they can't."""
    topics = {stream: topic for stream, what in bind.items() if (topic := topic_of(what)) is not None}
    topics = {stream: as_given(topic, f"bind={{{stream!r}: {topic!r}}}") for stream, topic in topics.items()}
    others = {stream: what for stream, what in bind.items() if isinstance(what, str) and what.startswith(ANOTHER)}
    files = {stream: what for stream, what in bind.items() if stream not in topics and stream not in others}
    return {**topics, **others, **_paths(graph, files)}


def as_given(what: Place, said: str) -> Place:
    """Return a topic or cluster as other processes open it; raises SamzaError for what is of this process alone."""
    if "ssl_context" in what.options:
        raise SamzaError(
            f"{said}: an ssl_context can't be given to other processes; write instead: "
            'options={"ssl_cafile": ...}, or run containers=1'
        )
    if not what.options:
        return what
    from runtime.systems.kafka.client.tokens import as_given as options_as_given

    return replace(what, options=options_as_given(what.options, said))


def shared_out(graph: Graph, bind: Mapping[str, object]) -> tuple[dict[str, str | KafkaTopic], dict[str, object]]:
    """Return the bindings of containers, and of the process that starts them.

    That delivers what they have committed, and takes in what is pushed to the stream that they read. Raises SamzaError
    for what containers can't open.
    """
    written = {output.stream for spec in graph.specs.values() for output in spec.outputs}
    opened = {stream: connected_at(what, stream in written) for stream, what in bind.items()}
    sinks = {stream: sink for stream, sink in opened.items() if stream in written and isinstance(sink, DeliveredSink)}
    pushed = {stream for stream, source in opened.items() if isinstance(source, PushedSource)}
    bound = places(graph, {stream: what for stream, what in {**bind, **sinks}.items() if stream not in pushed})
    return bound, {**bound, **{stream: bind[stream] for stream in (*sinks, *pushed)}}


def _paths(graph: Graph, bind: Mapping[str, object]) -> dict[str, str]:
    """Return the paths of bound files, in full; raises SamzaError for what is none."""
    written = {output.stream for spec in graph.specs.values() for output in spec.outputs}
    found: dict[str, str] = {}
    for stream, what in bind.items():
        if stream in written and isinstance(what, DeliveredSink):
            # What containers have written to the outbox is delivered by the process that has started them.
            found[stream] = f"{ANOTHER}{outbox_of(graph.app, stream, what.name)}"
            continue
        if stream not in written and is_connected(what):
            found[stream] = what
            continue
        if stream in written:
            raise SamzaError(
                f"bind={{{stream!r}: {what!r}}}: one process writes a bound output, and there are several containers; "
                f"leave it in the data directory, where {command(f'streams show {stream}')} shows it, or run "
                "containers=1"
            )
        if isinstance(what, PulledSource):
            raise SamzaError(
                f"bind={{{stream!r}: ...}}: every container opens what is pulled, to read it as it lies there, and "
                f"can't open {what.name} of this process; write instead: its URL, as bind={{{stream!r}: "
                f'"postgres://me@host/shop?table={stream}"}}, or run containers=1'
            )
        if not isinstance(what, str | Path) or is_connected(what):
            instead = f'bind={{{stream!r}: "{stream}.jsonl"}}'
            if isinstance(what, ConnectedSource):
                instead = f'its URL, bind={{{stream!r}: "shop://..."}}, behind a connectors.Scheme of yours'
            raise SamzaError(
                f"bind={{{stream!r}: ...}}: every container opens what is bound, and can't open a "
                f"{type(what).__name__} of this process; write instead: {instead}, or run containers=1"
            )
        found[stream] = os.path.abspath(what)
    return found
