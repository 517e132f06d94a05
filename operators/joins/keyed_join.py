"""The traits that joins by key share: each side's messages, or its rows, are kept until what they meet has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from operators.core.base import Spec


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyedJoin(Spec):
    """A join of two parents, the left one first, whose operator keeps state by key and tells sides apart."""

    with_: Callable[..., object]

    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    needs_id: ClassVar[bool] = True
    sided: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., object]]:
        """The user's function."""
        return {"join": self.with_}
