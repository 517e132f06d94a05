"""The join of the fluent stream, with another stream or with a table, and what may be said of either."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from operators.base import EARLIEST_MS, LATEST_MS, Site, Spec
from operators.interval_join import How, IntervalJoin, Keep
from operators.policies import DeadLetter, Policy, fail
from operators.sites import here
from operators.table_join import TableJoin
from planner.errors import refuse
from samza_dsl.checks import check_function, check_late, check_name, check_policy, check_store
from samza_dsl.ends import Table

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
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    def join(
        self,
        other: MessageStream[K, Any] | Table[Any, Any],
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
        else:
            check_ours(self.app, site, "join(...)", other, Table)
            left = said_of_table(site, within, on, how, keep, late, store)
            join = TableJoin(parents=(self.spec, other.spec), **said, on=on, left=left)
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
        raise refuse(site, f"within={within!r} is no pair of whole ms", "within=(-300_000, 600_000)")
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
    within: Any,
    on: Callable[[Any], object] | None,
    how: str,
    keep: str,
    late: DeadLetter | None,
    store: str,
) -> bool:
    """Return whether a join with a table keeps messages that have no row; refuses what only streams have."""
    if on is not None:
        check_function(site, "join(on=...)", on, 1)
    if how not in ("inner", "left"):
        raise refuse(site, f"how={how!r} is not a join of a stream with a table", 'how="inner" or how="left"')
    for name, said in (("within", within is not None), ("keep", keep != "all"), ("late", late is not None)):
        if said:
            wrong = f"{name}= is of a join of two streams, and a table has a row at any time"
            raise refuse(site, wrong, f"no {name}=, or another stream in the place of the table")
    if store != "lmdb":
        raise refuse(site, f"store={store!r} is of a join of two streams; a table has its own", "no store=")
    return how == "left"
