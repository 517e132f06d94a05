"""The laws of an application, tested with Hypothesis: records, disorder, partitions, schedules and crashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack

try:
    import hypothesis
    from hypothesis import Phase, given, settings
    from hypothesis import strategies as st
    from hypothesis.errors import Flaky
except ImportError as error:
    raise ImportError("samza_dsl.laws needs Hypothesis: install samza-dsl[laws], or hypothesis itself") from error

from operators.core.durations import Duration, checked_ms
from operators.core.wording import named
from operators.windows.window import Window
from planner.model.errors import PlanError
from planner.model.graph import Graph
from runtime.model.errors import SamzaError
from runtime.spark.session import Spark
from runtime.stores.registry import kind_of
from samza_dsl.application.app import App
from samza_dsl.testing import CrashPoint, Record, Schedule, Watermark, run, unordered
from samza_dsl.testing.process import Results
from samza_dsl.testing.schedules import FACTORS
from samza_dsl.testing.streams import place_of, reader_of, time_of

K = TypeVar("K")
V = TypeVar("V")

MOST_PARTITIONS = 3
SHRUNK = (Phase.explicit, Phase.generate, Phase.shrink)
"""The phases of Hypothesis; without its explanations, which nobody is shown here."""
UNSHRUNK = (Phase.explicit, Phase.generate)
"""The phases of Hypothesis if every example takes long."""
SEEDS = 1_000
"""The number of schedules that differ by their seed."""


def keys(number: int = 3) -> st.SearchStrategy[str]:
    """Draw one of a few keys, so that records meet under one key.

    >>> from hypothesis import find
    >>> find(keys(), lambda key: key != "a")
    'b'
    """
    return st.sampled_from([*map(chr, range(ord("a"), ord("a") + number))])


@st.composite
def events(
    draw: st.DrawFn,
    make: Callable[[Any, int], st.SearchStrategy[V] | V],
    *,
    keys: st.SearchStrategy[object] | Sequence[object] = ("a", "b", "c"),
    step_ms: Duration = 1_000,
    max_disorder_ms: Duration = 0,
    late_ms: Duration = 0,
    max_size: int = 20,
) -> list[V]:
    """Draw values in the order of their arrival: `make(key, at_ms)` returns one, or a strategy for it.

    From one to the next, time goes on by up to `step_ms`. A value may be behind by up to `max_disorder_ms`, which is
    what the input allows, and by up to `late_ms` more.

    >>> from hypothesis import find
    >>> find(events(lambda key, at_ms: (key, at_ms)), lambda found: len(found) == 2 and found[1][1] > 10)
    [('a', 0), ('a', 11)]
    """
    of_keys = keys if isinstance(keys, st.SearchStrategy) else st.sampled_from(keys)
    most_ms, late = checked_ms("step_ms", step_ms), checked_ms("late_ms", late_ms)
    disorder_ms = checked_ms("max_disorder_ms", max_disorder_ms)
    behind = st.integers(0, disorder_ms + late)
    found, now_ms = [], 0
    for key, step, back in draw(st.lists(st.tuples(of_keys, st.integers(0, most_ms), behind), max_size=max_size)):
        now_ms += step
        made = make(key, max(now_ms - back, 0))
        found.append(draw(made) if isinstance(made, st.SearchStrategy) else made)
    return found


def records(values: st.SearchStrategy[V], **how: Any) -> st.SearchStrategy[list[Record]]:
    """Draw `Record`s with keys and timestamps, in the order of their arrival; `how` is as that of `events`.

    >>> from hypothesis import find
    >>> find(records(st.integers()), lambda found: len(found) == 1)
    [Record(value=0, key='a', timestamp=0, partition=None, offset=None)]
    """
    return events(lambda key, at_ms: values.map(lambda value: Record(value, key, at_ms)), **how)


@st.composite
def partitioned(
    draw: st.DrawFn,
    values: st.SearchStrategy[Sequence[V]],
    partitions: int,
    place_of: Callable[[V], int | None] = lambda value: None,
) -> list[list[V]]:
    """Divide what `values` draws among partitions, each of which keeps its order.

    A value lies anywhere, or where `place_of(value)` is a number, in the partition of that number.

    >>> from hypothesis import find
    >>> find(partitioned(st.just([1, 2, 3]), 2), lambda parts: parts[1] == [2])
    [[1, 3], [2]]
    """
    parts: list[list[V]] = [[] for _ in range(partitions)]
    for value in draw(values):
        place = place_of(value)
        parts[draw(st.integers(0, partitions - 1)) if place is None else place].append(value)
    return parts


@st.composite
def watermarked(
    draw: st.DrawFn, records: st.SearchStrategy[list[Record]], *, max_disorder_ms: Duration = 0
) -> list[Record | Watermark]:
    """Draw records with watermarks between them, as `testing.drive` takes them.

    A watermark is told after any record, or none; it is at most the highest timestamp so far less `max_disorder_ms`,
    and never goes back.

    >>> from hypothesis import find
    >>> find(watermarked(records(st.just(1), step_ms=9)), lambda found: Watermark(5) in found)[-1]
    Watermark(ms=5)
    """
    found: list[Record | Watermark] = []
    highest = told = 0
    disorder_ms = checked_ms("max_disorder_ms", max_disorder_ms)
    for record in draw(records):
        found.append(record)
        highest = max(highest, (record.timestamp or 0) - disorder_ms)
        if told < highest and draw(st.booleans()):
            told = draw(st.integers(told + 1, highest))
            found.append(Watermark(told))
    return found


def inputs(
    app: App, streams: Mapping[str, st.SearchStrategy[Sequence[object]]], *, partitions: Mapping[str, int] | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw what `testing.run` takes: what comes in each stream, in as many `partitions` as the app or this says.

    Records lie in the partition of their key, where they carry one or the app says `partitioned_by_key`, or in the one
    that a `Record` has; others lie anywhere. A stream may be one that a pattern of the app stands for.

    Raises ValueError where the app does not read one of the streams.

    >>> from hypothesis import find
    >>> app = App("doubling")
    >>> app.input("numbers", value=int, partitions=2).send_to(app.output("doubles", value=int))
    >>> find(inputs(app, {"numbers": st.lists(st.integers())}), lambda given: given["numbers"][1])
    {'numbers': [[], [0]]}
    """
    declared = [*app.graph().inputs.values()]

    def divided(stream: str, values: st.SearchStrategy[Sequence[object]]) -> st.SearchStrategy[Sequence[object]]:
        spec = reader_of(declared, stream)
        count = (partitions or {}).get(stream, spec.partitions or 1)
        return values if count == 1 else partitioned(values, count, partial(place_of, spec, count))

    return st.fixed_dictionaries({stream: divided(stream, values) for stream, values in streams.items()})


def crash_points() -> st.SearchStrategy[CrashPoint]:
    """Draw a moment at which a run dies.

    >>> from hypothesis import find
    >>> find(crash_points(), lambda point: point.when == "after_commit" and point.number > 1)
    CrashPoint(when='after_commit', number=2)
    """
    after = st.builds(CrashPoint, st.just("after_commit"), st.integers(1, 3))
    before = st.builds(CrashPoint, st.just("before_commit"), st.integers(1, 3))
    return after | before | st.builds(CrashPoint, st.just("turn"), st.integers(1, 100))


def schedules(max_crashes: int = 3, *, min_crashes: int = 0) -> st.SearchStrategy[Schedule]:
    """Draw how records come, what runs first, and where the process dies, `min_crashes` to `max_crashes` times.

    >>> from hypothesis import find
    >>> find(schedules(), lambda schedule: schedule.seed > 2)
    Schedule(seed=3, crashes=(), factors=(), grown=())
    """
    crashes = st.lists(crash_points(), min_size=min_crashes, max_size=max_crashes).map(tuple)
    return st.builds(Schedule, st.integers(0, SEEDS), crashes)


class LawBroken(AssertionError):
    """The results of an application depend on how it ran."""


@dataclass(frozen=True)
class Case:
    """Two runs of the same records with equal results, by law: one that nothing disturbs, and one disturbed."""

    given: dict[str, Sequence[object]]
    again: dict[str, Sequence[object]]
    schedule: Schedule
    partitions: Mapping[str, int]
    partitions_again: Mapping[str, int]
    on: Spark | None = None
    """The Spark on which the results differed; None if they differed here."""

    def outcomes(self, app: App, watch: Sequence[str] = ()) -> tuple[Results, Results]:
        """Return the results of both."""
        calm = _outcome(app, self.given, None, self.partitions, watch)
        return calm, _outcome(app, self.again, self.schedule, self.partitions_again, watch)

    def __str__(self) -> str:
        if self.partitions == self.partitions_again:
            return f"with the inputs {self.given} and {self.schedule}"
        return f"with the inputs {self.given}, and divided otherwise, as {self.again} and {self.schedule}"


class Disturbance(TypedDict, total=False):
    """The disturbances of a run: up to so many crashes (3), by a seed, with tasks that are split and merged or not."""

    max_crashes: int
    seed: int | None
    rescale: bool


def check_laws(
    app: App,
    inputs: Mapping[str, st.SearchStrategy[Sequence[object]]],
    *,
    partitions: Mapping[str, int] | None = None,
    examples: int = 100,
    on: Spark | None = None,
    **how: Unpack[Disturbance],
) -> None:
    """Look for inputs for which the results of `app`, whatever their order, depend on how it runs.

    `inputs` says what may come in each stream, and `partitions` in how many, as for `laws.inputs`. So many examples
    are run, each without disturbance and then in pieces of any size, in another order, with async calls that end in
    another order, and with crashes and restarts. Where neither the app nor `partitions` says in how many a stream lies,
    and state by key allows it, its records are also divided otherwise, in the order of their times, so that nothing is
    late by that, unless there are timers, a `ttl_ms` or a `deduplicate`, which look at a whole partition. What a sink
    is called with is no result: it may be called again after a crash. Early panes are left out: which there are depends
    on what came first. With a `seed` the examples are the same each time. With `rescale` tasks are split and merged as
    well, while they run and from one restart to the next, and what is divided otherwise gets more partitions while
    records come. With `on=Spark()` each is run there, too, which takes a second or so: say fewer `examples`, and the
    smallest one is not looked for.

    Raises `LawBroken` with the smallest example that was found, and the first operator that emits something else.

    >>> app = App("numbering")
    >>> numbers = app.input("numbers", value=int, partitions=2).partition_by(lambda n: "all", op_id="all")
    >>> numbered = numbers.scan(lambda seen, n: seen + 1, init=int, emit=lambda key, seen: seen)
    >>> numbered.send_to(app.output("numbers-seen", value=int))
    >>> check_laws(app, {"numbers": st.lists(st.integers(), max_size=5)}, examples=20)
    """
    max_crashes, seed, rescale = how.get("max_crashes", 3), how.get("seed"), how.get("rescale", False)
    broken: list[tuple[Case, Results, Results]] = []
    final = _without_early(app)

    phases = SHRUNK if on is None else UNSHRUNK

    @settings(max_examples=examples, deadline=None, print_blob=False, database=None, phases=phases)
    @given(_cases(final, inputs, partitions or {}, _schedules(max_crashes, rescale), rescale))
    def law(case: Case) -> None:
        calm, disturbed = case.outcomes(final)
        if calm != disturbed:
            broken[:] = [(case, calm, disturbed)]
            raise LawBroken
        if on is not None and calm != (elsewhere := _outcome(final, case.given, None, case.partitions, on=on)):
            broken[:] = [(replace(case, on=on), calm, elsewhere)]
            raise LawBroken

    try:
        (law if seed is None else hypothesis.seed(seed)(law))()
    # Flaky as well: where a function goes by chance or the clock, the smallest example may not fail a second time.
    except (LawBroken, Flaky):
        raise LawBroken(_told(final, *broken[0])) from None


REMEMBERS = "it is not so each time that it runs: a function of it remembers, or goes by chance or the clock"
CLAIMS = {"reduce": "commutative=True", "fold": "merge="}
"""The argument by which a user claims that the order of values does not matter, by aggregation."""
THE_RUN = "the run"
"""The name under which the error of a run stands among its results."""


def _schedules(max_crashes: int, rescale: bool) -> st.SearchStrategy[Schedule]:
    """Draw a schedule without crashes or with some; with `rescale` one by which tasks are split and merged."""
    found = schedules(0) | schedules(max_crashes, min_crashes=min(max_crashes, 1))
    if not rescale:
        return found
    factors = st.lists(st.sampled_from((*FACTORS, None)), min_size=2, max_size=5).map(tuple)
    return st.builds(lambda one, factors: replace(one, factors=factors), found, factors)


def _cases(
    app: App,
    streams: Mapping[str, st.SearchStrategy[Sequence[object]]],
    partitions: Mapping[str, int],
    disturbances: st.SearchStrategy[Schedule],
    rescale: bool,
) -> st.SearchStrategy[Case]:
    disturbed = st.builds(
        lambda given, schedule: Case(given, given, schedule, partitions, partitions),
        inputs(app, streams, partitions=partitions),
        disturbances,
    )
    divisible = [stream for stream in _divisible(app) if stream in streams and stream not in partitions]
    if not divisible or not _can_be_divided(app, divisible, partitions):
        return disturbed
    return disturbed | _divided_otherwise(app, streams, partitions, divisible, rescale)


@st.composite
def _divided_otherwise(
    draw: st.DrawFn,
    app: App,
    streams: Mapping[str, st.SearchStrategy[Sequence[object]]],
    partitions: Mapping[str, int],
    divisible: Sequence[str],
    rescale: bool,
) -> Case:
    """Draw records in the order of their times, which lie once in one partition each, and once in several.

    With `rescale` these get more while records come, and tasks are split and merged.
    """
    declared = {spec.stream: spec for spec in app.graph().inputs.values()}
    others = {stream: values for stream, values in streams.items() if stream not in divisible}
    given = draw(inputs(app, others, partitions=partitions)) if others else {}
    again, number = dict(given), draw(st.integers(2, MOST_PARTITIONS))
    for stream in divisible:
        spec = declared[stream]
        given[stream] = sorted(draw(streams[stream]), key=partial(time_of, spec))
        again[stream] = draw(partitioned(st.just(given[stream]), number, partial(place_of, spec, number)))
    counts = {**partitions, **dict.fromkeys(divisible, 1)}
    schedule = draw(_schedules(1, rescale) if rescale else schedules(0))
    if rescale:
        grown = draw(st.lists(st.sampled_from((2, 3)), max_size=2).map(tuple))
        schedule = replace(schedule, grown=grown)
    return Case(given, again, schedule, counts, {**counts, **dict.fromkeys(divisible, number)})


def _divisible(app: App) -> list[str]:
    """Return the streams whose number of partitions the application does not say."""
    return [one.stream for one in app.graph().flowing if not (one.partitions or one.is_pattern)]


def _can_be_divided(app: App, streams: Sequence[str], partitions: Mapping[str, int]) -> bool:
    """Whether results stay: state by key allows it, and nothing goes by how far a partition's event time has come."""
    if any(spec.beyond_keys for spec in app.graph().specs.values()):
        return False
    try:
        app.plan({**partitions, **dict.fromkeys(streams, MOST_PARTITIONS)})
    except PlanError:
        return False
    return True


def _outcome(
    app: App,
    given: Mapping[str, Sequence[object]],
    schedule: Schedule | None,
    partitions: Mapping[str, int],
    watch: Sequence[str] = (),
    on: Spark | None = None,
) -> Results:
    """Return the results in an order of their own; of a run that fails the error, which is a result as well."""
    try:
        return unordered(run(app, given, schedule, partitions=partitions, watch=watch, on=on))
    except SamzaError as error:
        return {THE_RUN: [f"{named(error.__cause__ or error)}"]}


def _told(app: App, case: Case, calm: Results, disturbed: Results) -> str:
    """Return the text of a broken law: the difference, the operator where it begins, and the example."""
    names = sorted({**calm, **disturbed}, key=lambda name: name != THE_RUN)
    name = next((name for name in names if calm.get(name) != disturbed.get(name)), names[0])
    if case.on is not None:
        differs = f"{name!r} has {disturbed.get(name, [])} on Spark, and {calm.get(name, [])} where it runs live"
        return f"the results depend on where the app runs: {differs}; with the inputs {case.given}"
    differs = f"{name!r} has {disturbed.get(name, [])}, and {calm.get(name, [])} where nothing disturbs the run"
    emitting = [id for id, spec in app.graph().specs.items() if not spec.terminal and not spec.source]
    calm, disturbed = case.outcomes(app, emitting)
    first = next((id for id in emitting if calm.get(id) != disturbed.get(id)), None)
    where = REMEMBERS if first is None else _blamed(app.graph(), first, case.schedule)
    return f"the results depend on how the app runs: {differs}; {where}; {case}"


def _blamed(graph: Graph, id: str, schedule: Schedule) -> str:
    """Return advice about the first operator that emits something else."""
    spec, window = graph.specs[id], graph.of(Window).get(id)
    aggregation = None if window is None else window.aggregation
    if schedule.crashes and not (kind := kind_of(spec)).durable:
        why = f'its state is in memory alone, and gone after a crash: leave out store="{kind.name}"'
    elif spec.order_sensitive:
        what = f"its {aggregation.name} is not commutative: " if aggregation is not None else ""
        why = (
            f"{what}it depends on the order of its messages, which is any where those of a key come from several "
            "partitions or calls: let its function commute, or let all messages of a key come from one partition"
        )
    elif aggregation is not None and aggregation.name in CLAIMS:
        claim = CLAIMS[aggregation.name]
        why = (
            f"its {aggregation.name} says by {claim} that the order of its values does not matter, and it does, "
            f"unless a function of it remembers: let it commute, or leave {claim} out"
        )
    elif spec.wall_clock:
        why = "it goes by the clock"
    else:
        why = "a function of it returns something else for the same value: it remembers, or goes by chance or the clock"
    return f"it begins at {spec.kind} {spec.op_id!r} at {spec.site}: {why}"


def _without_early(app: App) -> App:
    """Return the application with windows that have no early panes, and else as it is.

    >>> from samza_dsl import after_count, count, tumbling
    >>> app = App("counts")
    >>> numbers = app.input("numbers", value=int, key=str, timestamp=lambda n: n)
    >>> counts = numbers.window(tumbling(seconds=1), count(), early=after_count(1), op_id="counts")
    >>> counts.map(lambda pane: pane.timing).send_to(app.output("counted", value=str))
    >>> from samza_dsl import testing
    >>> given = {"numbers": [("a", 1), ("a", 2)]}
    >>> [testing.run(one, given)["counted"] for one in (app, _without_early(app))]
    [['early', 'early', 'on_time'], ['on_time']]
    """
    graph = app.graph()
    windows = graph.of(Window)
    if not any(window.early for window in windows.values()):
        return app
    final = copy(app)
    final._specs = {}
    for id, spec in graph.specs.items():
        parents = tuple(final._specs[parent.op_id or ""] for parent in spec.parents)
        final._specs[id] = (
            replace(windows[id], parents=parents, early=None) if id in windows else replace(spec, parents=parents)
        )
    return final
