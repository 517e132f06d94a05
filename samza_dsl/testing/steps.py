"""The run of an application that a test takes step by step: send, read, let time pass, crash, restart."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from operators.core.base import MIN_TIMESTAMP
from operators.core.sites import mistake
from operators.windows.window import Pane
from operators.windows.window_types import duration_ms
from runtime.model.checkpoint import Position
from runtime.model.metrics import RunMetrics
from samza_dsl.application.app import App
from samza_dsl.testing.environment import CrashPoint
from samza_dsl.testing.held_calls import Call
from samza_dsl.testing.holdings import Holdings
from samza_dsl.testing.process import VirtualProcess
from samza_dsl.testing.streams import DeadLetter, Record, check_app


@contextmanager
def running(
    app: App,
    inputs: Mapping[str, Sequence[object]] | None = None,
    *,
    partitions: Mapping[str, int] | None = None,
    watch: Sequence[str] = (),
    start_ms: int = 0,
) -> Iterator[TestRun]:
    """Run `app` step by step, in memory and in virtual time, which begins at `start_ms`.

    `inputs` is what its streams hold already, in the shape that `run` takes. `partitions` gives the count of input
    streams where the app does not say it. The operators whose ids are in `watch` can be read like outputs. Warns at
    the end of a join whose sides have keys of types that can't meet, as 7 and "7". Raises PlanError where the app can't
    be planned, and at the end AssertionError where the process was to die at a point that it has not come to.

    >>> app = App("doubling")
    >>> app.input("numbers", value=int).map(lambda n: n * 2).send_to(app.output("doubles", value=int))
    >>> with running(app) as run:
    ...     run.send("numbers", 1, 2)
    ...     print(run.read("doubles"))
    ...     run.send("numbers", 3)
    ...     print(run.read("doubles"))
    [2, 4]
    [6]
    """
    check_app("running", app, inputs)
    if isinstance(watch, str):
        raise ValueError(f"watch={watch!r} is no list; write instead: watch=[{watch!r}]")
    process = VirtualProcess(app, inputs, partitions=partitions, watch=watch, start_ms=start_ms)
    try:
        process.start()
        yield TestRun(process)
        process.check_doom()
        for told in process.strangers():
            warnings.warn(told, stacklevel=3)
    finally:
        process.close()


class TestRun:
    """One application under test; `running` makes it.

    Each step returns when everything that can happen at this time has happened, commits included, and raises what the
    run has failed with. The test's thread calls it; between two calls nothing runs.

    >>> import asyncio
    >>> app = App("waiting")
    >>> async def slowly(n):
    ...     await asyncio.sleep(1)
    ...     return [n]
    >>> app.input("numbers", value=int).async_flat_map(slowly).send_to(app.output("out", value=int))
    >>> with running(app) as run:
    ...     run.send("numbers", 7)
    ...     print(run.now_ms, run.read("out"))
    ...     run.advance_time(seconds=1)
    ...     print(run.now_ms, run.read("out"))
    0 []
    1000 [7]
    """

    __test__ = False  # pytest takes a class of this name for tests

    def __init__(self, process: VirtualProcess) -> None:
        self._process = process
        self._read_to: dict[str, dict[int | None, int]] = {}

    @property
    def name(self) -> str:
        """The name of the application."""
        return self._process.graph.app

    @property
    def now_ms(self) -> int:
        """The virtual wall clock, in ms since the epoch."""
        return self._process.now_ms

    @property
    def crashed(self) -> bool:
        """Whether the process is dead: it crashed, or the run failed."""
        return self._process.dead

    @property
    def ended(self) -> bool:
        """Whether the run has come to its end: its inputs have, or it was stopped."""
        return self._process.ended

    @property
    def story(self) -> str:
        """The story of the test so far, a line for each event; pytest shows it when a test fails."""
        return "\n".join(self._process.story)

    def send(
        self,
        stream: str,
        *values: object,
        key: object = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Append values to an input as one batch, encoded as the app reads it, and let the run take them in.

        A value may be a `Record`, with its own key, timestamp (ms) and partition. Without `partition` a record goes to
        that of its key, or the first. A stream that the app reads by a pattern is made where it is absent, and found by
        the run within a second. Raises ValueError where the app does not read `stream`.
        """
        given = Record(None, key, timestamp)
        records = [one if isinstance(one, Record) else replace(given, value=one) for one in values]
        self._process.tell(f"sent {len(values)} to {stream}" + (f"/{partition}" if partition is not None else ""))
        self._process.streams.append(stream, records, partition)
        self._process.proceed()

    def send_bytes(self, stream: str, data: bytes | None, *, key: bytes | None = None, partition: int = 0) -> None:
        """Append a record as it is stored, whether or not the app can read it."""
        self._process.tell(f"sent {data!r} to {stream}/{partition}")
        self._process.streams.append_bytes(stream, data, key, partition)
        self._process.proceed()

    def end(self, *streams: str) -> None:
        """End these inputs, or all of them; once all have ended, what is open fires, and the run ends."""
        for stream in streams or self._process.streams.inputs():
            self._process.streams.end(stream)
        self._process.tell(f"ended {', '.join(streams) or 'all inputs'}")
        self._process.proceed()

    def advance_watermark(self, stream: str, watermark_ms: int, *, partition: int | None = None) -> None:
        """Append a watermark to an input, as a producer would, in all partitions or one: event time has come so far.

        It takes an offset of its own in the stream. A watermark never goes back. Raises ValueError for a time that is
        no whole number.
        """
        if type(watermark_ms) is not int:
            wrong = f"advance_watermark({stream!r}, {watermark_ms!r}) has no time in whole ms"
            raise mistake(wrong, f"advance_watermark({stream!r}, 60_000)")
        self._process.tell(f"watermark of {stream} to {watermark_ms:,} ms")
        self._process.streams.append_watermark(stream, watermark_ms, partition)
        self._process.proceed()

    def advance_time(
        self,
        length: timedelta | None = None,
        /,
        *,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Let virtual time go on, with everything that is due in it: calls, timeouts, backoffs, task timers.

        Raises ValueError for less than a millisecond.
        """
        length_ms = duration_ms(length, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        if length_ms < 1:
            raise mistake(f"advance_time(...) by {length_ms:,} ms: time only goes on", "advance_time(seconds=1)")
        self._process.proceed(length_ms / 1_000)
        self._process.tell(f"time went on by {length_ms:,} ms")

    def hold(self, operator: str) -> None:
        """Let the async calls of an operator wait for the test from now on; raises ValueError where it has none."""
        self._process.calls.hold(operator)

    def calls(self, operator: str) -> list[Call]:
        """Return the calls of an operator that wait for the test, in the order in which they began."""
        return self._process.calls.waiting(operator)

    def crash(self, at: Literal["before_commit", "after_commit"] | CrashPoint | None = None) -> None:
        """Let the process die: now, or at its next commit, just before or just after that is durable, or as said.

        It dies as if it were killed: nothing more is committed, and the `close()` of no object is called. Coroutines
        that are under way are cancelled, so their `finally` blocks run. A point that is not reached is an
        AssertionError at the end of `running`, at `restart`, and at the next point. Raises ValueError where there is
        no such point.
        """
        if at is None:
            self._process.doom(None)
            self._process.die()
        else:
            point = at if isinstance(at, CrashPoint) else CrashPoint(at)
            if not self.crashed:
                self._process.check_doom()
            self._process.doom(point)

    def restart(self, app: App | None = None) -> None:
        """Begin again with what is committed, as after a crash; with another version of the app, if one is given.

        A process that lives is killed first.
        """
        # Checked first, for the death below would hide that the point was never reached.
        if not self.crashed:
            self._process.check_doom()
            self._process.die()
        self._process.tell("restarted")
        self._process.start(app)

    def stop(self) -> None:
        """Stop as on Ctrl-C: what is in flight completes and is committed, however long that takes.

        Calls that wait for the test time out. Raises RuntimeError where nothing is committed for an hour.
        """
        self._process.stop()

    def read(self, name: str) -> list[Any]:
        """Return the values that an output got since it was last read; or what a watched operator emitted since."""
        read_to = self._read_to.setdefault(name, {})
        fresh = [one for one in self.records(name) if (one.offset or 0) >= read_to.get(one.partition, 0)]
        read_to.update({one.partition: (one.offset or 0) + 1 for one in fresh})
        return [one.value for one in fresh]

    def received(self, name: str) -> list[Any]:
        """Return all values that an output got so far, or a watched operator emitted; dead letters are bytes."""
        return [one.value for one in self.records(name)]

    def records(self, name: str) -> list[Record]:
        """Return all records of an output, or of any other stream, with their keys, timestamps and offsets."""
        return self._process.records(name)

    def dead_letters(self, stream: str) -> list[DeadLetter]:
        """Return the dead letters in a stream; raises ValueError for an input or an output."""
        return self._process.streams.dead_letters(stream)

    def state(self, operator: str) -> dict[Any, Any]:
        """Return the state of a `process`, a task or a table by key, as of the last commit."""
        return self._holdings().state(operator)

    def panes(self, operator: str) -> list[Pane[Any, Any]]:
        """Return the panes that the open windows of an operator would emit now, as of the last commit."""
        return self._holdings().panes(operator)

    def timers(self, operator: str) -> list[tuple[int, Any]]:
        """Return the event-time timers of a `process`: the time (ms) and the key of each, as of the last commit."""
        return self._holdings().timers(operator)

    def position(self, stream: str, partition: int = 0) -> int:
        """Return the offset up to which an input is processed, as of the last commit.

        Raises ValueError where there is no such input or partition.
        """
        return self._position(stream, partition).offset

    def watermark(self, stream: str, partition: int = 0) -> int | None:
        """Return the event time (ms) of an input's partition, as of the last commit; None before it has any.

        Raises ValueError where there is no such input or partition.
        """
        watermark = self._position(stream, partition).watermark
        return None if watermark == MIN_TIMESTAMP else watermark

    def metrics(self) -> RunMetrics:
        """Return the numbers of the run, such as how many records were skipped; raises RuntimeError when it is dead."""
        return self._process.metrics()

    def _holdings(self) -> Holdings:
        return Holdings(self._process.graph, self._process.environment, self._process.stores)

    def _position(self, stream: str, partition: int) -> Position:
        self._process.streams.check_partition(stream, partition)
        for checkpoint in self._process.environment.checkpoints(self._process.graph.app).values():
            for position in checkpoint.positions:
                if (position.stream, position.partition) == (stream, partition):
                    return position
        return Position("", stream, partition, 0)
