"""Joining a stream with a table: what the table has for a key, when the message comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from operators.at_once import AtOnce
from operators.base import Batch, Keys, Spec, Store
from operators.io import Table

ABSENT = object()


@dataclass(frozen=True, eq=False, kw_only=True)
class TableJoin(Spec):
    """Join each message with the table's row: of `on(value)`, or of the message's own key.

    Its parents are the stream and the table. An inner join drops a message without a row; a left join hands `None`
    to the user's function.
    """

    on: Callable[[Any], Any] | None
    with_: Callable[[Any, Any], Any]
    left: bool = False

    kind: ClassVar[str] = "table_join"
    order_sensitive: ClassVar[bool] = False

    @property
    def table(self) -> Table:
        """The table that is looked into."""
        table = self.parents[1]
        assert isinstance(table, Table)
        return table

    @property
    def code(self) -> tuple[str, ...]:  # type: ignore[override]
        """Look the row up, by function or by the message's key, and join."""
        row = "row_{id} = {lookup}({on}({value}))" if self.on else "row_{id} = {lookup_key}({key})"
        join = "{out} = {join}({value}, row_{id})"
        return (row, join) if self.left else (row, "if row_{id} is not None:", join)

    @property
    def one_to_one(self) -> bool:  # type: ignore[override]
        """A left join keeps every message."""
        return self.left

    @property
    def drops(self) -> bool:  # type: ignore[override]
        """An inner join keeps the messages that have a row."""
        return not self.left

    @property
    def keyed(self) -> bool:  # type: ignore[override]
        """A join on the message's key needs one."""
        return self.on is None

    @property
    def binds(self) -> tuple[str, ...]:  # type: ignore[override]
        """How a row is found."""
        return ("lookup",) if self.on else ("lookup_key",)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The user's functions; the lookup is the runtime's."""
        return {"join": self.with_} if self.on is None else {"on": self.on, "join": self.with_}

    def describe(self) -> str:
        """Which table, and how."""
        return f"{'left' if self.left else 'inner'} join with {self.table.stream}"


class TableContents(AtOnce):
    """The newest row of each key of a table, over a store."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self.store = store
        self.keys = keys

    def process(self, batch: Batch) -> Batch | None:
        """Take updates in; a row without a value removes its key."""
        put, delete, encode = self.store.put, self.store.delete, self.keys.encode
        for key, value in zip(batch.keys or (), batch.values, strict=True):
            if key is None:
                raise ValueError("a record of a table has no key; give the table key=, or key the stream")
            if value is None:
                delete(encode(key))
            else:
                put(encode(key), value)
        return None
