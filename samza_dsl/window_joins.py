"""Joins of streams by windows: what two or more of them have for a key in one and the same window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from operators.policies import DeadLetter, Policy, fail
from operators.sites import here
from operators.window import Emit, Pane
from operators.window_join import How, WindowJoin, joint
from operators.window_types import Windows
from planner.errors import refuse
from samza_dsl.checks import check_function, check_late, check_name, check_policy, check_store, check_whole
from samza_dsl.window_kinds import check_kind
from samza_dsl.windows_by import WindowsBy

if TYPE_CHECKING:
    from samza_dsl.stream import Kept, MessageStream

HOW = ("inner", "left", "outer")

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
T = TypeVar("T")


class WindowJoins(Generic[K, V]):
    """What a stream of messages with keys of type K and values of type V can be joined with in windows."""

    @overload
    def join_windows(
        self,
        others: MessageStream[K, T],
        windows: Windows,
        with_: Callable[[V, T], R],
        *,
        how: Literal["inner"] = "inner",
        allowed_lateness_ms: int = 0,
        emit: Emit = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Pane[K, list[R]]]: ...

    @overload
    def join_windows(
        self,
        others: MessageStream[K, T],
        windows: Windows,
        with_: Callable[[V, T | None], R],
        *,
        how: Literal["left"],
        allowed_lateness_ms: int = 0,
        emit: Emit = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Pane[K, list[R]]]: ...

    @overload
    def join_windows(
        self,
        others: MessageStream[K, T],
        windows: Windows,
        with_: Callable[[V | None, T], R],
        *,
        how: Literal["right"],
        allowed_lateness_ms: int = 0,
        emit: Emit = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Pane[K, list[R]]]: ...

    @overload
    def join_windows(
        self,
        others: MessageStream[K, T],
        windows: Windows,
        with_: Callable[[V | None, T | None], R],
        *,
        how: Literal["outer"],
        allowed_lateness_ms: int = 0,
        emit: Emit = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Pane[K, list[R]]]: ...

    @overload
    def join_windows(
        self,
        others: Sequence[MessageStream[K, Any]],
        windows: Windows,
        with_: Callable[..., R],
        *,
        how: Literal["inner", "left", "outer"] = "inner",
        allowed_lateness_ms: int = 0,
        emit: Emit = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Pane[K, list[R]]]: ...

    def join_windows(
        self,
        others: MessageStream[K, Any] | Sequence[MessageStream[K, Any]],
        windows: Windows,
        with_: Callable[..., R],
        *,
        how: How = "inner",
        allowed_lateness_ms: int = 0,
        emit: Emit = "all",
        late: DeadLetter | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Pane[K, list[R]]]:
        """Join what this stream and another one, or several, have for a key in one window.

        A pane has `with_(value, other_value, ...)` of each choice of one value per stream. Where a stream has none in
        the window, an inner join has no pane; a left join has None, but for the first stream; a right one, of two
        streams, but for the second; an outer one for any. What fires when, and what is late, is as in `window`; a later
        pane of a window has what the ones before it had. Raises PlanError when keys can't meet.

        >>> from samza_dsl import tumbling
        >>> from samza_dsl.shown import example, shown
        >>> app, numbers = example(key=lambda n: "all")
        >>> even, odd = numbers.filter(lambda n: n % 2 == 0), numbers.filter(lambda n: n % 2)
        >>> panes = even.join_windows(odd, tumbling(milliseconds=3), lambda one, other: (one, other), how="outer")
        >>> shown(app, panes.map(lambda pane: (pane.start, pane.value)))
        [(0, [(0, 1), (2, 1)]), (3, [(None, 3)])]
        """
        from samza_dsl.stream import MessageStream, check_ours

        site = here()
        first = cast("MessageStream[K, Any]", self)
        streams = [first, *([others] if isinstance(others, MessageStream) else others)]
        for stream in streams:
            check_ours(first.app, site, "join_windows(...)", stream, MessageStream)
        if len(streams) < 2:
            raise refuse(site, "join_windows([]) has nothing to join with", ".join_windows(other, ...)")
        check_function(site, "join_windows(with_=...)", with_, len(streams))
        if how not in HOW and not (how == "right" and len(streams) == 2):
            instead = 'how="inner", "left" or "outer"' + ', or "right"' * (len(streams) == 2)
            raise refuse(site, f"how={how!r} is not a join of {len(streams)} streams in windows", instead)
        if hasattr(windows, "assign") or isinstance(windows, WindowsBy):
            raise refuse(site, "windows that look at values have no one kind of them here", "tumbling(hours=1)")
        aggregation = joint(with_, len(streams), how)
        check_whole(site, "allowed_lateness_ms", allowed_lateness_ms, least=0)
        check_late(site, "join_windows", late)
        check_kind(site, windows, aggregation, allowed_lateness_ms)
        check_policy(site, on_error)
        if emit not in ("all", "final"):
            raise refuse(site, f"emit={emit!r} does not say which panes are emitted", 'emit="all" or "final"')
        if op_id is not None:
            check_name(site, "an operator", op_id)
        said: dict[str, Any] = {"site": site, "on_error": on_error, "op_id": op_id, "store": check_store(site, store)}
        said |= {"allowed_lateness_ms": allowed_lateness_ms, "emit": emit, "late": late}
        parents = tuple(stream.spec for stream in streams)
        join = first.app.add(WindowJoin(parents=parents, windows=windows, aggregation=aggregation, **said))
        panes: MessageStream[K, Pane[K, list[R]]] = MessageStream(first.app, join)
        return panes.filter(lambda pane: pane.value)
