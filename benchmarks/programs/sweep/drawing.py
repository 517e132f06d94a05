"""Draws a random pipeline, and writes the module that has it and the program by hand beside it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from benchmarks.programs.kit.program import Program, Stream
from benchmarks.programs.sweep.states import IN_ORDER, WINDOWS, deduplicate, hopping, join
from benchmarks.programs.sweep.templates import STATELESS, Text
from benchmarks.programs.sweep.vocabulary import Event, Note, User, made

MESSAGES = 200_000
HEAD = """
import heapq
from collections import deque
from math import fsum

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.programs.kit.hand import END, Hand
from benchmarks.programs.sweep.vocabulary import DISORDER, Event, Note, User
from samza_dsl import App, aggregate, count, distinct, hopping, maximum, mean, minimum, session, top_k, total, tumbling

"""
VARIABLES = {"user": "user", "kind": "kind", "path": "path", "amount": "amount", "id": "id"}


class Drawn(NamedTuple):
    """A pipeline of a sweep: the source of its module, and what its events are like."""

    source: str
    pipeline: str
    users: int
    late: float
    partitions: int
    outputs: tuple[str, ...]


def draw(seed: int) -> Drawn:
    """Draw a pipeline; the same seed has the same one."""
    chance = Random(seed)
    late = chance.choice((0, 0, 0.02))
    text = Text(chance, late)
    text.pipeline.append(
        'stream = app.input("events", key=str, value=Event, timestamp=lambda e: e.at_ms, max_disorder_ms=DISORDER)'
    )
    steps = chance.sample(STATELESS, chance.randrange(0, 4))
    for step in steps:
        step(text)
    text.key = chance.choice(("user", "user", "kind", "path"))
    if text.key != "user" or chance.random() < 0.5:
        text.says(f".partition_by(lambda e: e.{text.key}, key_type=str, value=Event)")
    ordered = IN_ORDER if text.key == "user" and text.ordered else ()
    known = [one for one in (*WINDOWS, *ordered) if not (late and one in (hopping, deduplicate, join))]
    depth = text.depth
    for number in range(2 if chance.random() < 0.25 else 1):
        chance.choice(known)(text, number)
        text.depth = depth
    said = "\n".join(text.pipeline)
    tables = [
        (' users = app.table("users", key=str, value=User, broadcast=True)', "users"),
        (
            ' notes = app.input("notes", key=str, value=Note, timestamp=lambda note: note.at_ms, '
            "max_disorder_ms=DISORDER)",
            "notes",
        ),
    ]
    inputs = [line.strip() for line, name in tables if re.search(rf"\b{name},", said)]
    pipeline = [*inputs, *text.pipeline]
    users, partitions = chance.choice((50, 1_000, 20_000)), chance.choice((1, 1, 4))
    return Drawn(_source(text, pipeline), "\n".join(pipeline), users, late, partitions, tuple(text.outputs))


def _source(text: Text, pipeline: list[str]) -> str:
    """Return the source of the module."""
    body = "\n".join(text.body)
    read = [f"{name} = event.{name}" for name in VARIABLES if re.search(rf"\b{name}\b", body)]
    attributes = [name.partition(" = ")[0] for name in text.attributes]
    hand = [
        "class ByHand(Hand):",
        f"    keeps = {tuple(attributes)!r}",
        "",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.countries = {}",
        *(f"        self.{line}" for line in text.attributes),
        f"        self.out |= {{name: [] for name in {text.outputs!r}}}",
        "",
        "    def learn(self, table, rows):",
        "        self.countries = {row.user: row.country for row in rows}",
        "",
        "    def takes(self):",
        '        return {"events": self.take, "notes": self.take_notes}',
        "",
        "    def take(self, events, watermark):",
        "        country_of = self.countries.get",
        "        for event in events:",
        "            at = event.at_ms",
        *(f"            {line}" for line in read),
        *(f"            {line}" for line in text.body),
        "            if at - DISORDER > watermark:",
        "                watermark = at - DISORDER",
        "        return watermark",
        "",
        "    def take_notes(self, notes, watermark):",
        "        for note in notes:",
        *(f"            {line}" for line in text.notes),
        "            if note.at_ms - DISORDER > watermark:",
        "                watermark = note.at_ms - DISORDER",
        "        return watermark",
        "",
        "    def advance(self, watermark):",
        *(f"        {line}" for line in text.fires or ["pass"]),
        "",
    ]
    ours = [
        "def pipeline(workspace):",
        '    app = App("sweep")',
        *(f"    {line}" for line in pipeline),
        "    return app",
        "",
        "",
    ]
    return HEAD + "\n".join([*text.functions, *ours, *hand])


def program_of(drawn: Drawn, seed: int, scratch: Path, messages: int = MESSAGES) -> Program:
    """Write the module, import it, and return its program."""
    name = f"sweep_{seed}"
    path = scratch / f"{name}.py"
    path.write_text(drawn.source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    streams = {
        "events": Stream(Event, key=lambda event: event.user, carried=True),
        "notes": Stream(Note, key=lambda note: note.user, carried=True),
        "users": Stream(User, key=lambda row: row.user, carried=True, single=True),
    }
    read = {stream: of for stream, of in streams.items() if f'("{stream}"' in drawn.pipeline}

    def generate(messages: int, seed: int) -> dict[str, list[Any]]:
        values = made(messages, seed, drawn.users, drawn.late)
        return {stream: values[stream] for stream in read}

    return Program(
        name=name,
        title=drawn.pipeline,
        messages=messages,
        streams=read,
        outputs=drawn.outputs,
        generate=generate,
        pipeline=module.pipeline,
        by_hand=lambda workspace: module.ByHand(),
        tables=frozenset({"users"} & set(read)),
    )
