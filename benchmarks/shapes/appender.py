"""The process that appends to a running pipeline's input, and looks when what it appended is committed as output."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left
from itertools import accumulate
from pathlib import Path
from time import perf_counter, sleep

import msgspec

from benchmarks.embedded_log import APP, encode_json
from benchmarks.messages import plain_messages
from operators.core.base import Batch
from runtime.ports.streams import Append
from runtime.systems.log.environment import LogEnvironment

APPEND_SECONDS = 0.01
LOOK_SECONDS = 0.0005
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}

Mark = tuple[int, float]
"""An offset, and when it was reached."""


def append_all(log: LogEnvironment, records: list[bytes], appends: int) -> list[Mark]:
    """Append the records every so often; return where each append ended, and when it began."""
    began, end = perf_counter(), 0
    appended = []
    for number in range(appends):
        sleep(max(began + number * APPEND_SECONDS - perf_counter(), 0))
        end += len(records)
        appended.append((end, perf_counter()))
        log.append([Append("messages", 0, Batch(records))])
    return appended


def look(log: LogEnvironment, until: int, committed: list[Mark]) -> None:
    """Note at which offsets the pipeline's checkpoint is, and since when, until the last."""
    seen = version = 0
    while seen < until:
        if (now := log.version()) != version:
            version = now
            positions = [place for one in log.checkpoints(APP).values() for place in one.positions]
            if positions and positions[0].offset > seen:
                seen = positions[0].offset
                committed.append((seen, perf_counter()))
        sleep(LOOK_SECONDS)


def latencies(appended: list[Mark], committed: list[Mark]) -> list[tuple[float, int]]:
    """Return how many messages took how many ms, the quickest first."""
    found = []
    offset = 0
    ends = [end for end, _ in appended]
    for end in sorted({*ends, *(end for end, _ in committed if end <= ends[-1])}):
        began = appended[bisect_left(ends, end)][1]
        done = committed[bisect_left(committed, (end, 0.0))][1]
        found.append(((done - began) * 1e3, end - offset))
        offset = end
    return sorted(found)


def main() -> None:
    """Print the quantiles of the latency in ms as JSON."""
    path, rate, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    records = list(map(encode_json, plain_messages(max(int(rate * APPEND_SECONDS), 1))))
    appends = max(int(seconds / APPEND_SECONDS), 1)
    log = LogEnvironment(path)
    committed: list[Mark] = []
    looking = threading.Thread(target=look, args=(log, appends * len(records), committed))
    looking.start()
    appended = append_all(log, records, appends)
    looking.join()
    log.end_stream("messages")
    log.close()
    found = latencies(appended, committed)
    counts = list(accumulate(number for _, number in found))
    quantiles = {name: found[bisect_left(counts, share * counts[-1])][0] for name, share in QUANTILES.items()}
    print(msgspec.json.encode(quantiles).decode())


if __name__ == "__main__":
    main()
