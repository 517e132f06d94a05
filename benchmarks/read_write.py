"""B9: the ReadWrite job of Samza's paper, a durable counter per id, for more and more ids."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from benchmarks.durable import (
    NUMBER,
    POSITION,
    batches_of,
    checked,
    committing,
    counts_by_hand,
    counts_in_log,
    open_by_hand,
    preload_by_hand,
    preload_log,
    read_by_hand,
    sealed,
)
from benchmarks.messages import Padded, id_of, increased, padded_messages, to_count
from benchmarks.workload import Description, Workload
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.lists import ListSink
from samza_dsl import App

PADDING = 100

Counts = list[tuple[int, int]]
Stored = tuple[Counts, Callable[[], Counts]]
"""What was emitted, and how to read what is stored."""

decode_json = msgspec.json.Decoder(Padded).decode


class ReadWrite(Workload):
    """The stream is in the embedded log, or in LMDB, before a run begins; the state is empty."""

    most: ClassVar[int]

    def prepare(self, messages: int) -> None:
        self.preloaded, self.copy = self.scratch / "preloaded", self.scratch / "copy"
        found = padded_messages(messages, self.most, PADDING)
        batches = batches_of(list(map(msgspec.json.encode, found)), self.commit_every)
        preload_by_hand(self.preloaded / "hand", b"messages", batches)
        preload_log(self.preloaded / "ours", "messages", batches)
        first = found[: self.commit_every]
        self.written = len(first) + len(set(map(id_of, first)))

    def ready(self) -> None:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.preloaded, self.copy)

    def baseline(self) -> Stored:
        results: Counts = []
        append = results.append
        path = self.copy / "hand"
        environment, (source, table, positions) = open_by_hand(path, b"messages", b"counts", b"positions")
        position = 0
        for records in read_by_hand(environment, source, self.commit_every):
            with environment.begin(write=True, buffers=True) as transaction:
                get, put = transaction.get, transaction.put
                for record in records:
                    message = decode_json(record)
                    id = id_of(message)
                    place = NUMBER.pack(id)
                    found = get(place, db=table)
                    count = increased(None if found is None else NUMBER.unpack(checked(found))[0], message)
                    put(place, sealed(NUMBER.pack(count)), db=table)
                    append(to_count(id, count))
                position += len(records)
                put(POSITION, sealed(NUMBER.pack(position)), db=positions)
        environment.close()
        return results, lambda: counts_by_hand(path, b"counts")

    def baseline_inlined(self) -> Stored:
        """Keep the counts of a commit in a dict, and write each of them once."""
        results: Counts = []
        append = results.append
        path = self.copy / "hand"
        environment, (source, table, positions) = open_by_hand(path, b"messages", b"counts", b"positions")
        position = 0
        for records in read_by_hand(environment, source, self.commit_every):
            counts: dict[int, int] = {}
            with environment.begin(write=True, buffers=True) as transaction:
                for record in records:
                    id = decode_json(record).id
                    count = counts.get(id)
                    if count is None:
                        found = transaction.get(NUMBER.pack(id), db=table)
                        count = 0 if found is None else NUMBER.unpack(checked(found))[0]
                    counts[id] = count = count + 1
                    append((id, count))
                for id in sorted(counts):
                    transaction.put(NUMBER.pack(id), sealed(NUMBER.pack(counts[id])), db=table)
                position += len(records)
                transaction.put(POSITION, sealed(NUMBER.pack(position)), db=positions)
        environment.close()
        return results, lambda: counts_by_hand(path, b"counts")

    def ours(self) -> Stored:
        path = self.copy / "ours"
        app = App("read-write", committing(self.commit_every, self.written))
        keyed = app.input("messages", value=Padded, key=id_of)
        keyed.scan(increased, emit=to_count, op_id="counting").send_to(app.output("counts"))
        sink = ListSink(columns=())
        run_blocking(app.pipeline(), path, RunSettings(bind={"counts": sink}, levers=self.levers))
        return sink.values, lambda: counts_in_log(path, "read-write", "counting")

    def outcome(self, result: Stored) -> list[Any]:
        """Return what was emitted, and what is stored."""
        results, stored = result
        return [*results, *stored()]


def _described(digits: int, messages: int, bar: float) -> Description:
    return Description(
        name=f"B9-{digits}",
        title=f"the paper's ReadWrite, a durable counter for each of {10**digits:,} ids",
        messages=messages,
        quick_scale=25_000 / messages,
        bar=bar,
        pairs=5,
        durable=True,
    )


class ReadWrite4(ReadWrite):
    description = _described(4, 500_000, 0.75)
    most = 10**4


class ReadWrite5(ReadWrite):
    description = _described(5, 500_000, 1.0)
    most = 10**5


class ReadWrite6(ReadWrite):
    description = _described(6, 1_000_000, 1.2)
    most = 10**6
