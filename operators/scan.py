"""The scan: one state per key, and a step of it for each message, which emits the new state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from operators.core.base import MOST_HELD, Batch, Copies, Keys, OperatorContext, Serde, Spec, Store
from operators.core.entry_keys import EntryKinds
from operators.core.untimed import NothingFires
from operators.state.key_cache import READ_STATE, KeyStates, emitted_of, loop_of
from operators.state.keyed_state import KEY_STATES, meaning_of


@dataclass(frozen=True, eq=False, kw_only=True)
class Scan(Spec):
    """Replace each message by the new state of its key, or by what `emit` makes of key and state."""

    step: Callable[..., object]
    emit: Callable[..., object] | None = None
    init: Callable[[], object] | None = None
    store: str = "lmdb"
    state: Serde | None = None

    kind: ClassVar[str] = "scan"
    declares: ClassVar[str] = "scan(..., state=MySerde())"
    stateful: ClassVar[bool] = True
    holds_plain: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True
    one_to_one: ClassVar[bool] = True
    hands_on_headers: ClassVar[bool] = True
    order_sensitive: ClassVar[bool] = True
    binds: ClassVar[tuple[str, ...]] = ("changed", "clean", "look_up", "decode", "unchangeable", "copy")

    @property
    def keyed_code(self) -> tuple[str, ...]:  # type: ignore[override]
        """The code of a step of the key's state, and of the message that it emits."""
        # The state stays in `changed` and is emitted as well: a copy goes on where a later step could change it.
        step = (
            *READ_STATE,
            "{changed}[{key}] = state_{id} = {step}(state_{id}, {value})",
            "if state_{id} is None: {clean}.pop({key}, None)",
        )
        if self.emit is None:
            return (*step, "{out} = state_{id} if type(state_{id}) in {unchangeable} else {copy}(state_{id})")
        return (*step, "key_{id} = {user_key}", "{out} = {emit}(key_{id}, state_{id})")

    def functions(self) -> dict[str, Callable[..., object]]:
        """The user's functions."""
        named = {"step": self.step, "emit": self.emit, "init": self.init}
        return {name: function for name, function in named.items() if function is not None}

    def meaning(self) -> str:
        """Return the meaning of the states that `init` makes."""
        return meaning_of(self.init)

    def entry_kinds(self) -> EntryKinds:
        """Return states by key."""
        return KEY_STATES

    def declared_of(self, parts: Mapping[str, object]) -> Serde | None:
        """Return that of states."""
        return self.state

    def build(self, context: OperatorContext) -> ScanOperator:
        """Return its operator, which keeps states as was declared."""
        copies = context.formats.copies(self.state)
        operator = ScanOperator(self, context.functions, context.store, context.keys, copies, context.most_held)
        operator.form = context.formats.form(self.state)
        return operator


class ScanOperator(KeyStates, NothingFires):
    """One task's share of a `scan`."""

    def __init__(
        self,
        spec: Scan,
        functions: dict[str, Callable[..., object]],
        store: Store,
        keys: Keys,
        copies: Copies,
        most_held: int = MOST_HELD,
    ) -> None:
        super().__init__(store, keys, functions.get("init"), most_held)
        self.step = functions["step"]
        self.emit = functions.get("emit")
        self.calls = [*functions]
        self.copy = copies.copy
        """Returns a state that no later step changes in place."""
        self._loop = loop_of(spec.keyed_code, (*spec.binds, *functions))

    def process(self, batch: Batch) -> Batch | None:
        """Take a step for each message, and return what is emitted with the message's key, time and stamp."""
        none = [None] * len(batch)
        found = self._loop(self, batch.values, batch.keys or none, batch.timestamps or none)
        self.relieve()
        return emitted_of(found, batch)
