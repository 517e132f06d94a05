"""The source of a test that gives the same row of an output, from the records that lead to it."""

from __future__ import annotations

import datetime as dt
import math
import re
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from enum import Enum
from pathlib import Path
from uuid import UUID

from runtime.encoding.record_types import is_record, values_of
from runtime.model.errors import SamzaError, SerdeError
from samza_dsl.application.app import App
from samza_dsl.testing.origins import InputRecord, Origins, neighbours, record_of
from samza_dsl.testing.streams import Record

WIDTH = 100
"""A statement that is longer is written on several lines."""


class Literals:
    """Writes values as Python; `imports` are the lines that this takes."""

    def __init__(self) -> None:
        self.imports: set[str] = set()

    def of(self, value: object) -> str:
        """Return the source of a value; raises SamzaError for one that has none.

        >>> Literals().of({"at": [1.5, float("inf")], "to": (None,)})
        "{'at': [1.5, float('inf')], 'to': (None,)}"
        """
        kind = type(value)
        if isinstance(value, float) and kind is float:
            return repr(value) if math.isfinite(value) else f"float('{value}')"
        if value is None or kind in (bool, int, str, bytes):
            return repr(value)
        if isinstance(value, list | set | frozenset | tuple) and kind in (list, set, frozenset, tuple):
            return self._several(value)
        if isinstance(value, dict) and kind is dict:
            return "{" + ", ".join(f"{self.of(key)}: {self.of(one)}" for key, one in value.items()) + "}"
        if isinstance(value, Enum):
            return f"{self._named(kind)}.{value.name}"
        if kind in (Decimal, UUID):
            return f"{self._named(kind)}({str(value)!r})"
        if isinstance(value, dt.date | dt.time | dt.timedelta):
            self.imports.add("import datetime")
            return repr(value)
        if is_record(kind):
            fields = (f"{name}={self.of(one)}" for name, one in values_of(value).items())
            return f"{self._named(kind)}({', '.join(fields)})"
        raise SamzaError(f"a {kind.__qualname__} can't be written as Python: write the test by hand, from {value!r}")

    def _several(self, value: Iterable[object]) -> str:
        inside = ", ".join(map(self.of, value))
        if isinstance(value, list):
            return f"[{inside}]"
        if isinstance(value, tuple):
            return f"({inside},)" if len(value) == 1 else f"({inside})"
        name = "set" if isinstance(value, set) else "frozenset"
        return f"{name}([{inside}])"

    def _named(self, kind: type) -> str:
        outer = kind.__qualname__.partition(".")[0]
        self.imports.add(f"from {kind.__module__} import {outer}")
        return kind.__qualname__


def test_of(app: App, found: Origins, module: str, name: str) -> str:
    """Return the source of a test in which records of the inputs lead to a row of an output.

    The application has a `name` in a `module`. Raises SamzaError for values that can't be written as Python.
    """
    literals, made = Literals(), found.made
    sends = [
        line
        for stream, partition, records in neighbours(found.records)
        for line in _sends(app, literals, stream, partition, records)
    ]
    wanted = _record(literals, Record(made.value, made.key, made.timestamp))
    place = f"{found.output}/{found.row.partition} at {found.row.offset}"
    how = f"partitions={literals.of(found.partitions)}, start_ms={found.start_ms}"
    lines = [
        f"def test_{re.sub(r'[^a-z0-9]+', '_', place.lower())}():",
        f"    with testing.running({name}, {how}) as run:",
        *(f"        {line}" for line in sends),
        *(f"        {line}" for line in _waiting(found)),
        f"        assert {wanted} in run.records({found.output!r})",
    ]
    imports = sorted(literals.imports | {f"from {module} import {name}", "from samza_dsl import testing"})
    imports.sort(key=lambda line: line.startswith("from"))
    title = f'"""The row {place} of {app.name}, from the records that led to it."""'
    return "\n".join([title, "", *imports, "", "", *lines, ""])


def module_of(target: str, app: App) -> tuple[str, str]:
    """Return the module of an application that a command names, as a test beside it imports it, and its name there."""
    said, _, last = target.rpartition(":")
    path = Path(said if said and last.isidentifier() else target)
    module = path.stem if path.suffix == ".py" else str(path)
    return module, last if said and last.isidentifier() else _name_in(module, app)


def _name_in(module: str, app: App) -> str:
    found = vars(sys.modules[module]) if module in sys.modules else {}
    return next((name for name, value in found.items() if value is app), "app")


def _sends(app: App, literals: Literals, stream: str, partition: int, records: Iterable[InputRecord]) -> list[str]:
    """Return the calls that send records of one partition: together, or as bytes where one can't be read."""
    records = [*records]
    try:
        given = [record_of(app.graph(), one) for one in records]
    except SerdeError:
        return [
            f"run.send_bytes({stream!r}, {one.stored.value!r}, key={one.stored.key!r}, partition={partition})"
            for one in records
        ]
    said = [_record(literals, Record(one.value, one.key, one.timestamp, headers=one.headers)) for one in given]
    line = f"run.send({stream!r}, {', '.join(said)}, partition={partition})"
    if len(line) <= WIDTH:
        return [line]
    return ["run.send(", *(f"    {part}," for part in (repr(stream), *said, f"partition={partition}")), ")"]


def _waiting(found: Origins) -> Iterator[str]:
    """Yield what lets time go on until calls have returned, and ends the inputs where the row comes with that."""
    for number, wait_ms in enumerate(found.waits_ms):
        if number:
            yield "run.end()"
        if wait_ms:
            yield f"run.advance_time(milliseconds={wait_ms})"


def _record(literals: Literals, one: Record) -> str:
    key = "" if one.key is None else f", key={literals.of(one.key)}"
    headers = f", headers={literals.of(dict(one.headers))}" if one.headers else ""
    return f"testing.Record({literals.of(one.value)}{key}, timestamp={one.timestamp}{headers})"
