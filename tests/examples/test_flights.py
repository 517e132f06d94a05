"""The main job gives the answers that pandas gives, on the real data, on a real log."""

import json
import subprocess
import sys
from contextlib import closing
from datetime import timedelta

import pytest

from runtime.ports.streams import StreamConfig
from runtime.systems.log.environment import LogEnvironment
from tests.flights import independent
from tests.flights.streams import EXAMPLES, example, records
from tests.scale import scale
from tests.source import ROOT

MALFORMED = 100
PART = scale(100_000, 100_000, 400_000)
"""The flights that jobs beside the main one read, which do to each hour what they do to another; a year has fewer."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Run the main job as scripts/demo does, and return its data directory."""
    directory = tmp_path_factory.mktemp("flights")
    program = [sys.executable, EXAMPLES / "flights.py", "--data", directory]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    """Load a part of the year, and return its data directory and the flights in it that have departed."""
    directory = tmp_path_factory.mktemp("part")
    example("flights_data").load(directory, PART)
    return directory, independent.departed_of(record.value for record in records(directory, "flights") if record.value)


@pytest.mark.ci
def test_the_data_has_the_figures_that_the_issue_names():
    disorder = independent.disorder()
    assert len(independent.flights()) == 336_776
    assert len(disorder) == 328_521
    assert (disorder > timedelta(0)).sum() == 194_327
    assert disorder.max() == timedelta(hours=21, minutes=40)
    tail_numbers = independent.table("planes.csv").tailnum
    assert (~independent.departed().tailnum.isin(tail_numbers)).sum() == 48_550


@pytest.mark.ci
def test_flights_are_scheduled_when_the_clocks_of_new_york_say():
    loaded = [flight for record in example("flights_data").flights() if (flight := flight_in(record.value))]
    departed = [flight["scheduled_ms"] for flight in loaded if flight["delay"] is not None]
    assert departed == [moment.value // 1_000_000 for moment in independent.departed().scheduled.dt.as_unit("ns")]
    assert len(loaded) == len(independent.flights())


def flight_in(value: bytes):
    return json.loads(value) if independent.is_flight(value) else None


@pytest.mark.ci
def test_delays_by_carrier_and_hour_are_right(data):
    panes = [(record.key.decode(), json.loads(record.value)) for record in records(data, "carrier-delays")]
    delays = {(key, pane["start"]): pane["value"] for key, pane in panes}
    assert delays == independent.carrier_delays()
    assert len(delays) == len(panes)
    assert sum(value["in_bad_weather"] for value in delays.values()) == 4_787
    assert all(pane["key"] == key and pane["end"] - pane["start"] == 3_600_000 for key, pane in panes)


@pytest.mark.ci
def test_top_destinations_by_day_are_right(data):
    days = [(record.key.decode(), json.loads(record.value)) for record in records(data, "top-destinations")]
    assert {day: list(top["flights"].items()) for day, top in days} == independent.top_destinations()
    assert len(days) == 365
    assert all(top["day"] == day for day, top in days)


def windows_of(data, stream):
    panes = [(record.key.decode(), json.loads(record.value)) for record in records(data, stream)]
    assert all(pane["key"] == key for key, pane in panes)
    return [pane for _, pane in panes]


@pytest.mark.timeout(900)
@pytest.mark.ci
def test_rolling_delays_and_bad_days_are_right(part):
    data, departed = part
    example("flight_windows").pipeline().run(data)
    rolling = windows_of(data, "rolling-delays")
    assert all(pane["end"] - pane["start"] == 1_800_000 for pane in rolling)
    on_time = {(pane["key"], pane["start"]): pane for pane in rolling if pane.get("timing") != "early"}
    assert {window: pane["value"] for window, pane in on_time.items()} == independent.rolling_delays(departed)
    told = [pane for pane in rolling if pane.get("timing") == "early"]
    numbers = sorted((pane["key"], pane["start"], pane.get("index", 0)) for pane in told)
    assert numbers == sorted((*at, index) for at, pane in on_time.items() for index in range(pane.get("index", 0)))
    assert all(pane["value"]["flights"] == 10 * (pane.get("index", 0) + 1) for pane in told)
    assert all(pane["value"]["flights"] // 10 == pane.get("index", 0) for pane in on_time.values())
    last = [(pane["value"], on_time[pane["key"], pane["start"]]["value"]) for pane in told]
    whole = [early == late for early, late in last if early["flights"] == late["flights"]]
    assert all(whole) and len(whole) > 1_000
    days = windows_of(data, "bad-days")
    assert {(day["key"], day["start"], day["end"]): day["value"] for day in days} == independent.bad_days(departed)
    assert len(on_time) + len(told) == len(rolling)


@pytest.mark.ci
def test_departures_are_joined_with_the_weather_of_their_hour_and_the_planes_of_their_time(part):
    data, departed = part
    example("flight_joins").pipeline().run(data)
    outputs = {"departures-in-weather": ("precip", "visib"), "departures-on-planes": ("model", "seats")}
    for stream, expected in zip(
        outputs, (independent.in_weather(departed), independent.on_planes(departed)), strict=True
    ):
        rows = [json.loads(record.value) for record in records(data, stream)]
        joined = {
            (row["carrier"], row["number"], row["scheduled_ms"]): tuple(row[name] for name in outputs[stream])
            for row in rows
        }
        assert joined == expected
        assert len(rows) == len(joined)
        assert {values[0] is None for values in joined.values()} == {True, False}


@pytest.mark.ci
def test_dead_letters_are_what_was_malformed(data):
    letters = records(data, "flights-malformed")
    malformed = [
        (record.key, record.value)
        for record in records(data, "flights")
        if record.value is not None and not independent.is_flight(record.value)
    ]
    assert len(malformed) == MALFORMED
    assert sorted((letter.key, letter.value) for letter in letters) == sorted(malformed)
    assert {name for letter in letters for name, _ in letter.headers} >= {"stream", "partition", "offset", "error"}


@pytest.mark.ci
def test_loading_and_running_again_changes_nothing(data):
    before = {stream: records(data, stream) for stream in ("flights", "planes", "airlines", "carrier-delays")}
    example("flights_data").load(data)
    example("flights").pipeline().run(data)
    assert {stream: records(data, stream) for stream in before} == before


@pytest.mark.ci
def test_an_interrupted_load_begins_anew(tmp_path):
    with closing(LogEnvironment(tmp_path)) as log:
        log.create_stream("airlines", StreamConfig(partitions=1))
    example("flights_data").load(tmp_path, most=1_000)
    assert len(records(tmp_path, "airlines")) == 16
    assert len(records(tmp_path, "flights")) == 1_000


def test_importing_loads_nothing_and_nothing_needs_pandas(tmp_path):
    program = "import sys; sys.modules['pandas'] = None; import flights, flights_data; next(flights_data.planes())"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": f"{EXAMPLES}:{ROOT}"}, check=True)
    assert not list(tmp_path.iterdir())
