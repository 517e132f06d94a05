"""The exits of fused functions: writing, repartitioning, keeping state, calling a sink or a task."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from operators.core.base import EVENT_COLUMNS, NO_HEADERS, Batch, Headers, Key, Operator, Output
from operators.core.untimed import Untimed
from operators.io import Headed
from operators.joins.match_counts import Meetings
from operators.partition_by import ByFunction, hash_
from operators.scan import ScanOperator
from operators.state.keyed_state import Lending
from operators.task import Effects, Envelope, TaskContext, TaskOperator
from operators.windows.window import WindowOperator
from operators.windows.window_groups import Grouped, Groups
from runtime.encoding.keys import KeySerde, bytes_of_key, remembering
from runtime.encoding.lines import rows_in
from runtime.encoding.ownership import OwnValues, keeper_of
from runtime.encoding.serdes import BulkSerde, Json, Natural, encode_all
from runtime.encoding.storable import ReadBack, check_kept
from runtime.ports.sink import GatheringSink
from runtime.stage.outputs import Destination, FirstValues, Outputs, routed

NO_TIME = "the records have no timestamps, and event time is needed here; give the input timestamp="


class SendToExit:
    """Writes rows, whose values are encoded, to an output."""

    def __init__(self, outputs: Outputs, to: Destination, keys: KeySerde) -> None:
        self._outputs = outputs
        self._to = to
        self.columns = EVENT_COLUMNS if to.sink is None else to.sink.columns
        self.together: Callable[[list[Any]], list[Any]] | None = None
        """Encodes all values at once, where that comes to the same, into ones that stand for several rows."""
        self.encode_all: Callable[[list[Any]], list[Any]] | None = None
        """Encodes all values at once, where that takes less than one by one."""
        if isinstance(to.value, Json | BulkSerde):
            self.encode_all = partial(encode_all, to.value)
        if isinstance(to.sink, GatheringSink):
            self.together = to.sink.together(to.value)
        self.keep: Callable[[Any], object] | None = None
        """Keeps a value as it is sent until all are encoded, where a function that is called may change it later."""
        bare = to.value.declared if isinstance(to.value, ReadBack) else to.value
        # JSON takes no more one by one than copies do.
        if (self.together or isinstance(bare, BulkSerde)) and not isinstance(bare, Json):
            self.keep = keeper_of(getattr(to.value, "type", None), to.value.encode)
        self._keeps_headers = to.sink is None or "headers" in to.sink.columns
        self._is_headed = False
        self.first = FirstValues()
        key = to.key or keys.serde
        self._key_as_written: Callable[[Key], bytes] = remembering(lambda held: bytes_of_key(key, keys.decode(held)))

    def take(self, batch: Batch) -> None:
        """Write, with keys as the output has them."""
        if self._is_headed:
            self._take_headers_off(batch)
        rows = len(batch)
        if self.together is not None and [*map(type, batch.values)].count(bytes) < rows:
            rows = sum(map(rows_in, batch.values))
            self._outputs.combined += rows - len(batch)
        if self.first.wanted:
            self.first.look(batch.values, rows, batch.keys)
        if batch.keys is not None:
            batch.keys = list(map(self._key_as_written, batch.keys))
        written = Batch(batch.values, batch.keys, batch.timestamps, batch.stamps)
        if self._keeps_headers:
            written.headers = batch.headers
        self._outputs.place(self._to, written)

    def take_headed(self) -> None:
        """Take values that may come with headers that were made for them, one by one."""
        self._is_headed, self.together, self.encode_all, self.keep = True, None, None, None

    def _take_headers_off(self, batch: Batch) -> None:
        """Put the headers that values come with into the place of those that were carried."""
        carried = batch.headers or [None] * len(batch)
        pairs = zip(batch.values, carried, strict=True)
        batch.headers = [value.headers if type(value) is Headed else before for value, before in pairs]
        batch.values = [value.value if type(value) is Headed else value for value in batch.values]

    def fold(self, columns: Any, late: Batch) -> None:
        """Write rows that lie in columns to an output that takes these."""
        if len(columns):
            self._outputs.place(self._to, Batch([columns]))
            self._outputs.combined += len(columns) - 1


class PartitionByExit:
    """Writes rows to the partition of their keys in an intermediate stream: of new ones, or of those they came with."""

    def __init__(
        self, outputs: Outputs, to: Destination, values: OwnValues, exactly: bool = False, rekeys: bool = True
    ) -> None:
        self._outputs = outputs
        self._to = to
        self._exactly = exactly
        """Whether what is sent is decoded again and compared."""
        self._rekeys = rekeys
        self.columns = frozenset({"timestamps", "stamps"}) if rekeys else EVENT_COLUMNS
        self.behind = ""
        """The exit to the windows behind it for which values may be grouped before."""
        self.is_joint = False
        """Whether one reader takes in memory what goes to all partitions."""
        self.calls = ["by"] if isinstance(to.by, ByFunction) else []
        assert to.key is not None
        self._keys, self._values = KeySerde(to.key), values
        self._place_of = routed(hash_, self._keys, to.partitions)

    @property
    def by(self) -> Callable[[Any, int], int]:
        """The user's own choice of partition."""
        assert isinstance(self._to.by, ByFunction)
        return self._to.by.function

    @by.setter
    def by(self, function: Callable[[Any, int], int]) -> None:
        self._to = replace(self._to, by=ByFunction(function))

    def take(self, batch: Batch) -> None:
        """Write."""
        to, keys = self._to, batch.keys
        if self._exactly:
            check_kept(to.value, batch.values, exactly=True)
        rows = Batch(batch.values, keys, batch.timestamps, batch.stamps, signs=batch.signs)
        rows.headers = batch.headers
        if not self._rekeys:
            # They are held already. What came without a key stays where it is, as nothing behind keeps state for it.
            assert to.by is hash_, "no function of a user's is to be asked for keys that it was not given"
            self._route(rows, [])
            return
        assert to.key is not None and keys is not None
        if self._exactly:
            check_kept(to.key, keys, exactly=True)
        rows.keys = self._keys.hold(keys)
        self._route(rows, keys)

    @property
    def stays_in_memory(self) -> bool:
        """Whether all partitions are read here, by relays."""
        relays, stream = self._outputs.relays, self._to.stream
        return all((stream, partition) in relays for partition in range(self._to.partitions))

    def fold(self, groups: Groups, late: Batch) -> None:
        """Write what is grouped for the windows behind, each key to its partition, and what is late as rows."""
        # Each of many readers that fold together comes with what is late of its own, which mostly is nothing.
        in_memory = bool(groups.by_slots) and self.stays_in_memory
        if in_memory:
            # Made the next stage's own all at once, and not by partition.
            self._values.own_groups(groups.by_slots.values())
        parts: dict[int, Grouped] = {}
        for slots, group in groups.by_slots.items():
            for partition, share in [(0, group)] if in_memory and self.is_joint else self._shares(group):
                if partition not in parts:
                    parts[partition] = Grouped(self.behind)
                parts[partition].add(slots, groups.places[slots], share)
        for partition, part in parts.items():
            place = self._to.stream, partition
            if in_memory:
                self._outputs.hand_own(place, part)
            else:
                self._outputs.hand_groups(place, part, self._values, self._keys)
        if len(late):
            assert late.keys is not None
            self._route(late, [*map(self._keys.decode, late.keys)])

    def _route(self, rows: Batch, keys: list[Any]) -> None:
        outputs, stream = self._outputs, self._to.stream
        place_of = self._place_of if self._rekeys else self._place_of_any
        if self.stays_in_memory:
            rows.values = self._values.own(rows.values)
            # Told apart only where a commit stores them.
            parts = [(0, rows)] if self.is_joint else outputs.spread(self._to, rows, place_of, keys)
            for partition, found in parts:
                outputs.hand_own((stream, partition), found)
            return
        for partition, found in outputs.spread(self._to, rows, place_of, keys):
            outputs.hand((stream, partition), found, self._values, self._keys)

    def _place_of_any(self, key: Key | None) -> int | None:
        return None if key is None else self._place_of(key)

    def _shares(self, group: dict[Key, list[Any]]) -> Iterable[tuple[int, dict[Key, list[Any]]]]:
        """Return the keys of each partition, with their values."""
        to = self._to
        if to.by is hash_ and to.partitions == 1:
            return [(self._outputs.here(to), group)]
        places: Iterable[int]
        if to.by is hash_:
            places = map(self._place_of, group)
        else:
            decode, encode = self._keys.decode, self._keys.encode
            places = [to.by.partition(decode(key), encode(key), to.partitions) for key in group]
        # Few keys of a window come to few of many partitions: nothing is made for the others.
        shares: dict[int, dict[Key, list[Any]]] = {}
        for (key, values), partition in zip(group.items(), places, strict=True):
            share = shares.get(partition)
            if share is None:
                shares[partition] = {key: values}
            else:
                share[key] = values
        return shares.items()


class BroadcastExit:
    """Writes rows to every partition of an intermediate stream."""

    columns = EVENT_COLUMNS

    def __init__(self, outputs: Outputs, to: Destination, keys: KeySerde, exactly: bool = False) -> None:
        self._outputs = outputs
        self._to = to
        self._exactly = exactly
        self._keys, self._values = keys, OwnValues(to.value)

    def take(self, batch: Batch) -> None:
        """Write."""
        if self._exactly:
            check_kept(self._to.value, batch.values, exactly=True)
        places = [(self._to.stream, partition) for partition in range(self._to.partitions)]
        self._outputs.hand_all(places, batch, self._values, self._keys)


class SinkExit:
    """Calls the user's function, once all other effects of the same records have succeeded."""

    calls = ("function",)
    columns = frozenset[str]()

    def __init__(self, function: Callable[[Any], object]) -> None:
        self.function = function
        self.held: deque[Any] = deque()

    def take(self, batch: Batch) -> None:
        """Hold rows until `call`."""
        self.held.extend(batch.values)

    def call(self, most: int) -> None:
        """Call the function for the first rows, in order; one for which it raises stays held, with those behind it."""
        for _ in range(most):
            self.function(self.held[0])
            self.held.popleft()


class NowhereExit:
    """Takes what has gone where it should already."""

    columns = frozenset[str]()

    def take(self, batch: Batch) -> None:
        """Do nothing."""


class AwaitedExit:
    """Stands at an async operator, whose rows are called for and leave nothing but results."""

    columns = EVENT_COLUMNS

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def take(self, batch: Batch) -> None:
        """Refuse."""
        raise AssertionError("rows of an async operator are calls, not effects")


class StatefulExit:
    """Hands rows to a stateful operator; those that are late there go where the user wants them."""

    columns = EVENT_COLUMNS

    def __init__(self, operator: Operator, on_late: Callable[[Batch], None], meetings: Meetings | None = None) -> None:
        self._operator = operator
        self._on_late = on_late
        self._meetings = meetings
        self._is_timed = not isinstance(operator, ScanOperator | Untimed)

    def take(self, batch: Batch) -> Batch | None:
        """Process, and return what is emitted at once."""
        if self._is_timed and batch.timestamps is None:
            raise ValueError(NO_TIME)
        if batch.timestamps is not None and batch.stamps is None:
            batch.stamps = list(batch.timestamps)
        if self._meetings is not None:
            self._meetings.note_batch(batch)
        emitted = self._operator.process(batch)
        if self._operator.late is not None:
            self._on_late(self._operator.late)
        return emitted

    def fold(self, groups: Groups | Grouped, late: Batch) -> None:
        """Give a window what was grouped for it already."""
        assert isinstance(self._operator, WindowOperator)
        self._operator.add(groups)
        if len(late):
            self._on_late(late)


class Callback:
    """The callback that a callback-style process completes, once, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()

    def complete(self) -> None:
        """Say that the message is processed."""
        self._tell(None)

    def fail(self, error: Exception) -> None:
        """Say that it could not be processed."""
        self._tell(error)

    def _tell(self, error: Exception | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: the run has ended, and the message was not waited for
            self._loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


@dataclass(frozen=True)
class TaskCalls:
    """The functions of a user's own task; `form` is how `process` ends: plain, async or by callback."""

    process: Callable[..., Any]
    window: Callable[..., Any] | None
    form: str
    by_key: bool = False


@dataclass(frozen=True)
class TaskAsks:
    """The requests of a task's exit: a context for a call, effects that the loop is to heed, the source at hand."""

    context: Callable[[], TaskContext]
    request: Callable[[Effects], None]
    source: Callable[[], tuple[str, int]]
    late_use: Callable[[str], Exception]


class TaskExit:
    """Calls the user's own task, and applies the effects of its complete calls."""

    columns = EVENT_COLUMNS

    def __init__(
        self,
        operator: TaskOperator,
        outputs: Outputs,
        destinations: dict[Output, Destination],
        calls: TaskCalls,
        keys: KeySerde,
        asks: TaskAsks,
    ) -> None:
        self._operator = operator
        self._outputs = outputs
        self._destinations = destinations
        self.process, self.window = calls.process, calls.window
        self._form, self._by_key = calls.form, calls.by_key
        self._keys = keys
        self._context, self._request, self._source = asks.context, asks.request, asks.source
        self._lending = Lending(asks.late_use)

    @property
    def calls(self) -> list[str]:
        """The names of the functions that nobody awaits."""
        named = {"process": self._form != "async", "window": self.window is not None}
        return [name for name, is_called in named.items() if is_called]

    def take(self, batch: Batch) -> None:
        """Call the function per row, or apply the effects that async calls came to."""
        timestamps: list[Any] = batch.timestamps or [None] * len(batch)
        stamps = batch.stamps or timestamps
        if all(type(value) is Effects for value in batch.values):
            for value, timestamp, stamp in zip(batch.values, timestamps, stamps, strict=True):
                self.apply(value, timestamp, stamp)
            return
        for envelope, stamp in zip(self.envelopes(batch, *self._source()), stamps, strict=True):
            context = self._context_for(envelope)
            self.process(envelope, context)
            self.apply(self._end(context), envelope.timestamp, stamp)

    def envelopes(self, batch: Batch, stream: str, partition: int) -> list[Envelope]:
        """Return rows as the messages that a task sees."""
        none = [None] * len(batch)
        headers: list[Headers | None] = batch.headers or [None] * len(batch)
        columns = zip(
            batch.keys or none, batch.values, batch.timestamps or none, batch.offsets or none, headers, strict=True
        )
        decode = self._keys.decode
        return [
            Envelope(decode(key), value, timestamp, stream, partition, offset or 0, said or NO_HEADERS)
            for key, value, timestamp, offset, said in columns
        ]

    async def call(self, envelope: Envelope) -> list[Effects]:
        """Call an async or callback process, and return the effects of the complete call."""
        context = self._context_for(envelope)
        if self._form == "async":
            await self.process(envelope, context)
        else:
            callback = Callback()
            self.process(envelope, context, callback)
            await callback.done
        return [self._end(context)]

    def _end(self, context: TaskContext) -> Effects:
        """Return the effects of a call that has returned, to which nobody adds any more."""
        effects = context.effects
        self._lending.end(context)
        return effects

    def _context_for(self, envelope: Envelope) -> TaskContext:
        self._lending.check()
        context = self._context()
        if self._by_key:
            context.keep_to(envelope.key)
        return context

    def call_window(self, now_ms: int) -> None:
        """Call the user's timer function and apply its effects."""
        assert self.window is not None
        context = self._context()
        if self._by_key:
            context.keep_to_known()
        self.window(context)
        self.apply(self._end(context), now_ms, now_ms)

    def apply(self, effects: Effects, timestamp: int | None, stamp: int | None) -> None:
        """Write state and messages, and pass requests on."""
        self._operator.apply(effects)
        for output, batch in self._operator.sent([(effects, timestamp, stamp)]).items():
            to = self._destinations.get(output)
            if to is None:
                raise ValueError(f"the task sent to {output.stream!r}, which is not among its outputs=[...]")
            key = to.key or Natural()
            batch.keys = [None if one is None else bytes_of_key(key, one) for one in batch.keys] if batch.keys else None
            self._outputs.write(to, batch)
        if effects.commit or effects.shutdown:
            self._request(effects)
