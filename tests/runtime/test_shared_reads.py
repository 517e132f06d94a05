"""Virtual tasks that read a partition together take what each of them would take alone, at whatever pace they go."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from planner.model.virtual_tasks import VirtualTask
from runtime.encoding.serdes import Json, Tagged
from runtime.model.checkpoint import Position
from runtime.ports.streams import Control, Offsets, Read
from runtime.reading.event_times import Pacing
from runtime.reading.origin import Origin
from runtime.reading.reader import Decoding, Reader, Shortcuts, StartPoint, Turn
from runtime.reading.shared_reads import SharedReads
from runtime.reading.sieve import KeyShare
from tests.scale import examples

FACTOR = 4
VALUES = st.integers(0, 30).map(lambda number: b"%d" % number) | st.just(b"{not json")
TIMES = st.integers(0, 50)
BATCHES = st.lists(st.lists(st.tuples(VALUES, TIMES), min_size=1, max_size=12), min_size=1, max_size=8)
KEYS = {"by value": lambda value: value % 7, "none": None}


class Stream:
    """A partition that holds batches, and what is asked of it."""

    def __init__(self, batches):
        self.rows = [row for batch in batches for row in batch]
        self.ends = [sum(map(len, batches[:stop])) for stop in range(1, len(batches) + 1)]
        self.decoded = []

    def read(self, offset):
        end = next((end for end in self.ends if end > offset), None)
        if end is None:
            return None
        values, times = map(list, zip(*self.rows[offset:end], strict=True))
        control = Control("", 0, 0, idle=False) if end == len(self.rows) else None
        return Read(Batch(values, timestamps=times, offsets=range(offset, end)), control, end)

    def reader(self, bucket, keys, stop_at, shared, begins=0):
        offsets = Offsets(0, len(self.rows), False)
        origin = Origin("log", "clicks", 0, self.read, lambda: offsets, lambda: offsets, lambda: 1)
        key_of = KEYS[keys]

        def noted(value):
            self.decoded.append(value)
            return key_of(value)

        decoding = Decoding(Json(int), Tagged() if key_of else None, noted if key_of else None)
        share = KeyShare(VirtualTask(0, bucket, FACTOR), by_key=key_of is not None)
        start = StartPoint(Position("log", "clicks", 0, min(begins, len(self.rows))), share=share)
        return Reader(origin, decoding, "in", start, Turn(stop_at), Pacing(3), Shortcuts(shared=shared))


def step(reader, limit, accepted):
    """Take some rows and accept some of them; return what was accepted, and whether there was anything."""
    if reader.exhausted or not reader.ready():
        return [], False
    taken = reader.take(limit)
    taken = reader.accept(taken, accepted if 0 < accepted < len(taken.batch) else None)
    rows = zip(taken.batch.offsets, taken.batch.values, taken.batch.keys or (), strict=False)
    stamps = taken.batch.stamps or []
    bad = [("malformed", one.offset, one.part) for one in taken.malformed]
    return [*zip(rows, stamps, strict=False), *bad], True


def all_of(reader, limits=(5,)):
    found, number = [], 0
    while True:
        rows, went_on = step(reader, limits[number % len(limits)], 0)
        if not went_on:
            return found
        found, number = found + rows, number + 1


@given(
    BATCHES,
    st.sampled_from([*KEYS]),
    st.none() | st.integers(20, 40),
    st.lists(st.integers(0, 20), min_size=FACTOR, max_size=FACTOR),
    st.lists(st.tuples(st.integers(0, FACTOR - 1), st.integers(1, 6), st.integers(0, 6)), max_size=60),
)
@settings(max_examples=examples(150, 20_000))
def test_siblings_take_together_what_each_takes_alone(batches, keys, stop_at, begins, steps):
    stream, shared = Stream(batches), SharedReads()
    together = [stream.reader(bucket, keys, stop_at, shared, begins[bucket]) for bucket in range(FACTOR)]
    found = [[] for _ in together]
    for bucket, limit, accepted in steps:
        found[bucket] += step(together[bucket], limit, accepted)[0]
    for bucket, reader in enumerate(together):
        found[bucket] += all_of(reader)
        alone = Stream(batches).reader(bucket, keys, stop_at, None, begins[bucket])
        assert sorted(found[bucket], key=str) == sorted(all_of(alone), key=str)
        assert (reader.next_offset, reader.watermark) == (alone.next_offset, alone.watermark)
        assert [one.offset for one in reader.positions()] == [one.offset for one in alone.positions()]


@pytest.mark.parametrize("siblings", [2, FACTOR])
def test_what_siblings_read_at_one_pace_is_decoded_once(siblings):
    stream, shared = (
        Stream([[(b"%d" % (row + 10 * batch), 0) for row in range(10)] for batch in range(9)]),
        SharedReads(),
    )
    readers = [stream.reader(bucket, "by value", None, shared) for bucket in range(siblings)]
    for _ in range(9):
        for reader in readers:
            step(reader, 100, 0)
    assert sorted(stream.decoded) == [*range(90)]
