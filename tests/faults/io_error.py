"""Has the system refuse one of the ledger's writes or syncs, by strace, and lets the ledger go on without."""

import os
import random
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from tests.faults import ledger
from tests.faults.processes import apart
from tests.faults.trials import Missed, Order, Verdict, one_by_one

SAFEGUARD = "errors of a commit are raised"
NUMBERS = 200
PATIENCE_S = 300
ERRORS = {
    "pwrite64": ("EIO", "EIO", "ENOSPC"),
    "fdatasync": ("EIO", "EIO", "EDQUOT"),
    "write": ("EIO", "ENOSPC"),
    "fsync": ("EIO",),
    "ftruncate": ("EIO", "ENOSPC"),
    "openat": ("EIO", "EMFILE"),
    "mmap": ("ENOMEM",),
}
"""What the calls that the library and LMDB make may say; the first two are made at every commit."""


def campaign(order: Order) -> Verdict:
    """Let a call of the seed's choice fail, once or from then on, and look at what is left.

    Odd seeds bind the output to a file.
    """
    filled = order.work / "filled"
    apart(ledger.fill, filled / "data", NUMBERS)
    made = [_calls_made(filled, order.work / f"whole-{bound}", bound) for bound in (False, True)]

    without = SAFEGUARD if order.broken else None

    def trial(seed: int, work: Path) -> dict[str, int]:
        chance = random.Random(seed)
        shutil.copytree(filled, disk := work / "disk")
        data, rows = disk / "data", disk / "rows.jsonl" if seed % 2 else None
        calls = made[seed % 2]
        call = chance.choice(["pwrite64", "fdatasync", *(call for call in ERRORS if calls[call])])
        when = f"{chance.randint(1, calls[call])}{chance.choice(['', '+'])}"
        inject = f"inject={call}:error={chance.choice(ERRORS[call])}:when={when}"
        ran = _traced(disk, work / "log", ledger.command(data, seed, rows, without), "-e", inject)
        told = ledger.told_by(ran.stdout)
        ended = _end_of(ran)
        apart(ledger.audit, data, NUMBERS, told, rows)
        apart(ledger.run, data, seed, rows)
        apart(ledger.audit, data, NUMBERS, told, rows, True)
        if "INJECTED" not in (work / "log").read_text():
            raise Missed("did not come so far")
        return {ended: 1}

    return one_by_one(order, trial)


def _end_of(ran: "subprocess.CompletedProcess[bytes]") -> str:
    """Return how a run ended: well, or with an error of the library's."""
    if ran.returncode == 0:
        return "went on"
    errors = ran.stderr.decode(errors="replace").strip()
    last = errors.splitlines()[-1] if errors else f"died of {ran.returncode}"
    found = re.match(r"runtime\.model\.errors\.(\w+): ", last)
    assert found, f"no error of the library's own: {errors[-2_000:] or last}"
    return found[1]


def _traced(disk: Path, log: Path, command: list[str], *options: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a program while calls on the files of a directory are noted in `log`."""
    files = ("data.mdb", "lock.mdb", "format", "opening.lock", "users", "owners/ledger.lock")
    paths = [word for file in (*files, "../rows.jsonl") for word in ("-P", os.path.normpath(disk / "data" / file))]
    strace = ["strace", "-f", "--quiet=all", "--seccomp-bpf", "-o", str(log), "-e", f"trace={','.join(ERRORS)}"]
    return subprocess.run(
        [*strace, *paths, *options, "--", *command], capture_output=True, timeout=PATIENCE_S, check=False
    )


def _calls_made(filled: Path, work: Path, bound: bool) -> Counter[str]:
    """Return how often an undisturbed run makes each call."""
    shutil.copytree(filled, work)
    command = ledger.command(work / "data", 0, work / "rows.jsonl" if bound else None)
    ran = _traced(work, work / "log", command)
    if ran.returncode:
        raise SystemExit(f"strace does not run here: {ran.stderr.decode(errors='replace')}")
    return Counter(re.findall(r"^\d+ +(\w+)\(", (work / "log").read_text(), re.MULTILINE))
