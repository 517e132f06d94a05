"""B17: async calls of a millisecond on Spark with two cores, over the thousand bare workers of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from benchmarks.messages import Message, look_up, plain_messages
from benchmarks.on_spark import CHUNK, FILES, OnSpark, encode, sync
from benchmarks.workload import Description
from samza_dsl import App

IN_FLIGHT = 1_000
decode = msgspec.json.Decoder().decode


class CallsOnSpark(OnSpark):
    """Each of the two workers has a thousand calls in flight, as the one process by hand has."""

    description = Description(
        name="B17",
        title="async calls of 1 ms, 1,000 in flight per worker, on Spark with two cores over one process",
        messages=400_000,
        quick_scale=0.01,
        bar=round(1 / 1.4, 3),
        pairs=5,
        on_spark=True,
    )

    def make(self, messages: int) -> None:
        made = plain_messages(messages)
        self.write(self.files, lambda number: iter(made[number::FILES]))

    def baseline(self) -> Path:
        async def work(messages: Iterator[Message], results: list[Message], file: BinaryIO) -> None:
            for message in messages:
                results.extend(await look_up(message))
                if len(results) >= CHUNK:
                    file.write(encode.encode_lines(results))
                    results.clear()

        async def work_all() -> None:
            messages, results = self.messages(), list[Message]()
            with self.by_hand.open("wb") as file:
                await asyncio.gather(*(work(messages, results, file) for _ in range(IN_FLIGHT)))
                file.write(encode.encode_lines(results))

        asyncio.run(work_all())
        sync(self.by_hand)
        return self.by_hand

    def messages(self) -> Iterator[Message]:
        for path in sorted(self.files.iterdir()):
            with path.open("rb") as file:
                yield from map(decode, file)

    def ours(self) -> Path:
        app = App("calls-on-spark")
        found = app.input("messages").async_flat_map(look_up, max_in_flight=IN_FLIGHT, order="none")
        found.send_to(app.output("found"))
        app.run(on=self.spark, bind={"messages": self.files, "found": self.written})
        return self.written
