"""Virtual tasks: the share of its partitions that a task has, by buckets of keys, and the names of such tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

MOST_BUCKETS = 1 << 16
"""The buckets that a hash is remembered in, for every factor there may be."""
MOST_PARTS = 1 << 12
"""The largest factor: each part looks for its own among the entries of all, so that more would take minutes to open."""
WHOLE = "all"
"""The bucket of a task that has its partitions for itself."""


class VirtualTask(NamedTuple):
    """A task that has the keys of one bucket, of `factor`, in the partitions of a base task; with a factor of 1, all.

    Source: "Elasticity by virtual tasks" of Apache Samza, whose names these are.

    >>> VirtualTask(3, 1, 2).name, VirtualTask(3).name, VirtualTask.of("3-1-2")
    ('3-1-2', '3', VirtualTask(base=3, bucket=1, factor=2))
    """

    base: int
    bucket: int = 0
    factor: int = 1

    @staticmethod
    def of(name: str) -> VirtualTask:
        """Return the task of a name; raises ValueError for any other word."""
        base, *share = map(int, name.split("-"))
        return VirtualTask(base, *share) if share else VirtualTask(base)

    @property
    def name(self) -> str:
        """The name in checkpoints, and as a producer of intermediate streams: that of a base task is its number."""
        return str(self.base) if self.factor == 1 else f"{self.base}-{self.bucket}-{self.factor}"

    @property
    def share(self) -> str:
        """The bucket as positions have it."""
        return WHOLE if self.factor == 1 else f"{self.bucket}/{self.factor}"

    def meets(self, other: VirtualTask) -> bool:
        """Whether both have keys in common: of two factors one divides the other.

        >>> VirtualTask(0, 1, 2).meets(VirtualTask(0, 3, 4)), VirtualTask(0, 1, 2).meets(VirtualTask(0, 2, 4))
        (True, False)
        """
        least = min(self.factor, other.factor)
        return self.base == other.base and self.bucket % least == other.bucket % least


def wrong_factor(factor: int) -> str:
    """Return why tasks can't be split by a factor, and what to write instead; "" where they can.

    >>> wrong_factor(8), wrong_factor(6)
    ('', '6 is no power of two, by which tasks are split and become one again; write instead: 4 or 8')
    """
    if factor > MOST_PARTS:
        return f"{factor} is more than the {MOST_PARTS} parts that a task can have; write instead: {MOST_PARTS}"
    if factor < 1 or factor & (factor - 1):
        below = 1 << max(factor.bit_length() - 1, 0) if factor > 0 else 1
        wrong = f"{factor} is no power of two, by which tasks are split and become one again"
        return f"{wrong}; write instead: {below} or {below * 2}"
    return ""


def kin(task: VirtualTask, factors: Iterable[int]) -> Iterator[VirtualTask]:
    """Yield the tasks of these factors that have keys in common with one.

    >>> [one.name for one in kin(VirtualTask(0, 1, 2), (1, 2, 4))]
    ['0', '0-1-2', '0-1-4', '0-3-4']
    """
    for factor in factors:
        least = min(factor, task.factor)
        yield from (VirtualTask(task.base, bucket, factor) for bucket in range(task.bucket % least, factor, least))


def _no_hash(store: str, place: bytes) -> int:
    return 0


@dataclass(frozen=True)
class Split:
    """The split of an application's tasks: by number, task `j * width + p` has bucket `j` of base task `p`.

    `hash_of` returns of a store's entry, by where it lies, the hash of its key, whose last bits are its bucket.

    >>> split = Split(width=3, factor=2)
    >>> split.task(4).name, split.number(VirtualTask(1, 1, 2))
    ('1-1-2', 4)
    """

    width: int = 0
    factor: int = 1
    hash_of: Callable[[str, bytes], int] = _no_hash

    def task(self, number: int) -> VirtualTask:
        """Return the task of a number."""
        if self.factor == 1:
            return VirtualTask(number)
        return VirtualTask(number % self.width, number // self.width, self.factor)

    def number(self, task: VirtualTask) -> int:
        """Return the number of a task."""
        assert task.factor == self.factor, f"{task.name} is not of a split by {self.factor}"
        return task.base + self.width * task.bucket

    def parts(self, base: int) -> list[VirtualTask]:
        """Return the tasks that share the partitions of a base task."""
        return [VirtualTask(base, bucket, self.factor) for bucket in range(self.factor)]

    def owner(self, base: int, store: str, place: bytes) -> VirtualTask:
        """Return the task of a base task that has an entry of a store."""
        return VirtualTask(base, self.hash_of(store, place) & (self.factor - 1), self.factor)

    def has(self, task: VirtualTask, store: str, place: bytes) -> bool:
        """Whether a task of any split has an entry of a store in its base task."""
        return task.factor == 1 or self.hash_of(store, place) & (task.factor - 1) == task.bucket


UNSPLIT = Split()
"""The split of an application of whose tasks each has its partitions for itself."""


def is_task(name: str) -> bool:
    """Whether a checkpoint of this name is a task's, and none of an application's notes.

    >>> is_task("12"), is_task("12-0-4"), is_task("job")
    (True, True, False)
    """
    return name.replace("-", "").isdecimal()


def share_of(bucket: str, base: int) -> VirtualTask:
    """Return the task whose share of the base task's partitions a position speaks for.

    >>> share_of("1/2", 3), share_of("all", 3)
    (VirtualTask(base=3, bucket=1, factor=2), VirtualTask(base=3, bucket=0, factor=1))
    """
    return VirtualTask(base) if bucket == WHOLE else VirtualTask(base, *map(int, bucket.split("/")))
