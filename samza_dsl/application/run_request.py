"""The request of a run: `App`, a reprocessing and the command line make it, and one function serves it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

from operators.core.base import Site
from operators.core.sites import here
from planner.model.errors import refuse
from runtime.model.errors import ExitAsked, SamzaError
from runtime.ports.environment import directory_of
from runtime.spark.session import Spark, check_installed
from samza_dsl.fluent.checks import DATA, check_type, check_whole, ms_said

if TYPE_CHECKING:
    from planner.model.graph import Graph
    from runtime.containers.supervisor import Containers
    from runtime.functions.calls import Tracing
    from runtime.model.history import HistorySpan
    from runtime.model.metrics import Metrics
    from runtime.model.sizing import Sizing
    from runtime.model.state_choice import State
    from runtime.run.driver import Watch
    from runtime.run.run import Run
    from runtime.run.settings import Cluster, RunSettings
    from runtime.units.driver.engine import BatchRun
    from runtime.watching.state_pages import StatePages
    from samza_dsl.application.app import App
    from samza_dsl.application.placement import Said
    from samza_dsl.view.progress import Ended

E = TypeVar("E", bound="Ended")

ALONE, STARTER = "0", "starter"
"""The container that has all tasks of a run of one process, as its metrics call it, and who starts several."""
loads_only = False
"""Whether this is a container while it loads the application, which may not run itself there."""


class RunOptions(TypedDict, total=False):
    """The options of any run, here or on Spark."""

    environment: Cluster
    bind: Mapping[str, object] | None
    until_now: bool
    live: bool
    watch: Watch | None
    metrics: str | Metrics | None


class SparkRunOptions(RunOptions, total=False):
    """The options of a run on Spark."""

    collect: bool | str | Sequence[str]


class LiveRunOptions(RunOptions, total=False):
    """The options of a run that has its state in `data`."""

    from_start: bool
    state: State
    host_id: str | None


class ContainersOptions(LiveRunOptions, total=False):
    """The options of a run whose tasks several containers share."""

    placement: Said
    standby: int
    join: bool


@dataclass(frozen=True)
class RunRequest:
    """One run as its user asks for it; `App.run` says what each field means.

    Invariant: a field at its default asks for nothing, so what one kind of run does not know of can be refused by name.
    """

    data: str | Path = DATA
    environment: Cluster = None
    bind: Mapping[str, object] | None = None
    from_start: bool = False
    state: State = None
    until_now: bool = False
    live: bool = False
    watch: Watch | None = None
    metrics: str | Metrics | None = None
    containers: int = 1
    host_id: str | None = None
    state_address: str = ""
    """Where the state of its containers is asked for, as others are told on Kafka."""
    hearing: Tracing | None = None
    """Who traces it, where somebody does."""
    placement: Said | str = "sticky"
    standby: int = 0
    autosize: Sizing | None = None
    join: bool = False
    on: Spark | None = None
    collect: bool | str | Sequence[str] = False
    replica: Path | None = None
    """The directory in which a copy of `data` is kept up."""
    replica_age_ms: Callable[[], float] | None = None
    drains: bool = False
    """Whether a run `until_now` reads no more of its inputs, and ends with what lies between its stages."""
    span: HistorySpan | None = None
    """The part of history that it reads; None for all that is there and will come."""
    beside: str = ""
    """The suffix of the application's name, for a run beside the live one."""

    def __post_init__(self) -> None:
        if isinstance(self.data, type) or not hasattr(self.data, "own"):  # an environment of a test is passed through
            directory_of(self.data, here())

    @property
    def has_containers(self) -> bool:
        """Whether containers have its tasks, which this process starts."""
        return self.containers > 1 or self.autosize is not None or self.join

    @property
    def container(self) -> str:
        """The name by which lines of the log tell this process."""
        return STARTER if self.has_containers else ALONE

    def viewed(self) -> RunRequest:
        """Return the same request, watched by the view that suits this terminal where it is `live`."""
        if not self.live:
            return self
        from samza_dsl.view.live import view

        return replace(self, watch=view().watch)


def served(app: App, request: RunRequest) -> Run | Containers | BatchRun:
    """Run an application as was asked, to its end; raises PlanError for what can't be asked of such a run."""
    check_not_loading()
    check_whole(here(), "containers", request.containers)
    request = request.viewed()
    if request.autosize is not None:
        request = _autosized(request, request.autosize)
    from samza_dsl.settings import logs

    # Spark has no containers of ours. Outside: the last copy has what the run's end has committed.
    container = {} if request.on is not None else {"container": request.container}
    with logs.told(**container), _replicated(request) as replicated_request, _watched(app, replicated_request) as said:
        return _run(app, said)


@contextmanager
def exiting(app: str) -> Iterator[None]:
    """End the process as a function of the application has asked for, once the run has ended; the log says which."""
    try:
        yield
    except ExitAsked as asked:
        logging.getLogger("samza_dsl").warning("%s: %s", app, asked)
        raise asked.exit() from asked


@contextmanager
def _replicated(request: RunRequest) -> Iterator[RunRequest]:
    """Keep up the copy that was asked for during a block; yield a request whose run tells how old that is."""
    if request.replica is None:
        yield request
        return
    from samza_dsl.application.replica import replicated

    with replicated(Path(request.data), request.replica) as age_ms:
        yield replace(request, replica_age_ms=age_ms)


@contextmanager
def _watched(app: App, request: RunRequest) -> Iterator[RunRequest]:
    """Yield a request whose run is served and noted during a block, as its `metrics` and `live` ask for."""
    if request.metrics is None and not request.live:
        yield request
        return
    from runtime.model.metrics import Metrics
    from runtime.systems.kafka.client.topic import cluster_of
    from runtime.watching.watcher import served as served_over_http
    from samza_dsl.room.recorder import recorded

    given = Metrics(address=None) if request.metrics is None else request.metrics
    said = given if isinstance(given, Metrics) else Metrics(address=given)
    cluster = cluster_of(request.environment)
    watches = [request.watch] if request.watch is not None else []
    state = _state_pages(app, request)
    watches.append(state.watch)
    pages = state.pages
    with ExitStack() as open_until_the_end:
        open_until_the_end.callback(state.close)
        if said.ui or (request.live and request.on is None):
            where = str(request.data) if cluster is None else cluster.address
            watches.append(open_until_the_end.enter_context(recorded(request.data, app.name, where)).watch)
        if said.ui:
            from samza_dsl.room.pages import ControlRoom
            from samza_dsl.room.runs import Place

            room = ControlRoom([Place(Path(request.data), cluster)], allow_actions=said.ui_allow_actions)
            open_until_the_end.callback(room.close)
            pages = {**pages, **room.pages}
        # Open before the run is: who waits for it to be ready asks while it begins.
        brokers = cluster.topic("any").bootstrap if cluster is not None else ""
        found = open_until_the_end.enter_context(served_over_http(said, app.name, watches, pages, brokers))
        yield replace(request, watch=found.watch, state_address=found.state_address, hearing=found.hearing)


def _autosized(request: RunRequest, sizing: Sizing) -> RunRequest:
    """Return the request of a run in containers whose number follows its load."""
    from runtime.containers.autosizing import Autosizer, beside
    from runtime.model.sizing import ByLoad

    if request.on is not None or request.until_now:
        wrong = "app.run(autosize=...) is for a run in containers that goes on"
        raise refuse(here(), wrong, "containers= as many as there are to be, or leave autosize= out")
    if not callable(sizing):
        wrong = f"app.run(autosize={sizing!r}) is no function of loads"
        raise refuse(here(), wrong, "autosize=ByLoad(min=1, max=8)")
    least = sizing.min if isinstance(sizing, ByLoad) else 1
    watch = beside(request.watch, Autosizer(sizing))
    return replace(request, containers=max(request.containers, least), watch=watch)


def _state_pages(app: App, request: RunRequest) -> StatePages:
    """Return the pages of a run's state: on the log it is read where it lies, elsewhere the run is asked."""
    from runtime.watching.state_pages import StatePages

    on_log = request.environment is None and request.on is None
    return StatePages(app.graph(), Path(request.data) if on_log else None)


def _run(app: App, request: RunRequest) -> Run | Containers | BatchRun:
    if request.on is not None:
        return ended(_run_on_spark(app, request.on, request), request.live)
    if request.collect is not False:
        wrong = "app.run(collect=...): only Spark has DataFrames"
        raise refuse(here(), wrong, "on=Spark(session) beside it, or run.received(...) of a run here")
    check_standby(here(), request)
    return ended(run_live(app, app.graph(), request), request.live)


def run_live(app: App, graph: Graph, request: RunRequest) -> Run | Containers:
    """Run a graph of an application in this process, or in several, until it ends or is stopped."""
    # Imported late, here and below: a program that plans or draws an application needs nothing that runs one.
    from samza_dsl.settings import logs

    with logs.told(container=request.container):
        if request.has_containers:
            from samza_dsl.application.container import run_app

            return run_app(app, request)
        from runtime.run.run import run_blocking

        return run_blocking(app.pipeline().of(graph), request.data, settings_of(request), request.watch)


def in_background(app: App, request: RunRequest) -> AbstractAsyncContextManager[Run]:
    """Run an application as was asked in the background of an `async with`; the log tells of it at its end."""
    check_not_loading()
    return _told_when_over(app, request)


def settings_of(request: RunRequest) -> RunSettings:
    """Return the settings that a run has here, in containers and on Spark; placement is for containers alone."""
    from runtime.model.metrics import Metrics
    from runtime.run.settings import RunSettings

    return RunSettings(
        bind=request.bind,
        from_start=request.from_start,
        state=request.state,
        until_now=request.until_now,
        drains=request.drains,
        span=request.span,
        environment=request.environment,
        collect=request.collect,
        host_id=request.host_id,
        state_address=request.state_address,
        token_file=request.metrics.token_file if isinstance(request.metrics, Metrics) else None,
        hearing=request.hearing,
        replica_age_ms=request.replica_age_ms,
        view=_show,
    )


def _show(run: Run) -> None:
    from samza_dsl.room.notebook import show

    show(run)


def _run_on_spark(app: App, on: Spark, request: RunRequest) -> BatchRun:
    check_installed()
    from runtime.spark.batch import run_batch
    from runtime.spark.streaming import run_stream

    check_for_spark(here(), on, request)
    what = app.pipeline(), request.data, on, settings_of(request)
    return run_batch(*what, watch=request.watch) if on.checkpoint is None else run_stream(*what, request.watch)


def ended(run: E, is_shown: bool = False) -> E:
    """Return a run that is over; the log tells what is worth a word of it, unless a view has shown it."""
    if not is_shown:
        from samza_dsl.view.progress import log_the_end

        log_the_end(run)
    return run


@asynccontextmanager
async def _told_when_over(app: App, request: RunRequest) -> AsyncIterator[Run]:
    """Run in the background of an `async with`, served and noted, and let the log tell of the run at its end."""
    from runtime.run.run import running
    from samza_dsl.settings import logs

    with logs.told(container=ALONE), _watched(app, request) as watched:
        async with running(app.pipeline(), watched.data, settings_of(watched), watched.watch) as run:
            yield run
        ended(run)


def check_not_loading() -> None:
    """Refuse to run an application while a container loads it."""
    if loads_only:
        raise SamzaError(
            "app.run(...) is called while a container loads the application: write it under "
            'if __name__ == "__main__": in its file'
        )


def check_standby(site: Site, request: RunRequest) -> None:
    """Raise PlanError where copies of state were asked for, and no machines could have any."""
    standby, environment = request.standby, request.environment
    check_whole(site, "standby", standby, least=0)
    if standby and (environment is None or request.containers == 1):
        wrong = f"app.run(standby={standby}): " + (
            "containers on the embedded log have all state on one machine"
            if environment is None
            else "one container has the application to itself, and nobody would take its tasks over"
        )
        instead = 'environment="kafka://host:9092" beside it' if environment is None else "containers=2 beside it"
        raise refuse(site, wrong, f"{instead}, or leave standby= out")


def check_for_spark(site: Site, on: Spark, request: RunRequest) -> None:
    """Raise PlanError where `app.run` was told what a run on Spark has no use for, or that run what it has not."""
    check_type(site, "app.run(on=...)", on, Spark, 'on=Spark(master="local[4]")')
    if on.checkpoint is not None and request.collect is not False:
        wrong = "app.run(collect=...) is about a run that ends, and what one with a checkpoint has written is to stay"
        instead = 'bind={"NAME": "NAME.parquet"} or a table, which Spark reads at any time, or leave checkpoint= out'
        raise refuse(site, wrong, instead)
    ms_said(site, "Spark(interval_ms=...)", on.interval_ms, least=0)
    check_whole(site, "Spark(max_records=...)", on.max_records)
    about = [name for name in ("interval_ms", "max_records", "end") if getattr(on, name) != getattr(Spark(), name)]
    if about and on.checkpoint is None:
        wrong = f"Spark({about[0]}={getattr(on, about[0])!r}) is about a run that goes on and on, and this one does not"
        raise refuse(site, wrong, f'checkpoint="directory" beside it, or leave {about[0]}= out')
    for name, why in NOT_ON_SPARK.items():
        # Compared with the default, by type as well: what is not said asks for nothing, and 1 is equal to True.
        value, unsaid = getattr(request, name), getattr(RunRequest(), name)
        if name == "until_now" and on.checkpoint is not None:
            continue  # a run that goes on and on may be told to end with what is there now
        if (type(value), value) != (type(unsaid), unsaid):
            raise refuse(site, f"app.run(on=Spark(...), {name}={value!r}): {why}", f"leave {name}= out")


NOT_ON_SPARK = {
    "containers": "Spark shares tasks by itself",
    "state": "a run goes on with the state of its checkpoint, and begins without any where it has none",
    "from_start": (
        "a bounded run reads its inputs from their start anyway, and one with a checkpoint goes on from there; from "
        "another checkpoint it begins anew"
    ),
    "host_id": "Spark shares tasks by itself",
    "placement": "Spark shares tasks by itself",
    "standby": "Spark keeps no state of tasks on hosts",
    "join": "Spark shares tasks by itself",
    "until_now": (
        "a bounded run ends with what is there now, and everything fires; to leave open what is open it needs "
        'Spark(checkpoint="directory")'
    ),
}
"""The fields of a request that have no meaning on Spark, each with the reason."""
