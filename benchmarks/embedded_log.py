"""B6: the stateless chain from a durable stream to a durable stream, exactly-once."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any
from zlib import crc32

import lmdb
import msgspec

from benchmarks.messages import is_large, is_wanted, plain_messages, to_pair, weigh
from benchmarks.workload import Description
from operators.base import Batch
from runtime.run import run_blocking
from runtime.systems.base import Append, StreamConfig
from runtime.systems.log import LogEnvironment
from samza_dsl import App, Options

BATCH = 10_000
"""Messages in a stored batch, and in a commit, on both sides."""
MAP_BYTES = 1 << 36
OFFSET = struct.Struct(">Q")
CRC = struct.Struct("<I")
POSITION = b"position"

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class EmbeddedLog:
    """JSON, a CRC in every batch, and a synced commit of output and position together every 10,000 messages.

    Both sides begin with a fresh copy of a preloaded data directory and end with it closed; the copying is not timed.
    """

    description = Description(
        name="B6",
        title="embedded log → B1 chain → embedded log, exactly-once",
        messages=500_000,
        quick_messages=25_000,
        bar=1.5,
    )

    def __init__(self, messages: int, scratch: Path) -> None:
        self.preloaded, self.copy = scratch / "preloaded", scratch / "copy"
        records = list(map(encode_json, plain_messages(messages)))
        batches = [records[first : first + BATCH] for first in range(0, messages, BATCH)]
        preload_by_hand(self.preloaded / "hand", batches)
        preload_log(self.preloaded / "ours", batches)

    def ready(self) -> None:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.preloaded, self.copy)

    def baseline(self) -> Path:
        path = self.copy / "hand"
        environment, source, target, positions = open_by_hand(path)
        position = end = 0
        while True:
            with environment.begin(buffers=True) as transaction:
                found = transaction.get(OFFSET.pack(position), db=source)
                if found is None:
                    break
                batch = unpack(checked(found))
            written = []
            for record in batch:
                message = decode_json(record)
                if is_large(message):
                    message = weigh(message)
                    if is_wanted(message):
                        written.append(encode_json(to_pair(message)))
            position += len(batch)
            with environment.begin(write=True) as transaction:
                transaction.put(OFFSET.pack(end), sealed(pack(written)), db=target)
                transaction.put(POSITION, sealed(OFFSET.pack(position)), db=positions)
            end += len(written)
        environment.close()
        return path

    def ours(self) -> Path:
        path = self.copy / "ours"
        options = Options(batch_records=BATCH, max_uncommitted=1, commit_interval_ms=3_600_000)
        app = App("embedded-log", options)
        chain = app.input("messages").filter(is_large).map(weigh).filter(is_wanted).map(to_pair)
        chain.send_to(app.output("pairs"))
        run_blocking(app.graph(), app.options, app.around, path)
        return path

    def outcome(self, result: Path) -> list[Any]:
        """Return all stored records of the output."""
        return read_by_hand(result) if result.name == "hand" else read_log(result)


def open_by_hand(path: Path) -> tuple[lmdb.Environment, Any, Any, Any]:
    path.mkdir(parents=True, exist_ok=True)
    environment = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=3)
    source, target, positions = map(environment.open_db, (b"messages", b"pairs", b"positions"))
    return environment, source, target, positions


def preload_by_hand(path: Path, batches: list[list[bytes]]) -> None:
    environment, source, _, _ = open_by_hand(path)
    with environment.begin(write=True) as transaction:
        for number, batch in enumerate(batches):
            transaction.put(OFFSET.pack(number * BATCH), sealed(pack(batch)), db=source)
    environment.close()


def read_by_hand(path: Path) -> list[bytes]:
    environment, _, target, _ = open_by_hand(path)
    with environment.begin(buffers=True) as transaction:
        records = [record for _, data in transaction.cursor(target) for record in unpack(checked(data))]
    environment.close()
    return records


def sealed(data: bytes) -> bytes:
    return CRC.pack(crc32(data)) + data


def checked(data: memoryview) -> memoryview:
    body = data[CRC.size :]
    if crc32(body) != CRC.unpack_from(data)[0]:
        raise ValueError("the checksum does not match")
    return body


def preload_log(path: Path, batches: list[list[bytes]]) -> None:
    log = LogEnvironment(path)
    log.create_stream("messages", StreamConfig())
    log.append([Append("messages", 0, Batch(batch)) for batch in batches])
    log.end_stream("messages")
    log.close()


def read_log(path: Path) -> list[Any]:
    log = LogEnvironment(path)
    records: list[Any] = []
    offset = 0
    while (read := log.read("pairs", 0, offset)) is not None:
        records += read.batch.values
        offset = read.next_offset
    log.close()
    return records
