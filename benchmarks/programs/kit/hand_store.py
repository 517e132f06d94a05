"""What a durable program by hand stands on: LMDB, with outputs, state and positions in one synced transaction."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.durable import NUMBER, checked, open_by_hand, pack, sealed, unpack
from benchmarks.programs.kit.hand import Hand, Place
from benchmarks.programs.kit.program import Program, encode

COMMIT_EVERY = 10_000
STORED = 5_000
"""The records of a stored batch, as `produce` has them."""
META, STATE = b"meta", b"state"
MALFORMED = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError)
AT = struct.Struct(">HQ")
"""A partition, and the position of a batch in it."""


def preload(path: Path, records: dict[str, list[list[bytes]]]) -> None:
    """Make the streams, by partition."""
    environment, tables = open_by_hand(path, *(name.encode() for name in records))
    with environment.begin(write=True) as transaction:
        for table, parts in zip(tables, records.values(), strict=True):
            for partition, part in enumerate(parts):
                for first in range(0, len(part), STORED):
                    batch = sealed(pack(part[first : first + STORED]))
                    transaction.put(AT.pack(partition, first), batch, db=table)
    environment.close()


class Store:
    """The feed of a durable program by hand: it reads each partition's next batch in turn, and commits."""

    def __init__(self, path: Path, program: Program, partitions: dict[str, int]) -> None:
        self.program = program
        self.places: list[Place] = [
            (name, number)
            for name, count in partitions.items()
            if name not in program.tables
            for number in range(count)
        ]
        names = [name.encode() for name in (*program.streams, *program.outputs, "state")]
        self._environment, tables = open_by_hand(path, *names)
        self._tables: dict[str, Any] = dict(zip((name.decode() for name in names), tables, strict=True))
        self._positions = dict.fromkeys(self.places, 0)
        self._ends = dict.fromkeys(program.outputs, 0)
        self._uncommitted = 0

    def restore(self, hand: Hand) -> None:
        """Read the tables, and go on from the last commit."""
        for name in self.program.tables:
            decode = self.program.streams[name].decoder()
            with self._environment.begin(buffers=True) as transaction:
                found = transaction.cursor(db=self._tables[name])
                hand.learn(name, [decode(record) for _, data in found for record in unpack(checked(data))])
        with self._environment.begin(buffers=True) as transaction:
            meta = transaction.get(META, db=self._tables["state"])
            if meta is not None:
                self._positions, self._ends, hand.watermarks = pickle.loads(checked(meta))
                vars(hand).update(pickle.loads(checked(transaction.get(STATE, db=self._tables["state"]))))

    def chunks(self, hand: Hand) -> Iterator[tuple[Place, list[Any] | None]]:
        """Yield the next batch of each partition in turn, decoded."""
        decoders = {name: stream.decoder() for name, stream in self.program.streams.items()}
        left = list(self.places)
        while left:
            for place in list(left):
                records = self._read(place)
                self._positions[place] += len(records)
                if not records:
                    left.remove(place)
                    yield place, None
                else:
                    yield place, decoded(hand, place[0], records, decoders[place[0]])

    def _read(self, place: Place) -> list[bytes]:
        with self._environment.begin(buffers=True) as transaction:
            found = transaction.get(AT.pack(place[1], self._positions[place]), db=self._tables[place[0]])
            return unpack(checked(found)) if found is not None else []

    def taken(self, hand: Hand, count: int) -> None:
        """Commit where enough has come together."""
        self._uncommitted += count
        if self._uncommitted >= COMMIT_EVERY:
            self._commit(hand)

    def finished(self, hand: Hand) -> None:
        """Commit what is left."""
        self._commit(hand)

    def _commit(self, hand: Hand) -> None:
        with self._environment.begin(write=True) as transaction:
            for name, values in hand.out.items():
                if values:
                    rows = [value if type(value) is bytes else encode(value) for value in values]
                    transaction.put(NUMBER.pack(self._ends[name]), sealed(pack(rows)), db=self._tables[name])
                    self._ends[name] += len(rows)
                    values.clear()
            table = self._tables["state"]
            transaction.put(
                STATE, sealed(pickle.dumps({name: getattr(hand, name) for name in hand.keeps}, 5)), db=table
            )
            meta = pickle.dumps((self._positions, self._ends, hand.watermarks), 5)
            transaction.put(META, sealed(meta), db=table)
        self._uncommitted = 0

    def rows(self, output: str) -> list[bytes]:
        """Return the records of an output."""
        with self._environment.begin(buffers=True) as transaction:
            found = transaction.cursor(db=self._tables[output])
            return [record for _, data in found for record in unpack(checked(data))]

    def close(self) -> None:
        """Close LMDB."""
        self._environment.close()


def decoded(hand: Hand, stream: str, records: list[bytes], decode: Any) -> list[Any]:
    """Return the values of records; what is malformed is set aside by the program."""
    try:
        return list(map(decode, records))
    except MALFORMED:
        values = []
        for record in records:
            try:
                values.append(decode(record))
            except MALFORMED as error:
                hand.malformed(stream, record, error)
        return values
