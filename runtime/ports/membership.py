"""The port of membership: the containers that run an application together, and the tasks that each has."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from runtime.model.assignment import JobModel, Placement, Scale, sticky


class Membership(Protocol):
    """The membership of one container among those that run an application together.

    A task belongs to one container at a time: who has it keeps it until it is given up, or until the container is gone.
    """

    name: str
    """The name of the container."""

    def mine(self) -> frozenset[int]:
        """Return the tasks that this container shall run now; asked several times a second."""

    def take(self, tasks: Collection[int]) -> dict[int, int]:
        """Take tasks over, and return their new generations; those that another container still has are left out.

        Raises `Fenced` where the run of the application is over.
        """

    def former(self, task: int) -> str:
        """Return the container that had a task taken here and never gave it up; "" if none in this run did."""

    def give_up(self, tasks: Collection[int]) -> None:
        """Let others take these tasks; all of their effects are committed."""

    def check(self) -> None:
        """Raise `Fenced` where another container has taken a task that this one has not given up."""

    def leave(self) -> None:
        """Leave: others may take all tasks of this container; a second call does nothing."""


class MembershipPort(Protocol):
    """The containers that share the tasks of an application."""

    def join(
        self,
        app: str,
        generation: int,
        container: str,
        tasks: int,
        placement: Placement = sticky,
        standby: int = 0,
    ) -> Membership:
        """Join the containers that share so many tasks, in the run of `generation`, under a name of its own.

        Where not all have the state of all tasks anyway, so many other hosts keep a copy of each task's (`standby`).
        """

    def ask_scale(self, app: str, scale: Scale) -> Scale:
        """Ask whoever runs an application, now or later, to run it in this size; return the request as it is noted."""

    def refuse_scale(self, app: str, refusal: Scale) -> None:
        """Keep another size in the place of what was asked up to the request of the refusal's number."""

    def asked_scale(self, app: str) -> Scale:
        """Return the size that was asked for last."""

    def job_model(self, app: str) -> JobModel:
        """Return the containers of the newest run that are known to live, and the tasks of each."""
