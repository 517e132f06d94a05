"""The table join of a stream: each message with the row that the table has when it comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from operators.core.base import MOST_HELD, Batch, Key, Keys, Spec, Store
from operators.core.untimed import Untimed
from operators.io import TableInput
from operators.joins.key_join import NO_KEY
from operators.joins.match_counts import Kinds, note_kinds

ABSENT: Any = object()
"""Stands for a row of which nobody has looked yet whether it is there."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TableJoin(Spec):
    """Join each message with the table's row: of `on(value)`, or of the message's own key.

    Its parents are the stream and the table. An inner join drops a message without a row; a left join hands `None`
    to the user's function.
    """

    on: Callable[..., object] | None
    with_: Callable[..., object]
    left: bool = False

    kind: ClassVar[str] = "table_join"
    order_sensitive: ClassVar[bool] = True
    looks_up: ClassVar[bool] = True

    @property
    def table(self) -> TableInput:
        """The table that is looked into."""
        table = self.parents[1]
        assert isinstance(table, TableInput)
        return table

    @property
    def code(self) -> tuple[str, ...]:  # type: ignore[override]
        """The code that looks the row up, by function or by the message's key, and joins it."""
        # First among the rows in use, whose keys are held: no call of Python's, and no bytes of a key.
        if self.on:
            rows: tuple[str, ...] = (
                "on_{id} = {on}({value})",
                "row_{id} = {in_use}(on_{id}) if type(on_{id}) in {held_kinds} else None",
                "if row_{id} is None: row_{id} = {lookup}(on_{id})",
            )
        else:
            rows = ("row_{id} = {in_use_by_key}({key})", "if row_{id} is None: row_{id} = {lookup_key}({key})")
        join = "{out} = {join}({value}, row_{id})"
        return (*rows, join) if self.left else (*rows, "if row_{id} is not None:", join)

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
        """The names of the look-ups that the code calls, and of the kinds of keys that are held as they are."""
        return ("in_use", "held_kinds", "lookup") if self.on else ("in_use_by_key", "lookup_key")

    @property
    def by_table_key(self) -> bool:  # type: ignore[override]
        """A join on the message's key meets a table's rows where both lie in partitions."""
        return self.on is None and not self.table.broadcast

    def functions(self) -> dict[str, Callable[..., object]]:
        """The user's functions; the lookup is the runtime's."""
        return {"join": self.with_} if self.on is None else {"on": self.on, "join": self.with_}

    def by_order(self) -> str:
        """Return that a message finds the row that the table has by then."""
        return "finds the row that the table has by then"

    def describe(self) -> str:
        """Return the kind of the join and the table."""
        return f"{'left' if self.left else 'inner'} join with {self.table.stream}"


class TableContents(Untimed):
    """The newest row of each key of a table, over a store, with those in use in a plain dict.

    Whoever looks a row up that is not in use reads `version` before it reads the store, and hands both to `use`: a
    table that all tasks share may go on while threads look into it.
    """

    def __init__(self, store: Store, keys: Keys, most_used: int = MOST_HELD) -> None:
        self.store = store
        self.keys = keys
        self.kinds: Kinds = {}
        """The keys that have come since it began, by their types."""
        self.version = 0
        """The number of times that rows have changed."""
        self.in_use: dict[Key, Any] = {}
        """Rows as the store has them, by their keys as held; None for a key that has none."""
        self._most_used = most_used

    def process(self, batch: Batch) -> Batch | None:
        """Take updates in; a row without a value removes its key."""
        put, delete, encode = self.store.put, self.store.delete, self.keys.encode
        keys = batch.keys
        if keys is None:
            raise ValueError(NO_KEY)
        for key, value in zip(keys, batch.values, strict=True):
            if key is None:
                raise ValueError(NO_KEY)
            if value is None:
                delete(encode(key))
            else:
                put(encode(key), value)
        if len(keys):
            note_kinds(self.kinds, keys, self.keys.kind_of)
            self.version += 1
            for key in keys:
                self.in_use.pop(key, None)
        return None

    def use(self, key: Key, row: Any, version: int) -> Any:
        """Keep a row at hand that was read at this version, and return it; where too many are, all make room for it."""
        in_use = self.in_use
        if len(in_use) >= self._most_used:
            in_use.clear()
        if self._most_used:
            in_use[key] = row
            if self.version != version:
                in_use.pop(key, None)
        return row
