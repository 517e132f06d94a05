"""The command that lists the faults, and tries one of them, or all as often as CI does."""

import argparse
import importlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.faults.trials import Order, Verdict
from tests.scale import positive


class Fault(NamedTuple):
    """A fault: what it does, what it needs, and how often CI and the long tier try it; `unit` is what is counted.

    One that is tried on several kinds of places in turn lists them in `KINDS`, and can be told one of them.
    """

    name: str
    does: str
    needs: str
    unit: str
    ci: int
    long: int

    @property
    def module(self) -> str:
        return f"tests.faults.{self.name.replace('-', '_')}"


FAULTS = (
    Fault("kill-9", "kills the main job with kill -9", "nothing", "kills", 3, 500),
    Fault("kill-container", "kills containers of one run, and who has started them", "nothing", "runs", 1, 100),
    Fault("kill-rescaling", "kills runs and containers while tasks are split and merged", "nothing", "kills", 20, 500),
    Fault("kill-state", "kills changes of stored state by command", "nothing", "kills", 20, 1_000),
    Fault("kill-calls", "kills runs while calls are in the air, and counts these", "nothing", "trials", 4, 50),
    Fault(
        "kill-database",
        "kills runs that write to databases, or stops them",
        "postgresql, redis-server",
        "trials",
        60,  # on each of four databases 15, of one or two kills: more than 20
        1_400,
    ),
    Fault("kill-table", "kills runs that read a table which is written to", "postgresql", "trials", 4, 200),
    Fault("power-cut", "cuts the power under a FUSE disk", "root, fuse3", "power cuts", 25, 1_000),
    Fault("full-disk", "fills the disk, a tmpfs", "root", "full disks", 10, 100),
    Fault("io-error", "has the system refuse a write or a sync", "root, strace", "errors of the system", 15, 300),
    Fault("bit-flip", "changes a bit of the files", "nothing", "bit flips", 150, 10_000),
    Fault("truncation", "cuts a file short", "nothing", "truncations", 50, 10_000),
    Fault("hostile", "sends hostile records through all policies and serdes", "nothing", "records", 20_000, 10_000_000),
    Fault("two-owners", "has processes race for an application", "nothing", "races", 15, 500),
    Fault("stop", "stops the process for minutes, and lets it go on", "nothing", "runs", 8, 200),
    Fault("slow-sink", "has a million records wait for a sink of 1 ms", "nothing", "seconds", 20, 3_600),
    Fault("clock-jump", "sets the wall clock by an hour", "nothing", "runs", 16, 2_000),
)
BY_NAME = {fault.name: fault for fault in FAULTS}


def main(arguments: list[str] | None = None) -> int:
    """Try what is asked for, and return how many trials failed; the last line is the verdict."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("name", nargs="?", choices=BY_NAME, help="the fault; without it, they are listed")
    parser.add_argument("--times", type=positive, help="how often to try it; as often as CI does, if not given")
    parser.add_argument("--seed", type=int, default=0, help="what decides all that can be decided")
    parser.add_argument("--broken", action="store_true", help="switch the safeguard off: trials must fail")
    parser.add_argument("--on", metavar="KIND", help="of a fault that is tried on several kinds of places, one")
    parser.add_argument("--ci", action="store_true", help="try all faults, as often as CI does")
    chosen = parser.parse_args(arguments)
    if chosen.ci:
        return _all(chosen.seed)
    if chosen.name is None:
        _list()
        return 0
    fault = BY_NAME[chosen.name]
    return _one(fault, chosen.times or fault.ci, chosen.seed, chosen.broken, chosen.on)


def _one(fault: Fault, times: int, seed: int, broken: bool, kind: str | None) -> int:
    module = importlib.import_module(fault.module)
    kinds = getattr(module, "KINDS", ())
    if kind is not None and kind not in kinds:
        print(f"{fault.name} is tried on no {kind}, but on {', '.join(kinds) or 'one kind of place'}")
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fault-") as work:
        verdict: Verdict = module.campaign(Order(times, seed, Path(work), broken, kind))
    counts = [f"{count:,} {what}" for what, count in verdict.counts.items()]
    told = "; ".join([f"seed {seed}", *counts, f"{time.monotonic() - began:.0f} s"])
    without = f" without the safeguard '{module.SAFEGUARD}'" if broken else ""
    print(f"{verdict.done:,} {fault.unit}{without}, {verdict.failed:,} failed ({told})")
    return verdict.failed + (verdict.done < times)


def _list() -> None:
    for fault in FAULTS:
        print(f"{fault.name:14} {fault.does}; needs {fault.needs}; CI {fault.ci:,}, long {fault.long:,} {fault.unit}")


def _all(seed: int) -> int:
    """Try all faults in processes of their own, two at a time; tell verdicts, and all of what failed."""

    def tried(fault: Fault) -> int:
        command = [sys.executable, "-m", "tests.faults", fault.name, "--seed", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines() + done.stderr.splitlines()
        print(f"{fault.name}: " + ("\n".join(lines) if done.returncode else lines[-1]), flush=True)
        return done.returncode

    with ThreadPoolExecutor(2) as pool:
        return sum(map(abs, pool.map(tried, FAULTS)))
