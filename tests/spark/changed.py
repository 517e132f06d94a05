"""Classes of now, and records that older ones have written: what each reads of these."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal, TypedDict

import attrs
import msgspec
import pydantic

from runtime.encoding.serdes import Json, MessagePack

OLD = [
    {"key": "a", "count": 1, "gone": "x", "at": {"x": 1, "y": 2}},
    {"at": {"y": 2, "x": 1}, "count": 2, "key": "b"},
    {"key": "c", "count": None, "at": None, "note": "here"},
    {"key": "d", "count": 4, "tags": ["p", "q"], "at": {"x": 7, "y": 8, "z": 9}, "kind": "new"},
    {"key": "e", "count": 5.5, "at": {"x": 0.5, "y": -0.0}},
    {"key": "f", "count": "six", "at": None},
    {"count": 7},
    {"key": "h", "count": 1 << 60, "at": {"x": 1 << 53, "y": 1}},
]


class PlaceStruct(msgspec.Struct):
    x: float
    y: float
    z: float = 0.25


class OfStruct(msgspec.Struct):
    key: str
    kind: Literal["old", "new"] = "old"
    count: float | None = None
    at: PlaceStruct | None = None
    note: str | msgspec.UnsetType = msgspec.UNSET
    tags: list[str] = []


@dataclass
class PlaceData:
    x: float
    y: float
    z: float = 0.25


@dataclass
class OfDataclass:
    key: str
    at: PlaceData | None = None
    kind: Literal["old", "new"] = "old"
    count: float | None = None
    note: str = "none"
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, order=True)
class OfSlots:
    key: str
    _: KW_ONLY
    count: float | None = None
    tags: list[str] = field(default_factory=lambda: ["none"])
    seen: ClassVar[int] = 0


@dataclass
class OfInit:
    key: str
    note: str = field(default="none", kw_only=True)
    tags: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.note += f" {len(self.tags)}"


class OfDict(TypedDict, total=False):
    key: str
    count: float | None
    at: dict[str, float] | None


@attrs.define
class OfAttrs:
    key: str
    count: float | None = None
    tags: list[str] = attrs.Factory(list)


class OfPydantic(pydantic.BaseModel):
    key: str
    count: float | None = None
    tags: list[str] = pydantic.Field(default_factory=list)


KINDS: tuple[Callable[..., object], ...]
KINDS = (OfStruct, OfDataclass, OfSlots, OfInit, OfDict, OfAttrs, OfPydantic)


def told() -> list[str]:
    """Return what each class reads of the records, in words."""
    return [f"{kind.__name__}: {_read(kind, row)}" for kind in KINDS for row in OLD]


def _read(kind: Callable[..., object], row: dict[str, object]) -> str:
    try:
        by_json = Json(kind).decode(msgspec.json.encode(row))
        return f"{by_json!r}, {MessagePack(kind).decode(msgspec.msgpack.encode(row))!r}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)!r}"
