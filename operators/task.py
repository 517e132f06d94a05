"""The user's own task over whole messages, with its state, outputs and timer: the lower level of Samza's designs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Literal

from operators.core.base import NO_HEADERS, Batch, Headers, Output, Serde, Spec, Store
from operators.core.base import Form as StateForm
from operators.core.entry_keys import KEY, OF_KEYS, EntryKinds
from operators.core.sites import mistake
from operators.core.wording import shown
from operators.io import check_headers
from operators.state.keyed_state import dumped, loaded, typed
from operators.windows.window_types import duration_ms

Form = Literal["plain", "async", "callback"]


@dataclass(frozen=True)
class Every:
    """A function that is called at an interval of the wall clock, alone in its task."""

    interval_ms: int
    function: Callable[..., object]


def every(
    function: Callable[[TaskContext], object],
    length: timedelta | None = None,
    /,
    *,
    minutes: float = 0,
    seconds: float = 0,
) -> Every:
    """Call `function(context)` at an interval of the wall clock, when nothing else runs in the task.

    Raises ValueError when the interval is not positive.

    >>> every(lambda context: context.commit(), seconds=10).interval_ms
    10000
    """
    interval_ms = duration_ms(length, minutes=minutes, seconds=seconds)
    if interval_ms <= 0:
        raise mistake(f"every(...) {interval_ms} ms is too often", "every(fn, seconds=10)")
    return Every(interval_ms, function)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message as a task sees it; `timestamp` in ms. It has `headers` where its input is of `headers=True`.

    >>> Envelope(key="AA", value=12, timestamp=0, stream="delays", partition=0, offset=7).value
    12
    """

    key: Any
    value: Any
    timestamp: int | None
    stream: str
    partition: int
    offset: int
    headers: Mapping[str, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class UserTask(Spec):
    """Call `process(envelope, context)` per message: plain, async, or handed a callback as a third argument."""

    process: Callable[..., object]
    form: Form
    outputs: tuple[Output, ...] = ()
    window: Every | None = None
    max_in_flight: int = 1
    timeout_ms: int = 2_000
    store: str = "lmdb"
    order: str = "none"
    state: Serde | None = None
    by_key: bool = False

    kind: ClassVar[str] = "task"
    declares: ClassVar[str] = "task(..., state=MySerde())"
    has_effects: ClassVar[bool] = True
    reads_offsets: ClassVar[bool] = True
    uses_headers: ClassVar[bool] = True
    terminal: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    in_calls: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True
    order_sensitive: ClassVar[bool] = True
    wall_clock: ClassVar[bool] = True
    beside_results: ClassVar[frozenset[str]] = Spec.beside_results | {
        *("form", "outputs", "max_in_flight", "timeout_ms", "order", "by_key"),
    }

    @property
    def keyed(self) -> bool:  # type: ignore[override]
        """Whether its state is by the keys of its messages."""
        return self.by_key

    def entry_kinds(self) -> EntryKinds:
        """Return what was put by key."""
        return OF_KEYS

    def declared_of(self, parts: Mapping[str, object]) -> Serde | None:
        """Return that of what was put."""
        return self.state

    def part_serdes(self, key: Serde | None) -> Mapping[str, Serde | None]:
        """Return that its keys are whatever it was called with."""
        return {KEY: None}

    def key_at(self, place: bytes) -> bytes | None:
        """Return the key where its state is by those of its messages; None where its keys are its own."""
        return place if self.by_key else None

    def why_whole(self) -> tuple[str, str] | None:
        """Return that nobody knows which of its state belongs to which messages, unless it says so."""
        if self.by_key:
            return None
        wrong = "its state is its own, and nobody knows which of it belongs to the messages of which key"
        return wrong, "app.task(..., keyed=True), whose state is by the message's key; or .process(...)"

    def meaning(self) -> str:
        """Return what its state lies under, where that is the message's key."""
        return "state by the message's key" if self.by_key else ""

    @property
    def asynchronous(self) -> bool:  # type: ignore[override]
        """Whether a message completes later than the call returns."""
        return self.form != "plain"

    @property
    def most_calls(self) -> int:
        """As many as were said."""
        return self.max_in_flight

    def call_timeout_ms(self, tasks: int) -> int:
        """Return the time that was said, however many tasks there are."""
        return self.timeout_ms

    def functions(self) -> dict[str, Callable[..., object]]:
        """The user's functions."""
        return {"process": self.process} | ({"window": self.window.function} if self.window else {})

    def describe(self) -> str:
        """Return the form of its function, and its calls in flight."""
        return f"{self.form}, ≤ {self.max_in_flight} in flight" if self.asynchronous else "plain"


@dataclass(slots=True)
class Effects:
    """The effects of one call of a task's function, which apply as a whole when the call is complete, or never."""

    sends: list[tuple[Output, object, object, int | None, Headers]] = field(default_factory=list)
    writes: dict[bytes, tuple[object, object]] = field(default_factory=dict)
    commit: bool = False
    shutdown: bool = False


DELETED = object()


class TaskContext:
    """The context of a call of a task's function: its state, its outputs, and requests to the run.

    Reads see the call's own writes. State may be used in the function (or coroutine) itself, not in other threads.

    >>> def count(message, context):
    ...     context.put(message.key, context.get(message.key, 0) + 1)
    """

    __slots__ = ("_form", "_known", "_own", "_serde", "_store", "effects", "task")

    def __init__(self, task: int, store: Store, serde: Serde, form: StateForm | None = None) -> None:
        self.task = task
        self.effects = Effects()
        self._own: bytes | None = None
        """The one place that a call for a message may use, where state is by key; None for all places."""
        self._known = False
        """Whether the call may only put what is there, as one for no message where state is by key."""
        self._store = store
        self._serde = serde
        self._form = form

    def get(self, key: object, default: object = None) -> Any:
        """Return the state at `key`, or `default`."""
        # Its own writes first: they reach the store only when the call is complete.
        place = self._place(key)
        if place in self.effects.writes:
            value = self.effects.writes[place][1]
            return default if value is DELETED else value
        found = self._store.get(place, DELETED)
        return default if found is DELETED else loaded(self._form, found)

    def put(self, key: object, value: object) -> None:
        """Set the state at `key`."""
        place = self._place(key)
        # The key of another part of the task would find its state no more where its messages come.
        if self._known and place not in self.effects.writes and self._store.get(place, DELETED) is DELETED:
            raise ValueError(
                f"with keyed=True window=every(...) put state at {shown(key)}, of which no message has come; write "
                "instead: for key, value in context.items(): context.put(key, ...)"
            )
        self.effects.writes[place] = (key, value if value is DELETED else typed(self._form, value))

    def delete(self, key: object) -> None:
        """Remove the state at `key`."""
        self.put(key, DELETED)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield all keys and values of the task's state, in the order of the encoded keys.

        Raises ValueError in a call for a message of a task with `keyed=True`.
        """
        if self._own is not None:
            raise ValueError(
                "with keyed=True a message has the state of its key alone; items() is for window=every(...)"
            )
        merged: dict[bytes, tuple[object, object]] = {
            place: (self._serde.decode(place), loaded(self._form, value)) for place, value in self._store.range()
        }
        merged.update(self.effects.writes)
        return (pair for _, pair in sorted(merged.items(), key=lambda item: item[0]) if pair[1] is not DELETED)

    def keep_to(self, key: object) -> None:
        """Let this call use the state of its message's key alone; raises ValueError where the message has none."""
        if key is None:
            raise ValueError("a record has no key, and a task with keyed=True needs one; partition_by(...) first")
        self._own = self._serde.encode(key)

    def keep_to_known(self) -> None:
        """Let this call, which is for no message, put state at no key that has none yet."""
        self._known = True

    def _place(self, key: object) -> bytes:
        place = self._serde.encode(key)
        if self._own is not None and place != self._own:
            raise ValueError(
                f"with keyed=True a message has the state of its key alone, and not that of {shown(key)}; write "
                "instead: context.get(message.key), context.put(message.key, ...)"
            )
        return place

    def send(
        self,
        output: Any,
        value: object,
        key: object = None,
        timestamp: int | None = None,
        headers: Mapping[str, bytes | None] = NO_HEADERS,
    ) -> None:
        """Write a message to an output of the task; without `timestamp` (ms) it takes its message's.

        It has no headers but those that are said, as by `headers=envelope.headers`.
        """
        self.effects.sends.append((getattr(output, "spec", output), value, key, timestamp, headers))

    def commit(self) -> None:
        """Ask for a commit soon."""
        self.effects.commit = True

    def shutdown(self) -> None:
        """Ask the run to drain, commit and stop."""
        self.effects.shutdown = True


class TaskOperator:
    """One task's state, to which the effects of complete calls are applied, in the order of completion."""

    def __init__(self, store: Store, form: StateForm | None = None) -> None:
        self.store = store
        self._form = form

    def apply(self, effects: Effects) -> None:
        """Write a complete call's state."""
        for place, (_, value) in effects.writes.items():
            if value is DELETED:
                self.store.delete(place)
            else:
                self.store.put(place, dumped(self._form, value))

    def sent(self, rows: list[tuple[Effects, int | None, int | None]]) -> dict[Output, Batch]:
        """Return, per output, the messages of calls given with their messages' timestamps and stamps."""
        found: dict[Output, Batch] = {}
        for effects, at, stamp in rows:
            for output, value, key, timestamp, headers in effects.sends:
                if headers:
                    check_headers(headers)
                batch = found.setdefault(output, Batch([], keys=[], timestamps=[], stamps=[]))
                batch.values.append(value)
                batch.keys.append(key)  # type: ignore[union-attr]
                batch.timestamps.append(at if timestamp is None else timestamp)  # type: ignore[union-attr,arg-type]
                batch.stamps.append(stamp)  # type: ignore[union-attr,arg-type]
                if headers or batch.headers is not None:
                    batch.headers = [*(batch.headers or [None] * (len(batch) - 1)), headers or None]
        return found
