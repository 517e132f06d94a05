"""Both sides of a program at work, in memory or on the embedded log, and what each comes to."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from hashlib import blake2b
from pathlib import Path
from typing import Any

from benchmarks.programs.kit.hand import Lists
from benchmarks.programs.kit.program import Program, Streams
from runtime.ports.environment import Environment
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource

SIDES = ("by_hand", "ours")

Rows = dict[str, list[bytes]]
"""What an output has, sorted, as bytes that are equal where the values are."""


class Sides(ABC):
    """A program with its input in place; only `ours` and `by_hand` are timed."""

    def __init__(self, program: Program, streams: Streams, seed: int, scratch: Path) -> None:
        self.program = program
        self.streams = streams
        self.seed = seed
        self.preloaded, self.workspace = scratch / "preloaded", scratch / "workspace"
        self.preloaded.mkdir()
        if program.prepare is not None:
            program.prepare(self.preloaded, seed)

    def ready(self) -> None:
        """Put things in place for one run."""
        shutil.rmtree(self.workspace, ignore_errors=True)
        shutil.copytree(self.preloaded, self.workspace)

    @abstractmethod
    def ours(self) -> Any:
        """Build, plan, run and close the application."""

    @abstractmethod
    def by_hand(self) -> Any:
        """Run the program by hand."""

    @abstractmethod
    def rows(self, result: Any) -> dict[str, list[Any]]:
        """Return the values of each output of a run."""

    def outcome(self, result: Any) -> Rows:
        """Return what a run came to, in a form that is equal where the runs did the same."""
        shown = self.program.shown
        return {name: sorted(shown(name, value) for value in values) for name, values in self.rows(result).items()}


class InMemory(Sides):
    """Values are Python objects in lists, on both sides, and nothing is kept; what is malformed has never come here."""

    def __init__(self, program: Program, streams: Streams, seed: int, scratch: Path) -> None:
        decoded = {
            name: [[value for value in part if type(value) is not bytes] for part in parts]
            for name, parts in streams.items()
        }
        super().__init__(program, decoded, seed, scratch)
        self.keys = {name: list(map(program.streams[name].keys, parts)) for name, parts in decoded.items()}
        self.as_ours = {name: list(map(program.streams[name].as_ours, parts)) for name, parts in decoded.items()}

    def ours(self) -> dict[str, list[Any]]:
        """Run over lists in an environment in memory."""
        program = self.program
        sinks = {name: ListSink(columns=()) for name in program.outputs if name not in program.dead_letters}
        bind: dict[str, Any] = dict(sinks)
        for name, parts in self.as_ours.items():
            stream, single = program.streams[name], len(parts) == 1
            keys = self.keys[name] if stream.carried else None
            bind[name] = ListSource(
                parts[0] if single else parts, None, keys[0] if keys and single else keys, len(parts)
            )
        app = program.pipeline(self.workspace)
        environment = MemoryEnvironment()
        run_blocking(app.pipeline(), environment, RunSettings(bind=bind))
        letters = {name: stored(environment, name) for name in program.dead_letters}
        return {name: sink.values for name, sink in sinks.items()} | letters

    def by_hand(self) -> dict[str, list[Any]]:
        """Run over chunks of the lists."""
        hand, streams = self.program.by_hand(self.workspace), dict(self.streams)
        for table in self.program.tables:
            hand.learn(table, [row for part in streams.pop(table) for row in part])
        hand.run(Lists(streams, hand.chunk))
        hand.close()
        return hand.out

    def rows(self, result: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return the lists."""
        return {name: result.get(name, []) for name in self.program.outputs}


def stored(environment: Environment, stream: str) -> list[bytes]:
    """Return the values of a stream, as they are stored."""
    config, values = environment.streams().get(stream), []
    for partition in range(config.partitions if config else 0):
        offset = 0
        while (read := environment.read(stream, partition, offset)) is not None:
            values += read.batch.values
            offset = read.next_offset
    return values


def digest(rows: Rows) -> str:
    """Return a digest of all rows."""
    found = blake2b()
    for name in sorted(rows):
        for row in (name.encode(), *rows[name]):
            found.update(len(row).to_bytes(8, "big") + row)
    return found.hexdigest()


def differences(ours: Rows, by_hand: Rows, most: int = 3) -> list[str]:
    """Return in words where two outcomes differ."""
    found = []
    for name in ours:
        left, right = set(ours[name]), set(by_hand[name])
        if ours[name] != by_hand[name]:
            found.append(
                f"{name}: ours has {len(ours[name]):,}, by hand there are {len(by_hand[name]):,}; "
                f"only ours {sorted(left - right)[:most]}, only by hand {sorted(right - left)[:most]}"
            )
    return found
