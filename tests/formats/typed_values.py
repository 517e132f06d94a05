"""Random types, and values of each: what the laws of formats with schemas are about."""

import dataclasses
import datetime as dt
import enum
import itertools
import math
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
from hypothesis import strategies as st

from samza_dsl.formats import digits

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INT64 = st.integers(-(2**63), 2**63 - 1)
INSTANTS = st.datetimes(
    dt.datetime(1, 1, 2),
    dt.datetime(9999, 12, 30),
    timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5))]),
)
_numbers = itertools.count()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Odd(enum.Enum):
    SPACED = "no name"
    DASHED = "so-so"


class Rank(enum.IntEnum):
    LOW = 1
    HIGH = 7


class Point(NamedTuple):
    x: int
    at: dt.datetime
    y: float = 0.5


class Bare(TypedDict):
    left: int
    right: str


class Perhaps(TypedDict, total=False):
    left: int
    right: str


class Circle(msgspec.Struct, tag="circle", frozen=True):
    radius: float
    at: dt.datetime


class Square(msgspec.Struct, tag="square", frozen=True):
    side: float


class InOrder(msgspec.Struct, array_like=True, frozen=True):
    n: int
    span: dt.timedelta = dt.timedelta()


class Short(msgspec.Struct, omit_defaults=True, rename="camel", frozen=True):
    long_name: int = 3
    many_more: list[dt.timedelta] = []
    at: dt.date | None = None


@attrs.define
class Seat:
    row: int
    side: str = "left"


class Model(pydantic.BaseModel):
    id: int
    at: pydantic.AwareDatetime
    named: str = pydantic.Field(default="n", alias="calledBy")
    inner: "Model | None" = None


SCALARS = [
    (int, INT64),
    (float, st.floats()),
    (bool, st.booleans()),
    (str, TEXT),
    (bytes, st.binary(max_size=12)),
    (dt.datetime, INSTANTS),
    (Annotated[dt.datetime, msgspec.Meta(tz=True)], INSTANTS),
    (Annotated[dt.datetime, msgspec.Meta(tz=False)], st.datetimes()),
    (dt.date, st.dates()),
    (dt.time, st.times()),
    (dt.timedelta, st.timedeltas(-dt.timedelta(9**6), dt.timedelta(9**6))),
    (uuid.UUID, st.uuids()),
    (Annotated[Decimal, digits(12, 3)], st.decimals(-(10**9) + 1, 10**9 - 1, places=3)),
    (Colour, st.sampled_from(Colour)),
    (Odd, st.sampled_from(Odd)),
    (Rank, st.sampled_from(Rank)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Literal[1, "b", None], st.sampled_from([1, "b", None])),
    (Point, st.builds(Point, INT64, INSTANTS, st.floats())),
    (Bare, st.fixed_dictionaries({"left": INT64, "right": TEXT})),
    (Perhaps, st.fixed_dictionaries({}, optional={"left": INT64, "right": TEXT})),
    (Circle | Square, st.builds(Circle, st.floats(), INSTANTS) | st.builds(Square, st.floats())),
    (InOrder, st.builds(InOrder, INT64, st.timedeltas(-dt.timedelta(99), dt.timedelta(99)))),
    (
        Short,
        st.builds(
            Short, INT64, st.lists(st.timedeltas(dt.timedelta(0), dt.timedelta(9)), max_size=2), st.none() | st.dates()
        ),
    ),
    (Seat, st.builds(Seat, INT64, TEXT)),
    (
        Model,
        st.builds(
            Model, id=INT64, at=INSTANTS, calledBy=TEXT, inner=st.none() | st.builds(Model, id=INT64, at=INSTANTS)
        ),
    ),
]
"""Types, and a strategy for values of each."""
KEYS = [
    (str, TEXT),
    (int, INT64),
    (Colour, st.sampled_from(Colour)),
    (Rank, st.sampled_from(Rank)),
    (dt.date, st.dates()),
]


@st.composite
def typed(draw, depth=3):
    """Draw a type, and a strategy for its values."""
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(st.sampled_from(SCALARS))
    kind = draw(st.sampled_from(["list", "tuple", "pair", "dict", "optional", "numbers", "struct", "dataclass", "set"]))
    if kind == "numbers":
        return int | float | str | None, st.one_of(INT64, st.floats(), TEXT, st.none())
    if kind == "set":
        inner, values = draw(st.sampled_from(KEYS))
        return frozenset[inner], st.frozensets(values, max_size=3)
    inner, values = draw(typed(depth - 1))
    if kind == "list":
        return list[inner], st.lists(values, max_size=3)
    if kind == "tuple":
        return tuple[inner, ...], st.lists(values, max_size=3).map(tuple)
    if kind == "pair":
        other, others = draw(typed(depth - 1))
        return tuple[inner, other], st.tuples(values, others)
    if kind == "dict":
        key, keys = draw(st.sampled_from(KEYS))
        return dict[key, inner], st.dictionaries(keys, values, max_size=3)
    if kind == "optional":
        return inner | None, st.none() | values
    return draw(records(depth, kind))


@st.composite
def records(draw, depth=3, kind="struct"):
    """Draw a class of records with up to five fields, and a strategy for its values."""
    fields = [draw(typed(depth - 1)) for _ in range(draw(st.integers(1, 5)))]
    name = f"Drawn{next(_numbers)}"
    if kind == "dataclass":
        made = dataclasses.make_dataclass(name, [(f"f{n}", one) for n, (one, _) in enumerate(fields)])
    else:
        made = msgspec.defstruct(name, [(f"f{n}", one) for n, (one, _) in enumerate(fields)], frozen=True)
    return made, st.builds(made, *(values for _, values in fields))


def is_same(put: Any, back: Any) -> bool:
    """Whether a value came back as it was put: of the same classes, an instant as the same moment, NaN as NaN."""
    if type(put) is not type(back):
        return isinstance(put, int) and isinstance(back, float) and put == back
    if isinstance(put, float):
        return put == back or (math.isnan(put) and math.isnan(back))
    if isinstance(put, list | tuple):
        return len(put) == len(back) and all(map(is_same, put, back))
    if isinstance(put, dict):
        return put.keys() == back.keys() and all(is_same(put[key], back[key]) for key in put)
    if isinstance(put, pydantic.BaseModel):
        return is_same(dict(put), dict(back))
    if isinstance(put, msgspec.Struct):
        return all(is_same(getattr(put, name), getattr(back, name)) for name in put.__struct_fields__)
    if dataclasses.is_dataclass(put) and not isinstance(put, type):
        return all(is_same(getattr(put, one.name), getattr(back, one.name)) for one in dataclasses.fields(put))
    return bool(put == back)
