"""The run of an application on lists, which returns the lists of its outputs."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy

from msgspec.structs import replace

from operators.core.sites import mistake
from runtime.encoding.serdes import Tagged
from runtime.job.pipeline import Pipeline
from runtime.model.assignment import Scale
from runtime.run.scaling import LOOK_MS
from runtime.spark.session import Spark, check_installed
from samza_dsl.application.app import App
from samza_dsl.testing.process import Results, VirtualProcess, strangers_in
from samza_dsl.testing.schedules import FACTORS, Schedule
from samza_dsl.testing.streams import Record, check_app

AT_ONCE = (1, 1, 2, 5)
"""The numbers of records that come together under a schedule, of which one is drawn each time."""


def run(
    app: App,
    inputs: Mapping[str, Sequence[object]],
    schedule: Schedule | None = None,
    *,
    partitions: Mapping[str, int] | None = None,
    watch: Sequence[str] = (),
    on: Spark | None = None,
    start_ms: int | None = None,
) -> Results:
    """Run `app` on lists until they end, and return the values of its outputs and the bytes of its dead letters.

    An input is a list of values or `Record`s, or a list of such lists, one per partition, for an input with several
    `partitions`, by its declaration or as said here. Where records carry keys, as a table's do, they are (key, value)
    pairs or `Record`s. Streams that are not given are empty. With a `schedule` records come in pieces, what is ready
    runs in another order, and the process dies and begins again. What the operators with an id in `watch` emit is
    returned as well. With `on=Spark()` it runs there, without a schedule, and nothing is watched. Virtual time begins
    at `start_ms`: where that is left out, at 0, or if an input has `max_ahead_ms`, where most of its records are. Warns
    of a join whose sides have keys of types that can't meet, as 7 and "7". Raises ValueError for inputs of another
    shape, and what the run fails with.

    >>> app = App("doubling")
    >>> app.input("numbers", value=int).map(lambda n: n * 2).send_to(app.output("doubles", value=int))
    >>> run(app, {"numbers": [1, 2]})
    {'doubles': [2, 4]}
    >>> run(app, {"numbers": [1, 2]}, Schedule(seed=3))
    {'doubles': [2, 4]}
    """
    check_app("run", app, inputs)
    if on is not None and start_ms is not None:
        raise mistake("run(..., on=Spark(), start_ms=...): Spark goes by the clock on the wall", "no start_ms=")
    if on is not None:
        return _on_spark(app, inputs, partitions or {}, on)
    plan = schedule or Schedule()
    chance = None if schedule is None else random.Random(schedule.seed)
    tables = {table.stream for table in app.graph().tables.values()}
    # Tables are whole from the start under a schedule, too: a row that comes later would be another result.
    at_once = {stream: given for stream, given in inputs.items() if schedule is None or stream in tables}
    process = VirtualProcess(app, at_once, streams=inputs, partitions=partitions, watch=watch, order=chance)
    crashes, versions = iter(plan.crashes), (_split(app, factor) for factor in plan.factors)

    def begin_again() -> None:
        while process.dead:
            process.doom(next(crashes, None))
            process.start(next(versions, None))

    try:
        process.streams.check_patterns()
        process.start_ms = process.streams.time_of_most(inputs) if start_ms is None else start_ms
        for stream in process.streams.inputs():
            if schedule is None or stream in tables:
                process.streams.end(stream)
        begin_again()
        if chance is not None:
            later = {stream: given for stream, given in inputs.items() if stream not in tables}
            _deliver(process, later, chance, begin_again, (len(plan.factors), plan.grown))
        while not process.ended:
            process.finish()
            begin_again()
        for told in process.strangers():
            warnings.warn(told, stacklevel=2)
        return {name: [one.value for one in process.records(name)] for name in (*process.written(), *watch)}
    finally:
        process.close()


def _split(app: App, factor: int | None) -> App:
    """Return the application with tasks that are split by a factor; None is what it says itself, or nothing."""
    if factor is None:
        return app
    split = copy(app)
    split.options = replace(app.options, elasticity=factor)
    return split


def _on_spark(app: App, inputs: Mapping[str, Sequence[object]], partitions: Mapping[str, int], on: Spark) -> Results:
    check_installed()
    from runtime.spark.batch import run_batch

    process = VirtualProcess(app, inputs, streams=inputs, partitions=partitions)
    try:
        process.streams.check_patterns()
        for stream in process.streams.inputs():
            process.streams.end(stream)
        done = run_batch(Pipeline(process.graph, app.options, app.around), process.environment, on=on)
        plan = done.plan
        for told in strangers_in(plan, done.metrics()):
            warnings.warn(told, stacklevel=3)
        return {stream.name: [one.value for one in process.streams.records(stream.name)] for stream in plan.results}
    finally:
        process.close()


def unordered(results: Mapping[str, Sequence[object]]) -> Results:
    """Return results with the values of every stream in an order that depends on nothing but themselves.

    >>> unordered({"out": ["b", "a"]}) == unordered({"out": ["a", "b"]})
    True
    """
    return {stream: sorted(values, key=_place) for stream, values in results.items()}


def _place(value: object) -> bytes:
    try:
        return Tagged().encode(value)
    except Exception:
        return repr(value).encode()


def _deliver(
    process: VirtualProcess,
    inputs: Mapping[str, Sequence[object]],
    chance: random.Random,
    begin_again: Callable[[], None],
    changes: tuple[int, Sequence[int]] = (0, ()),
) -> None:
    """Append the records in pieces, in drawn order of their partitions, and let the run go on a bit in between.

    The `changes` are how often it may be stopped and begun anew, and how many times as many partitions inputs get.
    """
    stops, grown = changes[0], iter(changes[1])
    left = {
        (stream, partition): records
        for stream, given in inputs.items()
        for partition, records in enumerate(process.streams.by_partition(stream, given))
        if records
    }
    while left:
        place = chance.choice(sorted(left))
        number = chance.choice(AT_ONCE)
        stream, partition = place
        process.streams.append(stream, left[place][:number], partition)
        left[place] = left[place][number:]
        if not left[place]:
            del left[place]
        # In one of four cases nothing runs in between, so that pieces also come together.
        match chance.randrange(4):
            case 1:
                process.proceed(turns=chance.randint(1, 5))
            case 2:
                process.proceed()
            case 3:
                process.proceed(chance.random() / 10)
        if changes[0] and chance.randrange(4) == 0:
            _split_live(process, chance)
        if stops and chance.randrange(4) == 0:
            stops -= 1
            process.stop()
            process.die()
        begin_again()
        if left and chance.randrange(3) == 0 and (times := next(grown, 1)) > 1:
            left = _grown(process, left, times)
    for stream in process.streams.inputs():
        process.streams.end(stream)


def _split_live(process: VirtualProcess, chance: random.Random) -> None:
    """Ask for another size of the run, and let it go on until that is taken up, or a bit longer."""
    process.environment.ask_scale(process.graph.app, Scale(chance.choice(FACTORS)))
    process.proceed(LOOK_MS * chance.choice((1, 2)) / 1_000)


def _grown(
    process: VirtualProcess, left: Mapping[tuple[str, int], Sequence[Record]], times: int
) -> dict[tuple[str, int], list[Record]]:
    """Give all inputs that can have more partitions so many times as many; return what is left to come in each."""
    found = {place: [*records] for place, records in left.items()}
    by_stream: dict[str, dict[int, Sequence[Record]]] = {stream: {} for stream in process.streams.inputs()}
    for (stream, partition), records in left.items():
        by_stream.setdefault(stream, {})[partition] = records
    if all(process.streams.can_grow(stream, parts) for stream, parts in by_stream.items()):
        for stream, parts in by_stream.items():
            found = {place: records for place, records in found.items() if place[0] != stream}
            moved = process.streams.grow(stream, times, parts)
            found |= {(stream, partition): records for partition, records in moved.items()}
    return found
