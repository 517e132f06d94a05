"""The application of the chaos command: words are looked up, counted by key and by window, or become dead letters."""

import asyncio
import os
import random

from samza_dsl import App, Json, Options, count, dead_letter, retry, tumbling

NAME, COMMIT_BY = os.environ.get("CHAOS_APP", "chaos"), os.environ.get("CHAOS_COMMIT_BY", "container")
PARTITIONS, WINDOW_MS = int(os.environ.get("CHAOS_TASKS", "4")), 1_000
UNKNOWN = "unknown"


async def looked_up(record: dict) -> list[dict]:
    await asyncio.sleep(random.random() / 200)
    if record["word"] == UNKNOWN:
        raise LookupError(record["number"])
    return [record]


def counted(record: dict, context) -> list[list]:
    context.state = (context.state or 0) + 1
    return [[record["word"], context.state, record["number"]]]


def app_of(name: str, commit_by: str) -> App:
    """Return the application, whose streams all begin with its name."""
    app = App(name, Options(commit_interval_ms=200, max_in_flight=50, commit_by=commit_by))
    bad = dead_letter(f"{name}-letters")
    records = app.input(f"{name}-records", value=Json(dict), timestamp=lambda record: record["at"], on_error=bad)
    found = records.async_flat_map(looked_up, on_error=retry(1, backoff_ms=5, then=bad), op_id="look-up")
    words = found.partition_by(lambda record: record["word"], partitions=PARTITIONS, value=Json(dict), op_id="by-word")
    counts = words.process(counted, on_error=bad, op_id="count")
    counts.send_to(app.output(f"{name}-counts", value=Json(list), partitions=PARTITIONS))
    panes = words.window(tumbling(milliseconds=WINDOW_MS), count(), on_error=bad, op_id="by-window")
    panes.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(
        app.output(f"{name}-panes", value=Json(list), partitions=PARTITIONS)
    )
    return app


app = app_of(NAME, COMMIT_BY)
