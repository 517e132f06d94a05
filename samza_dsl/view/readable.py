"""Bytes, times and numbers as a person reads them on a terminal: nothing in them steers it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP
from runtime.encoding.nested_tuples import NESTED, structure_in
from runtime.encoding.serdes import (
    BIG,
    ENUM,
    FIELDS,
    MAPPING,
    OTHER,
    PLAIN,
    RECORD,
    REFUSALS,
    SEQUENCES,
    SUBTYPE,
    WHOLE,
)

_UNITS = ("", "k", "M", "G", "T")


def text_of(data: bytes | None) -> str:
    r"""Return the text of bytes whose serde is not known: JSON, text, MessagePack, or else hex.

    >>> text_of(b'{"a": 1}'), text_of(b"ahoy"), text_of(b"\x82\xa1a\x01\xa1b\x02"), text_of(b"\xff\xfe")
    ('{"a":1}', 'ahoy', '{"a":1,"b":2}', 'hex fffe')
    """
    if data is None:
        return "-"
    if not data:
        return '""'
    # The strictest first: almost any bytes are MessagePack of something.
    for read in (_json, _text, _tagged, _message_pack):
        try:
            return safe(read(data))
        except (*REFUSALS, EOFError):
            pass
    return f"hex {data.hex()}"


def safe(text: str) -> str:
    r"""Return `text` on one line, with every character that can't be printed written as its code.

    >>> safe("red \x1b[31m\n")
    'red \\x1b[31m\\n'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def time_of(ms: int | None) -> str:
    """Return ms since the epoch in UTC; a watermark's two ends are words.

    >>> time_of(0), time_of(MIN_TIMESTAMP), time_of(MAX_TIMESTAMP)
    ('1970-01-01 00:00:00.000', 'not started', 'ended')
    """
    if ms is None:
        return "-"
    if ms <= MIN_TIMESTAMP or ms >= MAX_TIMESTAMP:
        return "not started" if ms <= MIN_TIMESTAMP else "ended"
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def watermark_of(ms: int) -> str:
    """Return a watermark, to the second where that says it all.

    >>> watermark_of(60_000), watermark_of(60_001)
    ('1970-01-01 00:01:00', '1970-01-01 00:01:00.001')
    """
    return time_of(ms).removesuffix(".000")


def rate_of(per_second: float) -> str:
    """Return a rate in three digits.

    >>> rate_of(0), rate_of(7.4), rate_of(45_210), rate_of(1_500_000)
    ('0', '7', '45.2k', '1.5M')
    """
    unit = 0
    while per_second >= 1_000 and unit < len(_UNITS) - 1:
        per_second, unit = per_second / 1_000, unit + 1
    return f"{per_second:.0f}" if unit == 0 else f"{per_second:.1f}{_UNITS[unit]}"


def duration_of(ms: float) -> str:
    """Return a length of time in ms as a person reads it.

    >>> duration_of(840), duration_of(12_300), duration_of(754_000), duration_of(7_384_000)
    ('0.8 s', '12.3 s', '12:34', '2:03:04')
    """
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s"
    minutes, seconds = divmod(int(ms // 1_000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _json(data: bytes) -> str:
    return msgspec.json.format(data, indent=-1).decode()


def _text(data: bytes) -> str:
    text = data.decode()
    if not text.replace("\n", "").replace("\t", "").isprintable():
        raise ValueError("these are not letters")
    return text


def _tagged(data: bytes) -> str:
    """Return the text of what our own serde between stages wrote; classes stay names, as no program is loaded here."""
    tag = data[:1]
    if tag == BIG:
        return str(int(data[1:]))
    if tag == NESTED:
        _, end = structure_in(data[1:])
        return _shown(msgspec.msgpack.decode(data[1 + end :]))
    body = msgspec.msgpack.decode(data[1:])
    if tag == PLAIN:
        return _shown(body)
    if tag in SEQUENCES:
        return f"[{','.join(map(_tagged, body))}]"
    if tag == MAPPING:
        parts = map(_tagged, body)
        return "{" + ",".join(f"{key}:{value}" for key, value in zip(parts, parts, strict=True)) + "}"
    if tag not in (WHOLE, ENUM, FIELDS, RECORD, OTHER, SUBTYPE):
        raise ValueError("Tagged() did not write this")
    name, payload = body
    kind = str(name).rpartition(":")[2].partition("#")[0]
    if tag == RECORD:
        return f"{kind} {{{','.join(f'{field}:{_tagged(part)}' for field, part in payload.items())}}}"
    if tag == FIELDS:
        return f"{kind} [{','.join(map(_tagged, payload))}]"
    return f"{kind} {_shown(payload) if tag == WHOLE else _tagged(payload)}"


def _message_pack(data: bytes) -> str:
    return _shown(msgspec.msgpack.decode(data))


def _shown(value: object) -> str:
    return (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    )
