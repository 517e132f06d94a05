"""A program with classes of its own, which only it can import."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from samza_dsl import App, Spark


class Number(msgspec.Struct):
    n: int
    next: Number | None = None


def doubled(number: Number) -> Number:
    return Number(number.n * 2, number)


app = App("script")
numbers = app.input("numbers", value=Number).map(doubled).partition_by(lambda number: number, partitions=2)
numbers.map(lambda number: number.n).send_to(app.output("out", value=int))

if __name__ == "__main__":
    file = Path(sys.argv[1]) / "numbers.jsonl"
    file.write_text('{"n": 1}\n{"n": 2}\n')
    out = file.with_name("out.jsonl")
    app.run(on=Spark(master="local[1]", options={"spark.ui.enabled": "false"}), bind={"numbers": file, "out": out})
    print(*sorted(map(int, out.read_text().split())))
