"""An application that reads a topic and tells all that may depend on where its records lie, and what it reads."""

import random

import msgspec

from runtime.ports.stream_values import values_of
from samza_dsl import App, Json, count, dead_letter, tumbling
from samza_dsl.testing import unordered
from tests.kafka.topics import create, produce

ENDS = 1_000_000
"""A time behind all others, which closes what is open: a live run until now fires nothing at its end."""


SERDES = {"counts": Json(list), "numbers": Json(int), "letters": None, "late": None}
"""The outputs, with what reads them."""


def watching(name):
    """Count ticks by key and time, tell those that are late, and number those of each key."""
    app = App(name)
    how = {"value": list, "key": str, "timestamp": lambda tick: tick[0], "max_disorder_ms": 30}
    ticks = app.input("ticks", on_error=dead_letter("letters"), **how)
    panes = ticks.partition_by(lambda tick: tick[1], partitions=2).window(
        tumbling(milliseconds=100), count(), late=dead_letter("late")
    )
    panes.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("counts", value=list))
    numbered = ticks.scan(lambda seen, tick: seen + 1, init=int, op_id="number")
    numbered.send_to(app.output("numbers", value=int, key=str))
    return app


def ticks(broker, topic, rows=400, partitions=3):
    """Write ticks in disorder, some of them late and some malformed, by their keys, and some that are rolled back."""
    chance = random.Random(5)
    create(broker, topic, partitions)
    written = []
    for row in range(rows):
        key = chance.randrange(9)
        at = max(row * 3 - chance.choice((0, 0, 0, 20, 300)), 0)
        value = b"{" if row % 97 == 96 else msgspec.json.encode([at, f"k{key}"])
        written.append((key % partitions, b"k%d" % key, value))
    half = rows // 2
    produce(broker, topic, *written[:half])
    produce(broker, topic, (0, b"k0", b'[5, "rolled back"]'), transaction=f"{topic}-w", abort=True)
    closing = [(number, b"end", msgspec.json.encode([ENDS, "end"])) for number in range(partitions)]
    produce(broker, topic, *written[half:], *closing, transaction=f"{topic}-w")


def told(run):
    """Return what a run of `watching` has written, without what only the end fires."""
    return _told({stream: run.received(stream) for stream in SERDES})


def as_told(environment):
    """Return the same of what an environment holds."""
    return _told({stream: values_of(environment, stream, serde) for stream, serde in SERDES.items()})


def _told(found):
    return unordered({**found, "counts": [pane for pane in found["counts"] if pane[0] != "end"]})
