"""Threads for tasks whose functions block, and the watch over calls that never return."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextvars import copy_context
from types import FrameType
from typing import Any

from operators.core.sites import FUSED
from planner.codegen.fusion import row_in
from runtime.functions.at_work import operator_at, told_by
from runtime.functions.first_call import checked_once
from runtime.functions.user_lines import OPERATOR
from runtime.model.errors import OperatorFailure
from runtime.stage.chain import Chain


class Workers(Executor):
    """A fixed number of daemon threads: one that hangs in a user's function does not keep the program from ending.

    The event loop submits; each future is completed on one of the threads.
    """

    def __init__(self, threads: int) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        # The executor of the standard library joins its threads at the interpreter's end, so one that hangs would hang
        # the program.
        self._threads = [
            threading.Thread(target=copy_context().run, args=(self._serve,), daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn` on one of the threads."""
        future: Future[Any] = Future()
        self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end when they have nothing to do; none is waited for."""
        for _ in self._threads:
            self._work.put(None)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                # SystemExit in a user's function as well: the future must end, and the loop raises it.
                except BaseException as error:
                    future.set_exception(error)


class Watch:
    """Notices that a thread has been in one and the same call of a user's function for too long.

    It looks at the threads' frames now and then, so that calls cost nothing. A call is known by its frame. Only the
    event loop's thread uses it; the threads that it watches know nothing of it.
    """

    def __init__(self, timeout_ms: float, lines: Mapping[str, tuple[str, ...]]) -> None:
        self._timeout_ms = timeout_ms
        self._lines = lines
        self._seen: dict[int, tuple[Any, float]] = {}

    def check(self, threads: list[int], now_ms: float) -> None:
        """Look at the threads; raises OperatorFailure naming the operator in which one of them hangs."""
        frames = sys._current_frames()
        for thread in threads:
            call, operator = _call_of(frames.get(thread), self._lines)
            seen, since = self._seen.get(thread, (None, now_ms))
            if call is None or not _same(call, seen):
                self._seen[thread] = (call, now_ms)
            elif now_ms - since > self._timeout_ms:
                raise OperatorFailure(
                    f"{operator or 'a user function'} has not returned after blocking_timeout_ms="
                    f"{self._timeout_ms:,.0f}, at {_site(call)}; nothing of its batch was committed. Give what blocks "
                    "there a timeout of its own, or make it async: async_flat_map(..., timeout_ms=...)"
                )


def _call_of(frame: FrameType | None, lines: Mapping[str, tuple[str, ...]]) -> tuple[Any, str]:
    """Return the user's frame right below ours, or our frame and row where the function is not Python's, and whose."""
    below: FrameType | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(FUSED):
            owners = lines.get(name, ())
            operator = owners[frame.f_lineno - 1] if frame.f_lineno <= len(owners) else ""
            return (below or frame, row_in(frame)), operator
        module = frame.f_globals.get("__name__", "")
        if module == checked_once.__module__:  # it stands between ours and the user's function
            frame = frame.f_back
            continue
        if module.partition(".")[0] in ("runtime", "operators"):
            return ((below, None), operator_at(frame) or "") if below is not None else (None, "")
        below, frame = frame, frame.f_back
    return None, ""


def operator_raising(error: BaseException, lines: Mapping[str, tuple[str, ...]]) -> str:
    """Return the operator whose function has raised something, as its traceback tells; "" where it is nobody's."""
    found, trace = "", error.__traceback__
    while trace is not None:
        frame, owners = trace.tb_frame, lines.get(trace.tb_frame.f_code.co_filename, ())
        # The innermost counts: one line of fused source may call another.
        if 0 < trace.tb_lineno <= len(owners):
            found = owners[trace.tb_lineno - 1] or found
        elif frame.f_code is Chain.explore.__code__:
            found = frame.f_locals["entry"]
        elif frame.f_code is asyncio.Handle._run.__code__:
            # The event loop calls a task that a call has begun, or a callback, in a copy of the call's context.
            found = frame.f_locals["self"]._context.get(OPERATOR) or found
        else:
            found = told_by(frame) or found
        trace = trace.tb_next
    return found


def _same(call: tuple[Any, Any], seen: tuple[Any, Any] | None) -> bool:
    return seen is not None and call[0] is seen[0] and call[1] == seen[1]


def _site(call: tuple[FrameType, Any]) -> str:
    return f"{call[0].f_code.co_filename}:{call[0].f_lineno}"
