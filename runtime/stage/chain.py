"""One stage in one task: fused segments, and behind them the operators that keep state, write, or await."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, repeat
from typing import Any, Protocol, cast

from operators.core.base import (
    EVENT_COLUMNS,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    NEVER,
    Batch,
    Clocked,
    Holding,
    Operator,
    ReadingOn,
    TellingKeys,
)
from operators.core.wording import askable
from operators.state.key_cache import KeyStates
from planner.codegen.counters import teller
from planner.codegen.folding import windows_at
from planner.codegen.fusion import LONGEST_RUN, Segment, compile_segment, fuse
from planner.model.errors import PlanError
from planner.model.graph import Graph
from planner.model.levers import ALL, Levers
from planner.model.plan import SegmentPlan, StagePlan
from runtime.encoding.lines import rows_in
from runtime.functions.at_work import tells
from runtime.functions.failures import Failure, Whence, attributed, locate, row_of, trace_into
from runtime.functions.first_call import CheckedAggregations, check_fused, check_kept
from runtime.model.errors import NO_RECORDS_FAULT
from runtime.reading.folding import Folded, FoldingSegment
from runtime.reading.watermarks import is_constant
from runtime.stage.exits import NO_TIME, SendToExit, SinkExit


class Exit(Protocol):
    """The taker of the rows that leave a segment; of keys and event times it is given the `columns` that it reads."""

    @property
    def columns(self) -> frozenset[str]:
        """The members of EVENT_COLUMNS that it reads."""

    def take(self, batch: Batch) -> Batch | None:
        """Take rows in; what is returned goes on below the operator."""


class Folding(Protocol):
    """An exit that takes in what a folding loop has grouped."""

    def fold(self, groups: Any, late: Batch) -> None:
        """Let it take effect."""


@dataclass
class Counts:
    """The counts of messages: those that enter segments, those that leave, and those that only a segment can count."""

    entered: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)

    def enter(self, plan: SegmentPlan, number: int, counted: Iterable[int]) -> None:
        """Count what a segment took in, and what it counted itself."""
        self.entered[plan.entry] = self.entered.get(plan.entry, 0) + number
        numbers = iter(counted)
        for id, passed in zip(plan.counted, numbers, strict=False):
            self.counted[id] = self.counted.get(id, 0) + passed
        for operator in plan.keyed:
            self.leave(operator.id, number if operator.whole else next(numbers))

    def leave(self, exit: str, number: int) -> None:
        """Count what left a segment."""
        if number:
            self.left[exit] = self.left.get(exit, 0) + number

    def copy(self) -> Counts:
        """Return counts of their own."""
        return Counts(dict(self.entered), dict(self.left), dict(self.counted), dict(self.late))


class FusedSegment:
    """A generated function at work: batches in, and per exit the rows that reach it."""

    def __init__(
        self,
        plan: SegmentPlan,
        graph: Graph,
        functions: Mapping[str, Mapping[str, Any]],
        columns: frozenset[str],
        exits: Mapping[str, Exit],
        levers: Levers,
    ) -> None:
        self.plan = plan
        unread = {exit.id: EVENT_COLUMNS - exits[exit.id].columns if levers.columns else () for exit in plan.exits}
        new_keys = {exit.id: {"keys"} for exit in plan.exits if graph.specs[exit.operators[0]].rekeys}
        self._columns = {id: columns.difference(names, new_keys.get(id, ())) for id, names in unread.items()}
        self._carried = frozenset[str]().union(*self._columns.values())
        self._gathered: set[str] = set()
        """Exits whose values stand for several rows."""
        self._keeps = plan.calls or bool(plan.keyed)
        """Whether somebody's code may change a value that was sent, which is kept as it was then."""
        self._together = self._encoders(exits) if levers.together else {}
        self._unencoded: Segment | None = None
        if self._together:
            self._unencoded, _ = compile_segment(plan, self._encoding_later(functions, exits), plain=not self._keeps)
            check_fused(self._unencoded, graph)
        self._encode = {id: functions[id]["encode"] for id in functions if "encode" in functions[id]}
        self._full, filename = compile_segment(plan, functions)
        self._plain, plain_name = compile_segment(plan, functions, plain=True)  # the last: its source tracebacks show
        self.lines = {filename: plan.lines, plain_name: plan.plain_lines}
        for function in (self._full, self._plain):
            check_fused(function, graph)

    def needs(self, column: str) -> bool:
        """Whether it reads a column, or carries it on."""
        return column in self._carried or column in self.plan.reads

    def run(self, batch: Batch, counts: Counts) -> list[tuple[str, Batch]]:
        """Return the rows that reach each exit, in order, with the columns that something downstream reads."""
        plan = self.plan
        if "timestamps" in plan.reads and batch.timestamps is None:
            raise Failure(plan.keyed[0].id, ValueError(NO_TIME))
        if "origins" in self._carried and batch.origins is None:
            batch.origins = [Whence(plan.entry).headers()] * len(batch)
        carried = {name: column for name in self._carried if (column := getattr(batch, name)) is not None}
        read: dict[str, Any] = {name: getattr(batch, name) or repeat(None) for name in plan.reads}
        if plan.reading:
            read["keys"] = []
        makes_keys = plan.reading and "keys" in self._carried
        is_plain = not makes_keys and all(map(is_constant, carried.values()))
        if self._unencoded is not None and self._keeps:
            results = self._run_keeping(self._unencoded, batch.values, read)
        elif self._unencoded is not None and is_plain:
            results = self._run_together(self._unencoded, batch.values, read)
        else:
            results = (self._plain if is_plain else self._full)(batch.values, **read)
        if makes_keys:
            carried["keys"] = read["keys"]
        counts.enter(plan, len(batch.values), results[-1])
        found = []
        for exit, (values, rows, *new_keys) in zip(plan.exits, results, strict=False):
            if values:
                counts.leave(exit.id, sum(map(rows_in, values)) if exit.id in self._gathered else len(values))
                out = Batch(values, *new_keys)
                for name in self._columns[exit.id] & carried.keys():
                    column = carried[name]
                    if rows is not None:
                        column = list(map(column.__getitem__, rows))
                    elif len(column) != len(values):
                        column = [column[0]] * len(values)
                    setattr(out, name, column)
                found.append((exit.id, out))
        return found

    def _encoders(self, exits: Mapping[str, Exit]) -> dict[str, Callable[[list[Any]], list[Any]]]:
        """Return what encodes all that goes to an exit, behind the loop: nobody's code can change it in between."""
        found: dict[str, Callable[[list[Any]], list[Any]]] = {}
        for plan in self.plan.exits:
            id, exit = plan.id, exits[plan.id]
            if not isinstance(exit, SendToExit):
                continue
            if self._keeps and (
                exit.keep is None or len(plan.operators) > 1
            ):  # of several nobody could tell which failed
                continue
            if exit.together is not None and not self._columns[id]:
                found[id] = exit.together
                self._gathered.add(id)
            elif exit.encode_all is not None:
                found[id] = exit.encode_all
        return found

    def _encoding_later(
        self, functions: Mapping[str, Mapping[str, Any]], exits: Mapping[str, Exit]
    ) -> dict[str, dict[str, Any]]:
        """Return the functions with what keeps a value, or nothing, in the place of what encodes it."""
        found = {id: dict(named) for id, named in functions.items()}
        for plan in (plan for plan in self.plan.exits if plan.id in self._together):
            for id in plan.operators:
                found[id].pop("encode", None)
                if self._keeps:
                    found[id]["encode"] = cast(SendToExit, exits[plan.id]).keep
        return found

    def _run_keeping(self, segment: Segment, values: list[Any], read: dict[str, Any]) -> tuple[Any, ...]:
        """Run the loop, which calls functions and so runs once, and encode what it has kept; raises Failure."""
        *made, counted = segment(values, **read)
        for number, plan in enumerate(self.plan.exits):
            together, (kept, rows, *columns) = self._together.get(plan.id), made[number]
            if together is None or not kept:
                continue
            try:
                encoded = _encoded(kept, together)
            except NO_RECORDS_FAULT:
                raise
            except Exception as error:
                raise self._failure(plan.operators[0], kept, rows, error) from error
            made[number] = (encoded, rows, *columns)
        return (*made, counted)

    def _failure(self, id: str, kept: list[Any], rows: list[int] | None, error: Exception) -> Failure:
        """Return the failure of the first value that has no bytes, where it can be told by itself."""
        for place, value in enumerate(kept):
            try:
                if not _is_encoded(value):
                    self._encode[id](value)
            except Exception as alone:
                return Failure(id, alone, place if rows is None else rows[place])
        return Failure(id, error)

    def _run_together(self, segment: Segment, values: list[Any], read: dict[str, Any]) -> tuple[Any, ...]:
        """Run the loop, and encode what it has made; where that fails, again, so that it is known of which row."""
        try:
            *made, counted = segment(values, **read)
            for number, exit in enumerate(self.plan.exits):
                together, (found, *columns) = self._together.get(exit.id), made[number]
                if together is not None and found:
                    made[number] = (together(found), *columns)
            return (*made, counted)
        except Exception:
            return self._plain(values, **read)


def _is_encoded(value: object) -> bool:
    """Whether a value was encoded as it was sent, or is none."""
    return value is None or type(value) is bytes


def _encoded(kept: list[Any], together: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """Return what was kept, encoded, with what was encoded before."""
    if {*map(type, kept)}.isdisjoint((bytes, type(None))):
        return together(kept)
    return [one for done, run in groupby(kept, _is_encoded) for one in (run if done else together([*run]))]


class StageCode:
    """The generated functions of a stage at work, which tasks share that call the very same functions.

    To make them takes more than all else that a task of few records costs. `columns` are those that something reads.
    """

    def __init__(
        self,
        stage: StagePlan,
        graph: Graph,
        functions: Mapping[str, Mapping[str, Any]],
        columns: frozenset[str],
        exits: Mapping[str, Exit],
        levers: Levers = ALL,
    ) -> None:
        self.stage = stage
        self.graph = graph
        self.longest_run = LONGEST_RUN if levers.fusion else 1
        self.aggregations = CheckedAggregations(levers.inlining)
        self._functions = functions
        self.segments = {
            plan.entry: FusedSegment(plan, graph, functions, columns, exits, levers) for plan in stage.segments
        }
        self.lines = {file: lines for segment in self.segments.values() for file, lines in segment.lines.items()}
        # What a unit of a batch engine runs may lack the windows behind its end, for which nothing is grouped then.
        self.foldings = {
            plan.entry: FoldingSegment(plan, functions, graph)
            for plan in stage.segments
            if plan.folding and all(windows_at(graph, exit.id) for exit in plan.exits)
        }
        for folding in self.foldings.values():
            check_fused(folding.function, graph)
        self.lines |= {
            self.foldings[plan.entry].filename: plan.folding_lines
            for plan in stage.segments
            if plan.entry in self.foldings
        }
        self.first_operator = {exit.id: exit.operators[0] for plan in stage.segments for exit in plan.exits}
        self.awaits = frozenset(id for id in stage.operators if graph.specs[id].asynchronous)

    def calls(self, functions: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether it calls just these functions."""
        # Those of other stages that a task runs are in neither's code.
        named = ((self._functions[id], functions[id]) for id in self.stage.operators)
        return all(
            known.keys() == others.keys() and all(is_same(known[name], others[name]) for name in known)
            for known, others in named
        )


def is_same(one: object, other: object) -> bool:
    """Whether two functions are the same one, or the same method of the same object.

    >>> is_same(print, print), is_same("a".join, "a".join), is_same([].append, [].append)
    (True, True, False)
    """
    if one is other:
        return True
    owner = getattr(one, "__self__", None)
    return (
        owner is not None
        and owner is getattr(other, "__self__", None)
        and type(one) is type(other)
        and getattr(one, "__name__", "") == getattr(other, "__name__", None)
    )


class Chain:
    """The operators of a stage in one task, each reached through its exit.

    `operators` are the stateful ones, by id, parents first; `exits` what each exit leads to, the async ones apart.
    """

    def __init__(self, code: StageCode, exits: Mapping[str, Exit], operators: Mapping[str, Operator]) -> None:
        self.stage = code.stage
        self.graph = graph = code.graph
        self._longest_run = code.longest_run
        self.exits = exits
        self.operators = operators
        self.segments, self.foldings, self.lines = code.segments, code.foldings, code.lines
        self.first_operator, self.awaits = code.first_operator, code.awaits
        self.clocked = {id: cast(Clocked, operators[id]) for id in operators if graph.specs[id].wall_clock}
        self.unread: dict[str, int] = {}
        """The operators that have not read all that they keep, with the first time for which each has not fired."""
        self.ceilings: Mapping[str, int] = {}
        """By operator, the event time (ms) beyond which nothing fires there, as in the run that it repeats."""
        self._told = MIN_TIMESTAMP
        below = {id: graph.below(id) for id in operators} if len(operators) > 1 else {}
        self._above = {id: [one for one in below if id in below[one]] for id in operators}
        self.sinks = {id: exit for id, exit in exits.items() if isinstance(exit, SinkExit)}
        self.counts = Counts()
        for id, holder in (*exits.items(), *operators.items()):
            if hasattr(holder, "calls"):
                check_kept(graph.specs[id], holder, code.aggregations)

    def explore(self, entry: str, batch: Batch) -> list[tuple[str, Batch]]:
        """Run the stateless operators below `entry`; raises Failure with the operator that raised."""
        try:
            found = self.segments[entry].run(batch, self.counts)
        except (Failure, PlanError, *NO_RECORDS_FAULT):
            raise
        except Exception as error:
            told = askable(error)
            raise Failure(locate(told, self.lines, entry), told, row_of(told)) from error
        for operator in self.segments[entry].plan.keyed:
            cast(KeyStates, self.operators[operator.id]).relieve()
        return found

    def trace(self, failure: Failure) -> None:
        """Let the traceback of what an inlined expression raised go on to the user's own line."""
        for entry, segment in self.segments.items():
            if failure.operator in segment.plan.inlined:
                plan = segment.plan
                calling = fuse(self.graph, entry, False, bool(plan.keyed), self._longest_run, plan.reading)
                trace_into(failure.error, self.graph, failure.operator, segment.lines, calling)

    def run(self, entry: str, batch: Batch, hand_on: Callable[[str, Batch], None] | None = None) -> None:
        """Take rows through everything below `entry` that does not await; what reaches an await is handed on."""
        for exit, rows in self.explore(entry, batch):
            if exit in self.awaits and hand_on is not None:
                hand_on(exit, rows)
            else:
                self.apply(exit, rows, hand_on)

    @tells(lambda known: known["self"].first_operator.get(known["exit"]))
    def apply(self, exit: str, rows: Batch, hand_on: Callable[[str, Batch], None] | None = None) -> None:
        """Let rows take effect at an exit, and what that emits further down."""
        try:
            emitted = self.exits[exit].take(rows)
        except (Failure, PlanError, *NO_RECORDS_FAULT):
            raise
        except Exception as error:
            raise Failure(self.first_operator[exit], error) from error
        if emitted is not None and emitted.values:
            self.emit(exit, emitted, hand_on)

    @tells(lambda known: known["id"])
    def call_sink(self, id: str, most: int) -> None:
        """Call a user's sink with the first of what has reached it; raises Failure."""
        try:
            self.sinks[id].call(most)
        except PlanError:
            raise
        except Exception as error:
            raise Failure(id, error) from error

    @tells(lambda known: known["self"].first_operator.get(known.get("exit", known["entry"])))
    def fold(self, entry: str, folded: Folded) -> None:
        """Let what a folding loop found take effect."""
        self.counts.enter(self.segments[entry].plan, folded.number, folded.counted)
        for exit, groups, late in folded.exits:
            self.counts.leave(exit, len(groups) + len(late))
            try:
                cast(Folding, self.exits[exit]).fold(groups, late)
            except (Failure, PlanError, *NO_RECORDS_FAULT):
                raise
            except Exception as error:
                raise Failure(self.first_operator[exit], error) from error

    def count_dropped(self, entry: str, dropped: Mapping[str, int]) -> None:
        """Count what the filters that come first have dropped before the rows of a batch became records."""
        left = sum(dropped.values())
        if left:
            self.counts.entered[entry] = self.counts.entered.get(entry, 0) + left
        for id, number in dropped.items():
            left -= number
            # Where something below tells what got through, the function counts what did not; else what did, to which
            # belongs what those behind it have dropped.
            missed = left if teller(self.graph, id) is None else number
            self.counts.counted[id] = self.counts.counted.get(id, 0) + missed

    def emit(self, id: str, emitted: Batch, hand_on: Callable[[str, Batch], None] | None = None) -> None:
        """Send what a stateful operator emits on: as messages of their own where something below awaits."""
        if hand_on is not None and self.awaits_below(id):
            hand_on(id, emitted)
            return
        try:
            self.run(id, emitted, hand_on)
        except Failure as failure:
            failure.row = None  # it was one of what was emitted, not of what that was made of
            raise

    def heed(self, now_ms: int, watermark: int) -> None:
        """Tell those operators that heed it the time, and event time as far as it has come before the end."""
        if watermark < MAX_TIMESTAMP:
            self._told = watermark
        for operator in self.clocked.values():
            operator.heed(now_ms, self._told)

    def next_alarm(self) -> int:
        """Return the time at which something fires by the clock."""
        return min((operator.next_alarm() for operator in self.clocked.values()), default=NEVER)

    def watermark_below(self, watermark: int) -> int:
        """Return how far event time has come below all operators, where it has come so far above them."""
        below = (self._below(id, reached, watermark) for id, reached in self._reached(watermark))
        return min(below, default=watermark)

    def watermark_at(self, id: str, watermark: int) -> int:
        """Return how far event time has come at an operator: no further than what those above may still fire."""
        if not self._above.get(id) and id not in self.ceilings:
            return watermark
        return next(reached for one, reached in self._reached(watermark) if one == id)

    def is_due(self, watermark: int) -> bool:
        """Whether an operator has something to fire, where event time has come so far in what the chain reads."""
        return any(self.operators[id].next_due() <= reached for id, reached in self._reached(watermark))

    def left_due(self, watermark: int) -> dict[str, int]:
        """Return the time from which on each operator has to fire that has something to fire."""
        found = ((id, self._first_due(id), reached) for id, reached in self._reached(watermark))
        return {id: due for id, due, reached in found if due <= reached}

    def _first_due(self, id: str) -> int:
        operator = self.operators[id]
        withholds = isinstance(operator, ReadingOn) and operator.is_unread and operator.withholds
        return self.unread[id] if withholds else operator.next_due()

    def begin_unread(self, watermark: int, due: Mapping[str, int]) -> None:
        """Take note of who has not read what it keeps, and of the first time for which each has not fired.

        That is when it was `due` at the last commit, else what is behind event time as of then.
        """
        for id, reached in self._reached(watermark):
            operator = self.operators[id]
            if isinstance(operator, ReadingOn) and operator.is_unread:
                self.unread[id] = due.get(id, min(reached + 1, MAX_TIMESTAMP))

    @tells(lambda known: known.get("id"))
    def read_on(self) -> None:
        """Let those who have not read all that they keep read some more of it."""
        for id in [*self.unread]:
            operator = self.operators[id]
            assert isinstance(operator, ReadingOn)
            operator.read_on()  # what it can't read says of whom it is, and meets no policy
            if not operator.is_unread:
                del self.unread[id]

    def lowest_unread(self) -> dict[str, int]:
        """Return the lowest stamp of what each operator that begins unread still has to fire."""
        specs = self.graph.specs
        return {id: operator.lowest_stamp() for id, operator in self.operators.items() if specs[id].begins_unread}

    def awaits_a_ms(self, watermark: int) -> bool:
        """Whether an operator fires late panes when event time is just beyond where it has come, and none before."""
        late = [id for id in self.operators if self.graph.specs[id].fires_late]
        if not late or self.is_due(watermark):
            return False
        return any(id in late and self.operators[id].next_due() <= at for id, at in self._reached(watermark + 1))

    def _reached(self, watermark: int) -> Iterator[tuple[str, int]]:
        """Yield how far event time has come at each operator, parents first."""
        reached: dict[str, int] = {}
        for id, above in self._above.items():
            reached[id] = min((self._below(one, reached[one], watermark) for one in above), default=watermark)
            if self.ceilings:
                reached[id] = min(reached[id], self.ceilings.get(id, reached[id]))
            yield id, reached[id]

    def _below(self, id: str, reached: int, watermark: int) -> int:
        """Return how far event time has come below an operator that it has reached so far."""
        waits_ms = self.graph.specs[id].waits_ms
        if waits_ms and reached < MAX_TIMESTAMP:
            reached -= waits_ms
        lowest = self.operators[id].lowest_stamp()
        if watermark == MAX_TIMESTAMP and id in self.clocked and (alarm := self.clocked[id].next_alarm()) < NEVER:
            lowest = min(lowest, max(alarm, self._told))  # before the end is told all alarms go off
        return min(reached, lowest)

    @tells(lambda known: known["id"])
    def fire(self, id: str, until: int, most: int, by_clock: bool) -> Batch | None:
        """Return what an operator fires at a watermark, or by the clock: the first `most` of it; raises Failure."""
        try:
            if by_clock:
                return self.clocked[id].on_clock(until, most)
            return self.operators[id].on_watermark(until, most)
        except PlanError:
            raise
        except Exception as error:
            raise Failure(id, error) from error

    @tells(lambda known: known["id"])
    def drop(self, id: str, by_clock: bool) -> Batch:
        """Remove what an operator would fire first, and return what it was."""
        return self.clocked[id].drop_alarm() if by_clock else self.operators[id].drop_due()

    @property
    def unwritten(self) -> int:
        """The number of changed entries that are held beside the stores that commits write."""
        return sum(operator.unwritten for operator in self.operators.values() if operator.store.durable)

    @tells(lambda known: known.get("id"))
    def write_back(self, durable_only: bool = False) -> None:
        """Let the stateful operators put everything into their stores, or only into those that commits write."""
        for id, operator in self.operators.items():
            if operator.store.durable or not durable_only:
                with attributed(id):
                    operator.write_back()

    @tells(lambda known: known.get("id"))
    def newest(self, most: int) -> dict[str, list[Any]]:
        """Return some of what operators hold beside the stores that commits write; others put it all there."""
        found = {}
        for id, operator in self.operators.items():
            if operator.store.durable:
                with attributed(id):
                    if isinstance(operator, Holding):
                        found[id] = operator.newest(most)
                    else:
                        operator.write_back()
        return found

    def tell_keys(self, most: int) -> None:
        """Let operators encode at most so many keys whose state was never stored, so that their kinds are known."""
        for operator in self.operators.values():
            if isinstance(operator, TellingKeys):
                operator.tell_keys(most)

    def forget(self) -> None:
        """Let operators drop what was not yet in their stores, which were taken back, and sinks what they hold."""
        for operator in self.operators.values():
            operator.forget()
        for sink in self.sinks.values():
            sink.held.clear()

    def awaits_below(self, id: str) -> bool:
        """Whether what an operator emits may reach one that awaits."""
        segment = self.segments.get(id)
        if segment is None:
            return False
        return any(
            exit.id in self.awaits or (exit.id in self.operators and self.awaits_below(exit.id))
            for exit in segment.plan.exits
        )
