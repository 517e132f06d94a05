"""Histories of two streams that are joined: their records, which of them are late, and what comes of them."""

from collections import Counter, defaultdict

import msgspec
from hypothesis import strategies as st

from samza_dsl import collect, dead_letter, tumbling
from tests.simulation.crash import CrashPoint, rows_of

WINDOW_MS = 50
NEVER = -(2**62)
"""The stamp of a record before which none has come."""


class Event(msgspec.Struct, frozen=True):
    """A record; `gone` versions of a row are written as records without a value."""

    number: int
    key: str
    at: int
    gone: bool = False


def crashing(latest=25, most=3):
    """Draw where runs crash, one after the other: at a commit or a turn, up to the `latest` one."""
    kinds = st.sampled_from(("before_commit", "after_commit", "turn"))
    return st.lists(st.builds(CrashPoint, kinds, st.integers(1, latest)), max_size=most)


def stamps(part, disorder):
    """Yield the records of a partition with their stamps."""
    highest = None
    for event in part:
        yield event, NEVER if highest is None else highest - disorder
        highest = event.at if highest is None else max(highest, event.at)


def stamped(parts, disorder, retention=0):
    """Return the records that are in time, with their stamps, and how many are late."""
    found = [one for part in parts for one in stamps(part, disorder)]
    in_time = [(event, stamp) for event, stamp in found if event.at >= stamp - retention]
    return in_time, len(found) - len(in_time)


def stored(parts, keyed=False):
    """Return records as the partitions of a stream hold them."""
    return [
        [
            (event.key.encode() if keyed else None, None if event.gone else msgspec.json.encode(event), event.at)
            for event in part
        ]
        for part in parts
    ]


def values_in(environment, stream, kind):
    """Return the values of a stream, with their times."""
    rows = [row for part in rows_of(environment, stream) for row in part]
    return [(msgspec.json.decode(value, type=kind), at) for _, value, at in rows]


def number_of(environment, stream):
    return sum(len(part) for part in rows_of(environment, stream))


def window_below(app, results, below):
    """Collect results in windows, behind a repartitioning or not, or leave it."""
    if below != "nothing":
        rekeyed = results.partition_by(lambda one: one.key, partitions=2) if below != "window" else results
        panes = rekeyed.window(tumbling(milliseconds=WINDOW_MS), collect(), late=dead_letter("late-below"))
        panes.map(lambda pane: (pane.key, pane.start, pane.value)).send_to(app.output("panes", value=tuple))


def check_results(environment, stream, kind, expected, late, below):
    """See that a stream has the results, by time and stamp, once, and that windows below hold those in time there.

    Nothing is late below that was not so before, however long it has waited.
    """
    written = Counter(values_in(environment, stream, kind))
    assert written == Counter((one, at) for one, at, _ in expected.elements())
    assert number_of(environment, "late") == late
    if below == "nothing":
        return
    windows, late_below = defaultdict(Counter), 0
    for one, at, stamp in expected.elements():
        end = at - at % WINDOW_MS + WINDOW_MS
        if end <= stamp:
            late_below += 1
        else:
            windows[one.key, end - WINDOW_MS][one] += 1
    panes = [pane for pane, _ in values_in(environment, "panes", tuple[str, int, list[kind]])]
    assert len(panes) == len(windows)
    assert {(key, start): Counter(values) for key, start, values in panes} == windows
    assert number_of(environment, "late-below") == late_below
