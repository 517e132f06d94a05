"""Cuts the power under the ledger at any write or sync, and looks at what a disk may then hold."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults import ledger
from tests.faults.fragile_disk import serve
from tests.faults.processes import Child, apart, child, run_quietly, wait_until
from tests.faults.trials import Missed, Order, Verdict, one_by_one

SAFEGUARD = "fsync at every commit"
NUMBERS = 400


def campaign(order: Order) -> Verdict:
    """Cut the power at a moment of the seed's choice, look, and let the ledger go on.

    Odd seeds bind its output to a file, and every fourth begins with an empty disk.
    """
    filled, empty = order.work / "filled", order.work / "empty"
    filled.mkdir()
    empty.mkdir()
    apart(ledger.fill, filled / "data", NUMBERS)
    operations = {
        (before, bound): _operations(before, order.work / f"{before.name}-{bound}", bound)
        for before in (filled, empty)
        for bound in (False, True)
    }
    without = SAFEGUARD if order.broken else None

    def trial(seed: int, work: Path) -> dict[str, int]:
        before, bound = empty if seed % 8 in (3, 6) else filled, bool(seed % 2)
        cut_at = random.Random(seed).randint(1, operations[before, bound])
        disk, afterwards = work / "disk", work / "afterwards"
        data, rows = disk / "data", disk / "rows.jsonl" if bound else None
        with _mounted(before, disk, afterwards, cut_at, seed) as server:
            told, was_cut = _run_until_cut(server, disk, seed, rows, without)
        pending, torn, unnamed = map(int, server.output().split())
        server.close()
        disk.rmdir()
        afterwards.rename(disk)
        apart(_look, data, told, rows)
        apart(ledger.run, data, seed, rows, None, "after the cut", 0, NUMBERS)
        apart(_look, data, told, rows, True)
        if not was_cut:
            raise Missed("ended before the cut")
        return {"writes not synced": pending, "torn": torn, "names lost": unnamed}

    return one_by_one(order, trial)


def _run_until_cut(
    server: Child, disk: Path, seed: int, rows: Path | None, without: str | None
) -> tuple[ledger.Told, bool]:
    """Return what was acknowledged, and whether the power was cut before the end."""
    with child(ledger.run, disk / "data", seed, rows, without, "before the cut", 0, NUMBERS) as run:
        wait_until(lambda: server.poll() is not None or run.poll() is not None)
        if run.poll():  # it may notice that the disk is gone before we do
            with suppress(TimeoutError):
                wait_until(lambda: server.poll() is not None, patience_s=2)
        was_cut = server.poll() is not None
        if not was_cut:
            run.result()
        run.kill()
        return ledger.told_by(run.output()), was_cut


def _look(data: Path, told: ledger.Told, rows: Path | None, done: bool = False) -> None:
    ledger.reboot("after the cut")
    ledger.audit(data, NUMBERS, told, rows, done)


def _operations(before: Path, disk: Path, bound: bool) -> int:
    """Return how many operations an undisturbed run makes."""
    with _mounted(before, disk, disk, None, 0) as server:
        apart(ledger.run, disk / "data", 0, disk / "rows.jsonl" if bound else None, None, "", 0, NUMBERS)
    operations = int(server.output())
    server.close()
    return operations


@contextmanager
def _mounted(before: Path, disk: Path, afterwards: Path, cut_at: int | None, seed: int) -> Iterator[Child]:
    """Have a fragile disk at `disk`; after the block the process that served it has ended."""
    disk.mkdir()
    server = Child(serve, before, disk, afterwards, cut_at, seed)
    wait_until(lambda: disk.is_mount() or server.poll() is not None)
    if server.poll() is not None:
        raise SystemExit(f"there is no FUSE file system here: {server.errors()}")
    try:
        yield server
    finally:
        run_quietly("umount", "--lazy", disk)
        server.wait()
