"""Where messages on their way through a stage are from, for what is told when they fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from operators.base import Batch
from runtime.failures import Whence
from runtime.inputs import Reader
from runtime.units import Unit


def emitted_by(id: str) -> Callable[[int | None], Whence]:
    """Return where what an operator emitted is from."""
    return lambda row: Whence(id)


def places_of(units: Sequence[Unit], owners: Sequence[int]) -> Callable[[int | None], Whence]:
    """Return where the messages are that rows came from, given the number of each row's; without a row, all of them."""
    return lambda row: span(units) if row is None else place_of(units[owners[row]])


def span(units: Sequence[Unit]) -> Whence:
    """Return where messages are, as narrowly as they have it in common."""
    first, last = place_of(units[0]), units[-1]
    if any(unit.reader is not units[0].reader for unit in units) or not isinstance(last.raw, Batch):
        return Whence(" and ".join({place_of(unit).source: None for unit in units}))
    return first._replace(last=(last.raw.offsets or [0])[last.rows[-1]])


def raw_of(unit: Unit) -> Batch:
    """Return a message as it was stored."""
    return unit.raw.row(unit.rows.start)


def place_of(unit: Unit) -> Whence:
    """Return where a message is from."""
    if isinstance(unit.reader, Reader):
        assert isinstance(unit.raw, Batch)
        return unit.reader.place(unit.raw, unit.rows.start)
    return Whence(unit.reader)
