"""Watches the load of a run in containers, and asks for more of them or fewer as a sizing decides."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from operators.core.protocols import CheckedProtocol
from operators.core.sites import here
from operators.core.wording import named, shown
from planner.checks.splitting import most_parts, splittable, whole_tasks
from planner.model.plan import Plan
from runtime.functions.user_lines import user_lines
from runtime.model.assignment import Scale
from runtime.model.clock import sleep_ms
from runtime.model.metrics import InputMetrics, RunMetrics, unread
from runtime.model.sizing import Load, Sized, Sizing, remembered
from runtime.run.driver import Watch, Watched, numbers_of

LOOK_MS = 5_000.0
"""The interval between two looks at the load."""
_log = logging.getLogger("samza_dsl")


@runtime_checkable
class Sizable(Watched, Protocol, metaclass=CheckedProtocol):
    """A run whose containers can become more, or fewer."""

    @property
    def heeds_sizes(self) -> bool:
        """Whether this process gives the run another size: of those that share one on brokers, who leads it does."""

    @property
    def number(self) -> int:
        """The number of containers that it has, or is about to have."""

    @property
    def elsewhere(self) -> tuple[InputMetrics, ...]:
        """The inputs of tasks that others have who share the run, as of their last commits."""

    async def ask_size(self, wanted: Scale) -> None:
        """Ask for another size of this run, as a command would."""


class Autosizer:
    """Watches a run in containers, and asks for another size where a sizing decides on one.

    It asks as `samza-dsl scale` does, so the last one who asks is heeded, and a restart finds the factor. It is called
    in the thread of the event loop. Invariant: loads are measured between two looks at one size that is settled.
    """

    def __init__(self, sizing: Sizing) -> None:
        self._sizing = sizing
        self._loads: list[Load] = []
        self._before: RunMetrics | None = None
        self._whole = False
        self._site, self._told = here(), ""

    async def watch(self, run: Watched) -> None:
        """Watch a run until cancelled."""
        assert isinstance(run, Sizable), "what is sized runs in containers"
        while True:
            await sleep_ms(LOOK_MS)
            if not run.heeds_sizes:
                self._before = None
                continue
            metrics = await numbers_of(run, stores=False)
            # Where others have too much to read, tasks of theirs come to the containers that there are more here.
            here = {(one.stream, one.partition) for one in metrics.inputs}
            theirs = (one for one in run.elsewhere if (one.stream, one.partition) not in here)
            wanted = self.look(replace(metrics, inputs=(*metrics.inputs, *theirs)), run.plan, run.number)
            if wanted is not None:
                await run.ask_size(wanted)

    def look(self, metrics: RunMetrics, plan: Plan, containers: int) -> Scale | None:
        """Return the size to ask for by the numbers of this moment, if it is another one."""
        before, self._before = self._before, metrics
        if sum(one.settled for one in metrics.containers) != containers:
            self._before = None  # what is measured while tasks come and go tells of no size
            return None
        factor = plan.options.factor
        if before is None or metrics.elapsed_ms <= before.elapsed_ms:
            return None
        self._loads = remembered([*self._loads, load_between(before, metrics, containers, factor)])
        sized = self._decided()
        if sized is None or sized.containers == containers:
            return None
        number, parts = self._possible(sized.containers, plan)
        if (number, parts) == (containers, factor):
            return None
        _log.info("%s: %d containers in the place of %d: %s", plan.app, number, containers, sized.why)
        self._before = None
        return Scale(parts, number, sized.why)

    def _decided(self) -> Sized | None:
        """Return what the sizing says; where it fails or says something else, nothing, and the log tells it once."""
        sizing = self._sizing
        # A run goes on, whatever a function of its user raises.
        try:
            sized = sizing(self._loads)
        except Exception as error:
            self._tell_wrong("\n".join((f"raised {named(error)}", *user_lines(error))))
            return None
        if sized is None:
            return None
        # Checked, for what is asked for is stored: a run could not read again a size that is no whole number.
        if (
            isinstance(sized, Sized)
            and (type(sized.containers), type(sized.why)) == (int, str)
            and sized.containers > 0
        ):
            return sized
        self._tell_wrong(f"returned {shown(sized)}; write instead: Sized(containers, why), as Sized(4, 'by night')")
        return None

    def _tell_wrong(self, wrong: str) -> None:
        if wrong != self._told:
            self._told = wrong
            _log.error("%s: the size stays as it is, for autosize= %s", self._site, wrong)

    def _possible(self, containers: int, plan: Plan) -> tuple[int, int]:
        """Return how many containers can have something to do, and the factor by which tasks must be split for them.

        A factor stays where it is enough: what a merge of tasks would spare is little.
        """
        now, base, most = plan.options.factor, whole_tasks(plan), most_parts(plan)
        factor = now
        while base * factor < containers and factor < most:
            factor *= 2
        refused = splittable(plan) if factor > now else ()
        if not refused:
            return min(containers, base * factor), factor
        if not self._whole:
            self._whole = True
            each = "\n".join(map(str, refused))
            _log.warning("%s: %d tasks are for %d containers at most:\n%s", plan.app, plan.tasks, plan.tasks, each)
        return min(containers, plan.tasks), now


def beside(watch: Watch | None, autosizer: Autosizer) -> Watch:
    """Return what sizes a run and watches it as `watch` does, too."""

    async def both(run: Watched) -> None:
        await asyncio.gather(autosizer.watch(run), *([watch(run)] if watch is not None else ()))

    return both


def load_between(before: RunMetrics, now: RunMetrics, containers: int, factor: int) -> Load:
    """Return the load between two looks at the numbers of a run.

    >>> load_between(RunMetrics(), RunMetrics(elapsed_ms=2_000.0), containers=3, factor=1).busy
    0.0
    """
    seconds = (now.elapsed_ms - before.elapsed_ms) / 1_000
    (read_before, lag_before), (read, lag) = _read_and_lag(before, now), _read_and_lag(now, before)
    worked_ms = max(_worked_ms(now) - _worked_ms(before), 0.0)
    return Load(
        containers=containers,
        factor=factor,
        lag=sum(unread(now.inputs).values()),
        came_per_s=max(read - read_before + lag - lag_before, 0.0) / seconds,
        read_per_s=max(read - read_before, 0.0) / seconds,
        busy=min(worked_ms / 1_000 / seconds / containers, 1.0),
    )


def _read_and_lag(one: RunMetrics, other: RunMetrics) -> tuple[float, float]:
    """Return how many records of the partitions that both looks saw were read in all, and are not."""
    # What a look sees for the first time, as others take it over, was not read since the look before it.
    seen = {(each.stream, each.partition) for each in other.inputs}
    both = [each for each in one.inputs if (each.stream, each.partition) in seen]
    partitions: dict[tuple[str, int], list[InputMetrics]] = {}
    for each in both:
        partitions.setdefault((each.stream, each.partition), []).append(each)
    # Each virtual task reads all records, and has its share of these: so a record counts by those that have passed it.
    read = sum(sum(each.offset for each in all) / len(all) for all in partitions.values())
    return read, sum(unread(both).values())


def _worked_ms(metrics: RunMetrics) -> float:
    return sum(one.process_ms + one.window_ms for one in metrics.tasks)
