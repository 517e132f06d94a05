"""The shuffle: each message goes to the partition of a key, through an intermediate stream, by a partitioner."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

from operators.core.base import Serde, Spec
from operators.core.sites import mistake
from operators.core.wording import shown

if TYPE_CHECKING:
    from operators.windows.window import Window

CACHED_KEYS = 100_000


# Remembered, since keys come again, and this is arithmetic in Python, four bytes at a time.
@lru_cache(maxsize=CACHED_KEYS)
def murmur2(data: bytes) -> int:
    """Return Kafka's 31-bit hash of a key, so that keys land where Java producers put them.

    >>> murmur2(b"21"), murmur2(b"foobar")
    (1173551340, 1357151166)
    """
    length, multiplier, mask = len(data), 0x5BD1E995, 0xFFFFFFFF
    state = 0x9747B28C ^ length
    whole = length - length % 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        state = (state * multiplier & mask) ^ word
    if length > whole:
        state = (state ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    state = (state ^ state >> 13) * multiplier & mask
    return (state ^ state >> 15) & 0x7FFFFFFF


EVERY_BUCKET = -1
"""Stands for the bucket of an entry that each part of a split task keeps."""
BUCKETS = "crc32 >> 16"
"""The words for the hash by which keys are in buckets, as checkpoints note them."""


def bucket_of(key: bytes | None, offset: int, factor: int) -> int:
    """Return which of `factor` buckets of its partition a record is in: by its key's bytes, or without by its offset.

    The factor is a power of two, so that a bucket is split into two, and two of them become one again.

    >>> bucket_of(b"AA", 7, 4), bucket_of(None, 7, 4), bucket_of(b"AA", 7, 1)
    (0, 3, 0)
    """
    assert factor > 0 and not factor & (factor - 1), f"{factor} buckets are no power of two"
    assert offset >= 0, "offsets begin at 0"
    # Another hash than the partitioner's: all keys of one of four partitions have two bits of that in common. Of the
    # CRC-32 the upper half, since librdkafka's partitioner goes by the lower bits of that.
    return (offset if key is None else crc32(key) >> 16) & (factor - 1)


def entry_bucket(spec: Spec, place: bytes, factor: int) -> int:
    """Return the bucket that an entry of a spec's store goes with, or EVERY_BUCKET."""
    key = spec.key_at(place)
    if key is not None:
        return bucket_of(key, 0, factor)
    hashed = spec.hash_at(place)
    return EVERY_BUCKET if hashed is None else bucket_of(None, hashed, factor)


@dataclass(frozen=True)
class ByHash:
    """Kafka's default partitioner: murmur2 of the encoded key.

    >>> hash_.partition("21", b"21", 4)
    0
    """

    def partition(self, key: Any, data: bytes, partitions: int) -> int:
        """Return the partition of a key whose encoded form is `data`."""
        return murmur2(data) % partitions

    def __reduce__(self) -> str:
        # Unpickled as the one there is, by which others tell that nothing but hashes counts.
        return "hash_"

    def __str__(self) -> str:
        return "hash"


@dataclass(frozen=True)
class ByRanges:
    """Keys up to the first bound go to partition 0, up to the second to 1, and so on."""

    bounds: tuple[Any, ...]

    def partition(self, key: Any, data: bytes, partitions: int) -> int:
        """Return the partition of `key`."""
        return min(bisect_right(self.bounds, key), partitions - 1)

    def __str__(self) -> str:
        return f"ranges({list(self.bounds)!r})"


@dataclass(frozen=True)
class ByFunction:
    """The user's own choice of partition."""

    function: Callable[[Any, int], int]

    def partition(self, key: Any, data: bytes, partitions: int) -> int:
        """Return the partition of `key`; raises ValueError when the function names one that does not exist."""
        chosen = self.function(key, partitions)
        if type(chosen) is not int or not 0 <= chosen < partitions:
            wrong = f"by= returned {shown(chosen)} for the key {shown(key)}"
            raise ValueError(f"{wrong}; it must be an int in [0, {partitions})")
        return chosen

    def __str__(self) -> str:
        return getattr(self.function, "__name__", "function")


Partitioner = ByHash | ByRanges | ByFunction

hash_ = ByHash()


def ranges(bounds: Sequence[Any]) -> ByRanges:
    """Partition by ranges of the key: `ranges([10, 20])` makes x < 10, 10 <= x < 20, and the rest.

    Raises ValueError when the bounds are not in strictly increasing order.

    >>> by = ranges(["h", "p"])
    >>> [by.partition(key, b"", 3) for key in ("a", "h", "z")]
    [0, 1, 2]
    """
    if isinstance(bounds, str | bytes) or not isinstance(bounds, Sequence) or not bounds:
        raise mistake(f"ranges({bounds!r}) has no bounds", "ranges([10, 20]), which makes three ranges")
    try:
        rising = all(low < high for low, high in pairwise(bounds)) and bounds[0] == bounds[0]  # NaN is not
    except TypeError:
        rising = False
    if not rising:
        raise mistake(f"the bounds in ranges({list(bounds)!r}) do not rise", "each bound above the one before it")
    return ByRanges(tuple(bounds))


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionBy(Spec):
    """Give each message a key, and send it to that key's partition."""

    key_of: Callable[[Any], Any] | None
    """The function of its value that gives it; None where each goes by the key that it has."""
    key: Serde | None = None
    value: Serde | None = None
    partitions: int | None = None
    by: Partitioner = hash_
    combines: Window | None = None
    """The windows that messages are folded for before the shuffle; `Partials` go on in their place."""

    kind: ClassVar[str] = "partition_by"
    hands_on_signs: ClassVar[bool] = True
    terminal: ClassVar[bool] = True
    repartitions: ClassVar[bool] = True
    gives_keys: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True

    @property
    def rekeys(self) -> bool:  # type: ignore[override]
        """Whether messages get another key than they have."""
        return self.key_of is not None

    @property
    def hands_on_headers(self) -> bool:  # type: ignore[override]
        """Whether messages go on as they are, and are not folded."""
        return self.combines is None

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The function that gives the key, and the user's own choice of partition."""
        named: dict[str, Any] = {} if self.key_of is None else {"key": self.key_of}
        if isinstance(self.by, ByFunction):
            named["by"] = self.by.function
        if self.combines is not None:
            named["aggregation"] = self.combines.aggregation
        return named

    def owner_of(self, name: str) -> str:
        """Return the id of the operator that a function belongs to: an aggregation belongs to the windows."""
        if name == "aggregation" and self.combines is not None:
            return self.combines.op_id or ""
        return super().owner_of(name)

    @property
    def declared_partitions(self) -> int | None:
        """As many as there are ranges, or were said."""
        return len(self.by.bounds) + 1 if isinstance(self.by, ByRanges) else self.partitions

    @property
    def fold(self) -> str | None:  # type: ignore[override]
        """The line of code of the windows that it folds for."""
        return self.combines.fold if self.combines is not None else None

    def describe(self) -> str:
        """The partitioner, where it is not the usual one, and whether messages keep their keys."""
        by = "" if isinstance(self.by, ByHash) else f"by {self.by}"
        return by if self.rekeys else f"by the keys that they have {by}".rstrip()


@dataclass(frozen=True, eq=False, kw_only=True)
class Broadcast(Spec):
    """Send each message to every partition, so that every task of the next stage sees all of them."""

    value: Serde | None = None
    partitions: int | None = None

    kind: ClassVar[str] = "broadcast"
    hands_on_signs: ClassVar[bool] = True
    hands_on_headers: ClassVar[bool] = True
    terminal: ClassVar[bool] = True
    repartitions: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True

    @property
    def declared_partitions(self) -> int | None:
        """As many as were said."""
        return self.partitions
