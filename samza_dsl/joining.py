"""The join of the fluent stream, with another stream or with a table, and what may be said of either."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from operators.base import EARLIEST_MS, LATEST_MS, Site, Spec
from operators.interval_join import How, IntervalJoin, Keep
from operators.io import VersionedTable
from operators.policies import DeadLetter, Policy, fail
from operators.remote_join import RemoteJoin
from operators.sites import here
from operators.table_join import TableJoin
from operators.temporal_join import TemporalJoin
from planner.errors import refuse
from samza_dsl.checks import check_function, check_late, check_name, check_policy, check_store
from samza_dsl.ends import Table
from samza_dsl.remote import RemoteTable
from samza_dsl.table_joining import JoinedTable

if TYPE_CHECKING:
    from samza_dsl.app import App
    from samza_dsl.stream import Kept, MessageStream

Bounds = tuple[int, int]
"""How long before and after a record, in ms, it is joined."""
LONGEST_MS = LATEST_MS - EARLIEST_MS
"""No two times lie farther apart."""
HOW = ("inner", "left", "right", "outer")
KEEP = ("all", "latest")


K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class Joins(Generic[K, V]):
    """What a stream of messages with keys of type K and values of type V can be joined with."""

    app: App
    spec: Spec

    @overload
    def join(
        self,
        other: MessageStream[K, T],
        with_: Callable[[V, T], R],
        *,
        within: Bounds,
        how: Literal["inner"] = "inner",
        keep: Keep = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: MessageStream[K, T],
        with_: Callable[[V, T | None], R],
        *,
        within: Bounds,
        how: Literal["left"],
        keep: Keep = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: MessageStream[K, T],
        with_: Callable[[V | None, T], R],
        *,
        within: Bounds,
        how: Literal["right"],
        keep: Keep = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: MessageStream[K, T],
        with_: Callable[[V | None, T | None], R],
        *,
        within: Bounds,
        how: Literal["outer"],
        keep: Keep = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: Table[Any, T],
        with_: Callable[[V, T], R],
        *,
        on: Callable[[V], object] | None = None,
        how: Literal["inner"] = "inner",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: Table[Any, T],
        with_: Callable[[V, T | None], R],
        *,
        on: Callable[[V], object] | None = None,
        how: Literal["left"],
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: RemoteTable[S, T],
        with_: Callable[[V, T], R],
        *,
        on: Callable[[V], S],
        how: Literal["inner"] = "inner",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: RemoteTable[S, T],
        with_: Callable[[V, T | None], R],
        *,
        on: Callable[[V], S],
        how: Literal["left"],
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    def join(
        self,
        other: MessageStream[K, Any] | Table[Any, Any] | RemoteTable[Any, Any],
        with_: Callable[[Any, Any], R],
        *,
        on: Callable[[V], object] | None = None,
        how: How = "inner",
        within: Bounds | None = None,
        keep: Keep = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]:
        """Join each message with the row of a table, or with the messages of another stream of about the same time.

        Of a table it is `with_(value, row)`, with the row of `on(value)`, or of the message's key. A broadcast table
        needs `on`; another is joined by key, and has as many partitions as the stream. Where there is no row, an inner
        join drops the message, a left join passes None. Raises PlanError when keys can't meet.

        >>> from samza_dsl.shown import example, shown
        >>> app, numbers = example()
        >>> words = app.table("words", key=int, value=str, broadcast=True)
        >>> named = numbers.join(words, lambda n, word: (n, word), on=lambda n: n, how="left")
        >>> shown(app, named, words=[(1, "one")])
        [(0, None), (1, 'one'), (2, None), (3, None)]

        Of a table of versions, which has `retention_ms`, it is the row as of the message's time: the last version up to
        and with that time. So a message waits until the watermarks of stream and table have passed it. One that lies
        more than `retention_ms` before its stamp, and a version before its own, is late, as below.

        >>> app, numbers = example(key=lambda n: "all")
        >>> of_all = {"key": lambda price: "all", "timestamp": lambda price: price // 10}
        >>> prices = app.table("prices", value=int, **of_all, retention_ms=0)
        >>> shown(app, numbers.join(prices, lambda n, price: (n, price), how="left"), prices=[10, 30])
        [(0, None), (1, 10), (2, 10), (3, 30)]

        Of a `remote_table` it is the row that its service has for `on(value)`, awaited as in `async_flat_map`.

        With a stream of equal keys, a message at `t` is joined by `with_(value, other_value)` with each message of the
        same key from `t + low_ms` to `t + high_ms` there, both included, where `within` is `(low_ms, high_ms)`; with
        `keep="latest"`, when it comes, only with the newest of these. The result has the later of the two times. By
        `how` a message of the left, the right or either stream that has met none is joined with None, once the
        watermark says that no match can come. Both streams need keys, and lie in equally many partitions. A message
        whose time had already passed for its own source partition is late: it is counted, not joined, and sent to
        `late` if that is `dead_letter("name")`.

        >>> app, numbers = example(key=lambda n: "all")
        >>> pairs = numbers.join(numbers, lambda n, next: (n, next), within=(1, 1), how="left")
        >>> shown(app, pairs)
        [(0, 1), (1, 2), (2, 3), (3, None)]
        """
        from samza_dsl.stream import MessageStream, check_ours

        site = here()
        check_function(site, "join(with_=...)", with_, 2)
        check_policy(site, on_error)
        if op_id is not None:
            check_name(site, "an operator", op_id)
        said: dict[str, Any] = {"site": site, "op_id": op_id, "on_error": on_error, "with_": with_}
        if isinstance(other, MessageStream):
            check_ours(self.app, site, "join(...)", other, MessageStream)
            bounds = said_of_streams(site, within, on, how, keep, late, check_store(site, store))
            join: Spec = IntervalJoin(parents=(self.spec, other.spec), **said, **bounds)
        elif isinstance(other, RemoteTable):
            rows = other.rows
            said |= {"max_in_flight": rows.max_in_flight, "timeout_ms": rows.timeout_ms, "order": rows.order}
            said |= said_of_remote(site, within, on, how, keep, late, store)
            join = RemoteJoin(parents=(self.spec,), function=rows.fetch_many, rows=rows, **said)
        else:
            if isinstance(other, JoinedTable):
                wrong = "a stream can't look into a join of tables"
                raise refuse(site, wrong, ".join(one_table, ...).join(other_table, ...), or .changes() of the tables")
            check_ours(self.app, site, "join(...)", other, Table)
            said |= said_of_table(site, other.spec, within, on, how, keep, late, store)
            join = (TemporalJoin if isinstance(other.spec, VersionedTable) else TableJoin)(
                parents=(self.spec, other.spec), **said
            )
        return MessageStream(self.app, self.app.add(join))


def said_of_streams(
    site: Site,
    within: Any,
    on: Callable[[Any], object] | None,
    how: str,
    keep: str,
    late: DeadLetter | None,
    store: str,
) -> dict[str, Any]:
    """Return what makes a join of two streams; refuses what can't be meant."""
    if on is not None:
        wrong = "on= finds rows of a table, and streams are joined by their keys"
        raise refuse(site, wrong, ".partition_by(...) on both streams, and no on=")
    if within is None:
        wrong = "a join of two streams needs the time within which messages are joined"
        raise refuse(site, wrong, "within=(-duration_ms(minutes=5), duration_ms(minutes=10))")
    if not isinstance(within, tuple) or len(within) != 2 or not all(type(bound) is int for bound in within):
        raise refuse(site, f"within={within!r} is no tuple of two whole ms", "within=(-300_000, 600_000)")
    low, high = within
    if low > high:
        wrong = f"within={within!r} has no time in it: its first bound is above its second"
        raise refuse(site, wrong, f"within=({high}, {low})")
    if max(-low, high, low, -high) > LONGEST_MS:
        raise refuse(site, f"within={within!r} is more than any two times lie apart", "within=(-300_000, 600_000)")
    if how not in HOW:
        raise refuse(site, f"how={how!r} is not a join of two streams", 'how="inner", "left", "right" or "outer"')
    if keep not in KEEP:
        raise refuse(site, f"keep={keep!r} does not say which messages join", 'keep="all" or keep="latest"')
    check_late(site, "join", late)
    return {"low_ms": low, "high_ms": high, "how": how, "keep": keep, "late": late, "store": store}


def said_of_table(
    site: Site,
    table: Spec,
    within: Any,
    on: Callable[[Any], object] | None,
    how: str,
    keep: str,
    late: DeadLetter | None,
    store: str,
) -> dict[str, Any]:
    """Return what makes a join of a stream with a table; refuses what only other joins have."""
    _check_of_any_table(site, within, on, how, keep)
    if isinstance(table, VersionedTable):
        if on is not None:
            wrong = "a table of versions is joined by the message's key"
            raise refuse(site, wrong, ".partition_by(...) on the stream, and no on=")
        check_late(site, "join", late)
        return {"how": how, "late": late, "store": check_store(site, store)}
    _check_keeps_nothing(site, late, store)
    return {"on": on, "left": how == "left"}


def said_of_remote(
    site: Site,
    within: Any,
    on: Callable[[Any], object] | None,
    how: str,
    keep: str,
    late: DeadLetter | None,
    store: str,
) -> dict[str, Any]:
    """Return what makes a join of a stream with a remote table; refuses what only other joins have."""
    if on is None:
        raise refuse(site, "a remote table is asked for the key that a function says", "on=lambda value: value.id")
    _check_of_any_table(site, within, on, how, keep)
    _check_keeps_nothing(site, late, store)
    return {"on": on, "left": how == "left"}


def _check_of_any_table(site: Site, within: Any, on: Callable[[Any], object] | None, how: str, keep: str) -> None:
    if on is not None:
        check_function(site, "join(on=...)", on, 1)
    if how not in ("inner", "left"):
        raise refuse(site, f"how={how!r} is not a join of a stream with a table", 'how="inner" or how="left"')
    for name, said in (("within", within is not None), ("keep", keep != "all")):
        if said:
            wrong = f"{name}= is of a join of two streams, and a table has a row at any time"
            raise refuse(site, wrong, f"no {name}=, or another stream in the place of the table")


def _check_keeps_nothing(site: Site, late: DeadLetter | None, store: str) -> None:
    if late is not None:
        wrong = "late= is of joins in which messages wait, and this table has a row at any time"
        raise refuse(site, wrong, "no late=, or retention_ms= in app.table(...) to join it as of a message's time")
    if store != "lmdb":
        raise refuse(site, f"store={store!r} is of joins that keep messages; a table has its own", "no store=")
