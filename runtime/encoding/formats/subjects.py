"""The subjects under which a registry has the schemas of streams, which follow from where a serde writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, runtime_checkable

from operators.core.protocols import CheckedProtocol
from runtime.model.errors import Refused

T = TypeVar("T")
Naming = Literal["topic", "record", "topic_record"]
NAMINGS: tuple[Naming, ...] = ("topic", "record", "topic_record")


@dataclass(frozen=True)
class SubjectPlace:
    """The stream that a serde writes, or the keys of which it writes."""

    stream: str
    is_key: bool = False


def subject_of(naming: Naming, place: SubjectPlace | None, record: str, said: str | None, serde: object) -> str:
    """Return the subject of a schema; raises `Refused` where none is known.

    >>> subject_of("topic", SubjectPlace("orders"), "Order", None, "Avro(Order)")
    'orders-value'
    """
    if said is not None:
        return said
    if naming == "record":
        return record
    if place is None:
        raise Refused(
            f"{serde!r} writes to no input or output, and its subject is named by the topic: say it, as in "
            'Avro(Order, registry=..., subject="orders-value")'
        )
    return (
        f"{place.stream}-{record}" if naming == "topic_record" else f"{place.stream}-{('value', 'key')[place.is_key]}"
    )


@runtime_checkable
class PlacedSerde(Protocol, metaclass=CheckedProtocol):
    """A serde that names its schema by the stream that it writes to."""

    def placed(self, place: SubjectPlace) -> PlacedSerde:
        """Return the serde as it writes there."""


def placed(serde: T, stream: str, is_key: bool = False) -> T:
    """Return a serde as it writes to a stream; most say nothing of it, and stay as they are."""
    return serde.placed(SubjectPlace(stream, is_key)) if isinstance(serde, PlacedSerde) else serde  # type: ignore[return-value]  # of its own class
