"""The operator that keeps one state per key, a step per message, and emits what it has come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from operators.at_once import NothingFires
from operators.base import MOST_HELD, Batch, Keys, Serde, Spec, Store
from operators.key_states import READ_STATE, KeyStates, emitted_of, loop_of
from operators.keyed_state import meaning_of


@dataclass(frozen=True, eq=False, kw_only=True)
class Scan(Spec):
    """Replace each message by the state that its key has come to, or what `emit` makes of key and state."""

    step: Callable[[Any, Any], Any]
    emit: Callable[[Any, Any], Any] | None = None
    init: Callable[[], Any] | None = None
    store: str = "lmdb"

    kind: ClassVar[str] = "scan"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True
    one_to_one: ClassVar[bool] = True
    order_sensitive: ClassVar[bool] = True
    binds: ClassVar[tuple[str, ...]] = ("changed", "clean", "look_up", "decode", "unchangeable", "copy")

    @property
    def keyed_code(self) -> tuple[str, ...]:  # type: ignore[override]
        """A step of the key's state, and what is emitted."""
        step = (
            *READ_STATE,
            "{changed}[{key}] = state_{id} = {step}(state_{id}, {value})",
            "if state_{id} is None: {clean}.pop({key}, None)",
        )
        if self.emit is None:
            return (*step, "{out} = state_{id} if type(state_{id}) in {unchangeable} else {copy}(state_{id})")
        return (*step, "key_{id} = {user_key}", "{out} = {emit}(key_{id}, state_{id})")

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The user's functions."""
        named = {"step": self.step, "emit": self.emit, "init": self.init}
        return {name: function for name, function in named.items() if function is not None}

    def meaning(self) -> str:
        """What `init` makes."""
        return meaning_of(self.init)


class ScanOperator(KeyStates, NothingFires):
    """One task's share of a `scan`."""

    def __init__(
        self,
        spec: Scan,
        functions: dict[str, Callable[..., Any]],
        store: Store,
        keys: Keys,
        serde: Serde,
        most_held: int = MOST_HELD,
    ) -> None:
        super().__init__(store, keys, functions.get("init"), most_held)
        self.step = functions["step"]
        self.emit = functions.get("emit")
        self.calls = [*functions]
        self._serde = serde
        self._loop = loop_of(spec.keyed_code, (*spec.binds, *functions))

    def copy(self, state: Any) -> Any:
        """Return a state that no later step changes in place."""
        return self._serde.decode(self._serde.encode(state))

    def process(self, batch: Batch) -> Batch | None:
        """Take a step for each message, and return what is emitted with the message's key, time and stamp."""
        none = [None] * len(batch)
        found = self._loop(self, batch.values, batch.keys or none, batch.timestamps or none)
        self.relieve()
        return emitted_of(found, batch)
