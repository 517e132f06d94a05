"""Deduplication: of the messages with one id that lie close together in event time the first goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import ClassVar, cast

from operators.core.base import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    MOST_HELD,
    NEVER,
    Batch,
    Key,
    Keys,
    OperatorContext,
    Serde,
    Spec,
    Store,
)
from operators.core.entry_keys import (
    KEY,
    NUMBER_BYTES,
    EntryKind,
    EntryKinds,
    Number,
    Rest,
    beyond,
    number_at,
    ordered,
)
from operators.core.sites import does_the_same

ID, EXPIRY = b"i", b"x"
"""The first byte of entries in the store: of times by id, and of ids by the time at which they expire."""
ONE_ID = b"\xff"
"""The byte behind the time in a place of one id, where ids are keys; no number of a list begins with it."""
BUCKETS = 8
"""The buckets of expiring ids that a time of `within_ms` is divided into."""
CHUNK = 1_000
"""The ids of one entry by the time at which they expire; an entry must fit into a record of a changelog."""
OTHER_BYTES = "ids are told apart by other bytes than keys are", "id_type= as the key_type= of partition_by"
"""Why ids that are made as keys are may be others than these, and what to write instead."""
Times = int | tuple[int, ...]
"""The times at which messages with an id went on; mostly it is one."""


class Expired:
    """The id that expires, behind a byte; or the number of a list of them."""

    def cut(self, place: bytes, start: int, found: dict[str, object]) -> int:
        """Note the id as a key, or the number as bytes."""
        is_one = place[start : start + 1] == ONE_ID
        found[KEY if is_one else LISTED] = place[start + is_one :]
        return len(place)

    def bytes_of(self, found: Mapping[str, object]) -> bytes:
        """Return its bytes."""
        data = found[LISTED] if LISTED in found else found[KEY]
        assert isinstance(data, bytes), "it was cut out of bytes"
        return data if LISTED in found else ONE_ID + data


LISTED = "list"
ENTRIES: EntryKinds = {
    ID: EntryKind("id", Rest(), of_users=False),
    EXPIRY: EntryKind("expiry", Number("at_ms"), Expired(), of_users=False),
}
"""The kinds of entries in the store."""


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
    expires: ClassVar[bool] = True
    holds: ClassVar[bool] = True
    hands_on_headers: ClassVar[bool] = True
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

    @property
    def by_key(self) -> bool:
        """Whether each id is its message's key, as far as can be seen: one function makes both, of one value."""
        return self._apart is None

    @cached_property
    def _apart(self) -> tuple[str, str] | None:
        """Why ids are not the keys, as far as can be seen, and what to write instead; None where they are."""
        unknown = (
            "it looks for duplicates among all messages of a partition, and nothing says that an id is the key",
            "one function for both, as in .partition_by(id_of).deduplicate(id_of, ...)",
        )
        above, seen = [*self.parents], set[int]()
        while above:
            spec = above.pop()
            if id(spec) in seen:
                continue
            seen.add(id(spec))
            key_of = spec.functions().get("key") if spec.gives_keys else None
            if key_of is not None:
                if not does_the_same(key_of, self.id_of):
                    return unknown
                if spec.key != self.id_serde:
                    return OTHER_BYTES
            elif spec.parents and (spec.kind == self.kind or spec.keeps_values):
                above += spec.parents
            else:
                return unknown
        return None

    def entry_kinds(self) -> EntryKinds:
        """Return times by id, and ids by the time at which they expire: each alone where it is a key, else in lists."""
        # A list that was written while ids were no keys is passed over for the ids that a part does not have.
        return ENTRIES

    def part_serdes(self, key: Serde | None) -> Mapping[str, Serde | None]:
        """Return the serde of ids."""
        return {KEY: self.id_serde}

    def why_whole(self) -> tuple[str, str] | None:
        """Return that ids are looked for beyond the messages of a key, unless they are the keys."""
        return self._apart

    def meaning(self) -> str:
        """Times by id."""
        return "times by id"

    def build(self, context: OperatorContext) -> DeduplicateOperator:
        """Return its operator, which takes note of the kinds of ids."""
        ids = context.formats.keys(self.id_serde)
        operator = DeduplicateOperator(self, context.functions["id_of"], context.store, ids, context.most_held)
        operator.note = context.observer(context.formats.serde(self.id_serde))
        return operator


class Expiring:
    """The ids that expire in one stretch of time; one whose times have gone on to others may still be there.

    `new` are those that the store does not list, and `listed` those that it does; where not `is_whole` it lists others,
    too. `entries` is the number of its entries, if the bucket began here.
    """

    __slots__ = ("began_here", "entries", "is_whole", "listed", "new")

    def __init__(self, began_here: bool) -> None:
        self.new: list[Key] = []
        self.listed: list[Key] = []
        self.entries = 0
        self.began_here = self.is_whole = began_here


class DeduplicateOperator:
    """One task's share of a `deduplicate`: the times at which messages went on, by id.

    A time is forgotten when event time is `within_ms` past it, or somewhat later, with others of its bucket. A message
    whose own source is that far does not heed it any more, even if it is still there.
    """

    calls = ("id_of",)

    def __init__(
        self, spec: Deduplicate, id_of: Callable[..., object], store: Store, ids: Keys, most_held: int = MOST_HELD
    ) -> None:
        self.id_of = id_of
        self.store = store
        self.most_held = most_held
        self.late: Batch | None = None
        """The messages that came so late that nobody knows whether their id was there before."""
        self.note: Callable[[list[object]], None] = lambda ids: None
        """Takes note of the kinds of a batch's ids."""
        self._within_ms = spec.within_ms
        self._width = max(spec.within_ms // BUCKETS, 1)
        self._ids = ids
        self._by_key = spec.by_key
        """Whether each id that expires has an entry of its own, which goes with its key where a task is split."""
        self._unheld_until = MIN_TIMESTAMP
        """The watermark by which nothing is in the store alone any more; until then ids are looked up there."""
        self.forget()

    def process(self, batch: Batch) -> Batch | None:
        """Return the messages that are no duplicates."""
        assert batch.timestamps is not None and batch.stamps is not None
        within, width, times, changed = self._within_ms, self._width, self._times, self._changed
        looks, last = self._unheld_until > MIN_TIMESTAMP, None
        expiring: list[Key] = []
        rows, late = [], []
        columns = zip(self._held(batch.values), batch.timestamps, batch.stamps, strict=True)
        for row, (id, at, stamp) in enumerate(columns):
            expires = at + within
            if expires <= stamp:
                late.append(row)
            before = times.get(id)
            if before is None and looks:
                before = self._look_up(id)
            if before is None:
                changed[id] = False
                times[id] = at
            else:
                # A time that has expired for this message's own source counts no more, even where it is still there: so
                # results do not depend on when it was forgotten.
                if isinstance(before, int):
                    if -within < at - before < within and before + within > stamp:
                        continue
                    times[id] = (before, at)
                else:
                    if any(-within < at - one < within and one + within > stamp for one in before):
                        continue
                    times[id] = (*before, at)
                changed.setdefault(id, True)
            rows.append(row)
            number = expires // width
            if number != last:
                last, expiring = number, (self._buckets.get(number) or self._open(number)).new
            expiring.append(id)
        self.late = batch.take(late) if late else None
        self._relieve()
        if len(rows) < len(batch):
            batch = batch.take(rows)
        if not rows:
            return None
        return Batch(batch.values, batch.keys, batch.timestamps, batch.stamps, headers=batch.headers)

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Forget the times that no message in time can be a duplicate of."""
        while self.next_due() <= watermark:
            number = heappop(self._numbers)
            self._expire(self._buckets.pop(number), number, watermark)
        if self._unheld_until <= watermark:
            self._unheld_until = MIN_TIMESTAMP
        return None

    def drop_due(self) -> Batch:
        """Raise AssertionError: it fires nothing, so nothing can be dropped."""
        raise AssertionError("a deduplicate fires nothing")

    def next_due(self) -> int:
        """Return the watermark at which something can be forgotten."""
        return self._past(self._numbers[0]) if self._numbers else NEVER

    def lowest_stamp(self) -> int:
        """Return a stamp that is above all: it fires nothing."""
        return NEVER

    @property
    def unwritten(self) -> int:
        """The number of ids whose times have changed since they were written back."""
        return len(self._changed)

    def newest(self, most: int) -> list[object]:
        """Return the times of the ids that changed last, at most so many."""
        return [self._times[id] for id in islice(reversed(self._changed), most)]

    def write_back(self) -> None:
        """Put what has changed into the store."""
        changed, times = [*self._changed], self._times
        self.store.update({ID + data: times[id] for id, data in zip(changed, self._encoded(changed), strict=True)})
        self._changed.clear()
        for number, bucket in self._buckets.items():
            if bucket.new:
                data = self._encoded(bucket.new)
                if self._by_key:
                    prefix = self._place(number) + ONE_ID
                    self.store.update({prefix + one: [one] for one in data})
                    bucket.entries += len(data)
                else:
                    chunks = (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))
                    self.store.update({self._free(number, bucket): chunk for chunk in chunks})
                if bucket.is_whole:
                    bucket.listed += bucket.new
                bucket.new = []

    def forget(self) -> None:
        """Drop all that is held, and look up when what the store has can be forgotten."""
        self._times: dict[Key, Times] = {}
        self._changed: dict[Key, bool] = {}
        """Whether the store has older times of each id whose times have changed."""
        self._buckets: dict[int, Expiring] = {}
        # One look for each bucket, and not for each entry.
        place, end = EXPIRY, beyond(EXPIRY)
        while (found := next(self.store.range(place, end), None)) is not None:
            number = number_at(found[0], 1) // self._width
            self._buckets[number] = Expiring(began_here=False)
            place = self._place(number + 1)
        self._numbers = [*self._buckets]
        """The numbers of the buckets, a heap."""
        heapify(self._numbers)
        self._unheld_until = self._last_past()

    def _held(self, values: list[object]) -> list[Key]:
        ids = [*map(self.id_of, values)]
        self.note(ids)
        # None is an id like any other, and no key: it is held as its bytes.
        return [self._ids.encode(cast(Key, None)) if id is None else id for id in self._ids.hold(ids)]

    def _encoded(self, ids: list[Key]) -> list[bytes]:
        encoded: list[bytes] = self._ids.encode_all([*ids])
        return encoded

    def _look_up(self, id: Key) -> Times | None:
        """Return the times of an id that the store has, and hold them."""
        stored = self.store.get(ID + self._ids.encode(id))
        if stored is not None:
            self._times[id] = stored = stored if type(stored) is int else tuple(stored)
        found: Times | None = stored
        return found

    def _relieve(self) -> None:
        """Hold no more than so many ids that the store has, too; one in memory would hold them no better."""
        if self.store.durable and len(self._times) > self.most_held:
            self.write_back()
            self._times.clear()
            for bucket in self._buckets.values():
                bucket.listed, bucket.is_whole = [], False
            self._unheld_until = self._last_past()

    def _expire(self, bucket: Expiring, number: int, watermark: int) -> None:
        """Forget the times that have expired, of the ids of a bucket that is past."""
        ids = bucket.new + (bucket.listed if bucket.is_whole else self._listed(number))
        if not bucket.began_here or (self._by_key and bucket.entries):
            self.store.drop(self._place(number), self._place(number + 1))
        elif bucket.entries:
            self.store.delete_all(self._entry(number, entry) for entry in range(bucket.entries))
        times, changed, within, gone = self._times, self._changed, self._within_ms, list[Key]()
        looks, oldest = self._unheld_until > MIN_TIMESTAMP, watermark - within if watermark < MAX_TIMESTAMP else NEVER
        for id in ids:
            before = times.get(id)
            if before is None and looks:
                before = self._look_up(id)
            if before is None:
                continue
            kept = (before,) if isinstance(before, int) else before
            left = () if max(kept) <= oldest else tuple(at for at in kept if at > oldest)
            if not left:
                del times[id]
                if changed.pop(id, True):
                    gone.append(id)
                continue
            if len(left) < len(kept):
                changed.setdefault(id, True)
                times[id] = left if len(left) > 1 else left[0]
            # Mostly it is in a later bucket already; not so where `within_ms` was less when it went on.
            number = (max(left) + within) // self._width
            (self._buckets.get(number) or self._open(number)).new.append(id)
        self.store.delete_all(map(ID.__add__, self._encoded(gone)))

    def _listed(self, number: int) -> list[Key]:
        """Return the ids that the store lists in a bucket."""
        found: list[bytes] = []
        for place, ids in self.store.range(self._place(number), self._place(number + 1)):
            # Before there were lists, each id had an entry of its own.
            found += [place[1 + NUMBER_BYTES :]] if ids is True else ids
        return [id for id in self._ids.load(found) if id is not None]

    def _open(self, number: int) -> Expiring:
        bucket = self._buckets[number] = Expiring(began_here=True)
        heappush(self._numbers, number)
        return bucket

    def _free(self, number: int, bucket: Expiring) -> bytes:
        """Return the place of a new entry of a bucket."""
        while True:
            place = self._entry(number, bucket.entries)
            bucket.entries += 1
            if bucket.began_here or self.store.get(place) is None:
                return place

    def _entry(self, number: int, entry: int) -> bytes:
        return self._place(number) + entry.to_bytes(4, "big")

    def _place(self, number: int) -> bytes:
        return EXPIRY + ordered(number * self._width)

    def _past(self, number: int) -> int:
        """Return the watermark at which all that expires in a bucket has expired."""
        return min((number + 1) * self._width - 1, MAX_TIMESTAMP)

    def _last_past(self) -> int:
        return self._past(max(self._buckets)) if self._buckets else MIN_TIMESTAMP
