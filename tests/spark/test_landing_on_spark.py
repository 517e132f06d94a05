"""Streaming DataFrames as inputs of a run in micro-batches: each row is read once, whoever dies on the way."""

import json
import os
from contextlib import suppress
from datetime import datetime

import pytest
from msgspec import Struct

from runtime.model.clock import sleep_ms
from runtime.spark import landing
from runtime.units.driver.micro_batch_inputs import Offered
from runtime.units.publication import manifest, publishing
from samza_dsl import App, SamzaError, Spark, SparkTable, count, tumbling
from tests.spark.test_streaming import Died, dying

pytestmark = pytest.mark.timeout(900)


class Total(Struct, frozen=True):
    """The number of ticks of a key."""

    key: str
    ticks: int


def ticks_in(place, number, *ticks):
    """Put a file of ticks, at once, where a streaming DataFrame looks for them."""
    place.mkdir(exist_ok=True)
    (place / f".{number}").write_text("".join(json.dumps({"key": key, "at": at}) + "\n" for key, at in ticks))
    os.utime(place / f".{number}", (1_000_000_000 + number,) * 2)  # Spark reads the oldest first
    (place / f".{number}").rename(place / f"{number}.json")


class Tick(Struct, frozen=True):
    """A tick of a key."""

    key: str
    at: datetime


def ticking(**options):
    app = App("ticking")
    ticks = app.input("ticks", value=Tick, timestamp=lambda tick: tick.at, **options)
    counts = ticks.partition_by(lambda tick: tick.key, partitions=2).window(tumbling(seconds=10), count())
    counts.map(lambda pane: Total(pane.key, pane.value)).send_to(app.output("totals", value=Total))
    return app


def ticked(session, tmp_path, app=None, **how):
    """Run an application over a streaming DataFrame of files, one in each of its batches."""
    frame = session.readStream.schema("key STRING, at TIMESTAMP, more INT").option("maxFilesPerTrigger", 1)
    spark = Spark(session, checkpoint=tmp_path / "checkpoint", **how)
    bind = {"ticks": frame.json(str(tmp_path / "in")), "totals": str(tmp_path / "totals.jsonl")}
    return (app or ticking()).run(tmp_path / "data", on=spark, bind=bind, **({} if how else {"until_now": True}))


def at(second):
    return f"2026-01-01T00:00:{second:02}Z"


def totals_of_ticks(tmp_path):
    files = (tmp_path / "totals.jsonl").glob("part-*")
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted((one["key"], one["ticks"]) for one in found)


def test_a_streaming_frame_is_an_input_of_a_run_that_goes_on(session, tmp_path):
    ticks_in(tmp_path / "in", 0, ("a", at(1)), ("b", at(2)))
    ticks_in(tmp_path / "in", 1, ("a", at(3)), ("a", at(12)))
    ticked(session, tmp_path)
    ticks_in(tmp_path / "in", 2, ("b", at(13)), ("a", at(31)))
    ticked(session, tmp_path)
    ticked(session, tmp_path, end=True)
    assert totals_of_ticks(tmp_path) == [("a", 1), ("a", 1), ("a", 2), ("b", 1), ("b", 1)]
    rows = tmp_path / "checkpoint" / "inputs" / "ticks" / "rows"
    assert len([*rows.glob("*/*.jsonl")]) <= 4, "what was read is gone, but for the last of each partition"


LANDING_STEPS = (
    (landing.LandedFrame, "_land"),
    (landing.LandedFrame, "_lay"),
    (landing, "reports_of"),
    (manifest.Manifest, "write"),
    (publishing.Publisher, "publish"),
    (Offered, "sweep"),
)


@pytest.mark.parametrize("number", [2, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 3))])
@pytest.mark.parametrize(
    "is_before", [pytest.param(True, id="before", marks=pytest.mark.long), pytest.param(False, id="behind")]
)
@pytest.mark.parametrize("step", LANDING_STEPS, ids=lambda step: step[1])
def test_rows_of_a_streaming_frame_are_read_once_whatever_dies(session, tmp_path, step, is_before, number):
    for file in range(4):
        ticks_in(tmp_path / "in", file, *((key, at(10 * file + n)) for key in "ab" for n in range(3)))
    with suppress(Died, SamzaError), dying(*step, is_before, number):
        ticked(session, tmp_path, end=True)
    ticked(session, tmp_path, end=True)
    assert totals_of_ticks(tmp_path) == [*[("a", 3)] * 4, *[("b", 3)] * 4]


def test_partitions_of_a_streaming_frame_are_told_apart_by_its_columns(session, tmp_path):
    ticks_in(tmp_path / "in", 0, *((key, at(n)) for n in range(3) for key in "abcd"))
    frame = session.readStream.schema("key STRING, at TIMESTAMP").json(str(tmp_path / "in"))
    bind = {"ticks": SparkTable(frame, order_by="at", partition_by="key"), "totals": str(tmp_path / "totals.jsonl")}
    for number in range(2):
        spark = Spark(session, checkpoint=tmp_path / "checkpoint", end=bool(number))
        ticking(partitions=3).run(tmp_path / "data", on=spark, bind=bind, until_now=not number)
        ticks_in(tmp_path / "in", 1, *((key, at(n + 10)) for n in range(3) for key in "abcd"))
    assert totals_of_ticks(tmp_path) == [(key, 3) for key in "abcd" for _ in range(2)]


def test_a_streaming_frame_goes_on_while_its_run_does_and_tells_of_what_fails(session, tmp_path):
    ticks_in(tmp_path / "in", 0, ("a", at(1)), ("a", at(12)))
    seen = []

    async def watch(run):
        while run.metrics().received("ticks") < 3:
            if run.metrics().received("ticks") == 2 and not seen:
                seen.append(True)
                ticks_in(tmp_path / "in", 1, ("a", at(23)))
            await sleep_ms(10)
        run.stop()

    frame = session.readStream.schema("key STRING, at TIMESTAMP").json(str(tmp_path / "in"))
    spark = Spark(session, checkpoint=tmp_path / "checkpoint")
    bind = {"ticks": frame, "totals": str(tmp_path / "totals.jsonl")}
    ticking().run(tmp_path / "data", on=spark, bind=bind, watch=watch)
    assert totals_of_ticks(tmp_path) == [("a", 1), ("a", 1)]
    fails = frame.selectExpr("key", "CAST(raise_error('no such tick') AS TIMESTAMP) AS at")
    spark = Spark(session, checkpoint=tmp_path / "other")
    with pytest.raises(SamzaError, match="no such tick"):
        ticking().run(tmp_path / "data", on=spark, bind={**bind, "ticks": fails, "totals": str(tmp_path / "o.jsonl")})
    other = frame.selectExpr("key AS name", "at")
    with pytest.raises(SamzaError, match="key: wanted str, found no such column"):
        ticking().run(tmp_path / "data", on=spark, bind={**bind, "ticks": other, "totals": str(tmp_path / "o.jsonl")})
