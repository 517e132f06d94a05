"""What Hypothesis draws: records with disorder and late ones, and small pipelines built through the real DSL."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import strategies as st

from operators.partition_by import murmur2
from runtime.serdes import Tagged
from samza_dsl import App, MessageStream, Options, dead_letter, fail, retry, skip, total, tumbling
from samza_dsl.app import Around
from tests.simulation.crash import Row
from tests.simulation.loop import rest

APP, SOURCE, LETTERS = "law", "events", "letters"
TIMER_MS = 100_000
"""How long after a record its timer is due: longer than any disorder, so that none is set in the past."""
TIMEOUT_MS = 200
LONGEST_CALL_MS = 100
"""How long a call may take that is not to be given up."""
KEYED = ("window", "process", "join", "remember")
AWAITING = ("async", "remember")


class Event(msgspec.Struct, frozen=True, order=True):
    """What flows through the pipelines of the laws."""

    number: int
    key: str | None
    at: int


class Poison(Exception):
    """What the functions of the pipelines raise, on some values."""


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
        return node.kind != "branch" and (node.also_sent or not self.children(place))

    def outputs(self) -> list[str]:
        return [f"out-{place}" for place in range(len(self.nodes)) if self.is_sent(place)]

    def stage_of(self, place: int) -> int:
        """Return the place of the repartitioning, or of the input, whose stage an operator runs in."""
        while self.nodes[place].kind not in ("input", "partition_by"):
            place = self.nodes[place].parents[0]
        return place

    def above(self, place: int) -> set[int]:
        """Return an operator with all that lies above it, through all stages."""
        return {place}.union(*(self.above(parent) for parent in self.nodes[place].parents))

    def partitions_of(self, place: int) -> int:
        stage = self.stage_of(place)
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


def initial(node: Node) -> Callable[[], Any]:
    """Return what makes the state of an operator that counts: a number, or a list that is changed in place."""
    return int if node.number % 2 else lambda: [0]


def counting(node: Node) -> Callable[[Any], None]:
    """Return what counts a message in a context's state."""

    def count(context: Any) -> None:
        if node.number % 2:
            context.state += 1
        else:
            context.state[0] += 1

    return count


TABLE = [Event(1_000 * n, f"k{n}", 0) for n in range(2)]
"""The rows of every table: one key of three is missing."""


def partition_of(key: str | None, partitions: int) -> int:
    return murmur2(Tagged().encode(key)) % partitions


def keys_of(partition: int, partitions: int) -> list[str]:
    """Return the keys of the records of one of up to four partitions: one at least, and six in all."""
    return [key for key in (f"k{n}" for n in range(6)) if partition_of(key, partitions) == partition]


def any_pipeline(chance: random.Random, most: int = 7, kinds: tuple[str, ...] = ()) -> Pipeline:
    """Return a pipeline of up to three stages."""
    nodes = [Node("input")]
    depth = {0: 1}
    allowed = kinds or (
        *("filter", "map", "flat_map", "branch", "merge", "async", "async", "partition_by"),
        *("window", "process", "join", "lookup", "remember"),
    )
    streams = [0]
    asyncs = {0: 0}
    stage = {0: 0}
    guarded: set[int] = set()

    def add(node: Node, above: int) -> int:
        place = len(nodes)
        nodes.append(node)
        depth[place] = depth[above] + (node.kind == "partition_by")
        asyncs[place] = max(asyncs[one] for one in node.parents) + (node.kind in AWAITING)
        stage[place] = place if node.kind == "partition_by" else stage[above]
        if node.kind == "process" or (guarded.intersection(node.parents) and node.kind != "partition_by"):
            guarded.add(place)  # what process emits is atomic with it only where nothing below awaits
        return place

    for _ in range(chance.randint(1, most)):
        above = chance.choice(streams)
        kind = chance.choice(allowed)
        if (kind == "partition_by" and depth[above] == 3) or (kind in AWAITING and asyncs[above] == 3):
            continue
        parents = (above,)
        if kind == "merge":
            others = [place for place in streams if stage[place] == stage[above] and place != above]
            if not others:
                continue
            parents = (above, chance.choice(others))
        poison = chance.choice(("", "", "always", "once"))
        if kind in ("merge", "window") or guarded.intersection(parents):
            poison = ""
        order = chance.choice(("key", "partition", "none"))
        place = add(Node(kind, parents, chance.randint(1, 4), poison, order, chance.choice((False, True))), above)
        if kind == "branch":
            streams += [add(Node(arm, (place,)), place) for arm in ("left", "right")]
        else:
            streams.append(place)
    nulls, policy = chance.choice((False, True)), chance.choice(("skip", "dead_letter"))
    return Pipeline(tuple(nodes), chance.randint(1, 4), chance.choice((0, 50)), nulls, policy)


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


def build(
    pipeline: Pipeline,
    options: Options | None = None,
    pace: int | random.Random = 0,
    around: Around | None = None,
    opened: Callable[[Any], None] | None = None,
    on_read: Callable[[], None] = lambda: None,
) -> App:
    """Say a pipeline in the DSL; async functions take a virtual time that `pace`, or a seed, decides.

    With `opened`, filters and maps are objects that are opened and closed; it is called with each that is opened.
    `on_read` is called for every record that is read.
    """
    app = App(APP, options or Options())
    pace = random.Random(pace) if isinstance(pace, int) else pace
    if around is not None:
        app.wrap(around)
    streams: dict[int, Any] = {}
    for place, node in enumerate(pipeline.nodes):
        streams[place] = _Builder(app, pipeline, place, node, pace, opened, on_read).build(streams)
        if pipeline.is_sent(place):
            streams[place].send_to(app.output(f"out-{place}", value=Event), op_id=f"send-{place}")
    return app


class _Builder:
    """Makes one operator."""

    def __init__(
        self,
        app: App,
        pipeline: Pipeline,
        place: int,
        node: Node,
        pace: random.Random,
        opened: Callable[[Any], None] | None,
        on_read: Callable[[], None],
    ) -> None:
        self.app, self.pipeline, self.place, self.node, self.pace = app, pipeline, place, node, pace
        self.opened, self.on_read = opened, on_read
        self.failed: Counter[int] = Counter()
        last = skip if pipeline.policy == "skip" else dead_letter(LETTERS)
        lenient = {"always": last, "once": retry(2, then=fail), "": fail}[node.poison]
        if node.kind in (*KEYED, "input") and lenient == fail:
            lenient = last  # for null keys
        elif node.kind in KEYED and node.poison == "once":
            lenient = retry(2, then=last)
        self.how = {"on_error": lenient, "op_id": f"{node.kind}-{place}"}

    def build(self, streams: dict[int, Any]) -> Any:
        kind, node = self.node.kind, self.node
        if kind == "input":
            return self.app.input(
                SOURCE,
                value=Event,
                key=lambda event: event.key,
                partitioned_by_key=True,
                timestamp=self._at,
                max_disorder_ms=self.pipeline.disorder_ms,
                on_error=self.how["on_error"],
            )
        above = streams[node.parents[0]]
        if kind in ("left", "right"):
            return above[kind]
        if kind == "merge":
            return above.merge(*(streams[parent] for parent in node.parents[1:]), op_id=self.how["op_id"])
        return getattr(self, f"_{kind}")(above)

    def _at(self, event: Event) -> int:
        self.on_read()
        return event.at

    def _filter(self, above: MessageStream[Any, Any]) -> Any:
        return above.filter(self._object(self._checked(kept)), **self.how)

    def _map(self, above: MessageStream[Any, Any]) -> Any:
        return above.map(self._object(self._checked(mapped)), **self.how)

    def _flat_map(self, above: MessageStream[Any, Any]) -> Any:
        return above.flat_map(self._checked(many), **self.how)

    def _branch(self, above: MessageStream[Any, Any]) -> Any:
        return above.branch(self._checked(arms), into=("left", "right"), **self.how)

    def _async(self, above: MessageStream[Any, Any]) -> Any:
        return above.async_flat_map(self._calls(self._slowly()), order=self.node.order, **self._widths(), **self.how)

    def _remember(self, above: MessageStream[Any, Any]) -> Any:
        slowly, count = self._slowly(), counting(self.node)

        async def counted(event: Event, context: Any) -> list[Event]:
            count(context)
            return await slowly(event)

        return above.async_flat_map(self._calls(counted), init=initial(self.node), **self._widths(), **self.how)

    def _widths(self) -> dict[str, Any]:
        return {"max_in_flight": self.node.number, "timeout_ms": TIMEOUT_MS}

    def _slowly(self) -> Callable[[Event], Awaitable[list[Event]]]:
        compute, pace = self._checked(many), self.pace

        async def slowly(event: Event) -> list[Event]:
            if wait := pace.choice((0, 1, 10, 40)):
                try:
                    await rest(wait)
                except asyncio.CancelledError:
                    await rest(wait)  # some take their time to heed it
                    raise
            try:
                return compute(event)
            except Poison:
                how = pace.random()
                if how < 0.15:
                    await rest(TIMEOUT_MS * 2)
                elif how < 0.3:
                    await asyncio.Event().wait()  # nobody sets it
                if how > 0.8:
                    raise asyncio.CancelledError from None  # as libraries do that give up on a connection
                raise

        return slowly

    def _partition_by(self, above: MessageStream[Any, Any]) -> Any:
        key = self._checked(lambda node, event: new_key(node, event, self.pipeline.nulls))
        return above.partition_by(key, partitions=self.node.number, **self.how)

    def _window(self, above: MessageStream[Any, Any]) -> Any:
        size = tumbling(milliseconds=25 * self.node.number)
        panes = above.window(size, total(lambda event: event.number), **self.how)
        return panes.map(lambda pane: Event(pane.value, pane.key, pane.start), op_id=f"pane-{self.place}")

    def _process(self, above: MessageStream[Any, Any]) -> Any:
        def on_message(event: Event, context: Any) -> list[Event]:
            count(context)
            context.set_timer(event.at + TIMER_MS)
            return [checked(event)]

        checked, count = self._checked(mapped), counting(self.node)
        on_timer = _timed
        return above.process(on_message, on_timer=on_timer, init=initial(self.node), **self.how)

    def _join(self, above: MessageStream[Any, Any]) -> Any:
        return self._with_table(above, broadcast=False, on=None)

    def _lookup(self, above: MessageStream[Any, Any]) -> Any:
        return self._with_table(above, broadcast=True, on=lambda event: event.key)

    def _with_table(self, above: MessageStream[Any, Any], broadcast: bool, on: Any) -> Any:
        count = 1 if broadcast else self.pipeline.partitions_of(self.place)
        # what was repartitioned meets the rows of a table by their stored keys only
        stored = not broadcast and self.pipeline.stage_of(self.place) != 0
        table = self.app.table(
            f"table-{self.place}",
            value=Event,
            key=Tagged() if stored else lambda row: row.key,
            partitioned_by_key=not stored,
            broadcast=broadcast,
            partitions=count,
        )
        check = self._checked(lambda node, event: None)

        def with_(event: Event, row: Event) -> Event:
            check(event)
            return joined(event, row)

        return above.join(table, with_, on=on, **self.how)

    def _object(self, function: Callable[[Event], Any]) -> Callable[[Event], Any]:
        return function if self.opened is None else Resource(function, self.opened)

    def _calls(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self.opened is None else Caller(function, self.opened, self.node.number)

    def _checked(self, compute: Callable[[Node, Event], Any]) -> Callable[[Event], Any]:
        """Return the function of an event that fails where the node says."""
        node, failed = self.node, self.failed

        def function(event: Event) -> Any:
            if node.fails_on(event) and (node.poison == "always" or not failed[event.number]):
                failed[event.number] += 1
                raise Poison(event.number)
            return compute(node, event)

        return function


class Resource:
    """A function that is opened and closed with its task; `on_open` sees every copy."""

    broken: str | None = None
    """What is wrong, where something is."""

    def __init__(self, function: Callable[..., Any], on_open: Callable[[Resource], None]) -> None:
        self.function, self.on_open = function, on_open
        self.closed = 0

    def __call__(self, event: Event) -> Any:
        assert not self.closed, "a function was called after it was closed"
        return self.function(event)

    def __deepcopy__(self, memo: dict[int, Any]) -> Resource:
        return Resource(self.function, self.on_open)

    def open(self, context: Any) -> None:
        self.on_open(self)

    def close(self) -> None:
        self.closed += 1


class Caller(Resource):
    """An async function with at most `bound` calls under way, in one task; `broken` says where there were more."""

    def __init__(self, function: Callable[..., Any], on_open: Callable[[Resource], None], bound: int) -> None:
        super().__init__(function, on_open)
        self.bound = bound
        self._began: list[float] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Caller:
        return Caller(self.function, self.on_open, self.bound)

    async def __call__(self, *arguments: Any) -> Any:
        now_s = asyncio.get_running_loop().time()
        self._began.append(now_s)
        recent = [began_s for began_s in self._began if now_s - began_s < LONGEST_CALL_MS / 1_000]
        if len(recent) > self.bound:  # what has gone on for longer may have been given up
            self.broken = f"{len(recent)} calls are under way, and {self.bound} may be"
        try:
            return await self.function(*arguments)
        finally:
            self._began.remove(now_s)


def _timed(at_ms: int, context: Any) -> list[Event]:
    return [Event(at_ms, context.key, at_ms)]


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
