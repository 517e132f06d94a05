"""The port of a transactional environment: streams, state and checkpoints that change together in one commit."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Protocol, runtime_checkable

from operators.core.base import Site
from operators.core.protocols import CheckedProtocol
from operators.core.wording import shown
from planner.model.errors import refuse
from runtime.model.checkpoint import Checkpoint
from runtime.ports.commits import CommitPort, OwnershipPort, StagingPort, TaskStatePort
from runtime.ports.live_streams import BrokerPort, FetchPort, TransactionPort
from runtime.ports.membership import MembershipPort
from runtime.ports.state import SnapshotPort, StatePort, StateSnapshot
from runtime.ports.streams import RecordPort, StreamConfig, StreamPort

DATA = ".samza-dsl"
"""The directory of the embedded log, if the user names no other."""
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.IGNORECASE | re.DOTALL)


def directory_of(data: object, site: Site | None = None) -> Path:
    """Return the data directory that a user has said; raises PlanError for what names none, as a URL does.

    >>> directory_of(None)
    Traceback (most recent call last):
    planner.model.errors.PlanError: None is no data directory; write instead: data=".samza-dsl"
    """
    if not isinstance(data, str | Path):
        raise refuse(site, f"{shown(data)} is no data directory", f'data="{DATA}"')
    # It would be a directory of that name on this machine, in which all that is kept lies unseen; a path has one slash
    # of it left.
    url = _URL.fullmatch(str(data))
    if url is not None:
        scheme, rest = url.groups()
        cluster = f"{scheme}://{rest}"
        on_kafka = f"environment={cluster!r}, or --environment {cluster}"
        wrong = f"the data directory {str(data)!r} is a URL, and lies on this machine"
        raise refuse(site, wrong, on_kafka if scheme == "kafka" else f'data="{DATA}"')
    return Path(data)


class Environment(StreamPort, RecordPort, StatePort, CommitPort, MembershipPort, Protocol):
    """Streams, state and checkpoints of the applications of one place.

    Reads see only what is committed. `commit` and `append` may be called from one thread at a time, any thread;
    reads may run beside them from any thread.
    """

    def close(self) -> None:
        """Release everything; a second call does nothing."""


@runtime_checkable
class LiveEnvironment(
    Environment,
    FetchPort,
    TransactionPort,
    BrokerPort,
    OwnershipPort,
    TaskStatePort,
    Protocol,
    metaclass=CheckedProtocol,
):
    """An environment that others write to at any time, and that hears of it."""


class Ear(Protocol):
    """A descriptor that is readable while something was written of which nobody has taken note."""

    def fileno(self) -> int:
        """Return the descriptor, which an event loop can wait for."""

    def take(self) -> None:
        """Take note of what was written until now; called before it is read."""

    def close(self) -> None:
        """Hear nothing more; nobody may wait for the descriptor any more."""


@runtime_checkable
class AudibleEnvironment(Environment, Protocol, metaclass=CheckedProtocol):
    """An environment of one machine, in which processes hear at once of what others of them append."""

    def listener(self) -> Ear | None:
        """Return an ear for all that is appended from now on, which the caller closes; None where none can be had.

        It may miss something, as where a writer dies: whoever listens looks from time to time as well.
        """


@runtime_checkable
class QueryableEnvironment(Environment, Protocol, metaclass=CheckedProtocol):
    """An environment of whose own part of the state a run can be asked while it, or others, write to it."""

    def snapshot_here(self, app: str) -> StateSnapshot:
        """Return the state of the tasks that are here as it is committed now; the caller closes it, any thread asks.

        What it sees is there until then, whoever closes the environment.
        """

    def progress(self, app: str) -> dict[str, Checkpoint]:
        """Return the newest checkpoint of each task, wherever it runs; of one that is here, its state is here as well.

        So who has seen a checkpoint finds what it covers in the next `snapshot_here`. Any thread may ask, and waits.
        """


@runtime_checkable
class GrowingEnvironment(Environment, Protocol, metaclass=CheckedProtocol):
    """An environment that gives its streams more partitions when it is asked to."""

    def grow_stream(self, name: str, partitions: int) -> StreamConfig:
        """Give a stream more partitions, which are empty, and return what it has now.

        Raises `EnvironmentFault` for one that has more already, has ended, is compacted, or lies between stages.
        """


@runtime_checkable
class RememberingEnvironment(Environment, Protocol, metaclass=CheckedProtocol):
    """An environment that keeps answers of calls apart, as its own commits take longer than these can wait."""

    def answers(self) -> Environment:
        """Return where answers are kept; a killed process loses nothing there, and a power cut may. It closes it."""


@runtime_checkable
class StagingEnvironment(Environment, StagingPort, Protocol, metaclass=CheckedProtocol):
    """An environment in which streams are filled at once, with more than memory holds."""


@runtime_checkable
class SnapshotEnvironment(Environment, SnapshotPort, Protocol, metaclass=CheckedProtocol):
    """An environment whose state can be looked at while others run it."""


def own_whole(environment: Environment, app: str) -> int:
    """Own an application, and return its new generation; raises `Damaged` where what it had committed is lost."""
    # Owned first: what is left of it can be compared only once nobody else commits.
    generation = environment.own(app)
    if isinstance(environment, LiveEnvironment):
        environment.check_kept(app)
    return generation


def typed(environment: Environment, words: str) -> str:
    """Return a command about an environment as it can be typed.

    >>> from runtime.systems.memory.environment import MemoryEnvironment
    >>> typed(MemoryEnvironment(), "reset spending")
    'samza-dsl reset spending'
    """
    return f"samza-dsl {words}{where_typed(environment)}"


def where_typed(environment: Environment) -> str:
    """Return the options of a command about an environment, with a space ahead; "" where it needs none."""
    where = str(environment)
    if where.startswith("kafka://"):
        return f" --environment {where}"
    # Only a directory that is there: a memory environment has a name as well, and no option leads to it.
    has_directory = where != DATA and Path(where).is_dir()
    return f" --data {shlex.quote(where)}" if has_directory else ""
