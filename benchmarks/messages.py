"""The messages of all workloads, and the functions that the hand loops and the pipelines call on them."""

from __future__ import annotations

from random import Random
from typing import Any

Message = dict[str, Any]

KEYS = 1_000
LATE_MS = 30_000
DISORDER_MS = 1_000
"""How far a message is behind at most, unless it is late."""


def plain_messages(count: int) -> list[Message]:
    """Make messages of which the chain drops about a third."""
    draw = Random(42).random
    return [{"id": number, "v": draw(), "tag": "abcx"[number % 4]} for number in range(count)]


def timed_messages(count: int) -> list[Message]:
    """Make messages a millisecond apart that arrive out of order; one in a thousand is hopelessly late."""
    return [
        {"id": number, "at": number - (LATE_MS if number % 1_000 == 999 else number * 7_919 % DISORDER_MS)}
        for number in range(count)
    ]


def is_large(message: Message) -> bool:
    return message["v"] > 0.1


def weigh(message: Message) -> Message:
    return {"id": message["id"], "v": message["v"], "tag": message["tag"], "w": message["v"] * 2.0}


def is_wanted(message: Message) -> bool:
    return message["tag"] != "x"


def to_pair(message: Message) -> tuple[int, float]:
    return message["id"], message["w"]


def key_of(message: Message) -> int:
    return message["id"] % KEYS


def time_of(message: Message) -> int:
    return message["at"]
