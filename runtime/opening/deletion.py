"""The deletion of applications: they are marked first, and what they have kept is removed by a later collection."""

from __future__ import annotations

from runtime.commit.commit import DELETED
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import Owned
from runtime.opening.rewind import begin_anew
from runtime.opening.shared_run import SharedEnvironment
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, LiveEnvironment


def check_not_shared(environment: Environment, app: str) -> None:
    """Raise `Owned` where containers of an application live, on any machine."""
    if isinstance(environment, SharedEnvironment) and environment.runs(app).is_alive():
        raise Owned(f"Containers of application {app!r} live on {environment}: end them first.")


def delete(environment: Environment, app: str) -> None:
    """Mark an application as deleted, which holds until it is run again; raises `Owned` where it is running."""
    generation = environment.own(app)
    environment.commit(Commit(app, generation, [], [], {DELETED: Checkpoint(generation)}))


def deleted(environment: Environment) -> list[str]:
    """Return the names of the applications that are marked as deleted, and were not run since."""
    return [app for app in environment.applications() if _is_deleted(environment, app)]


def collect(environment: Environment, app: str) -> bool:
    """Remove what a deleted application has kept beside its inputs and outputs; return whether there was anything."""
    found = bool(environment.checkpoints(app).keys() - {DELETED} or environment.stores(app))
    if found:
        begin_anew(environment, app)
        # To begin anew takes the mark away, with all other checkpoints.
        delete(environment, app)
    if isinstance(environment, LiveEnvironment):
        found = environment.reclaim(app) or found
    return found


def _is_deleted(environment: Environment, app: str) -> bool:
    mark = environment.checkpoints(app).get(DELETED)
    # A run after the mark has begun another generation, which takes the mark away without a word.
    return mark is not None and mark.generation == environment.generation(app)
