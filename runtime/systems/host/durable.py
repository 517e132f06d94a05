"""Files and names that outlast a power cut: there as a whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def replace_durably(path: Path, data: bytes, attempt: str = "") -> None:
    """Put these bytes in the place of a file, at once and durably; `attempt` tells apart who tries to."""
    unfinished = path.with_name(f".{path.name}{attempt}")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    # Durable before it takes the name: after a power cut there is the old file or the new one, never half of one.
    unfinished.replace(path)
    make_durable(path.parent)


def make_durable(path: Path) -> None:
    """Make what a file holds durable, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
