"""Programs that tests run in processes of their own, in which a container dies on the way."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.source import ROOT


def write_program(folder: Path, name: str, text: str) -> None:
    """Write a program, which is indented as it stands in a test."""
    (folder / f"{name}.py").write_text(textwrap.dedent(text))


def run_program(folder: Path, name: str, **said: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in its folder, with what is said in its environment."""
    command = [sys.executable, f"{name}.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **said}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def dying_once_each(many: int) -> Callable[[Any, Any], list[Any]]:
    """Return the function of a `process`, whose process dies once at the middle row of each so many."""

    def dying(row: Any, context: Any) -> list[Any]:
        mark = Path(f"died-{row.id // many}")
        if row.id % many == many // 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [row]

    return dying
