"""The committed state of an application, asked for by key and by range while it runs or not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any

from operators.core.base import Site
from operators.core.durations import Duration, checked_ms
from operators.core.sites import here
from planner.model.errors import refuse
from runtime.model.clock import SystemClock, monotonic_ms
from runtime.model.errors import SamzaError
from runtime.ports.environment import Environment, LiveEnvironment, QueryableEnvironment
from runtime.ports.state import StateSnapshot

if TYPE_CHECKING:
    from planner.model.graph import Graph
    from runtime.queries.state_shape import StateShape

PATIENCE_MS = 5_000
"""The longest wait for a commit that a reader has asked for, if it says no other."""
LOOK_MS = 5.0
"""The time between two looks for a commit."""
_NOTHING = object()
Values = list[Any]
"""The values of a list: the class below has a `list` of its own."""


class QueriedState:
    """The committed state of one operator: `get` one key, its `list` or `map`, or go through a `range` of keys.

    The state of windows is what they have come to so far, each a `Pane` that says so by its timing.

    >>> from samza_dsl import App, query
    >>> app = App("example")
    >>> numbers = app.input("numbers", value=int, timestamp=lambda n: n)
    >>> odd = numbers.partition_by(lambda n: n % 2, partitions=1)
    >>> odd.scan(lambda total, n: total + n, init=int, op_id="total").send_to(app.output("totals"))
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = app.run(folder, bind={"numbers": [1, 2, 3]})
    ...     with query(app, folder) as found:
    ...         sorted(found.state("total").range())
    [(0, 2), (1, 4)]
    """

    def __init__(self, query: StateQuery, shape: StateShape) -> None:
        self._query, self.shape = query, shape
        self._tasks = 0
        """The number of tasks as of the last look, by which a key's likely task is asked before it is looked again."""

    def get(
        self,
        key: object,
        default: Any = None,
        *,
        at_least: Mapping[str, int] | None = None,
        timeout_ms: Duration = PATIENCE_MS,
    ) -> Any:
        """Return the state of a key as of the newest commit, or `default`; of windows, a list of panes by their start.

        With `at_least`, the next offset of partition 0 by the stream's name (of others as "orders:3"), it waits for the
        commits that have processed what lies before and all that came of it; raises SamzaError where none come within
        `timeout_ms`, and where to wait would hold up an event loop, and PlanError for a stream that is not read, or a
        key that is of another type than is declared.
        """
        snapshot = self._query.looked(at_least, timeout_ms, self.shape, key)
        try:
            return self.in_snapshot(snapshot, key, default)
        finally:
            snapshot.close()

    def in_snapshot(self, snapshot: StateSnapshot, key: object, default: Any = None) -> Any:
        """Return the state of a key as a snapshot has it."""
        shape, data = self.shape, self.shape.placed(key)
        # By default keys are where their hash says: other tasks are asked only where that one has nothing.
        if self._tasks:
            found = self._found(snapshot, shape.likely(key, data, self._tasks), key, data)
            if found is not _NOTHING:
                return found
        tasks = snapshot.tasks(shape.operator)
        self._tasks = max(tasks, default=-1) + 1
        likely = shape.likely(key, data, self._tasks) if self._tasks else 0
        for task in sorted(tasks, key=lambda task: task != likely):
            found = self._found(snapshot, task, key, data)
            if found is not _NOTHING:
                return found
        shape.check_key(key, data)
        return default

    def _found(self, snapshot: StateSnapshot, task: int, key: object, data: bytes) -> Any:
        """Return what a task has of a key, or that there is nothing."""
        found = self.shape.found(snapshot, task, key, data)
        if not found:
            return _NOTHING
        if self.shape.windows:
            return sorted(found, key=lambda pane: (pane.start, pane.end, pane.index))
        return found[0]

    def range(
        self,
        start: Any = None,
        end: Any = None,
        *,
        at_least: Mapping[str, int] | None = None,
        timeout_ms: Duration = PATIENCE_MS,
    ) -> Iterator[tuple[Any, Any]]:
        """Yield keys with `start` <= key < `end`, all without these, and their states, as of one commit.

        They come task by task, in the order of their bytes; of windows each pane comes by itself, with its key. Where
        `key_type=String()` or `Bytes()` keeps keys in their own order, only those of the range are read, else all are
        looked at. While it goes on, pages of the log stay that could be used again. Raises TypeError where keys can't
        be compared, and SamzaError as `get` does.
        """
        with closing(self._query.pages(at_least, timeout_ms, self.shape, start, end)) as pages:
            for snapshot in pages:
                yield from filter(None, self.scanned(snapshot, start, end))

    def list(
        self, key: object, name: str, *, at_least: Mapping[str, int] | None = None, timeout_ms: Duration = PATIENCE_MS
    ) -> Values:
        """Return the values of the list that `context.list(name)` is for a key, as of the newest commit, or [].

        Raises PlanError where the operator is no `process`, and SamzaError as `get` does.

        >>> from samza_dsl import App, query
        >>> app = App("example")
        >>> read = app.input("numbers", value=int, timestamp=lambda n: n)
        >>> numbers = read.partition_by(lambda n: n % 2, partitions=1)
        >>> def remember(number, context):
        ...     context.list("seen").append(number)
        ...     context.map("squares")[number] = number * number
        ...     return []
        >>> numbers.process(remember, op_id="remember").send_to(app.output("none"))
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = app.run(folder, bind={"numbers": [1, 2, 3]})
        ...     with query(app, folder) as found:
        ...         found.state("remember").list(1, "seen"), found.state("remember").map(1, "squares")
        ([1, 3], {1: 1, 3: 9})
        """
        self._check_collections(name)
        with closing(self._query.looked(at_least, timeout_ms, self.shape, key, ("list", name))) as snapshot:
            return self.collected(snapshot, key, name, self.shape.listed)

    def map(
        self, key: object, name: str, *, at_least: Mapping[str, int] | None = None, timeout_ms: Duration = PATIENCE_MS
    ) -> dict[Any, Any]:
        """Return the map that `context.map(name)` is for a key, as of the newest commit, or {}; else as `list` does."""
        self._check_collections(name)
        with closing(self._query.looked(at_least, timeout_ms, self.shape, key, ("map", name))) as snapshot:
            return dict(self.collected(snapshot, key, name, self.shape.mapped))

    def collected(
        self,
        snapshot: StateSnapshot,
        key: object,
        name: str,
        read: Callable[[StateSnapshot, int, bytes, str], Iterator[Any]],
        most: int | None = None,
    ) -> Values:
        """Return what a list or a map of a key has in a snapshot, as `read` yields it; at most so many entries."""
        shape, data = self.shape, self.shape.placed(key)
        tasks = snapshot.tasks(shape.operator)
        likely = shape.likely(key, data, max(tasks, default=0) + 1)
        each = (read(snapshot, task, data, name) for task in sorted(tasks, key=lambda task: task != likely))
        found: Values = next(filter(None, ([*islice(entries, most)] for entries in each)), [])
        if not found:
            shape.check_key(key, data)
        return found

    def _check_collections(self, name: str) -> None:
        if self.shape.collections is None:
            wrong = f"{self.shape.kind} {self.shape.operator!r} has no lists and maps of a key"
            raise refuse(here(), wrong, "get(key), or the id of a process")
        if not name:
            raise refuse(here(), "a list or a map without a name is none", "the name that context.list(name) has")

    def scanned(self, snapshot: StateSnapshot, start: Any, end: Any) -> Iterator[tuple[Any, Any] | None]:
        """Yield keys and their states as a snapshot has them, task by task; None for a key that is not in the range."""
        from runtime.queries.state_shape import KeyBounds

        for task in sorted(snapshot.tasks(self.shape.operator)):
            yield from self.shape.scanned(snapshot, task, KeyBounds(start, end))


class StateQuery:
    """The committed state of an application; it reads, and hinders nobody.

    Any thread may ask. It is closed at the end of a `with`; a range that is under way goes on to its end.

    >>> from samza_dsl import App, query
    >>> app = App("example")
    >>> numbers = app.input("numbers", value=int, timestamp=lambda n: n)
    >>> def last(number, context):
    ...     context.state = number
    ...     return []
    >>> numbers.partition_by(lambda n: "any", partitions=1).process(last, op_id="last").send_to(app.output("none"))
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = app.run(folder, bind={"numbers": [1, 2, 3]})
    ...     with query(app, folder) as found:
    ...         found.state("last").get("any")
    3
    """

    def __init__(
        self,
        graph: Graph,
        opened: Callable[[], AbstractContextManager[QueryableEnvironment]],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._graph, self._opened, self.close = graph, opened, close
        self._clock = SystemClock()

    def __enter__(self) -> StateQuery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def state(self, operator: str) -> QueriedState:
        """Return the state of an operator, by its id; raises PlanError for one that has none that can be asked for."""
        # Imported late, as below: whoever only writes a pipeline imports this module for its types.
        from runtime.queries.state_shape import shape_of

        return QueriedState(self, shape_of(self._graph, operator))

    @contextmanager
    def snapshot(self) -> Iterator[StateSnapshot]:
        """Return the state as of one commit during a block; raises SamzaError where it lies elsewhere."""
        with closing(self.held()) as snapshot:
            yield snapshot

    def held(self) -> StateSnapshot:
        """Return the state as of one commit, which the caller closes; raises SamzaError where it lies elsewhere."""
        with self._opened() as environment:
            return environment.snapshot_here(self._graph.app)

    def looked(
        self,
        at_least: Mapping[str, int] | None,
        timeout_ms: Duration,
        shape: StateShape,
        key: object,
        of: tuple[str, str] | None = None,
    ) -> StateSnapshot:
        """Return state that has what is committed of one key, or `of` its list or map, which the caller closes.

        Here it is all state; elsewhere no more is fetched than that. Waits, and raises, as `wait_for` and `held` do.
        """
        self.wait_for(at_least, timeout_ms)
        return self.held()

    def pages(
        self, at_least: Mapping[str, int] | None, timeout_ms: Duration, shape: StateShape, start: object, end: object
    ) -> Generator[StateSnapshot]:
        """Yield states that together have the range, each as long as nobody asks for the next; else as `looked`."""
        self.wait_for(at_least, timeout_ms)
        with self.snapshot() as snapshot:
            yield snapshot

    def wait_for(self, at_least: Mapping[str, int] | None, timeout_ms: Duration) -> None:
        """Wait for the commit that has processed these streams up to an offset; raises SamzaError where none comes."""
        if not at_least:  # as most often: it is a part of each read
            return
        for _ in self.waits(at_least, timeout_ms, here):
            check_may_wait()
            # The doorbell tells of what was appended, and a commit may have appended nothing.
            self._clock.pause_ms(LOOK_MS)

    def waits(
        self, at_least: Mapping[str, int] | None, timeout_ms: Duration, asked: Callable[[], Site | None] = lambda: None
    ) -> Iterator[None]:
        """Yield as long as a commit that has come so far is to be waited for; raises SamzaError after `timeout_ms`.

        Raises PlanError for a stream that is not read, with the line where it was `asked`.
        """
        if not at_least:
            return
        wanted = {_place_of(said): offset for said, offset in at_least.items()}
        self.check_read(at_least, asked)
        between = _between(self._graph)
        with self._opened() as environment:
            patience_ms = checked_ms("timeout_ms", timeout_ms)
            until_ms = monotonic_ms() + patience_ms
            yield from self._waits(environment, until_ms, patience_ms, wanted)
            # What these records have sent on lies between stages then, and each stage sends it to the next.
            existing = sorted(environment.streams(between))
            for _ in existing:
                yield from self._waits(environment, until_ms, patience_ms, _ends(environment, existing))

    def check_read(self, at_least: Iterable[str], asked: Callable[[], Site | None]) -> None:
        """Refuse a stream whose offsets no commit will ever tell of; raises PlanError."""
        read, between = self._graph.inputs.values(), _between(self._graph)
        for stream, _ in map(_place_of, at_least):
            if not any(one.matches(stream) for one in read) and stream not in between:
                known = ", ".join(sorted(one.stream for one in read))
                raise refuse(asked(), f"at_least: {self._graph.app!r} does not read {stream!r}", f"one of {known}")

    def _waits(
        self,
        environment: QueryableEnvironment,
        until_ms: float,
        timeout_ms: float,
        wanted: Mapping[tuple[str, int], int],
    ) -> Iterator[None]:
        while behind := self._behind(environment, wanted):
            if monotonic_ms() >= until_ms:
                told = ", ".join(f"{stream}:{partition} is at {offset}" for (stream, partition), offset in behind)
                raise NotReached(
                    f"no commit of {self._graph.app!r} has come that far within {timeout_ms / 1_000:g} s: {told}; does "
                    "it run?"
                )
            yield

    def _behind(
        self, environment: QueryableEnvironment, wanted: Mapping[tuple[str, int], int]
    ) -> list[tuple[tuple[str, int], int]]:
        found: dict[tuple[str, int], int] = {}
        for checkpoint in environment.progress(self._graph.app).values():
            for one in checkpoint.positions:
                place = one.stream, one.partition
                found[place] = min(one.offset, found.get(place, one.offset))
        return [(place, found.get(place, 0)) for place, offset in wanted.items() if found.get(place, 0) < offset]


def check_may_wait() -> None:
    """Refuse to wait in the thread of an event loop; raises SamzaError."""
    from asyncio import get_running_loop

    with suppress(RuntimeError):
        get_running_loop()
        raise SamzaError(
            "at_least= waits for a commit, and would hold up the event loop of this thread; write instead: "
            "await asyncio.to_thread(state.get, key, at_least=...)"
        )


def queryable(environment: Environment, app: str) -> QueryableEnvironment:
    """Return an environment as one whose state can be asked for; raises SamzaError where it can't."""
    if not isinstance(environment, QueryableEnvironment):
        raise SamzaError(
            f"state of {app!r} in {environment} can't be asked for: write instead: app.run(data), with a directory"
        )
    return environment


def ended_error(app: str, cluster: str) -> SamzaError:
    """Return the error that a run on Kafka is over, which had the state that it is asked for."""
    return SamzaError(
        f"the run of {app!r} has ended, and its state lies in its changelogs; write instead: "
        f"query(app, environment={cluster!r})"
    )


class NotReached(SamzaError):
    """No commit has come as far as a reader wanted, within the time that it had."""


def _between(graph: Graph) -> set[str]:
    """Return the streams between stages, from the plan: a task that has committed nothing yet tells of none."""
    from planner.model.graph import intermediate
    from runtime.opening.regrouping import stream_behind

    found = {
        intermediate(graph.app, id) for id, spec in graph.specs.items() if spec.repartitions and graph.children(id)
    }
    # Those through which a run may regroup what topics that were given more partitions have.
    return found | {stream_behind(graph, id) for id in graph.inputs}


def _ends(environment: Environment, streams: Collection[str]) -> dict[tuple[str, int], int]:
    if isinstance(environment, LiveEnvironment):
        # What is fetched ahead here may be older than what another container has committed.
        written = ((name, number, end) for name in streams for number, end in enumerate(environment.written(name)))
        return {(name, number): end for name, number, end in written}
    configs = environment.streams(streams)
    places = ((name, one) for name in streams for one in range(configs[name].partitions))
    return {place: environment.offsets(*place).end for place in places}


def _place_of(said: str) -> tuple[str, int]:
    name, colon, number = said.rpartition(":")
    return (name, int(number)) if colon and number.isdecimal() else (said, 0)
