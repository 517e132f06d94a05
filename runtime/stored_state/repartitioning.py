"""Moves an application to other partitions: the state of each key, and how far streams are read, where it lies then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple

from msgspec.structs import replace

from operators.core.base import MIN_TIMESTAMP
from operators.core.entry_keys import kind_at
from planner.checks.splitting import why_whole
from planner.model.errors import PlanError, refuse
from planner.model.graph import Graph
from planner.model.plan import Plan, StagePlan
from planner.model.virtual_tasks import WHOLE, is_task
from runtime.assembly.bindings import Bindings
from runtime.job.job_model import JOB, configuration
from runtime.job.key_kinds import kinds_of_all
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import Repartitioned
from runtime.opening.former_layout import Moving
from runtime.opening.regrouping import regrouped_streams
from runtime.opening.stored_state import Lies, lies, move_staged, noted_lies, operator_of, reshuffled
from runtime.ports.environment import Environment, typed
from runtime.reading.watermarks import ProducerWatermarks, event_time
from runtime.stored_state.entries import Stored, task_of_keys
from runtime.stored_state.replacement import staged

_log = logging.getLogger("samza_dsl")


class MovedEntries(NamedTuple):
    """The number of entries that were moved, and of those that lay where they lie now."""

    moved: int
    stayed: int


@dataclass
class Repartitioning:
    """The move of an application, which this process owns and nobody runs, from the partitions of one plan to others.

    Invariants: all that lies between stages in streams that get others was read; the state of each key is in one task,
    before and after; no event time falls, and none of a key's.
    """

    environment: Environment
    bindings: Bindings
    graph: Graph
    former: Plan
    plan: Plan
    moving: Moving
    anew: set[str] = field(default_factory=set)
    """The operators to which keys came as they lay in an input, and come by a `partition_by` now."""
    astray: set[str] = field(default_factory=set)
    """Those of them whose keys did not lie as Kafka's hash has them."""

    def run(self) -> MovedEntries:
        """Move all of it; a crash leaves it before, or is completed by whoever opens the application next.

        Raises PlanError where a key's state is not where its partitioner says, and leaves all as it was.
        """
        app, plan = self.former.app, self.plan
        checkpoints = self.environment.checkpoints(app)
        had, has = noted_lies(checkpoints), lies(plan, self.graph)
        self.anew |= {*reshuffled(had, has)}
        self.astray |= {id for id in self.anew if self._is_astray(id, had[id])}
        operators, counts = self._moved(had, has), [0, 0]
        # Where its writers have chosen, a key may have had state in two places.
        apart = self.astray.isdisjoint(operators)
        staged(self.environment, app, self._entries(operators, had, counts), apart=apart, doubled=self._doubled_error)
        found = self._checkpoints(checkpoints, had)
        job = checkpoints.get(JOB, Checkpoint(0))
        now = found | {JOB: replace(job, meanings={**job.meanings, **configuration(plan, {})})}
        gone = [name for name in checkpoints if is_task(name) and name not in found]
        remade = [
            operator_of(app, one.name) for one in plan.streams if one.role == "intermediate" and self._sizes(one.name)
        ]
        move_staged(self.environment, app, operators, had | has, now, gone=gone, remade=remade)
        return MovedEntries(*counts)

    def _moved(self, had: Mapping[str, Lies], has: Mapping[str, Lies]) -> list[str]:
        """Return the operators whose state lies by other partitions than it is to lie."""
        kept, former = self.environment.stores(self.former.app), lies(self.former, self.graph)
        as_run = [id for id in kept if id in had and id in former and id not in self.anew]
        assert all(had[id].is_as(former[id]) for id in as_run), "it lies as it was run"
        known = [id for id in kept if id in had and id in has]
        return [id for id in known if had[id].partitions != has[id].partitions or id in self.astray]

    def _is_astray(self, operator: str, had: Lies) -> bool:
        """Whether keys lie where whoever writes an input has put them, and not where Kafka's hash would have."""
        spec, task_of = self.graph.specs[operator], task_of_keys(self.former, self.graph, operator)
        if task_of is None or why_whole(self.graph, operator, spec) is not None:
            return False
        return any(
            (key := spec.key_at(place)) is not None and task_of(key) != task
            for task in range(had.partitions)
            for place, _ in self.environment.state_range(self.former.app, operator, task)
        )

    def _entries(
        self, operators: Collection[str], had: Mapping[str, Lies], counts: list[int]
    ) -> Iterator[tuple[str, Stored]]:
        for operator in operators:
            before = task_of_keys(self.former, self.graph, operator)
            now = task_of_keys(self.plan, self.graph, operator)
            assert before is not None and now is not None, "what lies by no partitioner stays where it is"
            for task in range(had[operator].partitions):
                for place, value in self.environment.state_range(self.former.app, operator, task):
                    key = self._key(operator, place, task, None if operator in self.astray else before)
                    if key is None:
                        continue
                    to = now(key)
                    counts[to == task] += 1
                    yield f"the state of the key {key!r} in task {task}", Stored(operator, to, place, value)

    def _doubled_error(self, where: str, one: Stored) -> PlanError:
        """Return the error for a key that has had state in several partitions, each for the records that came there."""
        wrong = f"{where} is not the only one of that key: records of it lay in several partitions, each with a state"
        again = typed(self.environment, f"reset {self.former.app}")
        drop = typed(self.environment, f"state forget {self.former.app} {one.operator}")
        instead = f".partition_by(...) before it, and begin anew: {again}; or drop its state alone: {drop}"
        return refuse(self.graph.specs[one.operator], wrong, instead)

    def _key(self, operator: str, place: bytes, task: int, task_of: Callable[[bytes], int] | None) -> bytes | None:
        """Return the key of an entry, None for one that only versions before had need of.

        Raises PlanError where the partitioner, if one has said it, does not say the task that has it.
        """
        spec = self.graph.specs[operator]
        key = spec.key_at(place)
        if key is None:
            # All that users have is of a key, as it can be split: so this is a mark that it goes on without.
            _, kind = kind_at(spec.entry_kinds(), place)
            assert not kind.of_users, f"{spec.kind} {operator!r} can be split, so that each of its entries is of a key"
            return None
        if task_of is not None and (said := task_of(key)) != task:
            wrong = (
                f"its state of the key {key!r} lies in partition {task}, and its partitioner says {said}: whoever "
                "writes the stream has chosen by another one, so that nobody can say where its keys are from now on"
            )
            again = typed(self.environment, f"reset {self.former.app}")
            raise refuse(spec, wrong, f".partition_by(...) before it in a new application; or begin anew: {again}")
        return key

    def _checkpoints(self, checkpoints: Mapping[str, Checkpoint], had: Mapping[str, Lies]) -> dict[str, Checkpoint]:
        """Return the checkpoints of all tasks by the new plan."""
        tasks = {name: one for name, one in checkpoints.items() if is_task(name)}
        positions: dict[str, dict[int, Position]] = {}
        for one in tasks.values():
            for position in one.positions:
                assert position.bucket == WHOLE, "tasks are whole, and what others read ahead was passed"
                positions.setdefault(position.stream, {})[position.partition] = position
        found: dict[int, list[Position]] = {}
        floors = self._floors(positions, had)
        for stream in {**positions, **floors}:
            moved = self._positions(stream, positions.get(stream, {}))
            for position in self._raised(stream, moved, floors.get(stream, {})):
                found.setdefault(position.partition, []).append(position)
        # Whatever keys a task gets, it warns of no kinds that others have had.
        kinds = kinds_of_all(tasks.values())
        return {str(task): Checkpoint(0, tuple(all), meanings=kinds) for task, all in sorted(found.items())}

    def _floors(
        self, positions: Mapping[str, Mapping[int, Position]], had: Mapping[str, Lies]
    ) -> dict[str, dict[int, int]]:
        """Return the event time of what was read from inputs, by partition of the streams that have come between.

        Where a window of a key has fired by that, it must not fire again by what those streams tell, which begin anew.
        """
        found: dict[str, dict[int, int]] = {}
        for stage in self.plan.stages:
            anew = [id for id in stage.operators if id in self.anew]
            for stream in (one for one in stage.inputs if anew and self._is_between(one)):
                above = self.graph.above(operator_of(self.plan.app, stream))
                read = [self.graph.inputs[id].stream for id in above if id in self.graph.inputs]
                # By a hash that nobody knows a key may have lain in any.
                is_astray, before = not self.astray.isdisjoint(anew), had[anew[0]].partitions
                for number in range(stage.partitions):
                    lay = range(before) if is_astray else ancestors(number, before, stage.partitions)
                    known = [positions[one][at].watermark for one in read for at in lay if at in positions.get(one, {})]
                    found.setdefault(stream, {})[number] = max(known, default=MIN_TIMESTAMP)
        return found

    def _is_between(self, stream: str) -> bool:
        return any(one.name == stream and one.role == "intermediate" for one in self.plan.streams)

    def _raised(self, stream: str, positions: list[Position], floors: Mapping[int, int]) -> Iterator[Position]:
        """Yield positions whose event time is not below what it was, and those of partitions that have none yet."""
        for one in positions:
            yield replace(one, watermark=max(one.watermark, floors.get(one.partition, MIN_TIMESTAMP)))
        for number in sorted(floors.keys() - {one.partition for one in positions}):
            if (floor := floors[number]) > MIN_TIMESTAMP:
                system = self.bindings.origin(stream, number).system
                # Whoever writes has told nothing yet, which is not the same as that nobody is left to.
                silent = {str(task): MIN_TIMESTAMP for task in self._writers(self.plan, stream).bases}
                yield Position(system, stream, number, 0, WHOLE, floor, silent)

    def _positions(self, stream: str, known: Mapping[int, Position]) -> list[Position]:
        """Return the positions in a stream: of one that is made anew from its start, else on from where they were."""
        planned = next((one for one in self.plan.streams if one.name == stream), None)
        sizes = self._sizes(stream)
        if planned is not None and planned.role == "intermediate":
            return self._between(stream, known, sizes)
        return [*known.values()] if sizes is None else self._grown(stream, known, *sizes)

    def _sizes(self, stream: str) -> tuple[int, int] | None:
        """Return how many partitions a stream has had, and is to have, where these are not as many."""
        before, now = (
            next((one.partitions for one in plan.streams if one.name == stream), None)
            for plan in (self.former, self.plan)
        )
        return None if before is None or now is None or before == now else (before, now)

    def _grown(self, stream: str, known: Mapping[int, Position], before: int, now: int) -> list[Position]:
        """Return the positions in an input that has more partitions: each is as late as those its keys come from."""
        found, by_key = [], stream in self.moving.now and stream not in regrouped_streams(self.graph)
        lowest = event_time((one.watermark, bool(one.idle)) for one in known.values())
        for number in range(now):
            own = known.get(number)
            above = [known[one].watermark for one in ancestors(number, before, now) if one in known]
            # A window of a key may have fired where it was; and without state by key only stages behind remember.
            reached = max(above, default=MIN_TIMESTAMP) if by_key else lowest
            if own is not None:
                found.append(replace(own, watermark=max(own.watermark, reached) if by_key else own.watermark))
            elif reached > MIN_TIMESTAMP and known:
                some = next(iter(known.values()))
                start = self.bindings.origin(stream, number).offsets().start
                found.append(Position(some.system, stream, number, start, WHOLE, reached))
        return found

    def _between(
        self,
        stream: str,
        known: Mapping[int, Position],
        sizes: tuple[int, int] | None,
    ) -> list[Position]:
        """Return the positions in a stream between stages, where those who write it may be others as well."""
        before, now = self._writers(self.former, stream), self._writers(self.plan, stream)
        heard = {number: self._heard(position) for number, position in known.items()}
        renamed = {number: _heirs(one, len(before.bases), now.bases) for number, one in heard.items()}
        if sizes is None:
            if len(before.bases) == len(now.bases):
                return [*known.values()]
            return [_told(known[number], *renamed[number]) for number in known]
        found = []
        for number in range(sizes[1]):
            above = [one for one in ancestors(number, *sizes) if one in known]
            if above:
                # What a key's windows have fired by counts, wherever its messages come from now on.
                floor = max(renamed[one][1] for one in above)
                some, producers = known[above[0]], renamed[above[0]][0]
                anew = Position(some.system, stream, number, 0)
                found.append(_told(anew, producers, floor))
        return found

    def _writers(self, plan: Plan, stream: str) -> StagePlan:
        operator = operator_of(plan.app, stream)
        return next(stage for stage in plan.stages if operator in stage.operators)

    def _heard(self, position: Position) -> ProducerWatermarks:
        """Return what a reader knows of the event time of those who write, with what it has not read of it yet."""
        found = ProducerWatermarks(position.producers, position.producers, position.idle, position.watermark)
        if self._sizes(position.stream) is None:
            return found
        offset, end = position.offset, self.environment.offsets(position.stream, position.partition).end
        while offset < end and (read := self.environment.read(position.stream, position.partition, offset)) is not None:
            assert not read.batch.values, f"all records of {position.stream!r} were read before their keys move"
            if read.control is not None:
                found.take(read.control)
            offset = read.next_offset
        return found


def ancestors(partition: int, before: int, now: int) -> range:
    """Return the partitions in which keys lay that a hash puts into one of `now`, where there were `before`.

    >>> [*ancestors(5, before=4, now=8)], [*ancestors(1, before=4, now=2)], [*ancestors(2, before=2, now=3)]
    ([1], [1, 3], [0, 1])
    """
    step = gcd(before, now)
    return range(partition % step, before, step)


def _heirs(heard: ProducerWatermarks, before: int, now: Collection[int]) -> tuple[ProducerWatermarks, int]:
    """Return what is known of the tasks that write from now on, and the event time that they have not to fall below."""
    reached = heard.value if heard.by_producer else heard.floor
    known = {name: at for name, at in heard.by_producer.items() if is_task(name)}
    told, idle = {}, set()
    for task in now:
        above = [str(one) for one in ancestors(task, before, len(now)) if str(one) in known]
        own = [str(task)] if str(task) in known else above
        told[str(task)] = min((known[one] for one in own), default=MIN_TIMESTAMP)
        if own and all(one in heard.idle for one in own):
            idle.add(str(task))
    return ProducerWatermarks(told, told, idle, heard.floor), reached


def _told(position: Position, producers: ProducerWatermarks, floor: int) -> Position:
    known, idle, before = producers.mark
    return replace(position, producers=known, idle=tuple(sorted(idle)), watermark=max(before, floor))


def repartitioned(former: Plan, plan: Plan, moved: MovedEntries, took_ms: float) -> Repartitioned:
    """Return what ends a run that has moved an application to other partitions."""
    had = {stream.name: stream.partitions for stream in former.streams}
    told = ", ".join(
        f"{one.name!r} {one.partitions} and not {had[one.name]}"
        for one in plan.streams
        if had.get(one.name, one.partitions) != one.partitions
    )
    others = f"other partitions, of {told}" if told else "messages come by their keys, and not as they lay in an input"
    return Repartitioned(
        f"{plan.app} has {others}: {moved.moved:,} entries of its state were moved, and "
        f"{moved.stayed:,} lay where they lie now, in {took_ms:,.0f} ms"
    )
