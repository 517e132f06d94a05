"""What Hypothesis draws: records with disorder and late ones, and small pipelines built through the real DSL."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
from hypothesis import strategies as st

from operators.partition_by import murmur2
from runtime.encoding.serdes import Tagged
from tests.simulation.crash import Row

APP, SOURCE, LETTERS = "law", "events", "letters"
TIMER_MS = 10 * 86_400_000
"""How long after a record its timer is due: longer than any disorder and window, so that none is set in the past."""
ZONE = "America/New_York"
KEYED = ("window", "process", "scan", "join", "meet", "nearest", "remember")
REPARTITIONS = ("partition_by", "broadcast", "window_all")
WINDOWS = ("window", "window_all")
TWO_SIDED = ("merge", "meet", "nearest")
"""What has two parents."""
MEETING_MS = 60
"""How far apart records may be that meet in a join of two streams."""
DIRECTIONS = {"key": "backward", "partition": "forward", "none": "nearest"}
"""Where the nearest record lies that an as-of join is for, by the node's order."""
LAST = ("sink", "task")
"""What hands nothing on."""
KINDS = (
    *("filter", "map", "flat_map", "branch", "merge", "async", "async", "partition_by", "broadcast", "input"),
    *(
        "window",
        "window_all",
        "window",
        "process",
        "scan",
        "join",
        "meet",
        "nearest",
        "lookup",
        "remember",
        "sink",
        "task",
    ),
)
SEVERAL = ("flat_map", "async", "remember", "merge", "meet")
"""What may make several messages of one."""
SEVERAL_STAGES = [
    ("partition_by", "window", "map"),
    ("partition_by", "window", "process", "window_all"),
    ("partition_by", "meet", "meet", "merge", "window"),
    ("partition_by", "nearest", "nearest", "merge", "window"),
    ("partition_by", "join", "lookup", "async", "remember"),
    ("broadcast", "window_all", "window", "task"),
    ("input", "merge", "meet", "partition_by", "window"),
]
"""Of which kinds pipelines have operators with state on both sides of a shuffle."""
AGGREGATIONS = ("total", "count", "mean", "maximum", "minimum", "collect", "top_k", "fold")
FORMS = ("plain", "async", "callback")
TRIGGERS = ("", "", "", "count", "delay", "clock")
"""By what windows have early panes, which are dropped below: what is left is what there would be without."""


class Event(msgspec.Struct, frozen=True, order=True):
    """What flows through the pipelines of the laws."""

    number: int
    key: str | None
    at: int


@dataclass(frozen=True)
class Node:
    """An operator: its kind, its parents' places, a number that varies it, and how it takes failures.

    Where `poison` is set, its function fails on every so many values: "always", or "once" for each value.
    """

    kind: str
    parents: tuple[int, ...] = ()
    number: int = 1
    poison: str = ""
    order: str = "key"
    also_sent: bool = False
    aggregation: str = "total"

    @property
    def windows(self) -> str:
        """Of which kind its windows are."""
        if self.order == "partition":
            return "session"
        return "daily" if self.number == 4 else "hopping" if self.order == "none" else "tumbling"

    @property
    def trigger(self) -> str:
        """By what its windows have early panes, if they have any."""
        return TRIGGERS[(AGGREGATIONS.index(self.aggregation) + self.number) % len(TRIGGERS)]

    @property
    def direction(self) -> str:
        """Where the record lies that is nearest to another."""
        return DIRECTIONS[self.order]

    @property
    def tolerance_ms(self) -> int | None:
        """How far the nearest record may lie; None is any time, where nobody has to wait for it."""
        return None if self.direction == "backward" and self.number % 2 else MEETING_MS * self.number

    @property
    def form(self) -> str:
        """How a sink or a task is called."""
        return FORMS[self.number % 2 if self.kind == "sink" else self.number % 3]

    @property
    def awaits(self) -> bool:
        return self.kind in ("async", "remember") or (self.kind in LAST and self.form != "plain")

    def fails_on(self, event: Event) -> bool:
        return bool(self.poison) and event.number % 5 == self.number % 5


@dataclass(frozen=True)
class Pipeline:
    """Operators, parents first; the first is the input, and what nobody reads is sent to an output."""

    nodes: tuple[Node, ...]
    partitions: int
    disorder_ms: int
    nulls: bool
    policy: str

    def children(self, place: int) -> list[int]:
        return [child for child, node in enumerate(self.nodes) if place in node.parents]

    def is_sent(self, place: int) -> bool:
        node = self.nodes[place]
        return node.kind not in ("branch", "sink") and (node.also_sent or not self.children(place))

    def outputs(self) -> list[str]:
        return [f"out-{place}" for place in range(len(self.nodes)) if self.is_sent(place)]

    def inputs(self) -> dict[int, str]:
        """Return the streams that are read, by their operators' places."""
        return {
            place: f"{SOURCE}-{place}" if place else SOURCE
            for place, node in enumerate(self.nodes)
            if node.kind == "input"
        }

    def split(self, parts: Sequence[Sequence[Event]]) -> dict[str, list[list[Event]]]:
        """Return the events of the partitions of every input: where there are two, the second has one in three."""
        streams = [*self.inputs().values()]
        if len(streams) == 1:
            return {SOURCE: [*map(list, parts)]}
        return {
            stream: [[event for event in part if (event.number % 3 == 0) == bool(number)] for part in parts]
            for number, stream in enumerate(streams)
        }

    def priority(self, place: int) -> int:
        return self.nodes[place].number % 3 - 1 if place else 0

    def entries(self) -> list[int]:
        """Return where messages come into stages, with what is upstream first."""
        return [place for place, node in enumerate(self.nodes) if node.kind in ("input", *REPARTITIONS)]

    def stream_of(self, entry: int) -> str:
        """Return the stream that messages come from."""
        kind = self.nodes[entry].kind
        between = f"{APP}-{kind}-{entry}" + ("-gathered" if kind == "window_all" else "")
        return self.inputs().get(entry, between)

    def stage_of(self, place: int) -> int:
        """Return the place of the repartitioning whose stage an operator runs in, or 0 in that of the inputs."""
        while self.nodes[place].kind not in ("input", *REPARTITIONS):
            place = self.nodes[place].parents[0]
        return 0 if self.nodes[place].kind == "input" else place

    def above(self, place: int) -> set[int]:
        """Return an operator with all that lies above it, through all stages."""
        return {place}.union(*(self.above(parent) for parent in self.nodes[place].parents))

    def has_one_key(self, place: int) -> bool:
        """Whether all messages were brought together above, so that none has a key and all have the same."""
        stage = self.stage_of(place)
        if self.nodes[stage].kind == "broadcast":
            return self.has_one_key(self.nodes[stage].parents[0])
        return self.nodes[stage].kind == "window_all"

    def partitions_of(self, place: int) -> int:
        stage = self.stage_of(place)
        if self.nodes[stage].kind == "window_all":
            return 1
        return self.nodes[stage].number if stage else self.partitions


# What the operators compute, for the pipeline and for the reference alike.


def kept(node: Node, event: Event) -> bool:
    return event.number % (node.number + 1) != 0


def mapped(node: Node, event: Event) -> Event:
    return Event((event.number * 3 + node.number) % 1_000_003, event.key, event.at)


def many(node: Node, event: Event) -> list[Event]:
    return [Event((event.number * 10 + n) % 1_000_003, event.key, event.at) for n in range(event.number % 3)]


def arms(node: Node, event: Event) -> tuple[str, ...]:
    return ((), ("left",), ("right",), ("left", "right"))[event.number % 4]


def new_key(node: Node, event: Event, nulls: bool) -> str | None:
    return None if nulls and event.number % 7 == 0 else f"k{event.number % 3}"


def joined(event: Event, row: Event) -> Event:
    return Event((event.number + row.number) % 1_000_003, event.key, event.at)


def nearest(event: Event, other: Event | None) -> Event:
    return event if other is None else joined(event, other)


def windows_of(node: Node, at: int) -> list[tuple[int, int]]:
    """Return the starts and the ends of windows: a few ms, or a day of New York; a session's is that of one record."""
    size, step = 25 * node.number, 10 * node.number
    if node.windows == "session":
        return [(at, at + size)]
    if node.windows == "hopping":
        return [(start, start + size) for start in range(at - at % step, at - size, -step)]
    if node.windows == "tumbling":
        return [(at - at % size, at - at % size + size)]
    midnight = datetime.fromtimestamp(at // 1000, ZoneInfo(ZONE)).replace(hour=0, minute=0, second=0, fold=0)
    return [(_ms(midnight), _ms(midnight + timedelta(days=1)))]


def sessions_of(windows: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what windows come to that become one where they overlap."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000


def aggregated(node: Node, numbers: list[int]) -> int:
    """Return what a window comes to."""
    several = {"top_k": sorted(numbers)[-2:], "collect": numbers, "fold": numbers}
    if node.aggregation in several:
        return mixed(several[node.aggregation])
    one = {"total": sum, "count": len, "maximum": max, "minimum": min, "mean": mean_of}
    return one[node.aggregation](numbers)  # type: ignore[operator]


def mean_of(numbers: list[int]) -> int:
    return rounded(sum(numbers) / len(numbers))


def rounded(mean: float) -> int:
    return round(mean * 8)


def mixed(numbers: list[int]) -> int:
    """Return one number that depends on all, and not on their order."""
    return sum(place * number for place, number in enumerate(sorted(numbers), 1)) % 1_000_003


TABLE = [Event(1_000 * n, f"k{n}", 0) for n in range(2)]
"""The rows of every table: one key of three is missing."""


def partition_of(key: str | None, partitions: int) -> int:
    return murmur2(Tagged().encode(key)) % partitions


def keys_of(partition: int, partitions: int) -> list[str]:
    """Return the keys of the records of one of up to four partitions: one at least, and six in all."""
    return [key for key in (f"k{n}" for n in range(6)) if partition_of(key, partitions) == partition]


class _Growing:
    """A pipeline that operators are added to, where they may stand."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.streams: list[int] = []
        self._depth: dict[int, int] = {}
        self._asyncs: dict[int, int] = {}
        self._stage: dict[int, int] = {}
        self._guarded: set[int] = set()
        self._several: set[int] = set()
        self.add(Node("input"))

    def add(self, node: Node) -> int:
        place = len(self.nodes)
        self.nodes.append(node)
        moved = node.kind in REPARTITIONS
        self._depth[place] = max((self._depth[one] for one in node.parents), default=1) + moved
        self._asyncs[place] = max((self._asyncs[one] for one in node.parents), default=0) + node.awaits
        self._stage[place] = place if moved else self._stage[node.parents[0]] if node.parents else 0
        if node.kind in ("process", "scan", "meet") or (self.is_guarded(node.parents) and not moved):
            self._guarded.add(place)
        if not moved and (node.kind in SEVERAL or not self._several.isdisjoint(node.parents)):
            self._several.add(place)
        if node.kind not in (*LAST, "branch"):
            self.streams.append(place)
        return place

    def is_guarded(self, parents: tuple[int, ...]) -> bool:
        """Whether a process or scan lies above: what it emits is atomic with it only where nothing below awaits."""
        return not self._guarded.isdisjoint(parents)

    def beside(self, place: int) -> list[int]:
        """Return the other streams of a stage."""
        return [other for other in self.streams if self._stage[other] == self._stage[place] and other != place]

    def takes(self, node: Node) -> bool:
        """Whether it may stand there."""
        if node.kind == "input":
            return sum(one.kind == "input" for one in self.nodes) < 2
        above = node.parents[0]
        if (node.kind in REPARTITIONS and self._depth[above] == 3) or (node.awaits and self._asyncs[above] == 3):
            return False
        if node.kind == "task" and node.awaits and above in self._several:
            return False  # it takes one message at a time, and refuses a record that brings several
        entered = self.nodes[self._stage[above]].kind
        return not (node.kind in ("join", "meet", "nearest") and entered in ("window_all", "broadcast"))


def any_pipeline(chance: random.Random, most: int = 7, kinds: tuple[str, ...] = ()) -> Pipeline:
    """Return a pipeline of up to three stages, and one or two inputs."""
    growing = _Growing()
    for _ in range(chance.randint(1, most)):
        above, kind = chance.choice(growing.streams), chance.choice(kinds or KINDS)
        parents: tuple[int, ...] = () if kind == "input" else (above,)
        if kind in TWO_SIDED:
            if not (others := growing.beside(above)):
                continue
            parents = (above, chance.choice(others))
        poison = chance.choice(("", "", "always", "once"))
        if kind in (*TWO_SIDED, "broadcast", "input", *WINDOWS) or growing.is_guarded(parents):
            poison = ""
        order, also_sent = chance.choice(("key", "partition", "none")), chance.choice((False, True))
        aggregation = chance.choice(AGGREGATIONS)
        node = Node(kind, parents, chance.randint(1, 4), poison, order, also_sent, aggregation)
        if growing.takes(node):
            place = growing.add(node)
            if kind == "branch":
                for arm in ("left", "right"):
                    growing.add(Node(arm, (place,)))
    nulls, policy = chance.choice((False, True)), chance.choice(("skip", "dead_letter"))
    return Pipeline(tuple(growing.nodes), chance.randint(1, 4), chance.choice((0, 50)), nulls, policy)


def any_records(chance: random.Random, partitions: int, most: int = 25, nulls: bool = False) -> list[list[Event]]:
    """Return events per partition, each with keys of its own: time goes on, with disorder and late ones."""
    parts = []
    for partition in range(partitions):
        keys = keys_of(partition, partitions)
        now, events = 0, []
        for _ in range(chance.randint(0, most)):
            number = chance.randint(0, 999)
            now += number % 40
            at = max(now - chance.choice((0, 0, 0, 30, 200)), 0)
            key = None if nulls and number % 5 == 0 else keys[number % len(keys)]
            events.append(Event(number, key, at))
        parts.append(events)
    return parts


def pipelines(most: int = 7, kinds: tuple[str, ...] = ()) -> st.SearchStrategy[Pipeline]:
    """Draw pipelines of up to three stages."""
    return st.randoms(use_true_random=False).map(lambda chance: any_pipeline(chance, most, kinds))


def records(partitions: int, most: int = 25, nulls: bool = False) -> st.SearchStrategy[list[list[Event]]]:
    """Draw events per partition: time goes on, with disorder and late ones."""
    return st.randoms(use_true_random=False).map(lambda chance: any_records(chance, partitions, most, nulls))


def stored(parts: list[list[Event]]) -> list[list[Row]]:
    """Return events as they lie in a stream: without keys, which the pipelines read off the values."""
    return [[(None, msgspec.json.encode(event), event.at) for event in part] for part in parts]


def tables(pipeline: Pipeline) -> dict[str, list[list[Row]]]:
    """Return the rows of every table of a pipeline, by stream."""
    found = {}
    for place, node in enumerate(pipeline.nodes):
        if node.kind in ("join", "lookup"):
            count = pipeline.partitions_of(place) if node.kind == "join" else 1
            parts: list[list[Row]] = [[] for _ in range(count)]
            for row in TABLE:
                data = msgspec.json.encode(row)
                parts[partition_of(row.key, count)].append((Tagged().encode(row.key), data, 0))
            found[f"table-{place}"] = parts
    return found
