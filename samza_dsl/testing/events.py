"""The drive of one operator, or a piece of a pipeline, by events, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar, Unpack, overload

from operators.core.durations import Duration, checked_ms, whole_ms
from operators.core.sites import mistake, takes
from operators.joins.table_join import TableJoin
from planner.model.errors import PlanError
from runtime.encoding.serdes import Tagged
from samza_dsl.application.app import App
from samza_dsl.fluent.stream import MessageStream
from samza_dsl.testing.process import Results, VirtualProcess
from samza_dsl.testing.streams import Record

K = TypeVar("K")
R = TypeVar("R")
Stream = MessageStream[Any, Any]
Several = Mapping[str, MessageStream[Any, Any]] | None
Tables = Mapping[str, Mapping[Any, object]]
"""The rows of tables by key, by the names of the tables."""

EVENTS, EMITTED = "events", "emitted"
ELSEWHERE = (
    'drive(lambda stream, users: ..., events, tables={"users": {key: row}}) for a table; for other inputs an app of '
    "your own and testing.running(app)"
)


@dataclass(frozen=True)
class Watermark:
    """An event: a watermark says that event time has come to `ms`. Raises ValueError for anything but an int.

    >>> Watermark(60_000).ms
    60000
    """

    ms: int

    def __post_init__(self) -> None:
        if type(self.ms) is not int:
            raise ValueError(f"{self} is no time in whole ms; write instead: Watermark(60_000)")


@dataclass(frozen=True)
class AdvanceTime:
    """An event: the clock goes on by `ms`, and whatever is due meanwhile happens. Raises ValueError below 1.

    >>> AdvanceTime(500).ms
    500
    """

    ms: Duration

    def __post_init__(self) -> None:
        object.__setattr__(self, "ms", checked_ms("ms", self.ms, least=1))


class DriveOptions(TypedDict, total=False):
    """The options of driving an operator, as those of `app.input`."""

    key: Callable[[Any], object] | None
    timestamp: Callable[[Any], object] | None
    max_disorder_ms: Duration


@overload
def drive(
    operator: Callable[[Stream], MessageStream[K, R]],
    events: Iterable[object],
    *,
    tables: None = None,
    **options: Unpack[DriveOptions],
) -> list[R]: ...


@overload
def drive(
    operator: Callable[[Stream], Several],
    events: Iterable[object],
    *,
    tables: None = None,
    **options: Unpack[DriveOptions],
) -> Results: ...


@overload
def drive(
    operator: Callable[..., MessageStream[K, R]],
    events: Iterable[object],
    *,
    tables: Tables,
    **options: Unpack[DriveOptions],
) -> list[R]: ...


@overload
def drive(
    operator: Callable[..., Several],
    events: Iterable[object],
    *,
    tables: Tables,
    **options: Unpack[DriveOptions],
) -> Results: ...


def drive(
    operator: Callable[..., Stream | Several],
    events: Iterable[object],
    *,
    tables: Tables | None = None,
    key: Callable[..., object] | None = None,
    timestamp: Callable[..., object] | None = None,
    max_disorder_ms: Duration = 0,
) -> list[R] | Results:
    """Return the messages that a piece of a pipeline emits for some events, one after the other.

    `operator` makes the piece of a stream, and of the `tables`: it gets each by its name, which has so many rows by
    key, and may be joined by key or by a function. It may be called twice. An event is a value, a `Record`, a
    `Watermark` or an `AdvanceTime`; `key`, `timestamp` (ms) and `max_disorder_ms` are as those of `app.input`. What
    still waits for a watermark in the end is not emitted.

    Where the operator returns a stream, that is a list. Where it returns several by name, as `branch` does, it is a
    list for each of them; where it returns nothing, as a sink or a task does, what it has written to the outputs that
    it has made. Then the values of dead letters, and of late records, are there by the names of their streams, too.

    Raises ValueError for a piece that can't be driven like this, and what the run fails with.

    >>> from samza_dsl import count, dead_letter, tumbling
    >>> words = [Record("a", key="x", timestamp=1), Record("b", key="x", timestamp=2), Watermark(1_000)]
    >>> drive(lambda stream: stream.window(tumbling(seconds=1), count()), words)
    [Pane(key='x', start=0, end=1000, value=2)]
    >>> drive(lambda words, prices: words.join(prices, lambda word, price: price), words, tables={"prices": {"x": 7}})
    [7, 7]
    >>> drive(lambda stream: {"halves": stream.map(lambda n: 10 // n, on_error=dead_letter("bad"))}, [0, 5])
    {'halves': [2], 'bad': [0]}
    """
    app, names = _piece(operator, list(tables or {}), timestamp, max_disorder_ms)
    process = VirtualProcess(app, {name: list(rows.items()) for name, rows in (tables or {}).items()})
    try:
        process.start()
        for event in events:
            if isinstance(event, Watermark):
                process.streams.append_watermark(EVENTS, event.ms)
            elif not isinstance(event, AdvanceTime):
                record = event if isinstance(event, Record) else Record(event)
                process.streams.append(EVENTS, [record if key is None else replace(record, key=key(record.value))])
            process.proceed(whole_ms(event.ms) / 1_000 if isinstance(event, AdvanceTime) else 0)
        process.settle()
        return _emitted(process, names)
    finally:
        process.close()


def _piece(
    operator: Callable[..., Stream | Several],
    tables: Sequence[str],
    timestamp: Callable[..., object] | None,
    max_disorder_ms: Duration,
) -> tuple[App, dict[str, str] | None]:
    """Return an app that is nothing but the piece, and the output of each stream that it returns; None for one."""
    if not takes(operator, 1, tables):
        wanted = ", ".join(("stream", *tables))
        raise mistake(f"drive(...) got {operator!r}, which does not take {wanted}", f"lambda {wanted}: ...")
    # A table that is joined by a function has to be a broadcast one, and only the joins that the operator makes tell:
    # so it may be called a second time, with other tables.
    by_function: set[str] = set()
    while True:
        app = App("drive")
        stream = app.input(EVENTS, value=Tagged(), key=Tagged(), timestamp=timestamp, max_disorder_ms=max_disorder_ms)
        read = {name: app.table(name, value=Tagged(), key=Tagged(), broadcast=name in by_function) for name in tables}
        try:
            made = operator(stream, **read)
        except PlanError as error:
            if "something of the app" in str(error):
                error.add_note(f"drive(...) makes an app of its own: {ELSEWHERE}")
            raise
        joins = app.graph().of(TableJoin).values()
        joined = {join.table.stream for join in joins if join.on is not None}
        if joined <= by_function:
            return app, _collected(app, made, {EVENTS, *tables})
        by_function = joined


def _collected(app: App, made: object, given: set[str]) -> dict[str, str] | None:
    """Send what the operator returned to outputs, and return their names."""
    for spec in app.graph().inputs.values():
        if spec.stream not in given:
            raise mistake(f"the operator reads {spec.stream!r}, and drive(...) has nothing for it", ELSEWHERE)
    if isinstance(made, MessageStream):
        made.send_to(app.output(EMITTED, value=Tagged()))
        return None
    if made is None and any(spec.terminal for spec in app.graph().specs.values()):
        return {}
    if not isinstance(made, Mapping) or not all(isinstance(each, MessageStream) for each in made.values()):
        wrong = f"the operator that drive(...) got returned {made!r}"
        raise mistake(wrong, "a function that returns a stream, streams by name, or after a sink or a task nothing")
    names = {name: f"{EMITTED}-{number}" for number, name in enumerate(made)}
    for name, each in made.items():
        each.send_to(app.output(names[name], value=Tagged()))
    return names


def _emitted(process: VirtualProcess, names: Mapping[str, str] | None) -> list[R] | Results:
    """Return what the piece has emitted: of one stream, or by name."""
    found = {stream: [one.value for one in process.records(stream)] for stream in process.written()}
    if names is None:
        return found[EMITTED]
    others = {
        stream: [Tagged().decode(data) for data in values] if stream in process.streams.letters else values
        for stream, values in found.items()
        if stream not in names.values()
    }
    twice = ", ".join(sorted(names.keys() & others.keys()))
    if twice:
        raise mistake(f"{twice} names a result of drive(...) and a stream that the operator writes", "another name")
    return {name: found[output] for name, output in names.items()} | others
