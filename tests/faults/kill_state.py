"""Kills a change of stored state with kill -9 at any moment: afterwards it is done, or it was never begun."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from operators.core.base import Batch
from operators.core.entry_keys import StateEntry
from runtime.model.checkpoint import Checkpoint
from runtime.opening.stored_state import CHANGING, finish, forget, move
from runtime.ports.environment import SnapshotEnvironment
from runtime.ports.streams import Append, StreamConfig
from runtime.reprocessing.ahead import Ahead
from runtime.reprocessing.backfill import Runs, backfill_of, drop_backfill, over_history, run_backfill
from runtime.reprocessing.fork import fork_now, is_forked
from runtime.stored_state.entries import StoredEntries, entries_of
from runtime.stored_state.replacement import converted, imported
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App
from tests.faults import broken
from tests.faults.processes import apart, child
from tests.faults.trials import Missed, Order, Verdict, one_by_one

SAFEGUARD = "a change of state is noted before it is made"
APP = "changes"
KEYS = 12_000
"""The keys of each operator: more than one commit of a copy takes."""
SHARE_OF_WRITES = 0.7
CHANGES = ("forget", "move", "convert", "import", "evolve", "fork", "ahead")
FORKED = f"{APP}.trial"
State = dict[str, list[tuple[bytes, bytes]]]


def campaign(order: Order) -> Verdict:
    """Try changes in turn, each in a directory of its own."""
    without = SAFEGUARD if order.broken else None
    return one_by_one(order, lambda seed, work: trial(seed, work, without))


def trial(seed: int, work: Path, without: str | None) -> dict[str, int]:
    """Kill one change, and look at what is there then, and when it was completed."""
    chance, data = random.Random(seed), work / "data"
    change = CHANGES[seed % len(CHANGES)]
    apart(_begin, data)
    # As long as it takes undisturbed, in a copy of the directory, which also tells what it comes to.
    before, after, took_s, writes = apart(_undisturbed, data, work / "whole", change)
    # At a write of its own, or at any moment: most of the time goes by before the first of these.
    at = chance.randrange(writes) if chance.random() < SHARE_OF_WRITES else None
    with child(_change, data, change, without, at) as process:
        if at is None:
            time.sleep(chance.uniform(0, took_s))
        status = process.kill() if at is None else process.wait()
    if not status:
        raise Missed("came too late")
    found, was_begun = apart(_completed, data)
    told = f"{sizes(found)}, from {sizes(before)} to {sizes(after)}"
    assert found in (before, after), f"{change} was done in part: {told}"
    assert not was_begun or found == after, f"{change} had begun, and was not completed"
    return {f"{change} {'done' if found == after else 'not begun'}": 1}


def sizes(state: State) -> dict[str, int]:
    """Return the number of entries by operator."""
    return {store: len(entries) for store, entries in state.items()}


def app(counter: str = "counts", step: int = 1) -> App:
    """Return the application, whose counter may have another name, and count otherwise."""
    made = App(APP)
    numbers = made.input("numbers", value=int, key=lambda number: number)
    numbers.scan(lambda state, number: (state or 0) + step, op_id=counter).send_to(made.output("counts"))
    numbers.scan(lambda state, number: number, op_id="last").send_to(made.output("last"))
    return made


def _begin(data: Path) -> None:
    with closing(LogEnvironment(data)) as log:
        log.create_stream("numbers", StreamConfig())
        log.append([Append("numbers", 0, Batch([b"%d" % number for number in range(KEYS)]))])
    app().run(data, until_now=True)


def _undisturbed(data: Path, whole: Path, change: str) -> tuple[State, State, float, int]:
    with closing(LogEnvironment(data)) as log:
        before = _state(log)
    shutil.copytree(data, whole)
    began = time.monotonic()
    writes = _change(whole, change, None, None)
    took_s = time.monotonic() - began
    with closing(LogEnvironment(whole)) as log:
        return before, _state(log), took_s, writes


def _change(data: Path, change: str, without: str | None, at: int | None) -> int:
    """Make a change, and return how many transactions it took; in the one of number `at` the process is killed."""
    broken.switch_off(without)
    with closing(LogEnvironment(data)) as log:
        log.own(APP)
        finish(log, APP)
        whole, written = log._database.writing, 0

        @contextmanager
        def writing() -> Iterator[Any]:
            nonlocal written
            with whole() as transaction:
                yield transaction
                if written == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                written += 1

        log._database.writing = writing  # type: ignore[method-assign]
        MAKES[change](log)
        return written


def _completed(data: Path) -> tuple[State, bool]:
    """Complete what a crash has left, as whoever owns the application next does, and return what is kept then."""
    with closing(LogEnvironment(data)) as log:
        was_begun = bool(log.checkpoints(APP).get(CHANGING, Checkpoint(0)).meanings)
        log.own(APP)
        finish(log, APP)
        drop_backfill(log, APP)
        assert not [one for one in log.streams() if one.startswith(f"{APP}.")], "a back-fill leaves no stream"
        return _state(log), was_begun


def _state(log: LogEnvironment) -> State:
    mine = {store: [*log.state_range(APP, store, 0)] for store in log.stores(APP)}
    if not is_forked(log, FORKED):
        return mine
    return mine | {f"{FORKED} {store}": [*log.state_range(FORKED, store, 0)] for store in log.stores(FORKED)}


def _forget(environment: SnapshotEnvironment) -> None:
    forget(environment, APP, ["counts", "last"])


def _move(environment: SnapshotEnvironment) -> None:
    move(environment, APP, "counts", "numbers-counted")


def _evolve(environment: SnapshotEnvironment) -> None:
    evolve(environment, partial(over_history, environment))


def evolve(environment: SnapshotEnvironment, run: Runs) -> None:
    """Compute an operator anew by `run`."""
    pipeline = app(step=2).pipeline()
    run_backfill(environment, pipeline, backfill_of(environment, pipeline, ["counts"]), run)


def _ahead(environment: SnapshotEnvironment) -> None:
    pipeline = app(step=2).pipeline()
    ahead = Ahead(environment, pipeline, partial(over_history, environment))
    ahead.compute(backfill_of(environment, pipeline, ["counts"], is_ahead=True))
    ahead.join(backfill_of(environment, pipeline, ["counts"]))


def _fork(environment: SnapshotEnvironment) -> None:
    fork_now(environment, APP, FORKED, ["counts", "last"])


def _convert(environment: SnapshotEnvironment) -> None:
    with closing(environment.snapshot(APP)) as snapshot:
        converted(environment, app().plan(), app().graph(), "counts", entries_of(snapshot, "counts"), _changed)


def _changed(entry: StateEntry) -> StateEntry | None:
    return None if entry.key % 3 == 0 else entry.of(entry.value + 1)


def _import(environment: SnapshotEnvironment) -> None:
    forms = {operator: StoredEntries(app().plan(), app().graph(), operator) for operator in ("counts", "last")}
    rows: list[tuple[str, dict[str, Any]]] = []
    with closing(environment.snapshot(APP)) as snapshot:
        for operator, form in forms.items():
            for one in entries_of(snapshot, operator):
                row = form.row(one)
                rows.append(("a row", {**row, "key": row["key"] + 1_000_000}))
    imported(environment, app().plan(), app().graph(), rows)


MAKES: dict[str, Callable[[SnapshotEnvironment], None]] = {
    "forget": _forget,
    "move": _move,
    "convert": _convert,
    "evolve": _evolve,
    "fork": _fork,
    "ahead": _ahead,
    "import": _import,
}
