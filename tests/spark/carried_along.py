"""Classes and functions as a program may have them, which another process must get whole."""

from __future__ import annotations

import dataclasses
import enum
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from runtime.encoding.serdes import Json, Tagged

T = TypeVar("T")


class Node(msgspec.Struct, frozen=True, tag="node", rename="camel"):
    the_value: int
    following: Node | None = None
    numbers: list[int] = msgspec.field(default_factory=list)
    most: ClassVar[int] = 4

    def __post_init__(self) -> None:
        if self.the_value > self.most:
            raise ValueError("too much")

    def more(self) -> Node:
        return Node(self.the_value + 1, self)

    @property
    def is_last(self) -> bool:
        return self.following is None


class Named(Node, kw_only=True, frozen=True):
    name: Annotated[str, msgspec.Meta(min_length=1)] = "none"


class Box(msgspec.Struct, Generic[T]):
    held: T


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Painted:
    node: Node
    colour: Colour


class Pair(NamedTuple):
    one: Painted
    other: int


decoder = msgspec.json.Decoder(Named)


def told() -> list[str]:
    """Return what all of these do, as text."""
    painted = Painted(Node(1), msgspec.convert(1, Colour))
    data = b'{"type":"node","theValue":2,"following":{"type":"node","theValue":1}}'
    return list(
        map(
            repr,
            [
                Json(Node).decode(data),
                Json(Node).encode(Node(1).more()),
                decoder.decode(b'{"type":"node","theValue":3,"name":"x"}'),
                refused(lambda: decoder.decode(b'{"type":"node","theValue":3,"name":""}')),
                refused(lambda: Node(5)),
                Json(Box[int]).decode(b'{"held":1}'),
                Json(Painted).decode(b'{"node":{"type":"node","theValue":2},"colour":1}'),
                Tagged().decode(Tagged().encode([painted, Pair(painted, 1), Named(1, name="n")])),
                Tagged().encode(Named(1, name="n")),
                Node(1).is_last and Named.most,
            ],
        )
    )


def refused(function: Any) -> str:
    try:
        function()
    except Exception as error:
        return type(error).__name__
    return "not refused"
