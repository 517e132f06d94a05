"""The committed state of an application on a cluster, from the containers that have it, or from changelogs."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import NamedTuple, Protocol
from urllib.parse import urlencode

import msgspec

from operators.core.durations import Duration, checked_ms
from operators.core.protocols import CheckedProtocol
from operators.core.sites import here
from planner.model.graph import Graph
from runtime.model.assignment import JobModel
from runtime.model.clock import monotonic_ms
from runtime.model.errors import SamzaError
from runtime.ports.environment import QueryableEnvironment, SnapshotEnvironment
from runtime.ports.state import SettledCommits, StateSnapshot
from runtime.queries.state_query import NotReached, StateQuery, check_may_wait
from runtime.queries.state_requests import MOST_IN_PAGE, MOST_PATIENCE_MS
from runtime.queries.state_shape import StateShape
from runtime.queries.stored_entries import STORED, StoredAnswer, said_of
from runtime.systems.host.addresses import address_of
from runtime.systems.http.request_parts import token_in
from runtime.systems.kafka.client.topic import KafkaCluster

ANSWER_S = 12.0
"""The time that a container has to answer: as long as a request may wait for a commit there, and some more."""
MOVING_MS, LOOK_MS = 10_000.0, 200.0
"""The time for which tasks that move are waited for, and the pause between two looks."""
FRESH_MS = 1_000.0
"""The time for which it counts who has which task: who was taken for dead is asked no longer than that."""
TRIES = 20
"""The looks at changelogs until nothing was committed meanwhile."""
ELSEWHERE = (410, 421, 503, 504)
"""The statuses of a container that has no answer for now, while another one may have, or it itself later."""
_log = logging.getLogger("samza_dsl")
Said = dict[str, str | int]
Ask = Callable[[str, str, str | None], tuple[int, bytes]]
"""Asks at an address for a path with a token, and returns the status and the body; raises OSError, HTTPException."""
HERE = "here"
"""The address of the containers that this process has started: it asks them itself."""


class ClusterState(QueryableEnvironment, SnapshotEnvironment, Protocol, metaclass=CheckedProtocol):
    """A cluster that tells who has which task, how far each is, and what changelogs hold."""


class Unheard(Exception):
    """No container can be asked, and why; what changelogs hold is as true."""


class FarStateQuery(StateQuery):
    """The committed state of an application on a cluster, from any process.

    A key is asked for in the container that has its task, at the address that this one has told the others; a range in
    each. What comes are the entries as they are stored, and are read here. What moves, or is down, is waited for. Where
    containers serve nothing, or can't be reached, changelogs are read instead: all of an operator's, kept until
    something is committed. The containers that are `own` are asked at `HERE`. Invariant: an answer counts for who has
    the task by a model that is no older than `FRESH_MS`, so that none is of long ago.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Callable[[], ClusterState],
        close: Callable[[], None],
        token: str | None = None,
        ask: Ask | None = None,
        own: Callable[[], Collection[str]] = tuple,
    ) -> None:
        super().__init__(graph, lambda: nullcontext(cluster()), close)
        self._cluster_now, self._token, self._ask, self._own = cluster, token, ask or asked_at, own
        self._model: JobModel | None = None
        self._heard_at_ms = 0.0
        self._changelogs: tuple[SettledCommits, StateSnapshot] | None = None
        self._told = False

    @property
    def _cluster(self) -> ClusterState:
        """The cluster, which the first question opens; raises SamzaError where it can't be asked any more."""
        return self._cluster_now()

    def held(self) -> StateSnapshot:
        """Return the state that all changelogs hold, as of one moment at which nothing was being committed."""
        return self._at_rest(self._cluster.stores(self._graph.app))

    def _at_rest(self, stores: Collection[str]) -> StateSnapshot:
        """Return the state of these operators as changelogs hold it: what was read before, where that is still so."""
        app = self._graph.app
        for _ in range(TRIES):
            before, kept = self._cluster.settled_commits(app), self._changelogs
            if kept is None or kept[0] != before:
                kept = before, self._cluster.settled_snapshot(app)
            for store in stores:
                kept[1].tasks(store)
            if self._cluster.settled_commits(app) == before:
                self._changelogs = kept
                return _Kept(kept[1])
        raise SamzaError(
            f"{app!r} commits so often that its changelogs can't be read as of one moment: ask again once containers "
            "answer, or run it with metrics=':9464' (--metrics), at an address that can be reached from here"
        )

    def looked(
        self,
        at_least: Mapping[str, int] | None,
        timeout_ms: Duration,
        shape: StateShape,
        key: object,
        of: tuple[str, str] | None = None,
    ) -> StateSnapshot:
        data = shape.placed(key)
        said: Said = {STORED: 1, "key": said_of(data)}
        if of is not None:
            said[of[0]] = of[1]
        self._check(at_least)
        until_ms = monotonic_ms() + checked_ms("timeout_ms", timeout_ms)
        try:
            return self._of_key(shape, key, data, said, at_least or {}, until_ms)
        except Unheard as unheard:
            return self._instead(unheard, shape, at_least, timeout_ms)

    def pages(
        self, at_least: Mapping[str, int] | None, timeout_ms: Duration, shape: StateShape, start: object, end: object
    ) -> Generator[StateSnapshot]:
        said: Said = {STORED: 1, "limit": MOST_IN_PAGE}
        bounds = ("from", start), ("to", end)
        said.update({name: said_of(shape.placed(key)) for name, key in bounds if key is not None})
        self._check(at_least)
        until_ms = monotonic_ms() + checked_ms("timeout_ms", timeout_ms)
        moving_until_ms = max(until_ms, monotonic_ms() + MOVING_MS)
        while True:
            begun = False
            try:
                for page in self._range(shape.operator, said, at_least or {}, until_ms):
                    if page.stored:
                        begun = True  # and can't be taken back
                        yield page.snapshot()
            except Unheard as unheard:
                if begun:
                    raise _moved_error(self._graph.app, str(unheard)) from None
                yield self._instead(unheard, shape, at_least, timeout_ms)
            except (NotHere, _Moved) as moved:
                if begun:
                    raise _moved_error(self._graph.app, str(moved)) from None
                if monotonic_ms() < moving_until_ms:
                    self._clock.pause_ms(LOOK_MS)
                    continue
                yield self._instead(Unheard(f"{moved}, and that for long"), shape, at_least, timeout_ms)
            return

    def _range(self, operator: str, said: Said, at_least: Mapping[str, int], until_ms: float) -> Iterator[StoredAnswer]:
        """Yield the pages of a range; raises `NotHere` and `_Moved` where it is not whole, and `Unheard`."""
        model, seen = self._heard(anew=True), _RangeTasks()
        for address in self._addresses(model):
            for page in self._answers(address, operator, said, at_least, until_ms):
                seen.take_in(page)
                yield page
        if self._heard(anew=True).generation != model.generation:
            raise _Moved("other containers have its tasks since")
        if model.tasks:  # else one process has the application to itself
            seen.check()

    def _check(self, at_least: Mapping[str, int] | None) -> None:
        if at_least:
            self.check_read(at_least, here)
            check_may_wait()

    def _instead(
        self, why: Unheard, shape: StateShape, at_least: Mapping[str, int] | None, timeout_ms: Duration
    ) -> StateSnapshot:
        """Return what changelogs hold, and say so once."""
        if not self._told:
            self._told = True
            _log.warning(
                "state of %s is read from its changelogs, all of an operator's at a time: %s", self._graph.app, why
            )
        self.wait_for(at_least, timeout_ms)
        return self._at_rest([shape.operator])

    def _of_key(
        self, shape: StateShape, key: object, data: bytes, said: Said, at_least: Mapping[str, int], until_ms: float
    ) -> StateSnapshot:
        """Return the entries of a key from the container that has it; none where no container has any."""
        model, moving_until_ms = self._heard(), max(until_ms, monotonic_ms() + MOVING_MS)
        while True:
            task = shape.likely(key, data, len(model.tasks))
            likely = self._address(model, model.tasks[task]) if task < len(model.tasks) else None
            wanted: Said = {**said, "task": task}
            missing: set[int] = set()
            for address in sorted(self._addresses(model), key=lambda one: one != likely):
                try:
                    found = [*self._answers(address, shape.operator, wanted, at_least, until_ms)]
                except NotHere as refused:
                    missing.add(refused.status)
                    continue
                if self._heard().generation == model.generation:
                    return _together(found)
                break  # who was taken for dead may have answered
            before, model = model, self._heard(anew=True)
            # That none has it counts where one has said so that should have it, and none has moved meanwhile.
            if model.generation == before.generation and 503 not in missing and (404 in missing or not model.tasks):
                return _together([])
            if monotonic_ms() >= moving_until_ms:
                raise Unheard("no container has the task of a key that was asked for")
            self._clock.pause_ms(LOOK_MS)

    def _answers(
        self, address: str, operator: str, said: Said, at_least: Mapping[str, int], until_ms: float
    ) -> Iterator[StoredAnswer]:
        """Yield an answer and its further pages; raises `NotHere` for a container that has nothing of it."""
        found = self._first(address, operator, said, at_least, until_ms)
        yield found
        while found.next:
            found = self._answer(address, operator, {"page": found.next})
            yield found

    def _first(
        self, address: str, operator: str, said: Said, at_least: Mapping[str, int], until_ms: float
    ) -> StoredAnswer:
        places = ",".join(f"{stream}:{offset}" for stream, offset in at_least.items())
        while True:
            left_ms = until_ms - monotonic_ms()
            patience = max(1, min(int(left_ms), int(MOST_PATIENCE_MS)))
            try:
                return self._answer(
                    address, operator, {**said, **({"at_least": places, "timeout_ms": patience} if places else {})}
                )
            except NotHere as refused:
                if refused.status != 504:
                    raise
                if until_ms - monotonic_ms() <= 0:
                    raise NotReached(str(refused)) from None

    def _answer(self, address: str, operator: str, said: Said) -> StoredAnswer:
        try:
            status, body = self._ask(address, f"/state/{operator}?{urlencode(said)}", self._token)
        except (OSError, HTTPException) as error:
            raise self._unheard(f"the container at {address} can't be asked: {error}") from None
        if status == 401:
            raise SamzaError(
                f"the containers of {self._graph.app!r} at {address} show state to who has their token; write instead: "
                "query(app, environment=..., token_file='FILE')"
            )
        if status in ELSEWHERE:
            raise NotHere(status, body)
        if status not in (200, 404):
            raise self._unheard(f"what is at {address} answers with {status}: {_text(body)}")
        try:
            found = msgspec.json.decode(body, type=StoredAnswer)
        except msgspec.MsgspecError as error:
            raise self._unheard(f"what is at {address} answers as no container does: {error}") from None
        if (found.app, found.operator) != (self._graph.app, operator):
            raise self._unheard(f"what is at {address} is {found.operator!r} of {found.app!r}")
        # That there is nothing counts only from who has looked for just that.
        if status == 404:
            raise NotHere(status, body)
        return found

    def _unheard(self, why: str) -> Unheard:
        """Return why a container can't be asked, and look anew who has which task when it is asked again."""
        self._model = None
        return Unheard(why)

    def _heard(self, anew: bool = False) -> JobModel:
        """Return who has which task; raises `Unheard` where one of them can't be asked from here."""
        model = self._model  # read once: another thread may forget it meanwhile
        if model is None or anew or monotonic_ms() > self._heard_at_ms + FRESH_MS:
            # As old as the question: what has changed since may not be in the answer.
            asked_at_ms, model = monotonic_ms(), self._cluster.job_model(self._graph.app)
            self._heard_at_ms, self._model = asked_at_ms, model
        if not model.containers:
            raise Unheard("no container runs it now")
        for name in model.containers:
            if self._address(model, name) is None:
                raise Unheard(
                    f"container {name} serves no state that can be reached from here: run it with "
                    "metrics='0.0.0.0:9464' and a token (--metrics, --metrics-token-file), or ':9464' for its machine"
                )
        return model

    def _addresses(self, model: JobModel) -> Collection[str]:
        """Return where containers are asked, each process that has started several once."""
        found = (self._address(model, name) for name in model.containers)
        return [*dict.fromkeys(one for one in found if one is not None)]

    def _address(self, model: JobModel, container: str) -> str | None:
        """Return the address of a container, None where it has none that could be reached from this machine."""
        if container in self._own():
            return HERE
        told = dict(zip(model.containers, model.addresses, strict=False)).get(container, "")
        address, _, machine = told.partition(" ")
        return address if address and machine in ("", platform.node()) else None


class NotHere(Exception):
    """The answer of a container that has no entries to tell, with its status."""

    def __init__(self, status: int, body: bytes) -> None:
        words = _text(body)
        with suppress(msgspec.MsgspecError):
            words = msgspec.json.decode(body, type=_Refused).error
        super().__init__(words)
        self.status = status


class _Refused(msgspec.Struct):
    """The reason that a container gives for having no answer."""

    error: str


class _Moved(Exception):
    """Tasks are in other containers than they were as a range began, and what has moved."""


class _RangeTasks:
    """The tasks that a range has gone through: it is whole where each was in one container, and in one alone."""

    def __init__(self) -> None:
        self._begun: set[int] = set()
        self._of: set[int] = set()
        """The number of tasks, as each container says it; others, where tasks are split or merged meanwhile."""

    def take_in(self, page: StoredAnswer) -> None:
        """Take note of the tasks that begin with a page; raises `_Moved` where one has been gone through already."""
        if page.begins is None:
            raise _Moved("tasks came to a container, or left it, as it was asked")
        if again := self._begun.intersection(page.begins):
            raise _Moved(f"task {min(again)} has moved to another container since")
        self._begun.update(page.begins)
        if page.of:
            self._of.add(page.of)

    def check(self) -> None:
        """Raise `_Moved` unless each task was gone through."""
        if len(self._of) != 1:
            raise _Moved("its tasks were split or merged meanwhile")
        if left := {*range(*self._of)} - self._begun:
            raise _Moved(f"task {min(left)} was in no container, as one that moves is for a while")


class _Kept(StateSnapshot):
    """A snapshot that others look at as well, and that stays when one of them closes it."""

    def __init__(self, snapshot: StateSnapshot) -> None:
        self._snapshot = snapshot

    def tasks(self, store: str) -> Collection[int]:
        return self._snapshot.tasks(store)

    def get(self, store: str, task: int, key: bytes) -> bytes | None:
        return self._snapshot.get(store, task, key)

    def between(self, store: str, task: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return self._snapshot.between(store, task, start, end)

    def close(self) -> None:
        """Do nothing: whoever has opened the state keeps it."""


class OwnContainers(NamedTuple):
    """The containers that a process has started: the names of those that live, and how they are asked, at `HERE`.

    `check` comes before each question, and raises SamzaError where none can be answered.
    """

    names: Callable[[], Collection[str]]
    ask: Callable[[str], tuple[int, bytes]]
    check: Callable[[], None]


class _Opened:
    """A cluster as the first question opens it, which takes brokers' answers; any thread may ask for it."""

    def __init__(self, app: str, cluster: KafkaCluster, check: Callable[[], None] = lambda: None) -> None:
        self._app, self._cluster, self._check = app, cluster, check
        self._opening = Lock()
        self._left_open = ExitStack()
        self._found: ClusterState | None = None
        self._is_closed = False

    def __call__(self) -> ClusterState:
        """Return the cluster; raises SamzaError where it can't be opened, or was closed."""
        self._check()
        with self._opening:
            if self._is_closed:
                raise SamzaError(f"the query of {self._app!r} is closed; write instead: open another one by query(...)")
            if self._found is None:
                # Imported late: who asks the log needs no client of Kafka.
                from runtime.systems.kafka.environment import KafkaEnvironment

                with ExitStack() as opening:
                    folder = opening.enter_context(TemporaryDirectory(prefix="samza-dsl-query-"))
                    self._found = opening.enter_context(closing(KafkaEnvironment(self._cluster, folder)))
                    self._left_open = opening.pop_all()
            return self._found

    def close(self) -> None:
        """Let go of all connections."""
        with self._opening:
            self._is_closed, self._found = True, None
            self._left_open.close()


def far_query(
    graph: Graph, cluster: KafkaCluster, token_file: str | Path | None = None, own: OwnContainers | None = None
) -> FarStateQuery:
    """Return queries of the state of an application on a cluster; nothing is written there, nor on this machine.

    Who closes it lets go of all connections. The cluster is opened at once, and by the first question where containers
    are `own`: an event loop may make it. Raises SamzaError for a token that can't be read.
    """
    token = token_in(token_file)
    if own is None:
        opened = _Opened(graph.app, cluster)
        opened()
        return FarStateQuery(graph, opened, opened.close, token)

    def ask(address: str, path: str, token: str | None) -> tuple[int, bytes]:
        return own.ask(path) if address == HERE else asked_at(address, path, token)

    opened = _Opened(graph.app, cluster, own.check)
    return FarStateQuery(graph, opened, opened.close, token, ask, own.names)


def asked_at(address: str, path: str, token: str | None) -> tuple[int, bytes]:
    """Ask a container over HTTP; return the status and the body of its answer."""
    host, port = address_of(address)
    connection = HTTPConnection(host, port, timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace").strip()


def _together(found: Collection[StoredAnswer]) -> StateSnapshot:
    """Return the state that pages of one answer have together."""
    entries = [entry for one in found for entry in one.stored]
    operator = next((one.operator for one in found), "")
    return StoredAnswer("", operator, entries).snapshot()


def _moved_error(app: str, why: str) -> SamzaError:
    return SamzaError(f"a range of the state of {app!r} can't be gone through to its end: {why}; begin it anew")
