"""One task's rows of a remote table: kept for a while, fetched for all who wait for them, many keys at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Any

from operators.core.base import EVENT_COLUMNS, Batch
from operators.core.wording import askable, shown
from operators.joins.match_counts import Meetings, kind_of
from operators.joins.remote_join import RemoteJoin, RemoteRows
from runtime.model.clock import clock_of, sleep_ms


class Gathering:
    """Keys that will be asked for together; `full` is done when there are as many as may be."""

    __slots__ = ("full", "keys")

    def __init__(self) -> None:
        self.keys: list[object] = []
        self.full: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class RowsKept:
    """The newest rows by key, each for its time (s); beyond `size`, the least recently used are dropped.

    >>> kept = RowsKept(size=1, ttl_s=10, absent_ttl_s=0)
    >>> kept.put("a", "row", now=0)
    >>> kept.get("a", now=9.9), kept.get("a", now=10)
    (('row',), None)
    """

    def __init__(self, size: int, ttl_s: float, absent_ttl_s: float) -> None:
        self._size = size
        self._ttl_s = ttl_s
        self._absent_ttl_s = absent_ttl_s
        self._kept: OrderedDict[object, tuple[float, object]] = OrderedDict()

    def get(self, key: object, now: float) -> tuple[object] | None:
        """Return the row in a tuple, (None,) where it is known to be absent, or None where nothing is known."""
        found = self._kept.get(key)
        if found is None:
            return None
        if found[0] <= now:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return (found[1],)

    def put(self, key: object, row: object, now: float) -> None:
        """Remember a row, or by None that there is none."""
        ttl_s = self._absent_ttl_s if row is None else self._ttl_s
        if ttl_s > 0 and self._size:
            self._kept[key] = (now + ttl_s, row)
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)


class RowsFetched:
    """Finds rows by key: kept, already asked for, or asked for with others that come within a short time.

    Who asks first for a batch of keys leads: it waits for others and for its turn, calls, and tells them.
    """

    def __init__(
        self,
        rows: RemoteRows,
        fetch_many: Callable[[list[object]], Awaitable[object]],
        tasks: int,
        count: Callable[..., None] = lambda name, by=1: None,
        meetings: Meetings | None = None,
    ) -> None:
        self._count = count
        self._meetings = meetings or Meetings(0)
        self._fetch_many = fetch_many
        self._batch_size = rows.batch_size
        self._wait_s = rows.batch_wait_ms / 1_000
        self._timeout_ms = rows.timeout_ms
        # Tasks know of each other only how many they are, so each takes its share of the rate.
        self._every_s = tasks / rows.fetches_per_second if rows.fetches_per_second else 0.0
        self._turn = -inf
        self._kept = RowsKept(rows.cache_size, rows.ttl_ms / 1_000, rows.absent_ttl_ms / 1_000)
        self._coming: dict[object, asyncio.Future[object]] = {}
        self._gathering: Gathering | None = None

    async def find(self, key: object) -> object:
        """Return the row of a key, or None where there is none; for the key None nobody is asked."""
        if key is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            kept = self._kept.get(key, clock_of(loop)())
        except TypeError as error:
            wrong = f"on= returned {shown(key)}, which can't be the key of an answer: {error}"
            raise TypeError(f"{wrong}; return what has a hash, as a tuple in the place of a list") from error
        if kept is not None:
            self._count("rows kept")
            return kept[0]
        coming = self._coming.get(key)
        if coming is not None:
            self._count("rows awaited")
            # Others wait for this row, too: a call that is cancelled must not cancel it for them.
            return await asyncio.shield(coming)
        coming = self._coming[key] = loop.create_future()
        gathering, leads = self._gathering, self._gathering is None
        if gathering is None:
            gathering = self._gathering = Gathering()
        gathering.keys.append(key)
        if len(gathering.keys) == self._batch_size:
            self._gathering = None
            gathering.full.set_result(None)
        if leads:
            await self._lead(gathering)
        return await asyncio.shield(coming)

    async def _lead(self, gathering: Gathering) -> None:
        """Ask for a batch, and tell all who wait for its keys."""
        try:
            await self._await_turn(gathering)
            self._count("fetches")
            rows = await self._fetch(gathering.keys)
        except BaseException as error:
            raised = askable(error)
            told = raised if isinstance(raised, Exception) else TimeoutError("the call for this key was given up")
            for coming in self._close(gathering):
                _fail(coming, told)
            raise
        now = clock_of(asyncio.get_running_loop())()
        met = [key for key in gathering.keys if not isinstance(rows.get(key), Exception | None)]
        self._meetings.note(0, gathering.keys)
        self._meetings.note(1, met)
        self._meetings.count(len(met), len(gathering.keys) - len(met), met)
        for key, coming in zip(gathering.keys, self._close(gathering), strict=True):
            row = rows.get(key)
            if isinstance(row, Exception):
                _fail(coming, askable(row))
            else:
                self._kept.put(key, row, now)
                coming.set_result(row)

    async def _await_turn(self, gathering: Gathering) -> None:
        """Wait for more keys, and until the next call may be made; the batch stays open as long."""
        # What is asked for in this turn of the loop goes together.
        await asyncio.sleep(0)
        if self._wait_s and not gathering.full.done():
            await asyncio.wait([gathering.full], timeout=self._wait_s)
        clock = clock_of(asyncio.get_running_loop())
        # The turn is taken before it is waited for: two batches that wait have different ones.
        turn = max(clock(), self._turn)
        self._turn = turn + self._every_s
        while (left_s := turn - clock()) > 0:
            await sleep_ms(left_s * 1_000)
        # Keys join until the call is made: a limiter outside could not keep the batch open as long.
        if self._gathering is gathering:
            self._gathering = None

    async def _fetch(self, keys: list[object]) -> Mapping[object, object]:
        try:
            async with asyncio.timeout(self._timeout_ms / 1_000):
                rows = await self._fetch_many(list(keys))
        except TimeoutError as error:
            raise TimeoutError(f"no rows for {len(keys)} keys after timeout_ms={self._timeout_ms:,}") from error
        if not isinstance(rows, Mapping):
            raise TypeError(f"fetch_many must return a mapping from keys to rows, and returned {type(rows).__name__}")
        if not rows.keys() <= (asked := set(keys)):
            raise _stranger_error(next(key for key in rows if key not in asked), keys)
        return rows

    def _close(self, gathering: Gathering) -> list[asyncio.Future[object]]:
        """Close a batch for more keys, and return the futures of its keys, in their order."""
        if self._gathering is gathering:
            self._gathering = None
        return [self._coming.pop(key) for key in gathering.keys]


def _fail(coming: asyncio.Future[object], error: Exception) -> None:
    # No future takes that one, as a coroutine that it ends would seem to return.
    coming.set_exception(RuntimeError(shown(error)) if isinstance(error, StopIteration) else error)
    # Looked at here, since whoever does not wait any more will not, and asyncio would then complain.
    coming.exception()


def _stranger_error(key: object, asked: list[object]) -> ValueError:
    """Return the error for an answer that has a key for which nobody has asked: its row would be lost."""
    kinds = " and ".join(sorted({kind_of(one) for one in asked}))
    wrong = (
        f"fetch_many returned a row for {shown(key)} ({kind_of(key)}), and was asked for {shown(asked[0])} ({kinds})"
    )
    as_asked = ": the keys of its answer have to be those that it is given, as " + _form_of(key, asked)
    other = " and for no other: let it answer what it is asked for alone"
    return ValueError(wrong + (as_asked if kind_of(key) not in kinds.split(" and ") else other))


def _form_of(key: object, asked: list[object]) -> str:
    """Return how an answer is to be written so that a key of it is one that was asked for."""
    kind = type(asked[0])
    try:
        is_made_so = kind(key) in asked  # type: ignore[call-arg]
    except Exception:  # as date("2025-06-15"), or a class of more than one part
        is_made_so = False
    return f"{{{kind.__name__}(key): row}}" if is_made_so else "{key: row for key in keys}, one by one of these"


class RemoteJoining:
    """One task's share of a join with a remote table."""

    columns = EVENT_COLUMNS
    calls = ("on", "join")

    def __init__(
        self,
        spec: RemoteJoin,
        functions: Mapping[str, Callable[..., Any]],
        tasks: int,
        count: Callable[..., None],
        meetings: Meetings,
    ) -> None:
        self.on, self.join = functions["on"], functions["join"]
        self._left = spec.left
        self._rows = RowsFetched(spec.rows, functions["fetch_many"], tasks, count, meetings)

    async def call(self, value: object) -> list[object]:
        """Return the results of a message: the joined value, or none where the row is absent and the join is inner."""
        row = await self._rows.find(self.on(value))
        return [self.join(value, row)] if row is not None or self._left else []

    def take(self, batch: Batch) -> None:
        """Raise AssertionError: an async operator takes calls."""
        raise AssertionError("rows of an async operator are calls, not effects")
