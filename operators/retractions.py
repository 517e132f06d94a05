"""The revisions: retractions as messages that say so, for operators and serdes that know no signs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import msgspec

from operators.core.base import Spec

V = TypeVar("V")


class Revision(msgspec.Struct, Generic[V], frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """A value that is new, or one from before that is withdrawn.

    >>> Revision(12, withdrawn=True)
    Revision(value=12, withdrawn=True)
    """

    value: V
    withdrawn: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Revisions(Spec):
    """Replace each message by a revision that says whether it is a retraction."""

    kind: ClassVar[str] = "revisions"
    code: ClassVar[tuple[str, ...]] = ("{out} = {revision}({value}, {sign} == -1)",)
    one_to_one: ClassVar[bool] = True
    takes_signs: ClassVar[bool] = True
    hands_on_headers: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., object]]:
        """Return the class of revisions."""
        return {"revision": Revision}
