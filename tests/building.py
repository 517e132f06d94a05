"""Says a drawn pipeline in the DSL: functions that fail, wait, count and are opened, as its operators say."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from runtime.encoding.serdes import Tagged
from samza_dsl import (
    App,
    MessageStream,
    Options,
    after_count,
    after_delay,
    any_of,
    collect,
    count,
    daily,
    dead_letter,
    fail,
    fold,
    hopping,
    maximum,
    mean,
    minimum,
    retry,
    session,
    skip,
    top_k,
    total,
    tumbling,
)
from samza_dsl.application.app import Around
from tests.simulation.loop import rest
from tests.strategies import (
    APP,
    KEYED,
    LETTERS,
    MEETING_MS,
    TIMER_MS,
    ZONE,
    Event,
    Node,
    Pipeline,
    arms,
    joined,
    kept,
    many,
    mapped,
    mixed,
    nearest,
    new_key,
    rounded,
)

TIMEOUT_MS = 200
TRIGGERED = {
    "": None,
    "count": after_count(2),
    "delay": after_delay(milliseconds=5),
    "clock": any_of(after_count(3), after_delay(milliseconds=10, by_clock=True)),
}
LONGEST_CALL_MS = 100
"""How long a call may take that is not to be given up."""


class Poison(Exception):
    """What the functions of the pipelines raise, on some values."""


def build(
    pipeline: Pipeline,
    options: Options | None = None,
    pace: int | random.Random = 0,
    around: Around | None = None,
    opened: Callable[[Any], None] | None = None,
    on_read: Callable[[], None] = lambda: None,
    on_sink: Callable[[int, Event], None] = lambda place, event: None,
) -> App:
    """Say a pipeline in the DSL; async functions take a virtual time that `pace`, or a seed, decides.

    With `opened`, filters and maps are objects that are opened and closed; it is called with each that is opened.
    `on_read` is called for every record that is read, `on_sink` for what comes to the sink at a place.
    """
    app = App(APP, options or Options())
    pace = random.Random(pace) if isinstance(pace, int) else pace
    if around is not None:
        app.wrap(around)
    streams: dict[int, Any] = {}
    for place, node in enumerate(pipeline.nodes):
        streams[place] = _Builder(app, pipeline, place, node, pace, opened, on_read, on_sink).build(streams)
        if pipeline.is_sent(place) and node.kind != "task":
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
        on_sink: Callable[[int, Event], None],
    ) -> None:
        self.app, self.pipeline, self.place, self.node, self.pace = app, pipeline, place, node, pace
        self.opened, self.on_read, self.on_sink = opened, on_read, on_sink
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
                self.pipeline.inputs()[self.place],
                value=Event,
                key=lambda event: event.key,
                partitioned_by_key=True,
                timestamp=self._at,
                max_disorder_ms=self.pipeline.disorder_ms,
                priority=self.pipeline.priority(self.place),
                on_error=self.how["on_error"],
            )
        above = streams[node.parents[0]]
        if kind in ("left", "right"):
            return above[kind]
        if kind == "merge":
            return above.merge(*(streams[parent] for parent in node.parents[1:]), op_id=self.how["op_id"])
        if kind == "meet":
            how = {"within": (-MEETING_MS, MEETING_MS), **self.how}
            return above.join(streams[node.parents[1]], joined, **how)
        if kind == "nearest":
            how = {"direction": node.direction, "tolerance": node.tolerance_ms, **self.how}
            return above.join_asof(streams[node.parents[1]], nearest, how="left" if node.number > 2 else "inner", **how)
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

    def _slowly(self, computes: Callable[[Node, Event], Any] = many) -> Callable[[Event], Awaitable[Any]]:
        compute, pace = self._checked(computes), self.pace

        async def slowly(event: Event) -> Any:
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

    def _broadcast(self, above: MessageStream[Any, Any]) -> Any:
        return above.broadcast(partitions=self.node.number, **self.how)

    def _window(self, above: MessageStream[Any, Any]) -> Any:
        return self._panes(above.window)

    def _window_all(self, above: MessageStream[Any, Any]) -> Any:
        return self._panes(above.window_all)

    def _panes(self, window: Callable[..., Any]) -> Any:
        number = self.node.number
        kinds = {
            "daily": daily(ZONE),
            "tumbling": tumbling(milliseconds=25 * number),
            "hopping": hopping(milliseconds=25 * number, every_ms=10 * number),
            "session": session(milliseconds=25 * number),
        }
        aggregation, number_of = AGGREGATED[self.node.aggregation]
        early = TRIGGERED[self.node.trigger]
        panes = window(kinds[self.node.windows], aggregation, early=early, **self.how)
        if early is not None:
            panes = panes.filter(lambda pane: pane.timing != "early")
        return panes.map(lambda pane: Event(number_of(pane.value), pane.key, pane.start), op_id=f"pane-{self.place}")

    def _sink(self, above: MessageStream[Any, Any]) -> None:
        check, see = self._checked(lambda node, event: None), lambda event: self.on_sink(self.place, event)
        if self.node.form == "plain":
            above.sink(lambda event: (check(event), see(event)), **self.how)
            return
        slowly = self._slowly(lambda node, event: None)

        async def seen(event: Event) -> None:
            await slowly(event)
            see(event)

        above.sink(self._calls(seen), **self._widths(), **self.how)

    def _task(self, above: MessageStream[Any, Any]) -> None:
        output = self.app.output(f"out-{self.place}", value=Event)
        checked, slowly, pace, form = self._checked(mapped), self._slowly(mapped), self.pace, self.node.form

        def done(envelope: Any, context: Any, event: Event) -> None:
            context.put(envelope.key, context.get(envelope.key, 0) + 1)
            context.send(output, event, key=envelope.key)

        def plain(envelope: Any, context: Any) -> None:
            done(envelope, context, checked(envelope.value))

        async def awaited(envelope: Any, context: Any) -> None:
            found = context.get(envelope.key, 0)
            event = await slowly(envelope.value)
            context.put(envelope.key, found + 1)
            context.send(output, event, key=envelope.key)

        def called_back(envelope: Any, context: Any, callback: Any) -> None:
            try:
                event = checked(envelope.value)
            except Poison as error:
                if pace.random() < 0.7:  # else it is never heard of again
                    later(callback.fail, error)
                return
            done(envelope, context, event)
            later(callback.complete)

        def later(function: Callable[..., None], *arguments: Any) -> None:
            asyncio.get_running_loop().call_later(pace.choice((0, 1, 40)) / 1_000, function, *arguments)

        process = {"plain": plain, "async": awaited, "callback": called_back}[form]
        self.app.task(above, process, outputs=[output], timeout_ms=TIMEOUT_MS, **self.how)

    def _process(self, above: MessageStream[Any, Any]) -> Any:
        def on_message(event: Event, context: Any) -> list[Event]:
            count(context)
            at_ms, asked = event.at + TIMER_MS, context.map("asked")
            if not again or at_ms not in asked:
                context.set_timer(at_ms)
            if again:
                asked[at_ms] = True
            return [checked(event)]

        # what comes of a source that is behind would ask again for what was called for one that is ahead
        again = self.pipeline.stage_of(self.place) != 0
        checked, count = self._checked(mapped), counting(self.node)
        on_timer = _timed
        return above.process(on_message, on_timer=on_timer, init=initial(self.node), **self.how)

    def _scan(self, above: MessageStream[Any, Any]) -> Any:
        checked, in_place = self._checked(mapped), keeps_list(self.node)

        def step(state: Any, event: Event) -> Any:
            found = checked(event)
            if in_place:
                state[:] = state[0] + 1, found
            return state if in_place else (state[0] + 1, found)

        init = (lambda: [0, None]) if in_place else (lambda: (0, None))
        return above.scan(step, init=init, emit=lambda key, state: state[1], **self.how)

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


def keeps_list(node: Node) -> bool:
    """Whether its state is a list, and not a number."""
    return node.number % 2 == 0


def initial(node: Node) -> Callable[[], Any]:
    """Return what makes the state of an operator that counts: a number, or a list that is changed in place."""
    return (lambda: [0]) if keeps_list(node) else int


def counting(node: Node) -> Callable[[Any], None]:
    """Return what counts a message in a context's state."""

    def count(context: Any) -> None:
        if keeps_list(node):
            context.state[0] += 1
        else:
            context.state += 1

    return count


AGGREGATED: dict[str, tuple[Any, Callable[[Any], int]]] = {
    "total": (total(lambda event: event.number), int),
    "count": (count(), int),
    "mean": (mean(lambda event: event.number), rounded),
    "maximum": (maximum(lambda event: event.number), int),
    "minimum": (minimum(lambda event: event.number), int),
    "collect": (collect(), lambda events: mixed([event.number for event in events])),
    "top_k": (
        top_k(2, by=lambda event: event.number, then=lambda event: event.number),
        lambda events: mixed([event.number for event in events]),
    ),
    "fold": (fold(list, lambda numbers, event: _with(numbers, event), lambda a, b: [*a, *b]), mixed),
}
"""Aggregations, and how a number is made of what they come to."""


def _with(numbers: list[int], event: Event) -> list[int]:
    numbers.append(event.number)
    return numbers


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
