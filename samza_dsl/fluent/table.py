"""The table that a stream looks into, and the joins of tables with tables, by key or by a key that rows name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from operators.core.base import Serde, Site, Spec
from operators.core.policies import Policy, fail
from operators.core.sites import here
from operators.io import TableInput, VersionedTable
from operators.joins.changes import Change
from operators.joins.foreign_key_join import ForeignKeyJoin
from operators.joins.key_join import How, KeyJoin
from operators.partition_by import Broadcast
from planner.model.errors import refuse
from runtime.encoding.serdes import Declared, Evolving
from samza_dsl.fluent.arguments import JoinOptions, Kept, Sides
from samza_dsl.fluent.checks import both_said, check_function, check_name, check_policy, check_store, check_type

if TYPE_CHECKING:
    from samza_dsl.application.app import App
    from samza_dsl.fluent.stream import MessageStream

HOW = ("inner", "left", "right", "outer")

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class TableJoinFields(TypedDict):
    """The fields of a join of two tables, by whatever key."""

    site: Site
    on_error: Policy
    with_: Callable[..., object]
    is_joined: tuple[bool, bool]
    store: str
    state: tuple[Serde | None, Serde | None]


class TableJoins(Generic[K, V]):
    """The joins of a table of rows of type V by keys of type K with another table."""

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
        **options: Unpack[JoinOptions],
    ) -> JoinedTable[K, R]: ...

    @overload
    def join(
        self,
        other: TableJoins[S, T],
        with_: Callable[[V, T | None], R],
        *,
        on: Callable[[V], S | None] | None = None,
        how: Literal["left"],
        **options: Unpack[JoinOptions],
    ) -> JoinedTable[K, R]: ...

    @overload
    def join(
        self,
        other: TableJoins[K, T],
        with_: Callable[[V | None, T], R],
        *,
        how: Literal["right"],
        **options: Unpack[JoinOptions],
    ) -> JoinedTable[K, R]: ...

    @overload
    def join(
        self,
        other: TableJoins[K, T],
        with_: Callable[[V | None, T | None], R],
        *,
        how: Literal["outer"],
        **options: Unpack[JoinOptions],
    ) -> JoinedTable[K, R]: ...

    def join(
        self,
        other: TableJoins[S, T],
        with_: Callable[..., R],
        *,
        on: Callable[[V], object] | None = None,
        how: How = "inner",
        store: Kept = "lmdb",
        state: Sides = None,
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

        `state=(Left, Right)` has the types of the rows that are kept of either table, or the serdes that store them.
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
            if table.spec.broadcast:
                raise refuse(site, "a broadcast table is for streams to look into", "no broadcast=True")
        if how not in (HOW if on is None else HOW[:2]):
            instead = 'how="inner", "left", "right" or "outer"' if on is None else 'how="inner" or how="left"'
            raise refuse(site, f"how={how!r} is not a join of two tables{' by on=' * (on is not None)}", instead)
        said: TableJoinFields = {
            "site": site,
            "on_error": on_error,
            "with_": with_,
            "is_joined": (isinstance(self, JoinedTable), isinstance(other, JoinedTable)),
            "store": check_store(site, store),
            "state": both_said(site, "join", state),
        }
        if on is None:
            spec: Spec = KeyJoin(parents=(self.spec, other.spec), op_id=op_id, how=how, **said)
        else:
            check_function(site, "join(on=...)", on, 1)
            spec = self._by_foreign_key(other, on, "left" if how == "left" else "inner", op_id, said)
        return JoinedTable(self.app, self.app.add(spec))

    def _by_foreign_key(
        self,
        other: TableJoins[S, T],
        on: Callable[[V], object],
        how: Literal["inner", "left"],
        op_id: str | None,
        said: TableJoinFields,
    ) -> Spec:
        """Return the join with the other table's changes, which all of its tasks receive."""
        id = op_id or f"foreign_key_join-{self.spec.op_id}-{other.spec.op_id}"
        row = said["state"][1]
        value: Serde | None = None
        if row is not None and not isinstance(row, Declared):
            # What only this serde can store comes to the other tasks by it.
            value = ChangesBy(row) if isinstance(other, JoinedTable) else row
        copied = self.app.add(Broadcast(parents=(other.spec,), site=said["site"], op_id=f"{id}-rows", value=value))
        key = self.app.graph().key_serde(other.spec.op_id or "")
        return ForeignKeyJoin(parents=(self.spec, copied), op_id=id, on=on, how=how, foreign_key=key, **said)


@dataclass(frozen=True)
class ChangesBy:
    """The serde of changes of rows that another serde stores.

    >>> class Hex:
    ...     def encode(self, value): return b"%x" % value
    ...     def decode(self, data): return int(data, 16)
    >>> ChangesBy(Hex()).decode(ChangesBy(Hex()).encode(Change("AA", None, 255)))
    Change(key='AA', old=None, new=255)
    """

    rows: Serde

    def encode(self, value: Change[object, object]) -> bytes:
        """Return the bytes of a change."""
        rows = (None if row is None else bytes(self.rows.encode(row)) for row in (value.old, value.new))
        return Evolving().encode((value.key, *rows))

    def decode(self, data: bytes) -> Change[object, object]:
        """Return the change of these bytes."""
        key, *rows = Evolving().decode(data)
        return Change(key, *(None if row is None else self.rows.decode(row) for row in rows))


class Table(TableJoins[K, V]):
    """A table: the newest value of each key of a stream, or its value as of a time. `app.table` makes it.

    >>> from samza_dsl import App
    >>> App("a").table("planes", key=str, value=dict).spec.stream
    'planes'
    """

    def __init__(self, app: App, spec: TableInput | VersionedTable) -> None:
        self.app = app
        self.spec: TableInput | VersionedTable = spec


class JoinedTable(TableJoins[K, R]):
    """A table that the application makes itself, by `to_table` or by a join of tables; it can be joined further.

    >>> from samza_dsl import App
    >>> app = App("a")
    >>> left, right = (app.table(name, key=str, value=int) for name in ("left", "right"))
    >>> left.join(right, max).spec.kind
    'key_join'
    """

    def __init__(self, app: App, spec: Spec, rows: Serde | None = None) -> None:
        self.app = app
        self.spec = spec
        self.rows = rows
        """The declared serde of its rows, if there is one."""

    def changes(self) -> MessageStream[K, Change[K, R]]:
        """Return the stream of changes of this table: the row of a key before and after, None where there is none.

        >>> from samza_dsl import App
        >>> app = App("a")
        >>> left, right = (app.table(name, key=str, value=int) for name in ("left", "right"))
        >>> left.join(right, max).changes().map(lambda change: change.new).send_to(app.output("largest"))
        """
        from samza_dsl.fluent.stream import MessageStream

        return MessageStream(self.app, self.spec)
