"""Quantities as people write them, `30s` and `64MiB`, as the whole ms and bytes that settings hold."""

from __future__ import annotations

import re

_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = {
    "B": 1,
    **{f"{prefix}B": 1_000**power for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}iB": 1_024**power for power, prefix in enumerate("KMGT", 1)},
}
_QUANTITY = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)")
UNITS = {"_ms": (_MS, "ms", "30s"), "_bytes": (_BYTES, "B", "64MiB")}
"""The units by the end of a setting's name, the one that is meant without any, and an example."""


def units_of(name: str) -> str | None:
    """Return the end of a setting's name that says its units; None for one without.

    >>> units_of("max_drain_ms"), units_of("threads")
    ('_ms', None)
    """
    return next((suffix for suffix in UNITS if name.endswith(suffix)), None)


def quantity_of(suffix: str, said: str) -> int:
    """Return a quantity in the unit that the end of a name says; raises ValueError with what to write instead.

    >>> quantity_of("_ms", "1.5s"), quantity_of("_ms", "1_000"), quantity_of("_bytes", "64 MiB")
    (1500, 1000, 67108864)
    """
    units, plain, example = UNITS[suffix]
    match = _QUANTITY.fullmatch(said.strip())
    factor = units.get(match[2] or plain) if match is not None else None
    if match is None or factor is None:
        raise ValueError(f"{said!r} is no quantity: write {example}, with one of {', '.join(units)}")
    # In whole numbers: 0.1 is none in binary, and a rounded quantity is not what was said.
    whole, _, part = match[1].replace("_", "").partition(".")
    scaled = int(whole + part) * factor
    if scaled % 10 ** len(part):
        raise ValueError(f"{said!r} is no whole number of {plain}: write {example}, or a whole number of {plain}")
    found: int = scaled // 10 ** len(part)
    return found


def said_of(name: str, value: object) -> str:
    """Return a value as a setting of this name is written: a quantity with its largest whole unit.

    >>> said_of("max_drain_ms", 30_000), said_of("threads", 4), said_of("max_bytes", 1 << 20)
    ('30s', '4', '1MiB')
    """
    suffix = units_of(name)
    if suffix is None or type(value) is not int or not value:
        return str(value)
    units, _, _ = UNITS[suffix]
    unit = max((unit for unit, factor in units.items() if not value % factor), key=lambda unit: units[unit])
    return f"{value // units[unit]}{unit}"
