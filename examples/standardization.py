"""Standardization: titles that members write, as a model understands them (Table 1 of Samza's paper, VLDB 2017)."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from samza_dsl import App, testing

WORD = re.compile(r"[a-z]+")


class Profile(Struct, frozen=True):
    """What a member has written."""

    at_ms: int
    member: int
    title: str


class Standard(Struct, frozen=True):
    """What the table has of a standardized title: words that tell it from others, by weight."""

    id: int
    title: str
    weights: dict[str, float]


class Standardized(Struct, frozen=True):
    """A member's title, as others can find it; None where the model does not know."""

    member: int
    written: str
    title: str | None


def words_of(title: str) -> Counter[str]:
    return Counter(WORD.findall(title.lower().replace("sr.", "senior").replace("swe", "software engineer")))


def likeness(words: Counter[str], standard: Standard) -> float:
    return sum(number * standard.weights.get(word, -0.5) for word, number in words.items())


def closest(profile: Profile, model: list[Standard] | None) -> Standardized:
    """Choose the title that is most alike, if any is."""
    words = words_of(profile.title)
    likely = max(model or [], key=lambda standard: (likeness(words, standard), -standard.id), default=None)
    found = likely is not None and likeness(words, likely) > 0
    return Standardized(profile.member, profile.title, likely.title if found else None)


app = App("standardization")
models = app.table("models", key=str, value=list[Standard], broadcast=True)
profiles = app.input("profile-updates", value=Profile, timestamp=lambda profile: profile.at_ms)
(
    profiles.join(models, closest, on=lambda profile: "titles", how="left").send_to(
        app.output("standardized", value=Standardized)
    )  # a new model counts from the next update on
)

MODEL = [
    Standard(1, "Software Engineer", {"software": 1.0, "engineer": 0.6, "developer": 1.0, "programmer": 1.0}),
    Standard(2, "Data Engineer", {"data": 1.0, "engineer": 0.6, "pipeline": 0.8}),
    Standard(3, "Teacher", {"teacher": 1.0, "professor": 0.9, "school": 0.4}),
]
TITLES = ("SWE", "Sr. software developer", "Data engineer, pipelines", "School teacher", "Professor", "Astronaut")


def generated(updates: int = 30, seed: int = 0) -> Iterator[Profile]:
    """Yield what members write about themselves."""
    chance = random.Random(seed)
    for number in range(updates):
        yield Profile(number * 1_000, chance.randrange(1_000), chance.choice(TITLES))


def given() -> dict[str, list]:
    return {"models": [testing.Record(MODEL, "titles", 0)], "profile-updates": [*generated()]}


if __name__ == "__main__":
    for one in testing.run(app, given())["standardized"]:
        print(f"member {one.member:>3} wrote {one.written!r}: {one.title or 'unknown'}")
