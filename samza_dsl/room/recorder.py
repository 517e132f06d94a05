"""Records a run in files: its numbers of this moment, an hour of them, and what has happened to it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import accumulate, takewhile
from pathlib import Path

import msgspec

from operators.core.wording import class_name, encodable_all, words_of
from planner.model.plan import Plan
from runtime.encoding.json_text import to_json
from runtime.functions.user_lines import deepest, user_lines
from runtime.model.clock import monotonic_ms, sleep_ms, wall_clock_ms
from runtime.model.metrics import RunMetrics, StoreMetrics, unread
from runtime.run.driver import Committing, Watched, renew
from samza_dsl.room.look import Interval, Look, look, state_of
from samza_dsl.room.notes import EVENTS_BYTES, HISTORY_BYTES, KEPT_MS, Event, Identity, Notes
from samza_dsl.room.ring import BLOCK_BYTES, RingWriter
from samza_dsl.settings.logs import redacted

LOOK_MS, OVER_MS = 1_000.0, 10_000.0
"""The interval at which a run is looked at, and the time over which rates and shares are told."""
LEAST_REST = 50.0
"""The rest between two looks is at least so many times as long as the last one took: 2 % of the time at most."""
SAMPLE_MS, STORES_MS = 5_000.0, 10_000.0
"""The interval between two samples of the history, and between two looks at the sizes of state."""
MOST_TEXT, MOST_LINES, LONGEST_LINE = EVENTS_BYTES // 64, 32, 400
"""The characters of an event that are kept, the lines of the program beside it, and the characters of each."""
MOST_SAMPLE_BYTES = HISTORY_BYTES // 240
"""The bytes of a sample: with so many an hour has one each 15 s. What is told by operator and stream has half each."""

_log = logging.getLogger("samza_dsl")


class Recorder:
    """Looks at a run beside it in its event loop, and writes down what it sees; it heeds what the run is asked, too.

    One may watch several runs, one after the other, as where an application begins anew. What can't be written, as on
    a full disk, is left out, and told once: the run goes on. Invariants: looks are in the order of their time; nothing
    is made before a run is there.
    """

    def __init__(self, notes: Notes, where: str) -> None:
        self._notes = notes
        self._rings: tuple[RingWriter, RingWriter] | None = None
        self._where = where
        self._looks: deque[RunMetrics] = deque([RunMetrics()])
        self._stores: tuple[StoreMetrics, ...] = ()
        self._stores_ms = self._sampled_ms = float("-inf")
        self._picture: Plan | None = None
        self._identity: Identity | None = None
        self._has_failed = False
        self._noting, self._writing = threading.Lock(), threading.Lock()

    async def watch(self, run: Watched) -> None:
        """Look at a run again and again, until cancelled at its end."""
        if not self._open():
            return
        self._looks = deque([RunMetrics()])
        self.note("began", f"{run.plan.app} begins, in process {os.getpid()}")
        try:
            while True:
                await renew(run)
                began_ms = monotonic_ms()
                self._heed(run)
                found = self._take(run, state_of(run, is_over=False))
                rest_ms = max(LOOK_MS, LEAST_REST * (monotonic_ms() - began_ms))
                # A disk that is slow holds nobody up.
                await asyncio.to_thread(self._write, run.plan, found, rest_ms)
                await sleep_ms(rest_ms)
        finally:
            state = state_of(run, is_over=True)
            try:
                found = self._take(run, state)
            except Exception:
                # A run that has failed may have no numbers: the last ones are.
                found = look(run.plan, Interval(self._looks[-1], self._looks[-1]), state, self._stores, wall_clock_ms())
            self._write(run.plan, found)
            if not run.failed:
                self.note("ended", f"{run.plan.app} {state}, after {found.commits:,} commits")

    def note(self, what: str, text: str, lines: tuple[str, ...] = ()) -> None:
        """Write down what has happened, without the secrets that this process knows."""
        text = redacted(text)
        text = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"
        lines = tuple(redacted(line)[:LONGEST_LINE] for line in lines[-MOST_LINES:])
        event = Event(at_ms=wall_clock_ms(), what=what, text=text, lines=lines)
        # Warnings come from any thread; the lock is free again when a failure is told, which is a warning, too.
        with self._told_once(), self._noting:
            if self._rings is not None:
                self._rings[1].append(_json(event))

    def fail(self, error: BaseException) -> None:
        """Write down what has ended a run before its time, be it before it began where others have run before."""
        if self._notes.folder.is_dir():
            self._open()
        self.note("failed", words_of(error) or class_name(error), tuple(user_lines(deepest(error))))

    def close(self) -> None:
        """Let others write; nothing is noted any more."""
        with self._noting, self._writing:
            for ring in self._rings or ():
                ring.close()
            self._rings = None

    def _open(self) -> bool:
        """Open the rings; return whether they are, and not those of another process."""
        with self._told_once():
            self._rings = self._rings or self._notes.writes()
        return self._rings is not None

    def _heed(self, run: Watched) -> None:
        asked = self._notes.heed(wall_clock_ms())
        if asked is None:
            return
        if asked.what == "stop":
            run.stop()
        elif asked.what == "commit" and isinstance(run, Committing):
            run.want_commit()

    def _take(self, run: Watched, state: str) -> Look:
        now_ms = monotonic_ms()
        with_stores = now_ms - self._stores_ms >= STORES_MS
        metrics = run.metrics(stores=with_stores)
        if with_stores:
            self._stores, self._stores_ms = metrics.stores, now_ms
        assert metrics.elapsed_ms >= self._looks[-1].elapsed_ms, "looks come in the order of their time"
        self._looks.append(metrics)
        # The time before the first record, in which containers start and state is brought back, counts for no share.
        while len(self._looks) > 2 and (
            self._looks[1].elapsed_ms <= metrics.elapsed_ms - OVER_MS or not self._looks[1].total("received")
        ):
            self._looks.popleft()
        return look(run.plan, Interval(self._looks[0], metrics), state, self._stores, wall_clock_ms())

    def _write(self, plan: Plan, found: Look, rest_ms: float = 0.0) -> None:
        # At the end of a run, what was begun in a thread may still be under way.
        with self._told_once(), self._writing:
            if self._picture is not plan:
                # The tasks of a run may be split, which is another plan.
                content = plan.to_json().encode("utf-8", "backslashreplace")
                self._notes.put("plan", content)
                self._picture = plan
                self._identity = Identity(
                    app=plan.app,
                    began_ms=wall_clock_ms() - round(found.elapsed_ms),
                    process=os.getpid(),
                    host=socket.gethostname(),
                    where=self._where,
                    picture=blake2b(content, digest_size=8).hexdigest(),
                )
            now_ms = wall_clock_ms()
            self._notes.put("look", _json({"run": self._identity, "at_ms": now_ms, "rest_ms": rest_ms, "look": found}))
            sample = _json(_sample(found, now_ms))
            if self._rings is None or len(sample) > self._rings[0].most_bytes:
                return
            # So many fit that an hour does, however many operators there are: with the head of each, and what lies idle
            # at the end of the file.
            taken = -(-len(sample) // BLOCK_BYTES) + 2
            every_ms = max(SAMPLE_MS, KEPT_MS * taken * BLOCK_BYTES / HISTORY_BYTES)
            # The last one is of the end, however short a run was.
            if not rest_ms or monotonic_ms() - self._sampled_ms >= every_ms:
                self._sampled_ms = monotonic_ms()
                self._rings[0].append(sample)

    @contextmanager
    def _told_once(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                _log.warning("the control room can't note how the run goes: %s", error)


class _Hearer(logging.Handler):
    """Notes the warnings of the library."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(logging.WARNING)
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        """Note a warning; what it can't say is told as logging tells all such."""
        try:
            self._recorder.note("warning", record.getMessage())
        except Exception:
            self.handleError(record)


@contextmanager
def recorded(data: str | Path, app: str, where: str) -> Iterator[Recorder]:
    """Record the runs of an application during a block, unless another process records them there."""
    recorder = Recorder(Notes(Path(data), app), where)
    hearer = _Hearer(recorder)
    _log.addHandler(hearer)
    try:
        yield recorder
    except BaseException as error:
        recorder.fail(error)
        raise
    finally:
        _log.removeHandler(hearer)
        recorder.close()


def _sample(found: Look, now_ms: int) -> dict[str, object]:
    """Return the numbers of a look that are kept for an hour."""
    busiest = sorted(found.operators, key=lambda one: (-one.busy, -one.received_per_s))
    return {
        "at_ms": now_ms,
        "in": round(found.received_per_s, 1),
        "out": round(found.written_per_s, 1),
        "lag": found.lag,
        "behind_ms": found.behind_ms,
        "in_flight": found.in_flight,
        "commit_p99_ms": found.commit_p99_ms,
        "bytes": sum(one.bytes for one in found.stores),
        "lags": _first(Counter(unread(found.inputs)).most_common()),
        "operators": _first([(one.id, [round(one.received_per_s, 1), round(one.busy, 3)]) for one in busiest]),
        "well": sum(one.well for one in found.containers),
    }


def _first(told: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return the first of what is told by name, as far as a sample has room for it."""
    ends = accumulate(len(_json(one)) for one in told)
    # What comes behind the last one that fits is never encoded.
    return dict(
        one for one, _ in takewhile(lambda ended: ended[1] <= MOST_SAMPLE_BYTES // 2, zip(told, ends, strict=True))
    )


def _json(value: object) -> bytes:
    return to_json(encodable_all(msgspec.to_builtins(value)))
