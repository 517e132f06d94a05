"""The embedded log against a list, and its batches bit by bit."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from operators.core.base import COLUMNS, Batch
from runtime.ports.commits import Commit
from runtime.ports.streams import Append, Control, Offsets, StreamConfig, in_one
from runtime.systems.log import compaction as log_compaction
from runtime.systems.log import newest_rows as compaction
from runtime.systems.log.batch import compression_codes, pack, seal, unpack
from runtime.systems.log.environment import LogEnvironment, verify
from tests.scale import examples

ROOT = Path(__file__).parents[2]
NUMBERS = st.integers(-(2**63), 2**63 - 1)
BYTES = st.binary(max_size=8)
WORDS = st.builds(Control, st.text(max_size=3), NUMBERS.filter(lambda number: number < 2**62), st.integers(0, 9))
CONTROLS = st.lists(WORDS, min_size=1, max_size=3).map(in_one)


@st.composite
def batches(draw, min_size=0):
    """Batches of up to four rows, any column present or absent."""
    rows = draw(st.integers(min_size, 4))

    def column(items):
        return draw(st.none() | st.lists(items, min_size=rows, max_size=rows))

    return Batch(
        draw(st.lists(st.none() | BYTES, min_size=rows, max_size=rows)),
        keys=column(st.none() | BYTES),
        timestamps=column(NUMBERS),
        stamps=column(NUMBERS),
        headers=column(st.none() | st.dictionaries(st.text(max_size=3), BYTES, max_size=2)),
        signs=column(st.sampled_from([1, -1])),
    )


def columns(batch):
    """All columns of a batch, to compare."""
    return [batch.values, *(getattr(batch, name) for name in COLUMNS)]


@given(batches(), st.none() | CONTROLS, st.sampled_from(sorted(compression_codes().values())), st.data())
def test_a_batch_comes_back(batch, control, codec, data):
    rows = len(batch)
    gaps = st.none() | st.lists(st.integers(5, 99), min_size=rows, max_size=rows, unique=True).map(sorted)
    offsets = data.draw(gaps)
    stored = unpack(b"key", bytes(seal(pack(batch, control, 7, codec, offsets), b"key", 5)), 99)
    assert stored._replace(batch=None) == (5, 99, 7, None, control)
    expected = batch.copy()
    expected.timestamps = [7] * rows if batch.timestamps is None else batch.timestamps
    expected.offsets = range(5, 5 + rows) if offsets is None else offsets
    assert columns(stored.batch) == columns(expected)


@given(batches(min_size=1), st.none() | CONTROLS, st.booleans())
def test_every_flipped_bit_of_a_batch_is_found(batch, control, compressed):
    data = bytes(seal(pack(batch, control, 7, int(compressed)), b"key", 5))
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="checksum"):
            unpack(b"key", changed, 5)
    with pytest.raises(ValueError, match="checksum"):
        unpack(b"kez", data, 5)
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"checksum|header"):
            unpack(b"key", data[:length], 5)


# Against a list


class LogMachine(RuleBasedStateMachine):
    """A log of two partitions against lists of rows, closed and opened at random."""

    def __init__(self):
        super().__init__()
        self.directory = TemporaryDirectory()
        self.slots = {0: [], 1: []}

    @initialize(compression=st.sampled_from([None, "zlib"]))
    def make(self, compression):
        self.log = self.open()
        self.log.create_stream("s", StreamConfig(partitions=2, compression=compression))
        self.generation = self.log.own("app")

    def open(self):
        return LogEnvironment(self.directory.name, sync=False, now_ms=lambda: 7)

    @rule(
        appends=st.lists(st.tuples(st.integers(0, 1), batches(), st.none() | CONTROLS), max_size=3),
        commit=st.booleans(),
    )
    def append(self, appends, commit):
        appends = [Append("s", *append) for append in appends]
        if commit:
            self.log.commit(Commit("app", self.generation, appends, [], {}))
        else:
            self.log.append(appends)
        for _, partition, batch, control in appends:
            timestamps = batch.timestamps or [7] * len(batch)
            rows = [[value, timestamp, None] for value, timestamp in zip(batch.values, timestamps, strict=True)]
            if rows:
                rows[-1][-1] = control
            elif control:
                rows = [control]
            self.slots[partition] += rows

    @rule(partition=st.integers(0, 1), place=st.floats(0, 1), max_records=st.integers(1, 5))
    def read(self, partition, place, max_records):
        slots = self.slots[partition]
        offset = round(place * len(slots))
        read = self.log.read("s", partition, offset, max_records)
        if offset == len(slots):
            assert read is None
            return
        found = slots[offset : read.next_offset]
        if not len(read.batch):
            assert found == [read.control]
            return
        assert len(read.batch) == len(found) <= max_records
        controls = [None] * (len(found) - 1) + [read.control]
        rows = zip(read.batch.values, read.batch.timestamps, controls, strict=True)
        assert [list(row) for row in rows] == found
        assert list(read.batch.offsets) == list(range(offset, read.next_offset))

    @rule()
    def reopen(self):
        self.log.close()
        self.log = self.open()
        self.generation = self.log.own("app")

    @rule()
    def join(self):
        joined, self.log = self.log, self.open()
        joined.close()
        self.generation = self.log.own("app")

    @invariant()
    def the_ends_are_as_in_the_model(self):
        if hasattr(self, "log"):
            for partition, slots in self.slots.items():
                assert self.log.offsets("s", partition) == Offsets(0, len(slots), False)

    def teardown(self):
        if hasattr(self, "log"):
            self.log.close()
            assert verify(self.directory.name) == []
        self.directory.cleanup()


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=examples(30, 2_000))  # Each opening waits for the disk.


class CompactionMachine(RuleBasedStateMachine):
    """A compacted stream, two compactors at work on it in small steps, against the table that it stands for."""

    def __init__(self):
        super().__init__()
        self.directory = TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(log_compaction, "_BATCHES_PER_STEP", 2)
        self.patch.setattr(compaction, "_MIN_BATCHES", 3)
        self.now_ms = 0
        self.rows, self.table = [], {}
        self.logs = [LogEnvironment(self.directory.name, sync=False, now_ms=lambda: self.now_ms) for _ in range(2)]
        self.logs[0].create_stream("s", StreamConfig(compacted=True))

    @rule(
        log=st.integers(0, 1),
        rows=st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.none() | BYTES), min_size=1, max_size=3),
        control=st.none() | CONTROLS,
    )
    def append(self, log, rows, control):
        keys, values = map(list, zip(*rows, strict=True))
        self.logs[log].append([Append("s", 0, Batch(values, keys), control)])
        self.rows += rows
        self.table.update(rows)

    @rule(log=st.integers(0, 1), steps=st.integers(1, 4))
    def step(self, log, steps):
        compactor = self.logs[log]._compactor
        with self.logs[log]._database.reading() as transaction:
            stream = self.logs[log]._streams.find(transaction, "s")
        for _ in range(steps):
            compactor._step(stream, 0)

    @rule(log=st.integers(0, 1))
    def compact(self, log):
        self.logs[log].compact("s")
        rows = self.read(0)
        keys = [key for _, key, _ in rows]
        assert len(keys) == len(set(keys))

    @rule()
    def wait(self):
        self.now_ms += compaction.TOMBSTONE_MS + 1

    @rule(log=st.integers(0, 1))
    def restart(self, log):
        self.logs[log].close()
        self.logs[log] = LogEnvironment(self.directory.name, sync=False, now_ms=lambda: self.now_ms)

    def read(self, log):
        offset, found = 0, []
        while read := self.logs[log].read("s", 0, offset, 2):
            found += zip(read.batch.offsets, read.batch.keys or [], read.batch.values, strict=True)
            offset = read.next_offset
        return found

    @invariant()
    def what_is_left_is_in_order_and_stands_for_the_same_table(self):
        rows = self.read(1)
        offsets = [offset for offset, _, _ in rows]
        assert offsets == sorted(set(offsets))
        table = {key: value for _, key, value in rows}
        # Of a key that was deleted long ago nothing is left; no older value of it may come back.
        assert {key: table.get(key) for key in self.table} == self.table

    def teardown(self):
        for log in self.logs:
            log.close()
        assert verify(self.directory.name) == []
        self.directory.cleanup()
        self.patch.undo()


TestCompaction = CompactionMachine.TestCase


# Damage
