"""The messages of all workloads, and the functions that the hand loops and the pipelines call on them."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from msgspec import Struct

Message = dict[str, Any]

KEYS = 1_000
SPREAD_KEYS = 100_000
WORDS = 5_000
LATE_MS = 30_000
DISORDER_MS = 1_000
"""How far a message is behind at most, unless it is late."""


class Padded(Struct):
    """The message of the paper's ReadWrite and ReadOnly jobs."""

    id: int
    padding: str


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


def visits(count: int) -> list[Message]:
    """Make messages like these of fifty users at a time, who are active for five seconds each."""
    return [
        {"id": number * 7_919 % 50 + number // 5_000 * 50, "at": number - number * 7_919 % DISORDER_MS}
        for number in range(count)
    ]


def padded_messages(count: int, most: int, padding: int) -> list[Padded]:
    """Make messages with random ids from 1 to `most`."""
    draw = Random(42)
    letters = draw.choices("abcdefghijklmnop", k=2 * padding)
    return [
        Padded(draw.randint(1, most), "".join(letters[number % padding : number % padding + padding]))
        for number in range(count)
    ]


def lines(count: int) -> list[str]:
    """Make lines of ten words each, out of 5,000."""
    draw = Random(7)
    words = [f"word{number}" for number in range(WORDS)]
    return [" ".join(draw.choices(words, k=10)) for _ in range(count)]


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


def weight_of(message: Message) -> int:
    return message["id"] * 7_919 % 1_000_003


def spread_key_of(message: Message) -> int:
    return message["id"] * 7_919 % SPREAD_KEYS


def id_of(message: Padded) -> int:
    return message.id


def words_of(line: str) -> list[str]:
    return line.split()


def itself(word: str) -> str:
    return word


async def look_up(message: Message) -> list[Message]:
    await asyncio.sleep(0.001)
    return [{"id": message["id"], "found": 1}]


async def look_up_slowly(message: Message) -> list[Message]:
    await asyncio.sleep(0.1)
    return [{"id": message["id"], "found": 1}]


def increased(count: int | None, message: object = None) -> int:
    return (count or 0) + 1


def to_count(key: Any, count: int) -> tuple[Any, int]:
    return key, count
