"""The messages of the pipelines of a sweep."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import Struct

STEP, DISORDER = 10, 2_000
KINDS = ("view", "click-view", "order", "order-click", "robot")
PATHS = 300
NOTES_EVERY = 3
"""After so many events comes a note."""


class Event(Struct, frozen=True):
    """Something that a user has done."""

    at_ms: int
    id: int
    user: str
    kind: str
    path: str
    amount: int


class Note(Struct, frozen=True):
    """Something else that is known of a user at a time."""

    at_ms: int
    user: str
    text: str


class User(Struct, frozen=True):
    """What the table of users says."""

    user: str
    country: str


def made(messages: int, seed: int, users: int, late: float) -> dict[str, list[Any]]:
    """Make events 10 ms apart, up to two seconds out of order; so many are late, and one in fifty comes twice."""
    chance = Random(seed)
    events: list[Event] = []
    notes: list[Note] = []
    for number in range(messages):
        at = number * STEP + 80_000 - chance.randrange(DISORDER)
        if late and chance.random() < late:
            at -= chance.randrange(60_000)
        user = f"user-{chance.randrange(users)}"
        event = Event(at, number, user, chance.choice(KINDS), f"/{chance.randrange(PATHS)}", chance.randrange(1_000))
        events += [event, event] if chance.random() < 0.02 else [event]
        if number % NOTES_EVERY == 0:
            about = f"user-{chance.randrange(users)}"
            notes.append(Note(number * STEP + 80_000 - chance.randrange(DISORDER), about, "abc"[number % 3]))
    rows = [User(f"user-{number}", f"country-{number % 30}") for number in range(users) if number % 10]
    return {"events": events, "notes": notes, "users": rows}
