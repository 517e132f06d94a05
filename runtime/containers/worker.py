"""A container: a process that runs its share of an application's tasks, as the process that started it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from socket import socket
from typing import cast

from msgspec.structs import replace

from operators.core.wording import named
from planner.model.graph import Graph
from planner.model.plan import Plan
from runtime.assembly.history import beside
from runtime.containers.protocol import (
    Ask,
    AskNumbers,
    AskState,
    CommitNow,
    Connection,
    EndedWell,
    Failed,
    Finished,
    Go,
    Holds,
    Idle,
    Joined,
    Report,
    Start,
    Stop,
    ToldNumbers,
    ToldState,
)
from runtime.functions.calls import Tracing
from runtime.functions.failures import exit_error
from runtime.functions.user_functions import Around
from runtime.job.pipeline import Pipeline
from runtime.loop.threads import operator_raising
from runtime.model.assignment import Placement, sticky
from runtime.model.errors import Fenced, SamzaError
from runtime.model.metrics import RunMetrics
from runtime.ports.environment import Environment, LiveEnvironment
from runtime.queries.state_requests import NoAnswer
from runtime.run.run import Run
from runtime.run.settings import RunSettings, open_environment

Tell = Callable[[BaseException], Failed]
"""Returns the message that tells the other process of an error."""


@dataclass(frozen=True)
class LoadedApplication:
    """The application as the process of a container has loaded it, with what that process does for its runs."""

    graph: Graph
    around: tuple[Around, ...]
    tell: Tell
    placement: Placement = sticky
    hearing: Tracing | None = None
    begins: Callable[[Start], None] = lambda start: None
    """Called with each run that it takes part in behind the first one."""


def digest_of(plan: Plan) -> str:
    """Return the digest of a plan, which only equal plans share; forms name modules, which go by how one is loaded."""
    streams = tuple(replace(one, forms=()) for one in plan.streams)
    return blake2b(replace(plan, streams=streams).to_json().encode(), digest_size=16).hexdigest()


def serve(connection: socket, start: Start, loaded: LoadedApplication) -> int:
    """Run shares of an application, one run after the other, until the other process is gone; return the exit code.

    So tasks that are to be others need not wait until Python has started, and the application is loaded, once more.
    """
    asked: list[SamzaError] = []
    with asyncio.Runner() as runner:
        try:
            return runner.run(_serve(connection, start, loaded, asked))
        except (SystemExit, KeyboardInterrupt) as error:
            # Of a task beside a call. It is told as the loop comes to its end, when nobody knows any more whose it was.
            asked.append(exit_error(loaded.graph, operator_raising(error, {}), error))
            raise


async def _serve(connection: socket, start: Start, loaded: LoadedApplication, asked: list[SamzaError]) -> int:
    line, kept = await Connection.over(connection), _KeptEnvironment()
    try:
        while True:
            code, may_go_on = await _share(line, start, loaded, kept, asked)
            if not may_go_on:
                return code
            line.say(Idle())
            # What was meant for the former run may still come.
            while not isinstance(told := await line.heed(), Start):
                if told is None:
                    return code
            start = told
            loaded.begins(start)
    finally:
        try:
            kept.close()
        finally:
            await line.close()


class _KeptEnvironment:
    """The place where the runs of a container lie: on Kafka one environment, whose clients begin once for all runs."""

    def __init__(self) -> None:
        self._opened: LiveEnvironment | None = None

    def of(self, start: Start) -> str | Environment:
        """Return where a run lies; raises `EnvironmentFault` where brokers do not answer."""
        if start.environment is None:
            return start.data
        if self._opened is None:
            where = start.data, start.environment, start.host_id, start.state_address
            self._opened = cast("LiveEnvironment", open_environment(*where))
        return self._opened

    def let_go(self, app: str) -> None:
        """Let go of an application whose run is over here."""
        if self._opened is not None:
            self._opened.let_go(app)

    def close(self) -> None:
        """Lie nowhere any more."""
        if self._opened is not None:
            self._opened.close()


async def _share(
    line: Connection, start: Start, loaded: LoadedApplication, kept: _KeptEnvironment, asked: list[SamzaError]
) -> tuple[int, bool]:
    """Run a share of one run until the other process says stop, or is gone.

    Return the exit code that comes of it, and whether this process is fit for another run. What ends the process at
    once is what it was `asked` for.
    """
    graph = beside(loaded.graph, start.beside)
    try:
        try:
            run = _opened(graph, start, loaded, kept)
            has_begun = await _run(run, line)
        finally:
            kept.let_go(graph.app)
    except Exception as error:
        line.say(loaded.tell(error))
        return 1, isinstance(error, Fenced)
    except asyncio.CancelledError:
        # Nobody else cancels this than Python, as it ends the process.
        line.say(loaded.tell(*asked or [SamzaError("a function of the application has stopped the event loop")]))
        return 1, False
    # One that never began has let go of its environment, which has no last numbers of it.
    line.say(EndedWell(metrics=run.metrics(stores=run.keeps_state) if has_begun else RunMetrics()))
    return 0, True


def _opened(graph: Graph, start: Start, loaded: LoadedApplication, kept: _KeptEnvironment) -> Run:
    """Open a share of a run; raises SamzaError where it is not of the application that is loaded here."""
    settings = RunSettings(
        bind=start.bind,
        share=start.share,
        placement=loaded.placement,
        hearing=loaded.hearing,
    )
    run = Run(Pipeline(graph, start.options, loaded.around), kept.of(start), settings)
    try:
        if digest_of(run.plan) != start.plan:
            raise SamzaError(
                f"the application {graph.app!r} that a container loads is not the one that was started: it is "
                "built anew there, so it may not depend on arguments or on what was changed after it was loaded"
            )
    except BaseException:
        # Nobody drives this run, so nobody else would let go of what it has opened.
        run.release()
        raise
    return run


async def _run(run: Run, line: Connection) -> bool:
    """Drive a run, and meanwhile heed what the starter says; return whether that let it begin.

    Who does not hear the starter any more ends, with the error that it was.
    """
    line.say(Joined())
    run.when_finished(lambda: line.say(Finished()))
    run.when_shared(lambda: line.say(Holds(tuple(run.tasks))))
    began: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    heeding = asyncio.create_task(_heed(run, line, began))
    try:
        has_begun = await began
        if has_begun:
            await run.drive()
        else:
            run.release()
    finally:
        heeding.cancel()
        await asyncio.wait([heeding])
    if not heeding.cancelled():
        heeding.result()
    return has_begun


async def _heed(run: Run, line: Connection, began: asyncio.Future[bool]) -> None:
    answers: set[asyncio.Task[None]] = set()
    try:
        while (told := await line.heed()) is not None and not isinstance(told, Stop):
            if isinstance(told, Go) and not began.done():
                began.set_result(True)
            elif isinstance(told, Ask):
                # Beside: an answer waits until the run has settled, and a Stop must be heard meanwhile.
                answer = asyncio.create_task(_answer(run, line, told))
                answers.add(answer)
                answer.add_done_callback(answers.discard)
            elif isinstance(told, AskNumbers):
                _tell_numbers(run, line)
            elif isinstance(told, CommitNow):
                run.want_commit()
            elif isinstance(told, AskState):
                answer = asyncio.create_task(_answer_state(run, line, told))
                answers.add(answer)
                answer.add_done_callback(answers.discard)
        _let_end(run, began)
        # The starter still asks until the run has ended: `_run` then cancels this.
        while True:
            if isinstance(told := await line.heed(), Ask):
                line.say(_report(run, told))
            elif isinstance(told, AskNumbers):
                _tell_numbers(run, line)
            elif told is None:
                return
    except Exception:
        _let_end(run, began)
        raise
    finally:
        for answer in answers:
            answer.cancel()


def _let_end(run: Run, began: asyncio.Future[bool]) -> None:
    run.stop()
    if not began.done():
        began.set_result(False)


async def _answer(run: Run, line: Connection, ask: Ask) -> None:
    """Answer a round; where nothing seems to be left to do, only after another look."""
    is_caught_up = False
    if run.finished:
        # Brokers may not answer; or the run ends, and says so itself.
        with suppress(Exception):
            found = await run.is_caught_up()
            await run.settled()
            is_caught_up = found
    line.say(_report(run, ask, is_caught_up))


def _tell_numbers(run: Run, line: Connection) -> None:
    with suppress(SamzaError):  # of a run that has failed
        line.say(ToldNumbers(run.metrics(stores=run.keeps_state)))


async def _answer_state(run: Run, line: Connection, asked: AskState) -> None:
    try:
        answer = await run.state_answer(asked.request)
    # Whoever asks waits for an answer, and a question ends no run.
    except Exception as error:
        answer = NoAnswer(500, named(error)).answer
    line.say(ToldState(asked.number, answer))


def _report(run: Run, ask: Ask, is_caught_up: bool = True) -> Report:
    return Report(
        round=ask.round,
        finished=run.finished and is_caught_up,
        tasks=tuple(run.tasks),
        commits=run.commits,
        metrics=run.metrics(stores=run.keeps_state) if ask.metrics else None,
    )
