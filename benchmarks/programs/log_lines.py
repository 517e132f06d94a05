"""Log lines by a regular expression: the ten paths asked for most in the last five minutes, each minute."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from benchmarks.programs.kit.hand import END, Hand
from benchmarks.programs.kit.program import Program, Stream
from samza_dsl import App, Pane, count, hopping, top_k, tumbling

MINUTE, STEPS, TOP = 60_000, 5, 10
DISORDER = 5_000
PATHS = 1_000
LINE = re.compile(r'(\d+) (\S+) "(\S+) (\S+) HTTP/[\d.]+" (\d{3}) (\d+)$')


class Hit(Struct, frozen=True):
    """A request that a line tells of."""

    at_ms: int
    host: str
    method: str
    path: str
    status: int
    size: int


class Top(Struct, frozen=True):
    """The paths asked for most in the five minutes before `end`, the first one first."""

    end: int
    hits: dict[str, int]


def generate(messages: int, seed: int) -> dict[str, list[str]]:
    """Make lines 3 ms apart, up to five seconds out of order; one in a hundred is cut off."""
    chance = Random(seed)
    lines = []
    for number in range(messages):
        at = number * 3 + DISORDER - chance.randrange(DISORDER)
        path = f"/path/{int(chance.paretovariate(0.7)) % PATHS}"
        host = f"10.0.{chance.randrange(256)}.{chance.randrange(256)}"
        status = 500 if chance.random() < 0.02 else 200
        line = f'{at} {host} "GET {path} HTTP/1.1" {status} {chance.randrange(100_000)}'
        lines.append(line[:40] if chance.random() < 0.01 else line)
    return {"lines": lines}


def parsed(line: str) -> list[Hit]:
    """Return the request of a line, none where the line is no good."""
    found = LINE.match(line)
    if found is None:
        return []
    at_ms, host, method, path, status, size = found.groups()
    return [Hit(int(at_ms), host, method, path, int(status), int(size))]


def ranking(pane: Pane[int, list[Pane[str, int]]]) -> Top:
    return Top(pane.key, {counted.key: counted.value for counted in pane.value})


def pipeline(workspace: Path) -> App:
    app = App("log-lines")
    lines = app.input("lines", value=str, timestamp=lambda line: int(line.split(" ", 1)[0]), max_disorder_ms=DISORDER)
    (
        lines.flat_map(parsed)
        .filter(lambda hit: hit.status < 500)
        .partition_by(lambda hit: hit.path, value=Hit, op_id="by-path")
        .window(hopping(minutes=5, every_ms=MINUTE), count())
        .partition_by(lambda counted: counted.end, op_id="by-end")
        .window(tumbling(minutes=1), top_k(TOP, by=lambda counted: counted.value, then=lambda counted: counted.key))
        .map(ranking)
        .send_to(app.output("top-paths", value=Top))
    )
    return app


class ByHand(Hand):
    """The counts of each minute, of which five are added up at the end of each."""

    keeps = ("minutes", "next_end")

    def __init__(self) -> None:
        super().__init__()
        self.minutes: dict[int, dict[str, int]] = {}
        self.next_end = END
        self.out["top-paths"] = []

    def takes(self) -> dict[str, Callable[[list[Any], int], int]]:
        return {"lines": self.take}

    def take(self, lines: list[str], watermark: int) -> int:
        minutes, match = self.minutes, LINE.match
        for line in lines:
            at = int(line.split(" ", 1)[0])
            found = match(line)
            if found is not None and int(found[5]) < 500:
                minute, path = at - at % MINUTE, found[4]
                counts = minutes.get(minute)
                if counts is None:
                    counts = minutes[minute] = {}
                    self.next_end = min(self.next_end, minute + MINUTE)
                counts[path] = counts.get(path, 0) + 1
            if at - DISORDER > watermark:
                watermark = at - DISORDER
        return watermark

    def advance(self, watermark: int) -> None:
        while self.minutes and self.next_end <= watermark:
            end = self.next_end
            counts: dict[str, int] = {}
            for minute in range(end - STEPS * MINUTE, end, MINUTE):
                for path, number in self.minutes.get(minute, {}).items():
                    counts[path] = counts.get(path, 0) + number
            if counts:
                top = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))[:TOP]
                self.out["top-paths"].append(Top(end, dict(top)))
            self.minutes.pop(end - STEPS * MINUTE, None)
            self.next_end = end + MINUTE


PROGRAM = Program(
    name="log_lines",
    title="log lines: regex → partition_by → hopping count → partition_by → top-k",
    messages=500_000,
    streams={"lines": Stream(str)},
    outputs=("top-paths",),
    generate=generate,
    pipeline=pipeline,
    by_hand=lambda workspace: ByHand(),
)
