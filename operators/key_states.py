"""The states of an operator's keys in one task: those in use in plain dicts, beside the store that has them all."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from operators.base import MOST_HELD, Batch, Key, Keys, Store
from operators.keyed_state import STATE, UNCHANGEABLE

KEPT = UNCHANGEABLE - {type(None)}
"""Types of states that may be used on while the store has them, too: nobody can change them in place."""


class KeyStates:
    """States by key: what an operator's code reads and writes, and puts into the store at the commit.

    `changed` has those that are newer than the store's, None where one was removed; `clean` those that the store has,
    of keys that have not changed since. While these two have all there is, as from an empty store on, nobody needs to
    look into it.
    """

    def __init__(self, store: Store, keys: Keys, init: Callable[[], Any] | None, most_held: int = MOST_HELD) -> None:
        self.store = store
        self.keys = keys
        self.init = init
        self.most_held = most_held
        self.decode = keys.decode
        self.unchangeable = UNCHANGEABLE
        self.changed: dict[Key, Any] = {}
        self.clean: dict[Key, Any] = {}
        self._has_all = self._is_empty()

    @property
    def unwritten(self) -> int:
        """How many changed states are not in the store yet."""
        return len(self.changed)

    def read(self, key: Key | None) -> Any:
        """Return the state of a key, or what `init` makes; raises ValueError where there is no key."""
        state = None if key is None else self.changed.get(key, self.clean.get(key))
        return self.look_up(key) if state is None else state

    def look_up(self, key: Key | None) -> Any:
        """Return the state of a key of which none is in use; raises ValueError where there is no key."""
        state = None
        if key is None:
            raise ValueError("a record has no key, and state by key needs one; partition_by(...) first")
        if not self._has_all and key not in self.changed:
            state = self.store.get(STATE + self.keys.encode(key))
            if type(state) in KEPT:
                self.clean[key] = state
        return self.init() if state is None and self.init is not None else state

    def relieve(self) -> None:
        """Hold no more beside the store than is good; a store in memory holds it no better."""
        if self.store.durable and len(self.changed) > self.most_held:
            self.write_back()
        if len(self.clean) > self.most_held:
            self.clean.clear()
            self._has_all = False

    def write_back(self) -> None:
        """Put the states that have changed into the store."""
        changed, kinds = self.changed, set(map(type, self.changed.values()))
        places = [*map(STATE.__add__, self.keys.encode_all([*changed]))]
        if kinds <= KEPT:
            self.store.update(dict(zip(places, changed.values(), strict=True)))
            self.clean.update(changed)
        else:
            states = [*zip(places, changed.values(), strict=True)]
            self.store.update({place: state for place, state in states if state is not None})
            for place in [place for place, state in states if state is None]:
                self.store.delete(place)
            self.clean.update({key: state for key, state in changed.items() if type(state) in KEPT})
            self._has_all = self._has_all and kinds <= UNCHANGEABLE
        changed.clear()

    def forget(self) -> None:
        """Drop the states that have changed."""
        self.changed.clear()
        self.clean.clear()
        self._has_all = self._is_empty()

    def _is_empty(self) -> bool:
        return next(self.store.range(STATE), None) is None


READ_STATE = (
    "state_{id} = {changed}.get({key})",
    "if state_{id} is None and (state_{id} := {clean}.get({key})) is None: state_{id} = {look_up}({key})",
)
"""What the code of an operator with state by key begins with."""

Loop = Callable[[Any, list[Any], list[Any], list[Any]], tuple[list[Any], list[int]]]
"""Takes an operator and columns of values, keys and timestamps; returns what is emitted, and of which row it came."""


@cache
def loop_of(code: tuple[str, ...], names: tuple[str, ...]) -> Loop:
    """Return the loop that the code of an operator with state by key says, where it stands alone.

    `names` are those attributes of the operator that the code calls by name. All tasks share in one loop.
    """
    variables = {"id": "", "value": "value", "out": "one", "key": "key", "timestamp": "timestamp"}
    variables["user_key"] = "key if type(key) is not bytes else operator.decode(key)"
    body = [line.format(**variables, **{name: f"operator.{name}" for name in names}) for line in code]
    indent = "    " if body[-1].endswith(":") else ""
    lines = [
        "def process(operator, values, keys, timestamps):",
        "    found, rows = [], []",
        "    for row, (value, key, timestamp) in enumerate(zip(values, keys, timestamps, strict=True)):",
        *(f"        {line}" for line in body),
        f"        {indent}found.append(one)",
        f"        {indent}rows.append(row)",
        "    return found, rows",
    ]
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), namespace)  # the operator's own code, which the planner fuses with that of others as well
    process: Loop = namespace["process"]
    return process


def emitted_of(found: tuple[list[Any], list[int]], batch: Batch) -> Batch | None:
    """Return what was emitted with the key, the time and the stamp of its row."""
    values, rows = found
    if not values:
        return None

    def of_rows(column: list[Any] | None) -> list[Any] | None:
        return None if column is None else [column[row] for row in rows]

    return Batch(values, of_rows(batch.keys), of_rows(batch.timestamps), of_rows(batch.stamps))
