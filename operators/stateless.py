"""The stateless operators, each of which is a line or two of a fused function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from operators.core.base import Spec


@dataclass(frozen=True, eq=False, kw_only=True)
class Stateless(Spec):
    """An operator with one user function and no state."""

    function: Callable[..., object]

    hands_on_signs: ClassVar[bool] = True
    hands_on_headers: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., object]]:
        """The user's function, named as the operator is."""
        return {self.kind: self.function}


@dataclass(frozen=True, eq=False, kw_only=True)
class Filter(Stateless):
    """Keep the messages for which the function is true."""

    kind: ClassVar[str] = "filter"
    code: ClassVar[tuple[str, ...]] = ("if {filter}({value}):",)
    drops: ClassVar[bool] = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Map(Stateless):
    """Replace each message by what the function returns; with `headers` it takes the message's headers as well."""

    headers: bool = False

    kind: ClassVar[str] = "map"
    one_to_one: ClassVar[bool] = True

    @property
    def code(self) -> tuple[str, ...]:  # type: ignore[override]
        """The call."""
        return ("{out} = {map}({value}, {header})",) if self.headers else ("{out} = {map}({value})",)

    @property
    def uses_headers(self) -> bool:  # type: ignore[override]
        """Whether the function takes them."""
        return self.headers


@dataclass(frozen=True, eq=False, kw_only=True)
class FlatMap(Stateless):
    """Replace each message by the messages that the function returns."""

    kind: ClassVar[str] = "flat_map"
    fans_out: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = ("for {out} in {flat_map}({value}):",)


@dataclass(frozen=True, eq=False, kw_only=True)
class Branch(Stateless):
    """Ask, once per message, which of the named branches it goes to: one, several, or none."""

    names: tuple[str, ...]

    kind: ClassVar[str] = "branch"
    splits: ClassVar[bool] = True
    unread: ClassVar[tuple[str, str]] = ("nobody reads any of its branches", '.branch(...)["late"].send_to(...)')
    # The choice is made and checked once; the arms, which lie in the same function, only look at it.
    code: ClassVar[tuple[str, ...]] = (
        "choice_{id} = {branch}({value})",
        "choice_{id} = (choice_{id},) if type(choice_{id}) is str else tuple(choice_{id})",
        "if not {names}.issuperset(choice_{id}): raise ValueError({refusal}.format(choice_{id}))",
    )
    one_to_one: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., object]]:
        """The choice, and what it is checked against."""
        refusal = f"branch chose {{}}, which is not among the declared branches {list(self.names)}"
        return {"branch": self.function, "names": frozenset(self.names), "refusal": refusal}  # type: ignore[dict-item]

    def describe(self) -> str:
        """The branches."""
        return " | ".join(self.names)


@dataclass(frozen=True, eq=False, kw_only=True)
class BranchArm(Spec):
    """The messages of one branch."""

    name: str

    kind: ClassVar[str] = "branch_arm"
    arm: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = ("if {name} in choice_{parent}:",)
    hands_on_signs: ClassVar[bool] = True
    hands_on_headers: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., object]]:
        """The branch's name, as a constant of the fused function."""
        return {"name": self.name}  # type: ignore[dict-item]

    def describe(self) -> str:
        """The branch."""
        return self.name


@dataclass(frozen=True, eq=False, kw_only=True)
class SideArm(BranchArm):
    """The values of one branch, of messages that are pairs of a branch and a value."""

    code: ClassVar[tuple[str, ...]] = (*BranchArm.code, "{out} = {value}[1]")


@dataclass(frozen=True, eq=False, kw_only=True)
class Merge(Spec):
    """All messages of several streams, as they come."""

    kind: ClassVar[str] = "merge"
    code: ClassVar[tuple[str, ...]] = ()
    one_to_one: ClassVar[bool] = True
    hands_on_signs: ClassVar[bool] = True
    hands_on_headers: ClassVar[bool] = True
