"""Readings of sensors, 5 % of them late: windows with early panes, on time, and again for what comes late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from benchmarks.programs.kit.hand import Hand
from benchmarks.programs.kit.program import Program, Stream, as_json
from runtime.encoding.serdes import Tagged
from samza_dsl import (
    App,
    Pane,
    after_count,
    aggregate,
    count,
    dead_letter,
    duration_ms,
    maximum,
    mean,
    minimum,
    tumbling,
)

WINDOW, LATENESS, DISORDER = 10_000, 30_000, 2_000
EARLY = 20
SENSORS = 64


class Reading(Struct, frozen=True):
    """What a sensor has measured, in thousandths of a degree."""

    at_ms: int
    sensor: str
    degrees: int


class Summary(Struct, frozen=True):
    """What a window has come to."""

    readings: int
    mean: float
    lowest: int
    highest: int


class Told(Struct, frozen=True):
    """A pane of a sensor's window: the how manyth, and whether it is early, on time or late."""

    sensor: str
    start: int
    index: int
    timing: str
    summary: Summary


def generate(messages: int, seed: int) -> dict[str, list[Reading]]:
    """Make readings 5 ms apart, up to two seconds out of order; one in twenty is up to a minute late."""
    chance = Random(seed)
    readings = []
    for number in range(messages):
        late = chance.randrange(60_000) if chance.random() < 0.05 else 0
        at = number * 5 + 70_000 - chance.randrange(DISORDER) - late
        readings.append(Reading(at, f"sensor-{chance.randrange(SENSORS):02}", chance.randrange(15_000, 30_000)))
    return {"readings": readings}


def told(pane: Pane[str, Summary]) -> Told:
    return Told(pane.key, pane.start, pane.index, pane.timing, pane.value)


def pipeline(workspace: Path) -> App:
    app = App("sensors")
    (
        app.input("readings", value=Reading, timestamp=lambda reading: reading.at_ms, max_disorder_ms=DISORDER)
        .partition_by(lambda reading: reading.sensor, value=Reading, op_id="by-sensor")
        .window(
            tumbling(seconds=10),
            aggregate(
                Summary,
                readings=count(),
                mean=mean(lambda reading: reading.degrees),
                lowest=minimum(lambda reading: reading.degrees),
                highest=maximum(lambda reading: reading.degrees),
            ),
            allowed_lateness_ms=duration_ms(seconds=30),
            early=after_count(EARLY),
            late=dead_letter("too-late"),
            op_id="summaries",
        )
        .map(told)
        .send_to(app.output("summaries", value=Told))
    )
    return app


class ByHand(Hand):
    """The sums of each window by sensor, kept while late values may come; those of one stamp make one pane."""

    keeps = ("windows", "open", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.windows: dict[int, dict[str, list[int]]] = {}  # [readings, sum, lowest, highest, panes, told on time]
        self.open: set[int] = set()
        self.waiting: dict[tuple[int, str], int] = {}  # late panes that are not told yet, with their stamp
        self.out |= {"summaries": [], "too-late": []}

    def takes(self) -> dict[str, Callable[[list[Any], int], int]]:
        return {"readings": self.take}

    def take(self, readings: list[Reading], watermark: int) -> int:
        windows = self.windows
        for reading in readings:
            at = reading.at_ms
            start = at - at % WINDOW
            if start + WINDOW <= watermark:
                self.take_late(reading, start, watermark)
                continue
            sensors = windows.get(start)
            if sensors is None:
                sensors = windows[start] = {}
                self.open.add(start)
            sums = add(sensors, reading)
            if sums[0] % EARLY == 0:
                self.tell(reading.sensor, start, sums, "early")
            if at - DISORDER > watermark:
                watermark = at - DISORDER
        return watermark

    def take_late(self, reading: Reading, start: int, stamp: int) -> None:
        if start + WINDOW + LATENESS <= stamp:
            self.out["too-late"].append(reading)
            return
        sensor = reading.sensor
        sensors = self.windows.get(start)
        if sensors is None:
            sensors = self.windows[start] = {}
            self.open.add(start)  # others may be in time for it
        if start in self.open and sensor in sensors:  # this partition has passed the window's end, another one has not
            self.tell_on_time(sensor, start, sensors[sensor])
        if self.waiting.get((start, sensor), stamp) != stamp:
            self.tell(sensor, start, sensors[sensor], "late")
        add(sensors, reading)
        self.waiting[start, sensor] = stamp

    def tell(self, sensor: str, start: int, sums: list[int], timing: str) -> None:
        summary = Summary(sums[0], sums[1] / sums[0], sums[2], sums[3])
        self.out["summaries"].append(Told(sensor, start, sums[4], timing, summary))
        sums[4] += 1

    def tell_on_time(self, sensor: str, start: int, sums: list[int]) -> None:
        if (start, sensor) not in self.waiting and sums[5] == 0:
            self.tell(sensor, start, sums, "on_time")
            sums[5] = 1

    def advance(self, watermark: int) -> None:
        for start in sorted(start for start in self.open if start + WINDOW <= watermark):
            self.open.remove(start)
            for sensor, sums in self.windows[start].items():
                self.tell_on_time(sensor, start, sums)
        for start, sensor in sorted(place for place, stamp in self.waiting.items() if stamp < watermark):
            del self.waiting[start, sensor]
            self.tell(sensor, start, self.windows[start][sensor], "late")
        for start in [start for start in self.windows if start + WINDOW + LATENESS <= watermark]:
            del self.windows[start]


def add(sensors: dict[str, list[int]], reading: Reading) -> list[int]:
    """Add a reading to the sums of its sensor, and return them."""
    degrees = reading.degrees
    sums = sensors.get(reading.sensor)
    if sums is None:
        sums = sensors[reading.sensor] = [1, degrees, degrees, degrees, 0, 0]
        return sums
    sums[0] += 1
    sums[1] += degrees
    if degrees < sums[2]:
        sums[2] = degrees
    if degrees > sums[3]:
        sums[3] = degrees
    return sums


def shown(output: str, value: Any) -> bytes:
    """Return what counts of a value: a dead letter has the bytes of the stream between the stages."""
    is_tagged = isinstance(value, bytes) and not value.startswith(b"{")
    return as_json(output, Tagged().decode(value) if is_tagged else value)


PROGRAM = Program(
    name="sensors",
    title="sensors: partition_by → tumbling aggregate with early panes, 5 % late",
    messages=500_000,
    streams={"readings": Stream(Reading, key=lambda reading: reading.sensor)},
    outputs=("summaries", "too-late"),
    generate=generate,
    pipeline=pipeline,
    by_hand=lambda workspace: ByHand(),
    dead_letters=frozenset({"too-late"}),
    shown=shown,
)
