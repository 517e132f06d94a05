"""The joins of tables with tables, by key or by a key that rows name: tables that change when either side does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from operators.base import Site, Spec
from operators.foreign_key_join import ForeignKeyJoin
from operators.key_join import How, KeyJoin
from operators.partition_by import Broadcast
from operators.policies import Policy, fail
from operators.sites import here
from planner.errors import refuse
from samza_dsl.checks import check_function, check_name, check_policy, check_store, check_type

if TYPE_CHECKING:
    from operators.changes import Change
    from samza_dsl.app import App
    from samza_dsl.stream import Kept, MessageStream

HOW = ("inner", "left", "right", "outer")

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class TableJoins(Generic[K, V]):
    """What a table of rows of type V by keys of type K can be joined with."""

    app: App
    spec: Spec

    @overload
    def join(
        self,
        other: TableJoins[S, T],
        with_: Callable[[V, T], R],
        *,
        on: Callable[[V], S | None] | None = None,
        how: Literal["inner"] = "inner",
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> JoinedTable[K, R]: ...

    @overload
    def join(
        self,
        other: TableJoins[S, T],
        with_: Callable[[V, T | None], R],
        *,
        on: Callable[[V], S | None] | None = None,
        how: Literal["left"],
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> JoinedTable[K, R]: ...

    @overload
    def join(
        self,
        other: TableJoins[K, T],
        with_: Callable[[V | None, T], R],
        *,
        how: Literal["right"],
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> JoinedTable[K, R]: ...

    @overload
    def join(
        self,
        other: TableJoins[K, T],
        with_: Callable[[V | None, T | None], R],
        *,
        how: Literal["outer"],
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> JoinedTable[K, R]: ...

    def join(
        self,
        other: TableJoins[Any, Any],
        with_: Callable[[Any, Any], R],
        *,
        on: Callable[[V], object] | None = None,
        how: How = "inner",
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> JoinedTable[K, R]:
        """Join the rows of two tables; the result is a table, which changes whenever a row of either does.

        The row of a key is `with_(row, other_row)`, of the rows that both have for the key. By `how` a row of the left,
        the right or either table without one of the other is joined with None. Where `with_` returns None there is no
        row. Both tables need to be partitioned alike.

        >>> from samza_dsl import App, testing
        >>> app = App("example")
        >>> names, ages = app.table("names", key=str, value=str), app.table("ages", key=str, value=int)
        >>> names.join(ages, lambda name, age: f"{name}, {age}").changes().send_to(app.output("people"))
        >>> with testing.running(app) as run:
        ...     run.send("names", "Ann", key="a")
        ...     run.send("ages", 40, 41, key="a")
        ...     run.read("people")
        [Change(key='a', old=None, new='Ann, 40'), Change(key='a', old='Ann, 40', new='Ann, 41')]

        With `on` each row is joined with the row of the key `on(row)` in the other table, inner or left. Every task has
        all rows of the other table, then, so that it needs not be partitioned alike.

        >>> app = App("example")
        >>> carts, prices = app.table("carts", key=int, value=str), app.table("prices", key=str, value=int)
        >>> priced = carts.join(prices, lambda cart, price: price, on=lambda cart: cart)
        >>> priced.changes().send_to(app.output("priced"))
        >>> with testing.running(app) as run:
        ...     run.send("carts", "cup", key=1)
        ...     run.send("prices", 9, key="cup")
        ...     run.read("priced")
        [Change(key=1, old=None, new=9)]

        Raises PlanError when keys can't meet.
        """
        site = here()
        check_function(site, "join(with_=...)", with_, 2)
        check_policy(site, on_error)
        if op_id is not None:
            check_name(site, "an operator", op_id)
        check_type(site, "join(...)", other, TableJoins, "what app.table(...) or a join of tables returns")
        if other.app is not self.app:
            wrong = f"join(...) got a table of the app {other.app.name!r}"
            raise refuse(site, wrong, "what app.table(...) of this app returns")
        for table in (self, other):
            if getattr(table.spec, "broadcast", False):
                raise refuse(site, "a broadcast table is for streams to look into", "no broadcast=True")
        if how not in (HOW if on is None else HOW[:2]):
            instead = 'how="inner", "left", "right" or "outer"' if on is None else 'how="inner" or how="left"'
            raise refuse(site, f"how={how!r} is not a join of two tables{' by on=' * (on is not None)}", instead)
        is_joined = isinstance(self, JoinedTable), isinstance(other, JoinedTable)
        kept = check_store(site, store)
        said: dict[str, Any] = {"site": site, "on_error": on_error, "with_": with_, "how": how, "store": kept}
        if on is None:
            parents = self.spec, other.spec
            spec: Spec = KeyJoin(parents=parents, op_id=op_id, is_joined=is_joined, **said)
        else:
            check_function(site, "join(on=...)", on, 1)
            spec = self._by_foreign_key(other, site, op_id, {**said, "on": on, "is_joined": is_joined})
        return JoinedTable(self.app, self.app.add(spec))

    def _by_foreign_key(self, other: TableJoins[Any, Any], site: Site, op_id: str | None, said: dict[str, Any]) -> Spec:
        """Return the join with the other table's changes, which come to all of its tasks."""
        id = op_id or f"foreign_key_join-{self.spec.op_id}-{other.spec.op_id}"
        copied = self.app.add(Broadcast(parents=(other.spec,), site=site, op_id=f"{id}-rows"))
        key = self.app.graph().key_serde(other.spec.op_id or "")
        return ForeignKeyJoin(parents=(self.spec, copied), op_id=id, foreign_key=key, **said)


class JoinedTable(TableJoins[K, R]):
    """The rows that a join of tables has by key; `join` makes it, and can join it further.

    >>> from samza_dsl import App
    >>> app = App("a")
    >>> left, right = (app.table(name, key=str, value=int) for name in ("left", "right"))
    >>> left.join(right, max).spec.kind
    'key_join'
    """

    def __init__(self, app: App, spec: Spec) -> None:
        self.app = app
        self.spec = spec

    def changes(self) -> MessageStream[K, Change[K, R]]:
        """Return a stream of what becomes of each key: its row before and after, None where there is none.

        >>> from samza_dsl import App
        >>> app = App("a")
        >>> left, right = (app.table(name, key=str, value=int) for name in ("left", "right"))
        >>> left.join(right, max).changes().map(lambda change: change.new).send_to(app.output("largest"))
        """
        from samza_dsl.stream import MessageStream

        return MessageStream(self.app, self.spec)
