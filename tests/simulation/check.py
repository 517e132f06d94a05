"""What runs of a drawn pipeline must have left in their environment: at the end, and after every commit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import msgspec

from operators.core.base import MIN_TIMESTAMP
from planner.model.virtual_tasks import VirtualTask, is_task, share_of
from runtime.commit.commit import SHARED, STATE
from runtime.encoding.serdes import Tagged
from runtime.model.checkpoint import Checkpoint
from runtime.opening.rewind import UNFINISHED
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment
from tests.simulation.crash import Row, rows_of
from tests.simulation.file import File
from tests.simulation.reference import Effects, Record, Reference
from tests.strategies import APP, LAST, LETTERS, REPARTITIONS, WINDOWS, Event, Node, Pipeline

NEVER = -(2**62)
LARGEST_FACTOR = 8
MOST_DROPPED = 256
"""So many consumed batches the last commit drops for sure; of more some may be left."""
decode_event = msgspec.json.Decoder(Event).decode
tagged = Tagged()


class Shares:
    """The shares that tasks have of partitions, as commits tell: every key has one task, which never goes back."""

    def __init__(self) -> None:
        self._tasks: dict[VirtualTask, Checkpoint] = {}
        self._reached: dict[tuple[int, int, str, int], int] = {}
        """The offset below which all is done, by base task, bucket of the largest factor, stream and partition."""

    def note(self, commit: Commit) -> None:
        """Take note of a commit that is durable; raises AssertionError where a key has two tasks, or none any more."""
        before = Counter(self._buckets())
        for name in commit.gone:
            self._tasks.pop(VirtualTask.of(name), None)
        self._tasks |= {VirtualTask.of(name): one for name, one in commit.checkpoints.items() if is_task(name)}
        owners = Counter(self._buckets())
        if commit.gone:
            is_split = any(task.factor > 1 for task in self._tasks)
            # By this word alone versions before elasticity refuse what they would else read again from the start.
            assert (UNFINISHED in commit.checkpoints[STATE].meanings) is is_split, "older versions are not told"
        assert set(owners.values()) <= {1}, f"keys have several tasks: {sorted(self._tasks)}"
        # Of whose keys nothing is done has no checkpoint yet, and begins at the start.
        begun = {(base, bucket) for (base, bucket, *_), offset in self._reached.items() if offset}
        lost = (before.keys() - owners.keys()) & begun
        assert not lost, f"keys have no task any more: {sorted(lost)}"
        for task, checkpoint in self._tasks.items():
            for bucket in range(task.bucket, LARGEST_FACTOR, task.factor):
                for place, offset in _done(checkpoint, task.base, bucket).items():
                    known = self._reached.get((task.base, bucket, *place), 0)
                    assert offset >= known, f"{task.name} goes back in {place} from {known} to {offset}"
                    self._reached[task.base, bucket, *place] = offset

    def _buckets(self) -> Iterator[tuple[int, int]]:
        for task in self._tasks:
            yield from ((task.base, bucket) for bucket in range(task.bucket, LARGEST_FACTOR, task.factor))


def _done(checkpoint: Checkpoint, base: int, bucket: int) -> dict[tuple[str, int], int]:
    """Return up to which offsets a checkpoint says that all of a bucket is done."""
    found: dict[tuple[str, int], int] = {}
    for one in checkpoint.positions:
        share, place = share_of(one.bucket, base), (one.stream, one.partition)
        if bucket % share.factor == share.bucket:
            found[place] = max(one.offset, found.get(place, 0))
    return found


@dataclass
class Outcome:
    """What is committed in an environment of what a pipeline made of its records; `note` is to be told of commits."""

    pipeline: Pipeline
    parts: Sequence[Sequence[Event]]
    environment: Environment
    files: Mapping[str, File] = field(default_factory=dict)
    """What outputs are bound to."""
    sunk: Counter[tuple[int, Event]] = field(default_factory=Counter)
    """How often each sink, by its place, has seen an event."""
    partition_of: Callable[[str, int], int] = lambda store, task: task
    """Which partition has been read by the task that has a store."""
    is_split: bool = False
    """Whether the tasks are split, at times, so that several of them read a partition."""
    _passed: defaultdict[tuple[str, int], list[tuple[int, Row]]] = field(
        init=False, default_factory=lambda: defaultdict(list)
    )
    """What was ever committed to each partition, with offsets: intermediate streams do not keep what is consumed."""
    _ends: Counter[tuple[str, int]] = field(init=False, default_factory=Counter)

    def note(self, commit: Commit) -> None:
        """Take note of a commit that is durable."""
        for stream, partition, batch, control in commit.appends:
            place, none = (stream, partition), [None] * len(batch)
            rows = zip(batch.keys or none, batch.values, batch.timestamps or none, strict=True)
            self._passed[place] += enumerate(rows, self._ends[place])  # type: ignore[arg-type]
            self._ends[place] += max(len(batch), 1) if batch.values or control else 0
        if timed := timed_streams(self.pipeline):
            self._check_watermarks(commit, timed)

    def _check_watermarks(self, commit: Commit, timed: set[str]) -> None:
        """Check that event time is checkpointed as of the position: a restart must stamp records as before."""
        for checkpoint in commit.checkpoints.values():
            for position in checkpoint.positions:
                # Of the shares that were read further before a merge of tasks only the offset is kept.
                if position.stream in timed and position.bucket == "all":
                    before = self.pipeline.split(self.parts)[position.stream][position.partition][: position.offset]
                    highest = max((event.at - self.pipeline.disorder_ms for event in before), default=MIN_TIMESTAMP)
                    assert position.watermark == highest, f"the watermark of {position.stream}[{position.partition}]"

    def between(self, stream: str, ends: dict[int, int] | None = None) -> list[list[Row]]:
        """Return all rows that each partition of an intermediate stream ever had, below the offsets in `ends`."""
        if stream not in self.environment.streams():
            return []
        return [
            [row for offset, row in self._passed[stream, place] if ends is None or offset < ends.get(place, 0)]
            for place in range(self.environment.streams()[stream].partitions)
        ]

    def outputs(self) -> dict[str, Counter[Event]]:
        return {
            name: Counter(decode_event(value) for _, value, _ in self._rows(name)) for name in self.pipeline.outputs()
        }

    def _rows(self, name: str) -> list[Row]:
        """Return the rows of an output that are committed."""
        if name not in self.files:
            return [row for part in rows_of(self.environment, name) for row in part]
        checkpoint = self.environment.checkpoints(APP).get(SHARED)
        return self.files[name].rows[: 0 if checkpoint is None else checkpoint.outputs[name]]

    def letters(self) -> int:
        return sum(map(len, rows_of(self.environment, LETTERS)))

    def counts(self) -> Counter[tuple[int, int, str | None]]:
        """Return how many messages of each key every operator that counts has seen, by (operator, task, key)."""
        return Counter(
            {
                (int(store.partition("-")[2]), self.partition_of(store, task), _key_of(store, key)): _number(
                    tagged.decode(value)
                )
                for store, task in self.environment.state_stats(APP)
                if store.startswith(("process-", "remember-", "scan-", "task-"))
                for key, value in self.environment.state_range(APP, store, task)
                if key[:1] == b"s" or store.startswith("task-")
            }
        )

    def positions(self) -> dict[tuple[str, int], int]:
        """Return the next offset of every partition that is read, as the last commit has it."""
        return {
            (position.stream, position.partition): position.offset
            for checkpoint in self.environment.checkpoints(APP).values()
            for position in checkpoint.positions
        }

    def ends(self) -> dict[tuple[str, int], int]:
        """Return where every partition of the inputs ends."""
        return {
            (stream, number): self.environment.offsets(stream, number).end
            for stream in self.pipeline.inputs().values()
            for number in range(len(self.parts))
        }

    def behind(self) -> dict[tuple[str, int], int]:
        """Return the positions of the partitions of the inputs that are not at their end."""
        positions = self.positions()
        return {where: at for where, end in self.ends().items() if (at := positions.get(where, 0)) < end}

    def check_end(self) -> None:
        """Compare everything that a whole run has left with what the records say."""
        expected = self.check_results()
        assert self.counts() == expected.counts
        assert self.ends().items() <= self.positions().items()
        assert self.sunk >= expected.sunk, "sinks"
        self._check_consumed()
        left = [place for place in self.environment.state_stats(APP) if place[0].startswith("window")]
        assert left == [], "windows are open after the end of all streams"
        for name, file in self.files.items():
            assert len(file.rows) == len(self._rows(name)), "a file has rows that are not committed"

    def check_results(self) -> Effects:
        """Compare the outputs and dead letters of a whole run with what the records say, and return all of that."""
        pipeline, expected = self.pipeline, Reference(self.pipeline).run(self.parts)
        assert self.outputs() == sent(pipeline, expected)
        assert self.letters() == (expected.dropped if pipeline.policy == "dead_letter" else 0)
        for place in in_order(pipeline):
            if self.is_split and any(pipeline.nodes[one].kind == "partition_by" for one in pipeline.above(place)):
                continue  # several tasks read a partition then, and what they bring together has no one order
            assert sequences(self._rows(f"out-{place}")) == sorted(expected.in_order[place].values()), (
                f"order of output {place}"
            )
        return expected

    def _check_consumed(self) -> None:
        """Check that what lies between stages is consumed, and gone as well where a single commit could drop it."""
        between = {name: config for name, config in self.environment.streams().items() if config.intermediate}
        positions = self.positions()
        ends = {
            (stream, number): self.environment.offsets(stream, number).end
            for stream, config in between.items()
            for number in range(config.partitions)
        }
        assert {where: positions.get(where, 0) for where in ends} == ends, "what lies between stages was consumed"
        # Where tasks that share a partition commit by themselves, what the last two have read goes with a later commit.
        if sum(ends.values()) <= MOST_DROPPED and not self.is_split:
            self.check_gone()

    def check_gone(self) -> None:
        """Check that nothing is left between the stages."""
        between = [name for name, config in self.environment.streams().items() if config.intermediate]
        assert [self.environment.stream_stats(stream) for stream in between] == [(0, 0)] * len(between)

    def check_nothing_lost(self) -> None:
        """Check that every output that the records say is there, once or more often, and that all was read."""
        self.check_all_sent()
        assert self.ends().items() <= self.positions().items()

    def check_all_sent(self) -> None:
        """Check that every output that the records say is there, once or more often."""
        effects = Reference(self.pipeline).run(self.parts)
        expected = sent(self.pipeline, effects)
        for name, events in self.outputs().items():
            assert events >= expected[name], f"output {name}"
        assert self.sunk >= effects.sunk, "sinks"

    def check_cut(self) -> None:
        """Compare what is committed with what the records before the committed positions bring about."""
        pipeline, reference = self.pipeline, Reference(self.pipeline)
        expected, fired = Effects(), fired_in(pipeline)
        positions = self.positions()
        for entry in pipeline.entries():
            stream = pipeline.stream_of(entry)
            ends = {number: at for (read, number), at in positions.items() if read == stream}
            relayed = is_relayed(pipeline, entry) and not sees(pipeline, pipeline.nodes[entry], fired)
            read_up_to = partial(rows_of, self.environment) if entry in pipeline.inputs() else self.between
            rows = read_up_to(stream, ends)
            if relayed:
                consumed = self._consumed(entry, expected, [len(part) for part in rows])
            else:
                consumed = [[self._taken_in(entry, row) for row in part] for part in rows]
            for task, records in enumerate(consumed):
                reference.take(expected, entry, task, records)
        actual, due = self.outputs(), sent(pipeline, expected)
        for place, node in enumerate(pipeline.nodes):
            if place not in fired and pipeline.is_sent(place):
                assert actual[f"out-{place}"] == due[f"out-{place}"], f"output of {place}"
            if node.kind in REPARTITIONS and not sees(pipeline, node, fired) and not is_relayed(pipeline, place):
                passed = self.between(pipeline.stream_of(place))
                events = Counter(tagged.decode(value) for part in passed for _, value, _ in part)
                assert events == Counter(record.event for _, record in expected.passed[place]), f"stream of {place}"
            if node.kind == "sink" and place not in fired:
                due_here = Counter({where: number for where, number in expected.sunk.items() if where[0] == place})
                assert self.sunk >= due_here, f"sink {place}"
        seen = {place for place, node in enumerate(pipeline.nodes) if not sees(pipeline, node, fired)}
        counts = {where: number for where, number in expected.counts.items() if where[0] in seen}
        assert {where: number for where, number in self.counts().items() if where[0] in seen} == counts

    def _consumed(self, entry: int, expected: Effects, stored: list[int]) -> list[list[Record]]:
        """Return what each task of a stage that is handed its rows in memory has taken in: not what is still unread.

        Rows without a key are of no partition while they are handed on: a commit may store them in another than theirs.
        """
        rows = self.between(self.pipeline.stream_of(entry))
        unread = Counter(
            (-1 if record.key is None else task, record.event)
            for task, part in enumerate(rows)
            for record in (self._taken_in(entry, row) for row in part[stored[task] :])
        )
        passed = expected.passed[entry]
        assert unread <= Counter((-1 if record.key is None else task, record.event) for task, record in passed), (
            f"stream of {entry}"
        )
        consumed: list[list[Record]] = [[] for _ in rows]
        for task, record in passed:
            here = -1 if record.key is None else task, record.event
            if unread[here]:
                unread[here] -= 1
            else:
                consumed[task].append(record)
        return consumed

    def _taken_in(self, entry: int, row: Row) -> Record:
        key, value, at = row
        if entry in self.pipeline.inputs():
            event = decode_event(value)
            return Record(event, event.key, event.at, NEVER)
        return Record(tagged.decode(value), tagged.decode(key) if key else None, at, NEVER)


def sent(pipeline: Pipeline, effects: Effects) -> dict[str, Counter[Event]]:
    """Return the messages of every output."""
    found: dict[str, Counter[Event]] = {name: Counter() for name in pipeline.outputs()}
    for (place, event), number in effects.sent.items():
        found[f"out-{place}"][event] += number
    return found


@lru_cache
def timed_streams(pipeline: Pipeline) -> set[str]:
    """Return the inputs that windows and timers lie below."""
    timed = (
        place for place, node in enumerate(pipeline.nodes) if node.kind in (*WINDOWS, "process", "meet", "nearest")
    )
    above: set[int] = set().union(*map(pipeline.above, timed))
    return {stream for place, stream in pipeline.inputs().items() if place in above}


def fired_in(pipeline: Pipeline) -> set[int]:
    """Return the operators that emit panes and what timers emit, or see them in the stage where these are fired."""
    found: set[int] = set()
    for place, node in enumerate(pipeline.nodes):
        if node.kind in (*WINDOWS, "process", "meet", "nearest") or sees(pipeline, node, found):
            found.add(place)
    return found


def is_relayed(pipeline: Pipeline, place: int) -> bool:
    """Whether what an operator writes between stages is handed on in memory: nothing there awaits or is called last."""
    inside = [node for other, node in enumerate(pipeline.nodes) if pipeline.stage_of(other) == place]
    return place not in pipeline.inputs() and not any(node.awaits or node.kind in LAST for node in inside)


def sees(pipeline: Pipeline, node: Node, fired: set[int]) -> bool:
    """Whether what was fired reaches an operator before a commit has stored it."""

    def hands_on(parent: int) -> bool:
        stored = pipeline.nodes[parent].kind in ("partition_by", "broadcast") and not is_relayed(pipeline, parent)
        return parent in fired and not stored

    return any(map(hands_on, node.parents))


def in_order(pipeline: Pipeline) -> Iterator[int]:
    """Yield what is sent in the order of its key's records: one task each upstream, and nothing that mixes them."""
    for place in range(len(pipeline.nodes)):
        above = pipeline.above(place)
        stages = {pipeline.stage_of(up) for up in above}
        if pipeline.stage_of(place):
            stages.remove(pipeline.stage_of(place))  # all records of a key are in one of its tasks
        mixed = any(_mixes(pipeline, up, pipeline.stage_of(place)) for up in above)
        if pipeline.is_sent(place) and not mixed and all(pipeline.partitions_of(stage) == 1 for stage in stages):
            yield place


def _mixes(pipeline: Pipeline, place: int, stage: int) -> bool:
    """Whether an operator may change the order of messages that have one key in `stage`."""
    node = pipeline.nodes[place]
    if node.kind == "async":
        return node.order == "none" or (node.order == "key" and pipeline.stage_of(place) != stage)
    if node.kind in ("remember", "scan"):
        return pipeline.stage_of(place) != stage
    return node.kind in ("merge", "meet", "nearest", "process", "broadcast", *WINDOWS)


def sequences(rows: Sequence[Row]) -> list[list[Event]]:
    """Return the events of each key in the order in which they are stored, without those of no key."""
    found: dict[bytes, list[Event]] = defaultdict(list)
    for key, value, _ in rows:
        if key is not None:
            found[key].append(decode_event(value))
    return sorted(found.values())


def _key_of(store: str, key: bytes) -> str | None:
    """Return the key of an entry of state: that of a task as it is, others after a letter; there may be none."""
    key = key if store.startswith("task-") else key[1:]
    return tagged.decode(key) if key else None


def _number(state: int | list[int]) -> int:
    return state if isinstance(state, int) else state[0]
