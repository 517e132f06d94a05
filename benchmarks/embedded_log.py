"""B6: the stateless chain from a durable stream to a durable stream, exactly-once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.durable import (
    NUMBER,
    POSITION,
    batches_of,
    checked,
    committing,
    open_by_hand,
    pack,
    preload_by_hand,
    preload_log,
    read_by_hand,
    sealed,
    unpack,
)
from benchmarks.messages import is_large, is_wanted, plain_messages, to_pair, weigh
from benchmarks.workload import Description, Workload
from runtime.run import run_blocking
from runtime.systems.log import LogEnvironment
from samza_dsl import App

PASSING = 0.675
"""Of how many messages the chain makes an output."""

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode


class EmbeddedLog(Workload):
    """JSON, a CRC in every batch, and synced commits of output and position together.

    Both sides begin with a fresh copy of a preloaded data directory and end with it closed; the copying is not timed.
    """

    description = Description(
        name="B6",
        title="embedded log → B1 chain → embedded log, exactly-once",
        messages=500_000,
        quick_messages=25_000,
        bar=1.15,
        durable=True,
    )

    def prepare(self, messages: int) -> None:
        self.preloaded, self.copy = self.scratch / "preloaded", self.scratch / "copy"
        batches = batches_of(list(map(encode_json, plain_messages(messages))), self.commit_every)
        preload_by_hand(self.preloaded / "hand", b"messages", batches)
        preload_log(self.preloaded / "ours", "messages", batches)

    def ready(self) -> None:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.preloaded, self.copy)

    def baseline(self) -> Path:
        path = self.copy / "hand"
        environment, (source, target, positions) = open_by_hand(path, b"messages", b"pairs", b"positions")
        position = end = 0
        for records in read_by_hand(environment, source, self.commit_every):
            written = []
            for record in records:
                message = decode_json(record)
                if is_large(message):
                    message = weigh(message)
                    if is_wanted(message):
                        written.append(encode_json(to_pair(message)))
            position += len(records)
            with environment.begin(write=True) as transaction:
                transaction.put(NUMBER.pack(end), sealed(pack(written)), db=target)
                transaction.put(POSITION, sealed(NUMBER.pack(position)), db=positions)
            end += len(written)
        environment.close()
        return path

    def ours(self) -> Path:
        path = self.copy / "ours"
        app = App("embedded-log", committing(self.commit_every, int(self.commit_every * PASSING)))
        chain = app.input("messages").filter(is_large).map(weigh).filter(is_wanted).map(to_pair)
        chain.send_to(app.output("pairs"))
        run_blocking(app.graph(), app.options, app.around, path)
        return path

    def outcome(self, result: Path) -> list[Any]:
        """Return all stored records of the output."""
        return pairs_by_hand(result) if result.name == "hand" else pairs_in_log(result)


def pairs_by_hand(path: Path) -> list[bytes]:
    environment, (target,) = open_by_hand(path, b"pairs")
    with environment.begin(buffers=True) as transaction:
        records = [record for _, data in transaction.cursor(target) for record in unpack(checked(data))]
    environment.close()
    return records


def pairs_in_log(path: Path) -> list[Any]:
    log = LogEnvironment(path)
    records: list[Any] = []
    offset = 0
    while (read := log.read("pairs", 0, offset)) is not None:
        records += read.batch.values
        offset = read.next_offset
    log.close()
    return records
