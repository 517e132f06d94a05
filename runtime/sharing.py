"""A run that several share who start containers, on one machine each or more: they join it, and end it together."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from runtime.agreement import Quiet, all_quiet
from runtime.assignment import JobModel
from runtime.errors import SamzaError
from runtime.opening import Share


class SharedRun(msgspec.Struct, frozen=True):
    """What is said of a run to those who come to share it; `plan` tells whether they have the same application."""

    share: Share
    plan: str
    until_now: bool


class Runs(Protocol):
    """What is said of the newest run of an application, where all who share it can see that."""

    def model(self) -> JobModel:
        """Return who runs what now; no containers where none lives, or while tasks are being shared out anew."""

    def is_alive(self) -> bool:
        """Whether any container lives."""

    def generation(self) -> int:
        """Return the generation of the newest run; 0 where there was none."""

    def begun(self) -> bytes | None:
        """Return what was said of the newest run when it began, where it is shared."""

    def begin(self, said: bytes) -> None:
        """Say what others need to know who come to share the run."""

    def say(self, starter: str, said: bytes) -> None:
        """Say how far one's containers are."""

    def said(self) -> Mapping[str, bytes]:
        """Return what each has said last, in any run."""


@runtime_checkable
class SharedEnvironment(Protocol):
    """An environment in which several may start containers of a run."""

    def runs(self, app: str) -> Runs:
        """Return what is said of an application's newest run."""


class Sharing:
    """One who starts containers of a run, as others may."""

    def __init__(self, runs: Runs) -> None:
        self.name = secrets.token_hex(4)
        self.run = 0
        self._runs = runs
        self._said: Quiet | None = None

    def found(self) -> SharedRun | None:
        """Return the run that goes on, if there is one to share."""
        said = self._runs.begun()
        found = None if said is None else msgspec.msgpack.decode(said, type=SharedRun)
        if found is None or found.share.generation != self._runs.generation() or not self._runs.is_alive():
            return None
        self.run = found.share.generation
        return found

    def begin(self, run: SharedRun) -> None:
        """Let others share a run that begins."""
        self.run = run.share.generation
        self._runs.begin(msgspec.msgpack.encode(run))

    def quiet(self) -> dict[str, Quiet]:
        """Return what each has said last in this run."""
        said = {name: msgspec.msgpack.decode(one, type=Quiet) for name, one in self._runs.said().items()}
        return {name: one for name, one in said.items() if one.run == self.run}

    def agree(self, held: Collection[int], commits: str, before: Mapping[str, Quiet], tasks: int) -> bool:
        """Say that one's containers had nothing to do after what others had said; return whether all is done."""
        seen = {name: one.commits for name, one in before.items() if name != self.name}
        mine = Quiet(self.run, tuple(sorted(held)), commits, seen)
        if mine != self._said:
            self._runs.say(self.name, msgspec.msgpack.encode(mine))
            self._said = mine
        alive = {container.partition(".")[0] for container in self._runs.model().containers}
        return all_quiet(self.quiet(), alive, tasks)


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
