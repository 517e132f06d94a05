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
    committing,
    open_by_hand,
    pack,
    preload_by_hand,
    preload_log,
    read_by_hand,
    records_by_hand,
    records_in_log,
    sealed,
)
from benchmarks.messages import Message, is_large, is_wanted, plain_messages, to_pair, weigh
from benchmarks.workload import Description, Workload
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from samza_dsl import App, Options

APP = "embedded-log"
PASSING = 0.675
"""Of how many messages the chain makes an output."""

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode


def chained(options: Options) -> App:
    """Return the application: the chain between two streams of the log."""
    app = App(APP, options)
    chain = app.input("messages").filter(is_large).map(weigh).filter(is_wanted).map(to_pair)
    chain.send_to(app.output("pairs"))
    return app


def passing(messages: list[Message]) -> int:
    """Return of how many messages the chain makes an output."""
    return sum(1 for message in messages if is_large(message) and is_wanted(message))


class EmbeddedLog(Workload):
    """JSON, a CRC in every batch, and synced commits of output and position together.

    Both sides begin with a fresh copy of a preloaded data directory and end with it closed; the copying is not timed.
    """

    description = Description(
        name="B6",
        title="embedded log → B1 chain → embedded log, exactly-once",
        messages=500_000,
        quick_scale=0.05,
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

    def baseline_inlined(self) -> Path:
        path = self.copy / "hand"
        environment, (source, target, positions) = open_by_hand(path, b"messages", b"pairs", b"positions")
        position = end = 0
        for records in read_by_hand(environment, source, self.commit_every):
            written = []
            for message in map(decode_json, records):
                if message["v"] > 0.1:
                    message = {"id": message["id"], "v": message["v"], "tag": message["tag"], "w": message["v"] * 2.0}
                    if message["tag"] != "x":
                        written.append(encode_json((message["id"], message["w"])))
            position += len(records)
            with environment.begin(write=True) as transaction:
                transaction.put(NUMBER.pack(end), sealed(pack(written)), db=target)
                transaction.put(POSITION, sealed(NUMBER.pack(position)), db=positions)
            end += len(written)
        environment.close()
        return path

    def ours(self) -> Path:
        path = self.copy / "ours"
        app = chained(committing(self.commit_every, int(self.commit_every * PASSING)))
        run_blocking(app.pipeline(), path, RunSettings(levers=self.levers))
        return path

    def outcome(self, result: Path) -> list[Any]:
        """Return all stored records of the output."""
        return records_by_hand(result, b"pairs") if result.name == "hand" else records_in_log(result, "pairs")
