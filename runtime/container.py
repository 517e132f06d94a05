"""A container: a process that runs its share of an application's tasks, as the process that started it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from planner.graph import Graph
from planner.plan import Plan
from runtime.assignment import Placement, sticky
from runtime.errors import SamzaError
from runtime.functions import Around
from runtime.history import beside
from runtime.run import Run
from runtime.talk import Ask, Ended, Failed, Finished, Go, Joined, Line, Report, Start, Stop

Tell = Callable[[BaseException], Failed]
"""Makes of an error what the other process is told."""


def digest_of(plan: Plan) -> str:
    """Return what only equal plans have in common."""
    return blake2b(plan.to_json().encode(), digest_size=16).hexdigest()


async def serve(
    connection: Any, start: Start, graph: Graph, around: tuple[Around, ...], tell: Tell, placement: Placement = sticky
) -> int:
    """Run a share of an application until the other process says stop, or is gone; return the exit code."""
    line, graph = await Line.over(connection), beside(graph, start.beside)
    try:
        where = graph, start.options, around, start.data
        place: dict[str, Any] = {"environment": start.environment, "host_id": start.host_id, "placement": placement}
        run = Run(*where, bind=start.bind, share=start.share, **place)
        try:
            if digest_of(run.plan) != start.plan:
                raise SamzaError(
                    f"the application {graph.app!r} that a container loads is not the one that was started: it is "
                    "built anew there, so it may not depend on arguments or on what was changed after it was loaded"
                )
        except BaseException:
            run.release()
            raise
        await _run(run, line)
    except (Exception, asyncio.CancelledError) as error:
        line.say(tell(error))
        return 1
    else:
        line.say(Ended(metrics=run.metrics(stores=run.keeps_state)))
        return 0
    finally:
        await line.close()


async def _run(run: Run, line: Line) -> None:
    """Drive a run, and do meanwhile as one is told."""
    line.say(Joined())
    run.when_finished(lambda: line.say(Finished()))
    began = asyncio.get_running_loop().create_future()
    heeding = asyncio.create_task(_heed(run, line, began))
    try:
        if await began:
            await run.drive()
        else:
            run.release()
    finally:
        heeding.cancel()
        await asyncio.wait([heeding])


async def _heed(run: Run, line: Line, began: asyncio.Future[bool]) -> None:
    answers: set[asyncio.Task[None]] = set()
    try:
        while (told := await line.heed()) is not None and not isinstance(told, Stop):
            if isinstance(told, Go) and not began.done():
                began.set_result(True)
            elif isinstance(told, Ask):
                answer = asyncio.create_task(_answer(run, line, told))
                answers.add(answer)
                answer.add_done_callback(answers.discard)
        run.stop()
        if not began.done():
            began.set_result(False)
        while True:  # until the run has ended
            if isinstance(told := await line.heed(), Ask):
                line.say(_report(run, told))
            elif told is None:
                return
    finally:
        for answer in answers:
            answer.cancel()


async def _answer(run: Run, line: Line, ask: Ask) -> None:
    """Answer, and where nothing seems to be left to do look again first."""
    is_caught_up = False
    if run.finished:
        with suppress(Exception):  # brokers do not answer; or it ends, and says so itself
            found = await run.is_caught_up()
            await run.settled()
            is_caught_up = found
    line.say(_report(run, ask, is_caught_up))


def _report(run: Run, ask: Ask, is_caught_up: bool = True) -> Report:
    return Report(
        round=ask.round,
        finished=run.finished and is_caught_up,
        tasks=tuple(run.tasks),
        commits=run.commits,
        metrics=run.metrics(stores=run.keeps_state) if ask.metrics else None,
    )
