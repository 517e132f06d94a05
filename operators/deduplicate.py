"""Deduplication: of the messages with one id that lie close together in event time the first goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from operators.core.base import NEVER, Batch, OperatorContext, Serde, Spec, Store
from operators.state.entry_keys import NUMBER_BYTES, number_at, ordered

ID, EXPIRY = b"i", b"x"
"""The first byte of entries in the store: of times by id, and of ids by the time at which they expire."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Deduplicate(Spec):
    """Drop a message where one with the same `id_of(value)` went on, less than `within_ms` before or after it."""

    id_of: Callable[..., object]
    within_ms: int
    store: str = "lmdb"
    id_serde: Serde | None = None

    kind: ClassVar[str] = "deduplicate"
    declares: ClassVar[str] = "deduplicate(..., id_type=MySerde())"
    stateful: ClassVar[bool] = True
    event_time: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True
    order_sensitive: ClassVar[bool] = True
    beyond_keys: ClassVar[bool] = True

    def by_order(self) -> str:
        """Return that the first of equal ids goes on."""
        return "of equal ids the one that comes first goes on"

    def functions(self) -> dict[str, Callable[..., object]]:
        """Return the function that finds the id."""
        return {"id_of": self.id_of}

    def describe(self) -> str:
        """The time."""
        return f"within {self.within_ms:,} ms"

    def meaning(self) -> str:
        """Times by id."""
        return "times by id"

    def build(self, context: OperatorContext) -> DeduplicateOperator:
        """Return its operator, which takes note of the kinds of ids."""
        serde = context.formats.serde(self.id_serde)
        operator = DeduplicateOperator(self, context.functions["id_of"], context.store, serde)
        operator.note = context.observer(serde)
        return operator


class DeduplicateOperator:
    """One task's share of a `deduplicate`: the times at which messages went on, by id, in the store.

    A time is forgotten when event time is `within_ms` past it. A message whose own source is that far does not heed it
    any more, even if it is still there.
    """

    calls = ("id_of",)

    def __init__(self, spec: Deduplicate, id_of: Callable[..., object], store: Store, ids: Serde) -> None:
        self.id_of = id_of
        self.store = store
        self.unwritten = 0
        self.late: Batch | None = None
        """The messages that came so late that nobody knows whether their id was there before."""
        self.note: Callable[[list[object]], None] = lambda ids: None
        """Takes note of the kinds of a batch's ids."""
        self._within_ms = spec.within_ms
        self._encode = ids.encode
        self._first = self._first_expiry()

    def process(self, batch: Batch) -> Batch | None:
        """Return the messages that are no duplicates."""
        assert batch.timestamps is not None and batch.stamps is not None
        found = [self.id_of(value) for value in batch.values]
        self.note(found)
        ids = [*map(self._encode, found)]
        times = zip(ids, batch.timestamps, batch.stamps, strict=True)
        rows = [row for row, (id, at, stamp) in enumerate(times) if self._is_first(id, at, stamp)]
        within, columns = self._within_ms, zip(batch.timestamps, batch.stamps, strict=True)
        late = [row for row, (at, stamp) in enumerate(columns) if at + within <= stamp]
        self.late = batch.take(late) if late else None
        kept = batch.take(rows)
        return Batch(kept.values, kept.keys, kept.timestamps, kept.stamps) if rows else None

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Forget the times that no message in time can be a duplicate of."""
        # A second index by expiry, since the first one by id would have to be walked through as a whole.
        end = EXPIRY + ordered(watermark + 1)
        for place, _ in list(self.store.range(EXPIRY, end)):
            id, expires = place[1 + NUMBER_BYTES :], number_at(place, 1)
            self.store.delete(place)
            kept = tuple(at for at in self.store.get(ID + id, ()) if at + self._within_ms > expires)
            if kept:
                self.store.put(ID + id, kept)
            else:
                self.store.delete(ID + id)
        self._first = self._first_expiry()
        return None

    def drop_due(self) -> Batch:
        """Raise AssertionError: it fires nothing, so nothing can be dropped."""
        raise AssertionError("a deduplicate fires nothing")

    def next_due(self) -> int:
        """Return the watermark at which something can be forgotten."""
        return self._first

    def lowest_stamp(self) -> int:
        """Return a stamp that is above all: it fires nothing."""
        return NEVER

    def write_back(self) -> None:
        """Everything is in the store."""

    def forget(self) -> None:
        """Look up again when something can be forgotten."""
        self._first = self._first_expiry()

    def _is_first(self, id: bytes, at: int, stamp: int) -> bool:
        within, place = self._within_ms, ID + id
        kept: tuple[int, ...] = self.store.get(place, ())
        # A time that has expired for this message's own source counts no more, even where it is still there: so results
        # do not depend on when it was forgotten.
        if any(abs(at - one) < within and one + within > stamp for one in kept):
            return False
        expires = at + within
        self.store.put(place, (*kept, at))
        self.store.put(EXPIRY + ordered(expires) + id, True)
        self._first = min(self._first, expires)
        return True

    def _first_expiry(self) -> int:
        first = next(self.store.range(EXPIRY), None)
        return NEVER if first is None else number_at(first[0], 1)
