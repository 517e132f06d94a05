"""The anonymous memory of this process: what it allocated, without LMDB's pages, which are the system's cache."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
PERIOD_SECONDS = 0.01


def anonymous_mib() -> float | None:
    """Return RssAnon, or None where the system does not tell it."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE) if STATUS.exists() else None
    return int(found[1]) / 1024 if found else None


def growth_mib(work: Callable[[], Any]) -> float | None:
    """Return by how much the anonymous memory grew at most while `work` was done; looking at it takes time."""
    before = anonymous_mib()
    if before is None:
        return None
    seen, over = [before], threading.Event()

    def watch() -> None:
        while not over.wait(PERIOD_SECONDS):
            seen.append(anonymous_mib() or 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = work()
        seen.append(anonymous_mib() or 0)
        del result
    finally:
        over.set()
        watcher.join()
    return max(seen) - before
