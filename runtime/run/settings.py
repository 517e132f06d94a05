"""The settings of a live run: all that it is asked for beside the application, and the environment that it is on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planner.model.levers import ALL, Levers
from runtime.functions.calls import Tracing
from runtime.loop.loop import POLL_MS
from runtime.model.assignment import Placement, sticky
from runtime.model.clock import Clock
from runtime.model.errors import PLACE, Fenced
from runtime.model.history import HistorySpan
from runtime.model.state_choice import State
from runtime.opening.opening import Share
from runtime.ports.environment import Environment, directory_of, where_typed
from runtime.systems.kafka.client.topic import KafkaCluster, cluster_of
from runtime.systems.log.environment import LogEnvironment

if TYPE_CHECKING:
    from runtime.run.run import Run

Cluster = str | KafkaCluster | None
"""The Kafka cluster that is a run's environment; None for the embedded log."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of a live run; the defaults are those of `App.run`.

    `bind` has a place for each stream that lies elsewhere. A run goes on from the checkpoint, unless it is told
    `from_start`, and what becomes of `state` then. With `until_now` it ends with what is there now, and where it
    `drains` as well, with what lies between stages. A `span` is the part of history that it runs over. On Spark it may
    `collect` outputs. In one container of several it has a `share` of another run. Who traces it has its
    `hearing`. On Kafka others are told the `state_address` at which its state is asked for, with the token in
    `token_file`, where there is one; so it asks others. Where a copy of the log is kept up, `replica_age_ms` tells its
    age. One that begins anew has the size that was asked for `since` a request of this number. The `view` shows a run
    in a notebook. The `clock`, the `levers` and `poll_ms`, after which it looks for news that nobody told, are for
    tests and benchmarks.
    """

    bind: Mapping[str, object] | None = None
    from_start: bool = False
    state: State = None
    until_now: bool = False
    drains: bool = False
    span: HistorySpan | None = None
    environment: Cluster = None
    collect: bool | str | Sequence[str] = False
    host_id: str | None = None
    state_address: str = ""
    token_file: str | Path | None = None
    replica_age_ms: Callable[[], float] | None = None
    placement: Placement = sticky
    share: Share | None = None
    since: int | None = None
    hearing: Tracing | None = None
    view: Callable[[Run], None] | None = None
    clock: Clock | None = None
    poll_ms: float = POLL_MS
    levers: Levers = ALL


UNSAID = RunSettings()
"""The settings of a run of which nothing was said."""


@dataclass(frozen=True, kw_only=True)
class CrewSettings:
    """The containers that are to run an application, and how each is started.

    `command` starts one, which finds the application as `found`, a module and a name in it; it runs `beside` the live
    application under that name, where there is one. `placement` is named, since other processes look it up. Of each
    task's state `standby` copies are kept; each may tell `opentelemetry`. One that `joins` takes part in the run that
    others have begun, and begins none; so may who was `fenced` by another run.
    """

    number: int
    command: list[str]
    found: tuple[str, str]
    beside: str = ""
    placement: str = "sticky"
    standby: int = 0
    joins: bool = False
    fenced: Fenced | None = None
    opentelemetry: bool = False


def open_environment(
    data: str | Path | Environment, cluster: Cluster = None, host_id: str | None = None, state_address: str = ""
) -> Environment:
    """Open the embedded log in a directory, or a Kafka cluster, with state in that directory, which a host has.

    Others are told the address at which that state is asked for. An environment is passed through. What is told from
    here on advises commands about it.
    """
    if not isinstance(data, str | Path):
        opened = data
    elif (found := cluster_of(cluster)) is not None:
        from runtime.systems.kafka.environment import KafkaEnvironment

        opened = KafkaEnvironment(found, directory_of(data), host_id, state_address)
    else:
        opened = LogEnvironment(directory_of(data))
    PLACE.set(where_typed(opened))
    return opened
