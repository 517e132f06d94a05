"""An application whose tasks can be split, with data that a version from before elasticity stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from operators.core.base import Batch
from runtime.encoding.json_text import to_json
from runtime.ports.environment import Environment
from runtime.ports.streams import END, Append, Control, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, count, session, tumbling
from samza_dsl.data.records import records_from


class Click(Struct, frozen=True):
    user: str
    cents: int
    at: int


PARTITIONS = 2
CLICKS = [Click("abcdefgh"[number * 5 % 8], number * 7 % 13, number * 700) for number in range(80)]
HALF = 40


def at_of(click: Click) -> int:
    return click.at


def user_of(click: Click) -> str:
    return click.user


def cents_of(click: Click) -> int:
    return click.cents


def added(state: int, click: Click) -> int:
    return state + click.cents


def clicks_app(options: Options | None = None) -> App:
    """Return the application: windows, a session and sums by key, on both sides of a shuffle."""
    app = App("clicks", options)
    clicks = app.input("clicks", value=Click, key=user_of, timestamp=at_of, partitioned_by_key=True)
    clicks.window(tumbling(seconds=10), count(), op_id="tumbling").map(str).send_to(app.output("tumbling-out"))
    clicks.scan(added, init=int, state=int, op_id="sums").send_to(app.output("sums-out"))
    by_cents = clicks.partition_by(cents_of, key_type=int, partitions=2, op_id="by-cents")
    by_cents.window(session(seconds=4), count(), op_id="sessions").map(str).send_to(app.output("sessions-out"))
    return app


def append_to(environment: Environment, clicks: Sequence[Click], control: Control | None = None) -> None:
    """Append clicks, each where its user's lie, and what is said behind them."""
    for partition in range(PARTITIONS):
        rows = [to_json(click) for click in clicks if ord(click.user) % PARTITIONS == partition]
        environment.append([Append("clicks", partition, Batch(rows), control)])


def results_in(environment: Environment) -> dict[str, list[str]]:
    """Return all that was written by now, by output and key, in order."""
    found = defaultdict(list)
    for stream, config in environment.streams().items():
        for partition in range(config.partitions) if stream.endswith("-out") else ():
            for record in records_from(environment, stream, partition, 0):
                found[f"{stream} {record.key!r}"].append(str(record.value))
    return dict(found)


def begin(data: Path) -> None:
    """Write the first half of the clicks.

    Commit b27486e6 has done so for stored_unsplit.tar.xz, and on a simulated Kafka for stored_unsplit_kafka.xz.
    """
    with closing(LogEnvironment(data)) as environment:
        environment.create_stream("clicks", StreamConfig(partitions=PARTITIONS))
        append_to(environment, CLICKS[:HALF])
    clicks_app().run(data, until_now=True)


def go_on(data: Path, options: Options | None = None) -> dict[str, list[str]]:
    """Run the application on the other half, and return all that it has written."""
    with closing(LogEnvironment(data)) as environment:
        append_to(environment, CLICKS[HALF:], END)
    clicks_app(options).run(data)
    with closing(LogEnvironment(data)) as environment:
        return results_in(environment)
