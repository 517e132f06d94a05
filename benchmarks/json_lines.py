"""B6f: files to files in one process: what B14 does on Spark, and what it is measured against."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

from benchmarks.on_spark import CHUNK, chain_by_hand, chained, decode, encode, ticks
from benchmarks.workload import Description, Workload
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings


class JsonLines(Workload):
    """filter → map → filter, JSON lines to JSON lines; both sides end with the file on the disk."""

    description = Description(
        name="B6f",
        title="stateless, JSON lines → JSON lines in one process",
        messages=1_000_000,
        quick_scale=0.01,
        bar=1.15,
    )

    def prepare(self, messages: int) -> None:
        self.file, self.written = self.scratch / "ticks.jsonl", self.scratch / "moved.jsonl"
        self.by_hand, self.data = self.scratch / "by-hand.jsonl", self.scratch / "data"
        rows = ticks(messages, 0)
        with self.file.open("wb") as file:
            while chunk := list(islice(rows, CHUNK)):
                file.write(encode.encode_lines(chunk))

    def ready(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        self.written.unlink(missing_ok=True)

    def baseline(self) -> Path:
        with self.file.open("rb") as file:
            chain_by_hand(map(decode, file), self.by_hand)
        return self.by_hand

    def ours(self) -> Path:
        app, bind = chained(), {"ticks": self.file, "moved": self.written}
        run_blocking(app.pipeline(), self.data, RunSettings(bind=bind, levers=self.levers))
        return self.written

    def outcome(self, result: Path) -> list[bytes]:
        return result.read_bytes().splitlines()
