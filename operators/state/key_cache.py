"""The states of an operator's keys in one task: plain dicts of those in use, beside the store of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from operators.core.base import MOST_HELD, Batch, Form, Key, Keys, Store
from operators.state.keyed_state import STATE, UNCHANGEABLE, undeclared

C = TypeVar("C")

KEPT = UNCHANGEABLE - {type(None)}
"""Types of states that may be used on while the store has them, too: nobody can change them in place."""


class KeyStates:
    """The states by key that an operator's code reads and writes, and puts into the store at the commit.

    `changed` has those that are newer than the store's, None where one was removed; `clean` those that the store has,
    of keys that have not changed since. While these two have all there is, as from an empty store on, nobody needs to
    look into it.
    """

    def __init__(self, store: Store, keys: Keys, init: Callable[[], object] | None, most_held: int = MOST_HELD) -> None:
        self.store = store
        self.keys = keys
        self.init = init
        self.most_held = most_held
        self.form: Form | None = None
        """The stored form of states; None if none is declared."""
        self.decode = keys.decode
        self.unchangeable = UNCHANGEABLE
        self.changed: dict[Key, Any] = {}
        self.clean: dict[Key, Any] = {}
        self._has_all = self._is_empty()

    @property
    def unwritten(self) -> int:
        """The number of changed states that are not in the store yet."""
        return len(self.changed)

    @property
    def looks(self) -> bool:
        """Whether a key that is not in use may have a state all the same: in the store, or what `init` makes."""
        return not self._has_all or self.init is not None

    def read(self, key: Key | None) -> Any:
        """Return the state of a key, or what `init` makes; raises ValueError where there is no key."""
        state = None if key is None else self.changed.get(key, self.clean.get(key))
        return self.look_up(key) if state is None else state

    def look_up(self, key: Key | None) -> Any:
        """Return the state of a key that is not in use, from the store; raises ValueError where there is no key."""
        state = None
        if key is None:
            raise ValueError("a record has no key, and state by key needs one; partition_by(...) first")
        # From an empty store on the dicts have all there is, and nobody needs to ask the store for keys that are new.
        if not self._has_all and key not in self.changed:
            state = self.store.get(STATE + self.keys.encode(key))
            state = undeclared(state) if self.form is None or state is None else self.form.load(state)
            if type(state) in KEPT:
                self.clean[key] = state
        return self.init() if state is None and self.init is not None else state

    def relieve(self) -> None:
        """Write back where too much is held beside a durable store; a store in memory would hold it no better."""
        if self.store.durable and self.unwritten > self.most_held:
            self.write_back()
        # From here on the store has to be asked again, also for keys that are new.
        if len(self.clean) > self.most_held:
            self.clean.clear()
            self._has_all = False

    def write_back(self) -> None:
        """Put the states that have changed into the store."""
        changed, kinds = self._dumped(), set(map(type, self.changed.values()))
        places = [*map(STATE.__add__, self.keys.encode_all([*changed]))]
        # States that can be changed in place do not stay: read again from the store, the store always has the old one
        # for a savepoint to come back to.
        if kinds <= KEPT:
            self.store.update(dict(zip(places, changed.values(), strict=True)))
            self.clean.update(self.changed)
        else:
            states = [*zip(places, changed.values(), strict=True)]
            self.store.update({place: state for place, state in states if state is not None})
            for place in [place for place, state in states if state is None]:
                self.store.delete(place)
            self.clean.update({key: state for key, state in self.changed.items() if type(state) in KEPT})
            # States that were not kept are in the store alone from now on.
            self._has_all = self._has_all and kinds <= UNCHANGEABLE
        self.changed.clear()

    def tell_keys(self, most: int) -> None:
        """Encode at most so many of the keys whose states have changed, for whoever keeps the kinds of keys."""
        self.keys.encode_all([*islice(self.changed, most)])

    def newest(self, most: int) -> list[object]:
        """Return at most so many of the states that have changed, those that changed first last, as they are stored."""
        states = islice(reversed(self.changed.values()), most)
        dump = None if self.form is None else self.form.dump
        return [state if dump is None else dump(state) for state in states if state is not None]

    def forget(self) -> None:
        """Drop the states that have changed."""
        self.changed.clear()
        self.clean.clear()
        self._has_all = self._is_empty()

    def _dumped(self) -> dict[Key, object]:
        """Return the changed states in their stored form."""
        if self.form is None:
            return self.changed
        dump = self.form.dump
        return {key: None if state is None else dump(state) for key, state in self.changed.items()}

    def _is_empty(self) -> bool:
        return next(self.store.range(STATE), None) is None


READ_STATE = (
    "state_{id} = {changed}.get({key})",
    "if state_{id} is None and (state_{id} := {clean}.get({key})) is None: state_{id} = {look_up}({key})",
)
"""The first lines of the code of an operator with state by key."""

Loop = Callable[[KeyStates, Sequence[object], Sequence[object], Sequence[object]], tuple[list[object], list[int]]]
"""Takes an operator and columns of values, keys and timestamps; returns emitted values, and the row of each."""


@cache
def loop_of(code: tuple[str, ...], names: tuple[str, ...]) -> Loop:
    """Return the loop of an operator with state by key, for where the planner does not fuse its code with others.

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
    # The same lines that the planner fuses with those of its neighbours, so that there is one meaning, said once.
    exec("\n".join(lines), namespace)
    process: Loop = namespace["process"]
    return process


def emitted_of(found: tuple[list[object], list[int]], batch: Batch) -> Batch | None:
    """Return the emitted values as a batch, each with the key, the time, the stamp and the headers of its row."""
    values, rows = found
    if not values:
        return None

    def of_rows(column: list[C] | None) -> list[C] | None:
        return None if column is None else [column[row] for row in rows]

    return Batch(
        values, of_rows(batch.keys), of_rows(batch.timestamps), of_rows(batch.stamps), None, of_rows(batch.headers)
    )
