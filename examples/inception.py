"""Inception: exceptions out of the logs of many applications, without state (Table 1 of Samza's paper, VLDB 2017)."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from msgspec import Struct

from samza_dsl import App, dead_letter, testing

EXCEPTION = re.compile(r"(?P<kind>\w+(?:\.\w+)*(?:Error|Exception)): (?P<message>.*)")


class Line(Struct, frozen=True):
    """What an application has logged."""

    at_ms: int
    app: str
    level: str
    text: str


class Thrown(Struct, frozen=True):
    """An exception that was logged."""

    at_ms: int
    app: str
    kind: str
    message: str


def thrown(line: Line) -> list[Thrown]:
    """Find the exception in a line, if there is one."""
    found = EXCEPTION.search(line.text)
    return [Thrown(line.at_ms, line.app, found["kind"], found["message"])] if found else []


app = App("inception")
(
    app.input("logs-*", value=Line, timestamp=lambda line: line.at_ms, on_error=dead_letter("not-a-line"))
    .filter(lambda line: line.level in ("ERROR", "FATAL"))
    .flat_map(thrown)
    .send_to(app.output("exceptions", value=Thrown))
)

TEXTS = {
    "INFO": ("started", "took 3 ms", "ValueError: only mentioned"),
    "ERROR": ("out of memory", "ValueError: not a number", "java.io.IOException: disk full"),
    "FATAL": ("KeyError: 'member'",),
}


def generated(name: str, lines: int = 50, seed: int = 0) -> Iterator[Line]:
    """Yield what one application logs."""
    chance = random.Random(f"{name} {seed}")
    for number in range(lines):
        level = chance.choices((*TEXTS,), (8, 2, 1))[0]
        yield Line(number * 100, name, level, chance.choice(TEXTS[level]))


def given(applications: int = 20) -> dict[str, list[Line]]:
    """Return the logs of many applications, each of which is a stream of its own."""
    return {f"logs-{name}": [*generated(name)] for name in (f"app-{number:02}" for number in range(applications))}


if __name__ == "__main__":
    for exception in testing.run(app, given())["exceptions"]:
        print(f"{exception.at_ms:>5} ms {exception.app}: {exception.kind}: {exception.message}")
