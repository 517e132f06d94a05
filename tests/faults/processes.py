"""Processes apart: forked children that may die of what they do, and what they have told until then."""

import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

EXIT_FAILED = 1
PATIENCE_S = 300
POLL_S = 0.002


class Child:
    """A forked process that runs a function; what it prints is kept, however it ends."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._output, self._errors, self._result = (os.memfd_create(name) for name in ("output", "errors", "result"))
        self._status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._be(function, arguments)

    def _be(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        status = EXIT_FAILED
        try:
            os.dup2(self._output, 1)
            os.dup2(self._errors, 2)
            os.write(self._result, pickle.dumps(function(*arguments)))
            status = 0
        except AssertionError as error:
            sys.stderr.write(str(error))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return how it has ended, as `subprocess` says it; None while it lives."""
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end, and return how it ended."""
        status = self._waited(0)
        assert status is not None
        return status

    def kill(self) -> int:
        """End it at once, and return how it ended."""
        self.send(signal.SIGKILL)
        return self.wait()

    def output(self) -> bytes:
        """Return what it has printed so far."""
        return _contents(self._output)

    def errors(self) -> str:
        """Return the end of what it has printed as errors so far."""
        return _contents(self._errors).decode(errors="replace")[-2_000:]

    def result(self) -> Any:
        """Return what its function returned; raises AssertionError, with what is known, when it did not."""
        status = self.wait()
        if status < 0:
            raise AssertionError(f"a process died of {signal.Signals(-status).name}: {self.errors()}")
        if status:
            raise AssertionError(self.errors())
        return pickle.loads(_contents(self._result))  # our own child's

    def close(self) -> None:
        """Be done with it, and with what it has printed."""
        self.kill()
        for descriptor in (self._output, self._errors, self._result):
            os.close(descriptor)

    def _waited(self, options: int) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


@contextmanager
def child(function: Callable[..., Any], *arguments: Any) -> Iterator[Child]:
    """Run a function in a process of its own, which is gone at the end of the block."""
    process = Child(function, *arguments)
    try:
        yield process
    finally:
        process.close()


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a process of its own; raises AssertionError when it fails or dies there."""
    with child(function, *arguments) as process:
        return process.result()


def _contents(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def wait_until(happened: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Look again and again; raises TimeoutError when it takes too long."""
    began = time.monotonic()
    until = began + patience_s
    while not happened():
        looked = time.monotonic()
        if looked > until:
            raise TimeoutError(f"nothing has happened for {patience_s} s")
        time.sleep(max(POLL_S, 2 * (looked - began)))  # what is waited for wants the processor more than a look does
        began = time.monotonic()


def run_quietly(*command: object) -> None:
    """Run a program of the system; raises SystemExit, with what it says, when it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")
