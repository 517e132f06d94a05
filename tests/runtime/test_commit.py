"""What a commit is made of, piece by piece; that it comes to the right end, the laws and the simulation show."""

from types import SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import MIN_TIMESTAMP, Batch
from runtime.commit.commit import SHARED, Committer, _listeners, forwardable
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.model.checkpoint import Checkpoint, Position
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, Control
from runtime.reading.relay import Relay, SplitRelay
from runtime.stage.outputs import Outputs
from runtime.task.lane import Unfired
from runtime.task.task import Task
from samza_dsl import App

BETWEEN = "app-by-rest"
NOW_MS = 5_000


class Clock:
    """Ten ms go by between two looks."""

    def __init__(self):
        self.elapsed = 0.0

    def elapsed_ms(self):
        self.elapsed += 10
        return self.elapsed

    def now_ms(self):
        return NOW_MS


class Store:
    def __init__(self, number, log, *items):
        self.number, self.log, self.items = number, log, list(items)

    def changes(self):
        self.log.append("changes")
        return StateWrites("store", self.number, self.items)

    def committed(self):
        self.log.append("committed")


class Sink:
    partitions = 1

    def __init__(self, log):
        self.log, self.rows = log, []

    def write(self, batch):
        self.log.append("write")
        self.rows += batch.values

    def flush(self):
        self.log.append("flush")
        return len(self.rows)


class StandIn(SimpleNamespace):
    """A task, as far as a commit looks at it."""

    readers, table_readers, checkpointed = Task.readers, Task.table_readers, Task.checkpointed
    committed = Task.committed
    told = Task.told
    answers_to_forget = Task.answers_to_forget
    remembering, joint, beside = (), (), ()
    kinds: ClassVar = {}
    name = property(lambda self: str(self.number))
    firing, in_flight = False, 0
    __eq__, __hash__ = object.__eq__, object.__hash__

    def unfired(self, joint):
        return Unfired({}, {})


class Listener(SimpleNamespace):
    """A reader of a stream between stages, as far as it is told of event time."""

    is_up_to_date = True

    def hear(self, news):
        self.heard += [watermark for _, watermark, _ in news.told]


class World:
    """A graph with one repartitioning, two tasks, a bound output and an environment that notes what it is given."""

    def __init__(self, positions=None, least_state=0):
        app = App("app")
        app.input("in", value=int).partition_by(lambda n: n, partitions=2, op_id="by-rest").send_to(app.output("out"))
        self.log, self.commits = [], []
        self.refuses = False
        self.sink = Sink(self.log)
        bindings = SimpleNamespace(
            environment=self,
            sinks={"bound": self.sink},
            places={"bound": "bound=file"},
            outboxes={},
            delivered=dict,
            taken_out=dict,
            deliver=lambda whole=False: self.log.append("deliver"),
            place_of=lambda stream: stream,
            partitions=lambda stream: {BETWEEN: 2}.get(stream, 1),
            read_among=dict,
        )
        self.committer = Committer("app", 7, bindings, Clock(), positions or {"bound=file": 0}, {}, least_state)
        self.tasks = [self.task(0), self.task(1)]

    def commit(self, commit):
        if self.refuses:
            raise OSError("full")
        self.log.append("commit")
        self.commits.append(commit)

    def task(self, number, touched=True):
        lane = SimpleNamespace(
            chain=SimpleNamespace(
                stage=SimpleNamespace(operators=("by-rest",)),
                write_back=lambda durable_only: self.log.append("write back"),
                watermark_below=lambda watermark: watermark,
            ),
            units=None,
            writes=frozenset({BETWEEN}),
            shares={},
            is_idle=False,
            was_idle=False,
            follow=lambda: None,
            watermark=MIN_TIMESTAMP,
            readers=[reader("in", number, 10 + number)],
        )
        store = Store(number, self.log, (b"k", b"v"))
        tables = {"t": (reader("t", number, 3), None, None)}
        outputs = Outputs(number)
        return StandIn(
            number=number,
            touched=touched,
            lanes=[lane],
            stores={"s": store},
            tables=tables,
            outputs=outputs,
            dirty_count=1,
        )

    def gather(self):
        return self.committer.gather(self.tasks, self.tasks)

    def through(self):
        commit = self.gather()
        self.committer.write(commit, self.tasks)
        self.committer.done(commit, self.tasks)
        return commit


def reader(stream, partition, offset, later=False):
    origin = SimpleNamespace(stream=stream, partition=partition)
    return SimpleNamespace(
        origin=origin, later=later, appended=[], positions=lambda: [Position("log", stream, partition, offset)]
    )


@pytest.fixture
def world():
    return World()


def test_what_no_task_has_touched_is_no_part_of_it(world):
    world.tasks[0].touched = False
    commit = world.gather()
    assert (commit.app, commit.generation, list(commit.checkpoints)) == ("app", 7, ["1"])
    assert [writes.task for writes in commit.state] == [1]
    world.committer.done(commit, world.tasks)
    assert [task.touched for task in world.tasks] == [False, False]
    assert world.log.count("committed") == 1


def test_state_of_which_little_has_changed_waits_for_a_later_commit():
    world = World(least_state=2)
    world.tasks[1].dirty_count = 2
    assert [writes.task for writes in world.through().state] == [1]
    assert [world.log.count(each) for each in ("write back", "changes", "committed")] == [1, 1, 1]
    for task in world.tasks:
        task.touched, task.dirty_count = True, 2 - task.number
    assert [writes.task for writes in world.through().state] == [0]
    assert [world.log.count(each) for each in ("write back", "changes", "committed")] == [2, 2, 2]


def test_it_has_the_state_of_all_tasks_and_the_positions_of_inputs_and_tables(world):
    commit = world.gather()
    found = commit.checkpoints
    assert found["1"] == Checkpoint(7, (Position("log", "in", 1, 11), Position("log", "t", 1, 3)))
    assert list(found) == ["0", "1"]
    assert [writes.task for writes in commit.state] == [0, 1]


def test_it_consumes_what_lies_between_stages_and_nothing_else(world):
    world.tasks[1].lanes[0].readers.append(reader(BETWEEN, 1, 4, later=True))
    world.tasks[0].lanes[0].readers.append(reader(BETWEEN, 0, 9, later=True))
    assert world.gather().consumed == {(BETWEEN, 1): 4, (BETWEEN, 0): 9}


def test_state_is_written_back_before_it_is_read_and_what_has_not_changed_is_left_out(world):
    world.tasks[0].stores["s"].items = []
    commit = world.gather()
    assert commit.state == [StateWrites("store", 1, [(b"k", b"v")])]
    assert world.log == ["write back", "changes"] * 2


def test_messages_go_as_they_are_but_not_those_of_bound_outputs(world):
    outputs = world.tasks[0].outputs
    outputs.append(("bound", 0), Batch([b"file"]))
    outputs.append(("out", 0), Batch([]))
    outputs.append(("out", 1), Batch([b"a"], [b"k"]))
    assert world.gather().appends == [Append("out", 1, outputs.pending["out", 1])]


def test_a_watermark_goes_to_every_partition_behind_the_messages_and_once(world):
    world.tasks[0].outputs.append((BETWEEN, 1), Batch([b"a"]))
    world.tasks[0].outputs.append(("out", 0), Batch([b"b"]))
    world.tasks[0].lanes[0].watermark = 100
    sent = world.through().appends
    told = Control("0", 100, 7)
    assert [(s, p, batch.values, control) for s, p, batch, control in sent] == [
        (BETWEEN, 1, [b"a"], told),
        ("out", 0, [b"b"], None),
        (BETWEEN, 0, [], told),
    ]
    world.tasks[0].touched = True
    world.tasks[0].outputs.append((BETWEEN, 0), Batch([b"c"]))
    assert world.through().appends == [Append(BETWEEN, 0, Batch([b"c"]))]
    world.tasks[0].touched = world.tasks[1].touched = True
    world.tasks[0].lanes[0].watermark, world.tasks[1].lanes[0].watermark = 101, 100
    both = Control("0", 101, 7, beside=(Control("1", 100, 7),))
    assert [(s, p, control) for s, p, _, control in world.through().appends] == [(BETWEEN, 0, both), (BETWEEN, 1, both)]


def test_a_watermark_that_was_not_committed_is_told_again(world):
    world.tasks[0].lanes[0].watermark = 100
    assert len(world.gather().appends) == len(world.gather().appends) == 2


@pytest.mark.parametrize("control", [False, True])
def test_rows_without_a_time_have_that_of_the_commit_where_others_have_one(world, control):
    world.tasks[0].lanes[0].watermark = 100 if control else MIN_TIMESTAMP
    world.tasks[0].outputs.append((BETWEEN, 0), Batch([b"a", b"b"], timestamps=[1, None], stamps=[0, None]))
    world.tasks[0].outputs.append((BETWEEN, 1), Batch([b"c", b"d"], timestamps=[None, 2]))
    found = {partition: (batch.timestamps, batch.stamps) for _, partition, batch, _ in world.gather().appends}
    assert found == {0: ([1, NOW_MS], [0, NOW_MS]), 1: ([NOW_MS, 2], None)}


def test_rows_that_all_have_a_time_or_none_keep_it_so(world):
    world.tasks[0].outputs.append(("out", 0), Batch([b"a"], timestamps=[3], stamps=[2]))
    world.tasks[1].outputs.append(("out", 1), Batch([b"b"]))
    assert [(batch.timestamps, batch.stamps) for _, _, batch, _ in world.gather().appends] == [([3], [2]), (None, None)]


def test_bound_outputs_are_flushed_before_the_commit_and_sinks_are_given_rows_behind_it(world):
    for task, rows in zip(world.tasks, ([b"a", b"b"], [b"c"]), strict=True):
        task.outputs.append(("bound", 0), Batch(rows))
    commit = world.gather()
    world.log.clear()
    world.committer.write(commit, world.tasks)
    assert world.log == ["write", "write", "flush", "commit", "deliver"]
    assert world.sink.rows == [b"a", b"b", b"c"]
    assert world.commits[0].checkpoints[SHARED] == Checkpoint(7, outputs={"bound=file": 3})


def test_positions_of_bound_outputs_are_committed_when_they_have_changed(world):
    assert SHARED not in world.through().checkpoints
    world.tasks[0].touched = True
    world.tasks[0].outputs.append(("bound", 0), Batch([b"a"]))
    assert world.through().checkpoints[SHARED].outputs == {"bound=file": 1}
    world.tasks[0].touched = True
    world.log.clear()
    assert SHARED not in world.through().checkpoints
    assert "flush" not in world.log


def test_a_commit_that_failed_has_changed_no_position(world):
    world.tasks[0].outputs.append(("bound", 0), Batch([b"a"]))
    world.refuses = True
    with pytest.raises(OSError, match="full"):
        world.committer.write(world.gather(), world.tasks)
    world.refuses = False
    world.tasks[0].outputs.clear()
    world.sink.rows.clear()
    world.tasks[0].outputs.append(("bound", 0), Batch([b"a"]))
    assert world.through().checkpoints[SHARED].outputs == {"bound=file": 1}


def test_after_it_nothing_is_pending(world):
    world.tasks[0].outputs.append(("out", 0), Batch([b"a"]))
    world.through()
    assert [task.touched for task in world.tasks] == [False, False]
    assert world.tasks[0].outputs.pending == {}
    assert world.committer.commits == 1
    world.through()
    assert world.committer.commits == 2


def test_how_long_it_took_to_put_is_summed_up_by_task(world):
    world.gather()
    world.gather()
    assert world.committer.put_ms == {0: 20, 1: 20}


@pytest.mark.parametrize(
    ("lowest", "due", "forwarded"),
    [
        (None, 200, 100),
        (99, 200, 99),
        (101, 200, 100),
        (0, 200, 0),
        ("nothing awaits here", 200, 100),
        (None, 101, 100),
        (None, 100, 99),
        (None, 50, 49),
        (98, 50, 49),
        (30, 50, 30),
    ],
)
def test_a_watermark_is_held_back_by_what_is_in_flight_or_still_to_fire(lowest, due, forwarded):
    units = None if isinstance(lowest, str) else SimpleNamespace(lowest_stamp=lowest)
    chain = SimpleNamespace(watermark_below=lambda watermark: min(watermark, due - 1))
    assert forwardable(SimpleNamespace(units=units, watermark=100, chain=chain)) == forwarded


def listeners(world):
    """Give each task a reader of the stream between the stages that is handed rows in memory; return them."""
    found = []
    for task in world.tasks:
        one = reader(BETWEEN, task.number, 5, later=True)
        found.append(Listener(heard=[], **vars(one)))
        lane = SimpleNamespace(**{**vars(task.lanes[0]), "readers": [found[-1]], "writes": frozenset()})
        task.lanes.append(lane)
        world.committer.relays[BETWEEN, task.number] = Relay(KeySerde(Tagged()), KeySerde(Tagged()), "by-rest")
    return found


def test_readers_here_are_told_of_event_time_in_memory_and_only_when_it_is_durable():
    world = World()
    heard = listeners(world)
    for task in world.tasks:
        task.lanes[0].watermark = 100 + task.number
    commit = world.gather()
    assert [append for append in commit.appends if append.stream == BETWEEN] == []
    assert all(not one.heard for one in heard)
    world.committer.write(commit, world.tasks)
    assert world.committer.done(commit, world.tasks) == world.tasks
    assert all(one.heard == [100, 101] for one in heard)
    assert all(task.touched for task in world.tasks)  # so that a checkpoint has it
    world.through()
    assert all(len(one.heard) == 2 for one in heard), "it is told once"


@pytest.mark.parametrize("why", ["fires", "is in flight", "is behind", "has rows"])
def test_who_is_not_done_with_what_came_before_reads_it_in_the_log(why):
    world = World()
    first, second = listeners(world)
    world.tasks[0].lanes[0].watermark = 100
    if why == "fires":
        world.tasks[1].firing = True
    elif why == "is in flight":
        world.tasks[1].in_flight = 1
    elif why == "is behind":
        second.is_up_to_date = False
    else:
        world.tasks[0].outputs.append((BETWEEN, 1), Batch([b"row"]))
    commit = world.through()
    told = {append.partition: append.control.watermark for append in commit.appends if append.stream == BETWEEN}
    assert told == {1: 100}
    assert first.heard == [100]
    assert not second.heard


@given(st.lists(st.sampled_from(["", "", "", "fires", "is in flight", "is behind"]), min_size=1, max_size=4))
def test_of_virtual_tasks_that_share_a_partition_all_are_told_in_memory_or_none(whys):
    relay, tasks = SplitRelay(), []
    relay.shares = dict.fromkeys(range(len(whys)))
    for why in whys:
        reads = SimpleNamespace(origin=Position("log", BETWEEN, 0, 0), is_up_to_date=why != "is behind")
        lanes, outputs = [SimpleNamespace(readers=[reads])], SimpleNamespace(pending={})
        how = {"firing": why == "fires", "in_flight": int(why == "is in flight")}
        tasks.append(SimpleNamespace(lanes=lanes, outputs=outputs, **how))
    told = _listeners(tasks, tasks, {(BETWEEN, 0): relay}).get(BETWEEN, {}).get(0, [])
    assert [task for task, _ in told] == ([] if any(whys) else tasks)


def test_what_waits_in_memory_for_the_next_stage_is_stored_once(world):
    waiting = Relay(KeySerde(Tagged()), KeySerde(Tagged()), "by-rest")
    world.committer.relays[BETWEEN, 0] = waiting
    waiting.give(Batch([1, 2], [3, 4]))
    stored = [[len(one.batch) for one in world.through().appends if one.control is None] for _ in range(2)]
    assert stored == [[2], []]
