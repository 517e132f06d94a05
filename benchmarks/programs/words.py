"""The ten words said most in each minute, behind two repartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from benchmarks.programs.kit.hand import Hand
from benchmarks.programs.kit.program import Program, Stream
from samza_dsl import App, Pane, count, top_k, tumbling

MINUTE, DISORDER, TOP = 60_000, 2_000, 10
WORDS = 5_000


class Line(Struct, frozen=True):
    """Something was said."""

    at_ms: int
    text: str


class Top(Struct, frozen=True):
    """The words said most in a minute, the first one first."""

    minute: int
    words: dict[str, int]


def generate(messages: int, seed: int) -> dict[str, list[Line]]:
    """Make lines of ten words each, 20 ms apart, up to two seconds out of order."""
    chance = Random(seed)
    words = [f"word{number}" for number in range(WORDS)]
    weights = [1 / (number + 1) for number in range(WORDS)]
    said = iter(chance.choices(words, weights, k=messages * 10))
    return {
        "lines": [
            Line(number * 20 + DISORDER - chance.randrange(DISORDER), " ".join(next(said) for _ in range(10)))
            for number in range(messages)
        ]
    }


def ranking(pane: Pane[int, list[Pane[str, int]]]) -> Top:
    return Top(pane.key, {counted.key: counted.value for counted in pane.value})


def pipeline(workspace: Path) -> App:
    app = App("words")
    lines = app.input("lines", value=Line, timestamp=lambda line: line.at_ms, max_disorder_ms=DISORDER)
    (
        lines.flat_map(lambda line: line.text.split())
        .partition_by(lambda word: word, key_type=str, value=str, op_id="by-word")
        .window(tumbling(minutes=1), count())
        .partition_by(lambda counted: counted.start, op_id="by-minute")
        .window(tumbling(minutes=1), top_k(TOP, by=lambda counted: counted.value, then=lambda counted: counted.key))
        .map(ranking)
        .send_to(app.output("top-words", value=Top))
    )
    return app


class ByHand(Hand):
    """A Counter for each open minute."""

    keeps = ("minutes",)

    def __init__(self) -> None:
        super().__init__()
        self.minutes: dict[int, Counter[str]] = {}
        self.out["top-words"] = []

    def takes(self) -> dict[str, Callable[[list[Any], int], int]]:
        return {"lines": self.take}

    def take(self, lines: list[Line], watermark: int) -> int:
        minutes = self.minutes
        for line in lines:
            at = line.at_ms
            minute = at - at % MINUTE
            counts = minutes.get(minute)
            if counts is None:
                counts = minutes[minute] = Counter()
            counts.update(line.text.split())
            if at - DISORDER > watermark:
                watermark = at - DISORDER
        return watermark

    def advance(self, watermark: int) -> None:
        for minute in sorted(minute for minute in self.minutes if minute + MINUTE <= watermark):
            counts = self.minutes.pop(minute)
            top = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))[:TOP]
            self.out["top-words"].append(Top(minute, dict(top)))


PROGRAM = Program(
    name="words",
    title="words: flat_map → partition_by → count → partition_by → top-k",
    messages=100_000,
    streams={"lines": Stream(Line)},
    outputs=("top-words",),
    generate=generate,
    pipeline=pipeline,
    by_hand=lambda workspace: ByHand(),
)
