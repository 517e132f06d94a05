"""The anonymous memory of this process: what it allocated, without LMDB's pages, which are the system's cache."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

PROC = Path("/proc")
PERIOD_SECONDS = 0.01


def anonymous_mib(process: int | str = "self") -> float | None:
    """Return RssAnon, or None where the system does not tell it."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", (PROC / f"{process}" / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None


def tree_mib() -> float | None:
    """Return the anonymous memory of this process and of all that it has started."""
    children: dict[int, list[int]] = {}
    for status in PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = status.read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(status.parent.name))
    tree = [os.getpid()]
    for process in tree:
        tree += children.get(process, [])
    own = anonymous_mib()
    return None if own is None else own + sum(anonymous_mib(process) or 0 for process in tree[1:])


def growth_mib(work: Callable[[], Any], look: Callable[[], float | None] = anonymous_mib) -> float | None:
    """Return by how much the anonymous memory grew at most while `work` was done; looking at it takes time."""
    before = look()
    if before is None:
        return None
    seen, over = [before], threading.Event()

    def watch() -> None:
        while not over.wait(PERIOD_SECONDS):
            seen.append(look() or 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = work()
        seen.append(look() or 0)
        del result
    finally:
        over.set()
        watcher.join()
    return max(seen) - before
