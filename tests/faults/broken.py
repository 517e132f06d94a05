"""The library with one of its safeguards off, to see that what the safeguard is for would be noticed."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import msgspec

from runtime.commit.schedule import Commits, Cut
from runtime.model.clock import SystemClock
from runtime.model.errors import EnvironmentFault
from runtime.opening import stored_state
from runtime.ports.commits import Commit
from runtime.ports.connectors import PositionedSink, PushedRecord, SinkOwner, SinkRow
from runtime.ports.streams import NO_SIZES
from runtime.reading import reader as inputs
from runtime.systems.connectors.inbox import Inbox
from runtime.systems.connectors.outbox import Outbox
from runtime.systems.databases.table_sink import TableSink
from runtime.systems.host import locks as log_locks
from runtime.systems.log import (
    batch as log_batch,
)
from runtime.systems.log import (
    database as log_database,
)
from runtime.systems.log import (
    environment as log,
)
from runtime.systems.log import (
    records as log_records,
)
from runtime.systems.log import (
    recovery as log_recovery,
)
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.log.member_locks import LogMembers
from runtime.systems.redis.sinks import RedisSink
from runtime.task.task import Task

DELIVERY_PAUSE_S = 0.01
"""The time for which a sink has rows of which the run has not noted that: as long as all else that a delivery takes."""


def _no_fsync() -> None:
    open_ = lmdb.open
    lmdb.open = lambda *given, **options: open_(*given, **{**options, "sync": False, "metasync": False})


def _no_atomic_commit() -> None:
    whole = LogEnvironment.commit

    def commit(self: LogEnvironment, commit: Commit) -> None:
        whole(self, commit._replace(state=[], checkpoints={}))
        time.sleep(0.05)
        whole(self, commit._replace(appends=[]))

    LogEnvironment.commit = commit  # type: ignore[method-assign]


def _no_errors() -> None:
    whole = LogEnvironment.commit

    def commit(self: LogEnvironment, commit: Commit) -> None:
        with suppress(EnvironmentFault):
            whole(self, commit)

    LogEnvironment.commit = commit  # type: ignore[method-assign]


def _no_checksums() -> None:
    def crc32(*data: object) -> int:
        return 0

    log_records.crc32 = crc32
    zlib = log_batch.zlib
    log_batch.zlib = SimpleNamespace(crc32=crc32, compress=zlib.compress, decompress=zlib.decompress)  # type: ignore[assignment]


def _no_page_check() -> None:
    log_recovery.structure = log_database.structure = lambda path: []
    log_database.is_short = lambda path: False


def _no_owner_lock() -> None:
    def owner_lock(directory: Path, app: str) -> int | None:
        return log_locks.lock(directory / f"{app}.{time.monotonic_ns()}", wait=False)

    log.owner_lock = owner_lock


def _no_holders() -> None:
    LogMembers._is_alive = lambda self, container: False  # type: ignore[method-assign]
    whole = LogEnvironment.commit

    def commit(self: LogEnvironment, commit: Commit) -> None:
        whole(self, commit._replace(tasks={}))

    LogEnvironment.commit = commit  # type: ignore[method-assign]


def _no_monotonic_clock() -> None:
    SystemClock.elapsed_ms = lambda self: float(self.now_ms())  # type: ignore[method-assign]


def _no_bound_in_flight() -> None:
    Task.room = lambda self, lane: self._options.batch_records  # type: ignore[method-assign]


def _no_foreign_errors() -> None:
    def column(make: Callable[[list[Any]], list[Any]], values: list[Any]) -> tuple[list[Any], dict[int, Exception]]:
        made: list[Any] = []
        errors: dict[int, Exception] = {}
        for row, value in enumerate(values):
            try:
                made += make([value])
            except msgspec.MsgspecError as error:
                made.append(None)
                errors[row] = error
        return made, errors

    inputs.column_of = column


def _no_intent() -> None:
    def commit(environment: Any, app: str, checkpoints: Any, changes: Any) -> None:
        whole(environment, app, checkpoints, {})

    def finish(environment: Any, app: str) -> None:
        staged = [store for store in environment.stores(app) if store.startswith(stored_state.STAGED)]
        targets = {store: store.removeprefix(stored_state.STAGED) for store in staged}
        environment.forget(app, [*targets.values()])
        for store, operator in targets.items():
            stored_state._copy(environment, app, store, operator)
        environment.forget(app, staged)

    whole, stored_state._commit = stored_state._commit, commit
    stored_state.finish = finish


def _no_positions_in_the_sink() -> None:
    whole_open, whole_write, whole_write_to_redis = Outbox.open, TableSink.write, RedisSink.write

    def open(
        self: Outbox, generation: int, identity: int, recorded: dict[int, int], passed: Mapping[str, int] = NO_SIZES
    ) -> None:
        assert isinstance(self.sink, PositionedSink)
        claim = self.sink.claim

        def claimed(owner: SinkOwner) -> int:
            claim(owner)
            return recorded.get(owner.partition, 0)

        self.sink = replace(self.sink, claim=claimed)
        whole_open(self, generation, identity, recorded, passed)

    def write(self: TableSink, owner: SinkOwner, rows: Sequence[SinkRow], position: int, following: int) -> None:
        with self._transaction() as connection:
            found = self._found(connection, owner)
        assert found is not None
        self._tokens[owner.place] = found[2]
        whole_write(self, owner._replace(generation=found[1]), rows, found[3], max(following, found[3] + 1))
        time.sleep(DELIVERY_PAUSE_S)

    def write_to_redis(
        self: RedisSink, owner: SinkOwner, rows: Sequence[SinkRow], position: int, following: int
    ) -> None:
        found = self._kept(self._server.client.hgetall(self._key(owner)))
        assert found is not None
        self._tokens[owner.place] = found.token
        owner = owner._replace(generation=found.generation)
        whole_write_to_redis(self, owner, rows, found.position, max(following, found.position + 1))
        time.sleep(DELIVERY_PAUSE_S)

    Outbox.open = open  # type: ignore[method-assign]
    TableSink.write = write  # type: ignore[method-assign]
    RedisSink.write = write_to_redis  # type: ignore[method-assign]


def _no_positions_in_the_inbox() -> None:
    whole = Inbox.push

    def push(self: Inbox, records: Sequence[PushedRecord], notes: Mapping[str, bytes] | None = None) -> None:
        whole(self, records)
        # Longer than all else that a run does, so that nearly each kill behind its start falls in between.
        time.sleep(0.2)
        whole(self, [], notes)

    Inbox.push = push  # type: ignore[method-assign]


def _no_answers() -> None:
    def forget(self: Commits, cut: Cut) -> None:
        for pool in (pool for task in cut.tasks for pool in task.remembering):
            assert pool.answers is not None
            pool.answers.fresh.clear()
            pool.kept()

    def forget_at_once(self: Commits, cut: Cut) -> bool:
        forget(self, cut)
        return True

    Commits._keep_answers = forget  # type: ignore[method-assign]
    Commits._keep_at_once = forget_at_once  # type: ignore[method-assign]


SAFEGUARDS: dict[str, Callable[[], None]] = {
    "fsync at every commit": _no_fsync,
    "one transaction per commit": _no_atomic_commit,
    "errors of a commit are raised": _no_errors,
    "checksums": _no_checksums,
    "positions in the transaction of the rows": _no_positions_in_the_sink,
    "positions beside what was pulled": _no_positions_in_the_inbox,
    "pages are checked": _no_page_check,
    "a change of state is noted before it is made": _no_intent,
    "one owner per application": _no_owner_lock,
    "a task has one container": _no_holders,
    "timers run by the monotonic clock": _no_monotonic_clock,
    "in flight is bounded": _no_bound_in_flight,
    "any error of a serde is caught": _no_foreign_errors,
    "answers that are remembered": _no_answers,
}


def switch_off(safeguard: str | None) -> None:
    """Do without a safeguard from now on, in this process; without its name, do nothing."""
    if safeguard is not None:
        SAFEGUARDS[safeguard]()
