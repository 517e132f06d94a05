"""Fills the disk under the ledger, on a tmpfs that has room for some pages more, and then makes room again."""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults import ledger
from tests.faults.processes import apart, child, run_quietly
from tests.faults.trials import Missed, Order, Verdict, one_by_one

SAFEGUARD = "errors of a commit are raised"
NUMBERS = 400
DISK_BYTES = 16 << 20
PAGE_BYTES = 4096
ENOUGH = "had room enough"


def campaign(order: Order) -> Verdict:
    """Let the disk be full after some pages, check that the error says so, make room, and let the ledger go on.

    Odd seeds bind the output to a file, and every fourth begins with an empty disk.
    """
    filled, empty = order.work / "filled", order.work / "empty"
    empty.mkdir()
    apart(ledger.fill, filled / "data", NUMBERS)
    without = SAFEGUARD if order.broken else None

    def trial(seed: int, work: Path) -> dict[str, int]:
        before, bound = empty if seed % 8 in (3, 6) else filled, bool(seed % 2)
        with _disk(work / "disk") as disk:
            shutil.copytree(before, disk, dirs_exist_ok=True)
            data, rows = disk / "data", disk / "rows.jsonl" if bound else None
            room = random.Random(seed).randrange(24 if before is filled else 48)
            _leave(disk, room)
            with child(ledger.run, data, seed, rows, without, "", 0, NUMBERS) as run:
                told, ended = _end_of(run)
            if (data / "format").exists():  # without one, nothing was ever kept there
                apart(ledger.audit, data, NUMBERS, told, rows)
            (disk / "ballast").unlink()
            apart(ledger.run, data, seed, rows, None, "", 0, NUMBERS)
            apart(ledger.audit, data, NUMBERS, told, rows, True)
        if ended == ENOUGH:
            raise Missed(ENOUGH)
        return {ended: 1}

    return one_by_one(order, trial)


def _end_of(run) -> tuple[ledger.Told, str]:
    """Return what a run has told, and how it ended: well, or with an error of the library's that says what is wrong."""
    if run.wait() == 0:
        return ledger.told_by(run.output()), ENOUGH
    last = run.errors().splitlines()[-1] if run.errors() else f"died of {run.wait()}"
    kind = last.partition(":")[0].removeprefix("runtime.model.errors.")
    assert last.startswith("runtime.model.errors.EnvironmentFull: "), (
        f"not EnvironmentFull, but: {run.errors() or last}"
    )
    return ledger.told_by(run.output()), kind


def _leave(disk: Path, pages: int) -> None:
    """Take all of a disk but some pages."""
    status = os.statvfs(disk)
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max((status.f_bavail - pages) * PAGE_BYTES, 1))


@contextmanager
def _disk(place: Path) -> Iterator[Path]:
    place.mkdir()
    run_quietly("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", place)
    try:
        yield place
    finally:
        run_quietly("umount", "--lazy", place)
