"""A copy of a run's data directory on another disk, kept up by a process beside the run."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from runtime.model.clock import monotonic_ms
from runtime.model.errors import SamzaError
from runtime.systems.log.backup import Backup, back_up, check_apart
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.log.recovery import DATA_FILE

EVERY_S = 10.0
"""The seconds between two copies, where something was written since."""
MOST_LAST_S = 30.0
"""The seconds for which the last copy is waited for: a disk may hang, and a supervisor waits for no run for ever."""
KEPT = 10
"""The copies that are kept where nobody says how many."""
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from samza_dsl.application.replica import main; main()"
)
"""The code that the Python beside a run is started with; its arguments: the import path, the data, the target."""
SAYS = "replica: "
"""The beginning of each line that the process which copies says."""
_log = logging.getLogger("samza_dsl")


def copies(data: Path, target: Path, keep: int, is_over: Callable[[], bool]) -> Iterator[Backup | SamzaError | None]:
    """Yield a backup, or why there is none, whenever something was written since, until `is_over`, which waits.

    Where the newest backup has all that is there, it yields None.
    The last one has all that was there at the end. What has failed is tried again.
    """
    version, ends = -1, False
    while True:
        # A run makes the log: who only copies does not.
        if (data / DATA_FILE).is_file():
            try:
                with closing(LogEnvironment(data)) as log:
                    # Looked up before the copy: what comes meanwhile is in the next one.
                    newest = log.version()
                    if newest != version:
                        yield back_up(data, target, keep)
                        version = newest
                    else:
                        yield None
            except SamzaError as error:
                yield error
        if ends:
            return
        ends = is_over()


@contextmanager
def replicated(data: Path, target: Path) -> Iterator[Callable[[], float]]:
    """Keep up a copy of a data directory during a block, and have all of it there at its end; yield its age in ms.

    A process of its own reads the log, so that the run does not wait for it, and ends when this one is gone. The log
    says what fails, and when copies go on. Raises SamzaError where the target lies within the directory.
    """
    check_apart(data, target)
    keeper = _Keeper(data, target)
    try:
        yield keeper.age_ms
    finally:
        keeper.close()


class _Keeper:
    """The process that copies, and the thread that hears it, and starts another one where it dies."""

    def __init__(self, data: Path, target: Path) -> None:
        self._data, self._target = data, target
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._wrong, self._whole_ms = "", monotonic_ms()
        try:
            self._process = self._started()
        except OSError as error:
            raise SamzaError(f"the replica of {data} in {target}: its process can't be started: {error}") from None
        self._thread = threading.Thread(target=self._hear, name="samza-dsl-replica", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the last copy; where that takes long the run ends, and what copies goes on without it."""
        with self._lock:
            self._closing.set()
            self._let_end()
        self._thread.join(MOST_LAST_S)
        if self._thread.is_alive():
            where = self._data, self._target, MOST_LAST_S, self._process.pid
            _log.warning("the replica of %s in %s: its last copy takes over %.0f s; process %d goes on with it", *where)

    def age_ms(self) -> float:
        """Return the time since the copy was last seen to have all that was there, or since there is this process."""
        return monotonic_ms() - self._whole_ms

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path), os.fspath(self._data), os.fspath(self._target)]
        # A group of its own: Ctrl-C is for the run, which then tells the copier.
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)

    def _let_end(self) -> None:
        assert self._process.stdin is not None, "its input is a pipe, whose end is the end of the run"
        self._process.stdin.close()

    def _hear(self) -> None:
        """Hear the process to its end; where it dies start another, once more for the last copy as well."""
        is_last, wrong = False, self._heard()
        while wrong or not self._closing.is_set():
            if wrong:
                self._tell(wrong, "")
            if is_last:
                return
            self._closing.wait(EVERY_S)
            with self._lock:
                self._let_end()
                is_last = self._closing.is_set()
                try:
                    self._process = self._started()
                except OSError as error:  # the machine has no room for one more process, and may have later
                    wrong = f"what copies can't be started: {error}"
                    continue
                if is_last:
                    self._let_end()
            wrong = self._heard()

    def _heard(self) -> str:
        """Tell what the process says until it ends; return why it has ended, "" where it was to."""
        assert self._process.stdout is not None, "its output is a pipe"
        with self._process.stdout as said:
            for line in said:
                if line.startswith(SAYS):  # others, as a hook of Python's start, may write there as well
                    self._tell(*json.loads(line.removeprefix(SAYS)))
        code = self._process.wait()
        return f"what copies has ended with exit code {code}" if code else ""

    def _tell(self, wrong: str, told: str) -> None:
        """Say what fails when it begins to, and when that is over."""
        if not wrong:
            self._whole_ms = monotonic_ms()
        if wrong and wrong != self._wrong:
            _log.warning("the replica of %s in %s is not kept up: %s", self._data, self._target, wrong)
        elif self._wrong and not wrong:
            _log.warning("the replica of %s in %s is kept up again: %s", self._data, self._target, told)
        elif told:
            _log.info("the replica of %s in %s: %s", self._data, self._target, told)
        self._wrong = wrong


def main() -> None:
    """Copy until standard input ends, and a last time then; each copy is a line on standard output."""
    data, target = map(Path, sys.argv[2:4])
    os.nice(10)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the run decides

    def is_over() -> bool:
        return bool(select.select([sys.stdin], [], [], EVERY_S)[0])

    for found in copies(data, target, KEPT, is_over):
        wrong = str(found) if isinstance(found, SamzaError) else ""
        told = f"copy {found.number}, {found.new_bytes:,} bytes written" if isinstance(found, Backup) else ""
        # Unbuffered, and whether or not somebody hears it: the last copy is taken where the run was killed, too.
        with suppress(BrokenPipeError):
            os.write(sys.stdout.fileno(), f"{SAYS}{json.dumps((wrong, told))}\n".encode())
