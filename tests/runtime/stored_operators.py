"""An application with every operator that keeps state, with data that an earlier version stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from samza_dsl import (
    App,
    Change,
    MessageStream,
    Pane,
    after_count,
    aggregate,
    approximate_distinct,
    collect,
    count,
    counted,
    distinct,
    hopping,
    last,
    list_streams,
    maximum,
    mean,
    produce,
    quantile,
    session,
    sliding,
    top_k,
    total,
    tumbling,
)
from tests.runtime.written_log import Log


class Trip(Struct, frozen=True):
    rider: str
    cents: int
    at: int


TRIPS = [Trip("abcab"[number % 5], 100 + number * 7 % 13, number * 1_500) for number in range(40)]
NAMES = ["ann", "bob", "cid", "dan"]


def text(value: Any) -> str:
    return str(value)


def windows_of(trips: MessageStream[str, Trip]) -> dict[str, MessageStream[str, Pane[str, Any]]]:
    """Return the panes of every kind of window."""
    return {
        "tumbling": trips.window(
            tumbling(seconds=10), aggregate(dict, n=count(), eur=mean(cents), most=maximum(cents)), op_id="tumbling"
        ),
        "hopping": trips.window(hopping(seconds=10, every_ms=5_000), top_k(2, by=cents), op_id="hopping"),
        "sliding": trips.window(sliding(seconds=10), total(cents), op_id="sliding"),
        "session": trips.window(session(seconds=4), collect(), op_id="session"),
        "counted": trips.window(counted(3), last(), op_id="counted"),
        "early": trips.window(tumbling(seconds=10), quantile(0.5, cents), early=after_count(2), op_id="early"),
    }


def trips_app() -> App:
    """Return the application; its outputs are text."""
    app = App("trips")
    trips = app.input(
        "trips",
        value=Trip,
        partitions=1,
        key=lambda trip: trip.rider,
        timestamp=lambda trip: trip.at,
        max_disorder_ms=1_000,
    )
    names = app.table("names", key=lambda name: name.strip('"')[0], value=str, partitions=1, partitioned_by_key=True)

    def ride(trip: Trip, context: Any) -> list[str]:
        context.state = (context.state or 0) + trip.cents
        context.list("trips").append(trip)
        context.map("by cents")[trip.cents] = trip
        context.set_timer(trip.at + 5_000)
        return [f"{trip.rider} {context.state} {len(context.list('trips'))}"]

    def alarm(at: int, context: Any) -> list[str]:
        return [f"{context.key} at {at}: {context.state}"]

    windows = windows_of(trips)
    for name, panes in windows.items():
        panes.map(lambda pane: f"{pane.key} {pane.start} {pane.value}").send_to(app.output(f"{name}-out", value=str))
    trips.process(ride, on_timer=alarm, op_id="rides").send_to(app.output("rides-out", value=str))
    again = (
        windows["tumbling"]
        .partition_by(lambda pane: pane.key, op_id="panes-by-rider")
        .scan(lambda before, pane: [*(before or []), pane], op_id="panes")
    )
    again.map(lambda panes: " ".join(f"{type(one).__name__} {one.start}" for one in panes)).send_to(
        app.output("panes-out", value=str)
    )
    (
        trips.map(lambda trip: Change(trip.rider, None, trip))
        .partition_by(lambda change: change.key, op_id="changes-by-rider")
        .window(
            tumbling(seconds=20),
            aggregate(
                dict,
                some=distinct(lambda one: one.new),
                few=approximate_distinct(lambda one: one.new.cents),
                all=collect(),
            ),
            op_id="changed",
        )
        .map(lambda pane: f"{pane.key} {pane.value}")
        .send_to(app.output("changes-out", value=str))
    )
    trips.deduplicate(cents, within_ms=20_000, op_id="seen").map(text).send_to(app.output("seen-out", value=str))
    trips.join(names, lambda trip, name: f"{name} {trip.cents}", op_id="named").send_to(
        app.output("named-out", value=str)
    )
    trips.join(
        trips.map(lambda trip: trip, op_id="others"),
        lambda left, right: f"{left.rider} {left.at} {right.at}",
        within=(-3_000, 3_000),
        op_id="close",
    ).send_to(app.output("close-out", value=str))
    return app


def cents(trip: Trip) -> int:
    return trip.cents


def go_on(data: Path, trips: list[Trip]) -> list[str]:
    """Run the application on these trips, after those that came before; return all that it has written so far."""
    produce("trips", trips, data=data)
    trips_app().run(data, until_now=True)
    outputs = [stream.name for stream in list_streams(data) if stream.name.endswith("-out")]
    return [f"{output}: {record.value}" for output in outputs for record in Log(data).records(output)]


def begin(data: Path) -> None:
    """Write the names and the first half of the trips, as the version before did for stored_operators.tar.gz."""
    produce("names", NAMES, data=data)
    produce("trips", TRIPS[:20], data=data)
    trips_app().run(data, until_now=True)
