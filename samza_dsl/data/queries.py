"""Queries of an application's committed state from any process, by key and by range, while it runs or not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from operators.async_flat_map import AsyncFlatMap
from operators.core.base import Form, Serde
from operators.core.entry_keys import beyond
from operators.core.sites import here
from operators.io import TableInput
from operators.joins.own_table import OwnTable
from operators.partition_by import hash_
from operators.process import Process
from operators.scan import Scan
from operators.state.keyed_state import STATE, loaded
from operators.task import UserTask
from planner.model.errors import refuse
from runtime.encoding.serdes import Bytes, Evolving, String, Tagged, kept
from runtime.encoding.storable import form_of
from runtime.model.clock import SystemClock, monotonic_ms
from runtime.model.errors import SamzaError
from samza_dsl.fluent.checks import DATA

if TYPE_CHECKING:
    from planner.model.graph import Graph
    from runtime.systems.log.environment import LogEnvironment
    from samza_dsl.application.app import App

KEYED: tuple[type[Process | Scan | AsyncFlatMap], ...] = (Process, Scan, AsyncFlatMap)
"""The operators whose state is one value for each key, as their functions see it."""
ORDERED = (String, Bytes)
"""The serdes whose bytes are in the order of the keys."""
PATIENCE_MS = 5_000.0
"""The longest wait for a commit that a reader has asked for."""
LOOK_MS = 5.0
"""The time between two looks for a commit."""


class _Shape(NamedTuple):
    """The way an operator's entries are stored: a prefix, the serdes of keys and values, and the declared form."""

    prefix: bytes
    key: Serde
    value: Serde
    form: Form | None


class QueriedState:
    """The committed state of one operator: `get` one key, or go through a `range` of them.

    >>> from samza_dsl import query
    >>> app, numbers = example()
    >>> odd = numbers.partition_by(lambda n: n % 2, partitions=1)
    >>> odd.scan(lambda total, n: total + n, init=int, op_id="total").send_to(app.output("totals"))
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = app.run(folder, bind={"numbers": [1, 2, 3]})
    ...     with query(app, folder) as found:
    ...         sorted(found.state("total").range())
    [(0, 2), (1, 4)]
    """

    def __init__(self, query: StateQuery, operator: str, shape: _Shape) -> None:
        self._query, self._operator, self._shape = query, operator, shape

    def get(self, key: object, default: Any = None, *, at_least: Mapping[str, int] | None = None) -> Any:
        """Return the state of a key as of the newest commit, or `default`.

        With `at_least`, the next offset of partition 0 by the stream's name (of others as "orders:3"), it waits for the
        commits that have processed what lies before and all that came of it; raises SamzaError where none come in 5 s.
        """
        query, (prefix, keys, _, _) = self._query, self._shape
        query.wait_for(at_least)
        data = keys.encode(key)
        with closing(query.environment.snapshot(query.app)) as snapshot:
            tasks = snapshot.tasks(self._operator)
            # By default keys are where their hash says: another task is asked only where that one has nothing.
            likely = hash_.partition(key, data, max(tasks) + 1) if tasks else 0
            for task in sorted(tasks, key=lambda task: task != likely):
                stored = snapshot.get(self._operator, task, prefix + data)
                if stored is not None:
                    return self._value(stored)
        return default

    def range(self, start: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield keys with `start` <= key < `end`, all without these, and their states, as of one commit.

        They come task by task, in the order of their bytes. Where `key_type=String()` or `Bytes()` keeps keys in their
        own order, only those of the range are read, else all are looked at. While it goes on, pages of the log stay
        that could be used again. Raises TypeError where keys can't be compared.
        """
        prefix, keys, _, _ = self._shape
        is_ordered = type(keys) in ORDERED
        first = prefix + keys.encode(start) if is_ordered and start is not None else prefix
        last = beyond(prefix) if prefix else None
        if is_ordered and end is not None:
            last = prefix + keys.encode(end)
        with closing(self._query.environment.snapshot(self._query.app)) as snapshot:
            for task in sorted(snapshot.tasks(self._operator)):
                for place, stored in snapshot.between(self._operator, task, first, last):
                    key = keys.decode(place[len(prefix) :])
                    if (start is None or not key < start) and (end is None or key < end):
                        yield key, self._value(stored)

    def _value(self, stored: bytes) -> Any:
        return loaded(self._shape.form, self._shape.value.decode(stored))


class StateQuery:
    """The committed state of an application in a data directory; it reads, and hinders nobody.

    It is used in one thread, and closed at the end of a `with`.

    >>> from samza_dsl import query
    >>> app, numbers = example()
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

    def __init__(self, app: str, graph: Graph, environment: LogEnvironment) -> None:
        self.app, self._graph, self.environment = app, graph, environment
        self._clock = SystemClock()

    def __enter__(self) -> StateQuery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the data directory."""
        self.environment.close()

    def state(self, operator: str) -> QueriedState:
        """Return the state of an operator, by its id; raises PlanError for one that has none that can be asked for."""
        return QueriedState(self, operator, _shape_of(self._graph, operator))

    def wait_for(self, at_least: Mapping[str, int] | None) -> None:
        """Wait for the commit that has processed these streams up to an offset; raises SamzaError where none comes."""
        if not at_least:
            return
        from runtime.opening.stored_state import streams_between

        until_ms = monotonic_ms() + PATIENCE_MS
        self._wait(until_ms, {_place_of(said): offset for said, offset in at_least.items()})
        # What these records have sent on lies between stages then, and each stage sends it to the next.
        between = [name for name, config in self.environment.streams().items() if config.intermediate]
        between = sorted(set(between) & streams_between(self.environment, self.app))
        for _ in between:
            self._wait(until_ms, self._ends(between))

    def _wait(self, until_ms: float, wanted: Mapping[tuple[str, int], int]) -> None:
        while behind := self._behind(wanted):
            if monotonic_ms() >= until_ms:
                told = ", ".join(f"{stream}:{partition} is at {offset}" for (stream, partition), offset in behind)
                raise SamzaError(
                    f"no commit of {self.app!r} has come that far within {PATIENCE_MS / 1_000:.0f} s: {told}; does it "
                    "run?"
                )
            # The doorbell tells of what was appended, and a commit may have appended nothing.
            self._clock.pause_ms(LOOK_MS)

    def _ends(self, streams: Collection[str]) -> dict[tuple[str, int], int]:
        configs = self.environment.streams()
        places = ((name, one) for name in streams for one in range(configs[name].partitions))
        return {place: self.environment.offsets(*place).end for place in places}

    def _behind(self, wanted: Mapping[tuple[str, int], int]) -> list[tuple[tuple[str, int], int]]:
        found: dict[tuple[str, int], int] = {}
        for checkpoint in self.environment.checkpoints(self.app).values():
            for one in checkpoint.positions:
                place = one.stream, one.partition
                found[place] = min(one.offset, found.get(place, one.offset))
        return [(place, found.get(place, 0)) for place, offset in wanted.items() if found.get(place, 0) < offset]


def query(app: App, data: str | Path = DATA) -> StateQuery:
    """Open the committed state of an application in the data directory `data`, for queries from any process.

    Raises SamzaError where there is no such directory. Of an application on Kafka state lies with its containers.

    >>> from samza_dsl import App, query
    >>> app = App("counting")
    >>> words = app.input("words", value=str, key=lambda word: word).partition_by(lambda word: word, partitions=2)
    >>> words.scan(lambda count, word: count + 1, init=int, op_id="count").send_to(app.output("counts"))
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = app.run(folder, bind={"words": ["so", "it", "so"]})
    ...     with query(app, folder) as found:
    ...         found.state("count").get("so"), found.state("count").get("no", 0)
    (2, 0)
    """
    # Imported late, here and above: who only writes a pipeline needs nothing that opens a log.
    from runtime.systems.log.environment import LogEnvironment
    from runtime.systems.log.recovery import DATA_FILE

    path = Path(data)
    if not (path / DATA_FILE).is_file():
        raise SamzaError(
            f"there is no data directory at {path}: a run of {app.name!r} makes one; say data= where it is"
        )
    return StateQuery(app.name, app.graph(), LogEnvironment(path))


def _shape_of(graph: Graph, id: str) -> _Shape:
    from runtime.stores.registry import kind_of

    if id not in graph.specs:
        raise refuse(here(), f"there is no operator {id!r}", f"one of {', '.join(sorted(graph.specs))}")
    spec = graph.specs[id]
    key = graph.key_serde_into(id) or Tagged()
    shape = next((make(graph, id, key) for kind, make in _SHAPES.items() if id in graph.of(kind)), None)
    if shape is None or (not spec.stateful and not spec.looked_into):
        wrong = f"{spec.kind} {id!r} at {spec.site} keeps no state by key that could be asked for"
        raise refuse(
            here(),
            wrong,
            "the id of a process, scan, async_flat_map with state, table or task; of others, read the output",
        )
    if not kind_of(spec).durable:
        wrong = f"{spec.kind} {id!r} at {spec.site} keeps its state in memory, which no other process sees"
        raise refuse(here(), wrong, 'store="lmdb" there')
    return shape


def _of_key(graph: Graph, id: str, key: Serde) -> _Shape:
    state = next(found[id].state for kind in KEYED if id in (found := graph.of(kind)))
    return _Shape(STATE, key, Evolving(), form_of(state))


def _of_table(graph: Graph, id: str, key: Serde) -> _Shape:
    return _Shape(b"", key, kept(graph.of(TableInput)[id].value), None)


def _of_task(graph: Graph, id: str, key: Serde) -> _Shape:
    return _Shape(b"", Tagged(), Evolving(), form_of(graph.of(UserTask)[id].state))


def _of_own_table(graph: Graph, id: str, key: Serde) -> _Shape:
    return _Shape(b"", key, Evolving(), form_of(graph.of(OwnTable)[id].state))


_SHAPES: Mapping[type, Callable[..., _Shape]] = {
    **dict.fromkeys(KEYED, _of_key),
    TableInput: _of_table,
    OwnTable: _of_own_table,
    UserTask: _of_task,
}


def _place_of(said: str) -> tuple[str, int]:
    name, colon, number = said.rpartition(":")
    return (name, int(number)) if colon and number.isdecimal() else (said, 0)
