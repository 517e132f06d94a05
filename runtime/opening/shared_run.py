"""A run shared by all who start containers of it, on one machine or more: they join it, and end it together."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from operators.core.protocols import CheckedProtocol
from runtime.model.assignment import JobModel
from runtime.model.clock import monotonic_ms, sleep_ms
from runtime.model.errors import Fenced, SamzaError
from runtime.opening.agreement import StarterReport, all_quiet
from runtime.opening.opening import Share

GONE_MS, NEVER_CAME_MS = 10_000.0, 120_000.0
"""The time without containers after which a starter counts as gone, and the one for the first of them to come."""
JOIN_MS = 20_000.0
"""The time within which a run that has fenced another is announced to who joins it."""
LOOK_MS = 250.0
"""The interval between two looks for it."""


class SharedRun(msgspec.Struct, frozen=True):
    """The description of a run for those who come to share it; `plan` is the digest of the plan, as theirs must be.

    The starter that has begun it is its `leader`, which alone takes in and delivers.
    """

    share: Share
    plan: str
    until_now: bool
    leader: str = ""


class Runs(Protocol):
    """The notes on the newest run of an application, where all who share it can see them."""

    def model(self) -> JobModel:
        """Return who runs what now; no containers where none lives, or while tasks are being shared out anew."""

    def is_alive(self) -> bool:
        """Whether any container lives."""

    def is_run(self) -> bool:
        """Whether others are known to run it, alone or in containers, or to have done so just now."""

    def generation(self) -> int:
        """Return the generation of the newest run; 0 where there was none."""

    def begun(self) -> bytes | None:
        """Return what `begin` said of the newest run; None where it is not shared."""

    def begin(self, said: bytes) -> None:
        """Note what others need to know who come to share the run."""

    def say(self, starter: str, said: bytes) -> None:
        """Note the progress of the containers of a starter."""

    def said(self) -> Mapping[str, bytes]:
        """Return the last note of each starter, of any run."""


@runtime_checkable
class SharedEnvironment(Protocol, metaclass=CheckedProtocol):
    """An environment in which several may start containers of a run."""

    def runs(self, app: str) -> Runs:
        """Return the notes on an application's newest run."""


class Sharing:
    """One starter of containers of a run, among others; each call may wait for brokers."""

    def __init__(self, runs: Runs, name: str | None = None) -> None:
        self.name = secrets.token_hex(4) if name is None else name
        self.run = 0
        self._leader = ""
        self._has_come, self._missed_ms = False, 0.0
        """Whether containers of the leader were seen in this run, and since when they are not."""
        self._runs = runs
        self._said = StarterReport(0, (), "")
        self._saying = threading.Lock()
        """What asks brokers is called in threads, and nobody may say again what another one has said since."""

    def found(self) -> SharedRun | None:
        """Return the run that goes on, if there is one to share: its containers may all have ended."""
        found = self.announced()
        if found is None or not self._runs.is_alive():
            return None
        self._know(found)
        # Its containers may all be gone before the next look, which is no reason to wait as for those to come.
        self._has_come = self._leader in {starter_of(container) for container in self._runs.model().containers}
        return found

    def announced(self) -> SharedRun | None:
        """Return the newest run, if it can be shared; what was said may be of one that was fenced since."""
        said = self._runs.begun()
        found = None if said is None else msgspec.msgpack.decode(said, type=SharedRun)
        return found if found is not None and found.share.generation == self._runs.generation() else None

    def newer(self) -> SharedRun | None:
        """Return the run that has fenced the one that was shared, once it is announced: its containers are to come."""
        found = self.announced()
        if found is None or found.share.generation <= self.run:
            return None
        self._know(found)
        return found

    def begin(self, run: SharedRun) -> None:
        """Let others share a run that begins, and lead it."""
        led = msgspec.structs.replace(run, leader=self.name)
        self._know(led)
        self._runs.begin(msgspec.msgpack.encode(led))

    @property
    def leads(self) -> bool:
        """Whether this starter has begun the run."""
        return self._leader == self.name

    def is_deserted(self, now_ms: float) -> bool:
        """Whether the leader has been gone for a while, and this starter is the first of those who are left."""
        model = self._runs.model()
        alive = {starter_of(container) for container in model.containers}
        # While tasks are shared out nobody is known to live; and one without containers here would not be known either.
        if model.run != self.run or self.name not in alive:
            return False
        if self._leader in alive:
            self._has_come, self._missed_ms = True, 0.0
            return False
        self._missed_ms = self._missed_ms or now_ms
        is_gone = now_ms - self._missed_ms >= (GONE_MS if self._has_come else NEVER_CAME_MS)
        return is_gone and min(alive) == self.name

    def end(self) -> None:
        """Say that the run is over, all of it, which this starter has led."""
        assert self.leads, "who leads knows that all is delivered"
        self._say(is_over=True)

    def is_over(self) -> bool:
        """Whether all of the run is over, as its leader has said."""
        said = self.quiet().get(self._leader)
        return said is not None and said.is_over

    def quiet(self) -> dict[str, StarterReport]:
        """Return the last report of each starter in this run."""
        said = {name: msgspec.msgpack.decode(one, type=StarterReport) for name, one in self._runs.said().items()}
        return {name: one for name, one in said.items() if one.run == self.run}

    def agree(self, held: Collection[int], commits: str, before: Mapping[str, StarterReport], tasks: int) -> bool:
        """Report that one's containers had nothing to do after the reports of others; return whether all is done."""
        seen = {name: one.commits for name, one in before.items() if name != self.name}
        self._say(tasks=tuple(sorted(held)), commits=commits, seen=seen)
        # A starter whose containers are all gone is not waited for.
        alive = {starter_of(container) for container in self._runs.model().containers}
        return all_quiet(self.quiet(), alive, tasks)

    def say_ready(self, number: int) -> None:
        """Say that state lies here as it is to be for the size that the request of a number has asked for."""
        self._say(ready=number)

    def are_others_ready(self, number: int) -> bool:
        """Whether state lies ready for such a request with all other starters who live."""
        model = self._runs.model()
        alive = {starter_of(container) for container in model.containers}
        # While tasks are shared out nobody is known to live.
        if model.run != self.run or self.name not in alive:
            return False
        said = self.quiet()
        return all(name in said and said[name].ready >= number for name in alive - {self.name})

    def _say(self, **changes: object) -> None:
        """Say what is new of this starter beside what it has said in this run before."""
        with self._saying:
            before = self._said if self._said.run == self.run else StarterReport(self.run, (), "")
            mine = msgspec.structs.replace(before, **changes)
            # The same is said again and again while others are at work: it is written once.
            if mine != self._said:
                self._runs.say(self.name, msgspec.msgpack.encode(mine))
                self._said = mine

    def _know(self, run: SharedRun) -> None:
        self.run, self._leader = run.share.generation, run.leader
        self._has_come, self._missed_ms = False, 0.0
        assert self.run > 0, "a run begins under the generation of its owner"


def called(starter: str, container: str) -> str:
    """Return the name of a container among those of all starters; of one starter alone, who has no name, as it is.

    >>> called("ab12", "0.1"), called("", "0.1")
    ('ab12.0.1', '0.1')
    """
    return f"{starter}.{container}" if starter else container


def starter_of(container: str) -> str:
    """Return the starter by which a container is called.

    >>> starter_of("ab12.0.1"), starter_of("0.1")
    ('ab12', '')
    """
    return container.rpartition(".")[0].rpartition(".")[0]


def shared_from_here(
    environment: object, app: str, may_share: bool, joins: bool, fenced: Fenced | None
) -> tuple[Sharing | None, SharedRun | None]:
    """Return one starter of containers, if there may be several, and the run of others that it shares from here on.

    One who begins a run that nobody may come to without saying so has no name. Who was `fenced` waits for the run that
    has come, and raises that where there is none to share; who `joins` raises SamzaError.
    """
    sharing = None
    if isinstance(environment, SharedEnvironment):
        sharing = Sharing(environment.runs(app), None if may_share else "")
    alive = _run_to_join(sharing, app, joins, fenced) if may_share else None
    if alive is None and fenced is not None:
        raise fenced
    return sharing, alive


def _run_to_join(sharing: Sharing | None, app: str, joins: bool, fenced: Fenced | None) -> SharedRun | None:
    alive = sharing.found() if sharing is not None else None
    began_ms = monotonic_ms()
    while alive is None and fenced is not None and sharing is not None:
        # Containers of a run that is announced take as long as their program takes to load.
        if monotonic_ms() - began_ms >= (JOIN_MS if sharing.announced() is None else NEVER_CAME_MS):
            break
        asyncio.run(sleep_ms(LOOK_MS))
        alive = sharing.found()
    if alive is None and joins and fenced is None:
        raise SamzaError(
            f"no containers of the application {app!r} live here that could be joined: begin its run without --join, "
            "and with --containers 2 or more, so that others can join it"
        )
    return alive


def check_same(
    run: SharedRun, app: str, plan: str, until_now: bool, from_start: bool, placement: str, standby: int
) -> None:
    """Refuse to share a run of another application than what is here; raises SamzaError."""
    if from_start:
        raise SamzaError(f"containers of the application {app!r} live: end them before it reads its inputs again")
    if plan != run.plan:
        raise SamzaError(
            f"containers of the application {app!r} live, and it is not the one that is here: end them first, or start "
            "the same version of it, with the same options"
        )
    if placement != run.share.placement:
        raise SamzaError(f"containers of {app!r} live, with placement {run.share.placement}: say so here, or end them")
    if standby != run.share.standby:
        raise SamzaError(f"containers of {app!r} live, with standby={run.share.standby}: say so here, or end them")
    if until_now != run.until_now:
        said = "with" if run.until_now else "without"
        raise SamzaError(f"containers of {app!r} live, and run {said} until_now: do so here, or end them")
