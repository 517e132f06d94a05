"""The reprocessing of history: an application computes it anew, and may go on live from the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast, overload

from operators.core.base import Site
from operators.core.sites import here
from planner.model.errors import refuse
from runtime.model.errors import SamzaError
from runtime.model.history import ALL, HistorySpan, Merge, Point, prefer_live
from runtime.spark.session import Spark, check_installed
from samza_dsl.application.run_request import (
    RunRequest,
    check_for_spark,
    check_not_loading,
    ended,
    run_live,
)
from samza_dsl.fluent.checks import DATA, check_name, check_whole

if TYPE_CHECKING:
    from planner.model.graph import Graph
    from runtime.containers.supervisor import Containers
    from runtime.run.driver import Watch
    from runtime.run.run import Run
    from runtime.run.settings import Cluster
    from runtime.units.driver.engine import BatchRun
    from samza_dsl.application.app import App

NAME = "recomputing"

Points = Point | Mapping[str, Point] | None
"""An offset or a time, for all inputs or by stream, or by partition as "flights:3"."""


class ReprocessOptions(TypedDict, total=False):
    """The options of a reprocessing, here or on Spark."""

    environment: Cluster
    bind: Mapping[str, object] | None
    start: Points
    until: Points
    per_second: float | None
    handover: str | Path | None
    merge_into: Mapping[str, str] | None
    merge: Merge
    name: str
    live: bool
    watch: Watch | None


@dataclass(frozen=True)
class ReprocessRequest:
    """The request of a reprocessing: a run over history, and the use of its results."""

    run: RunRequest
    start: Points = None
    until: Points = None
    per_second: float | None = None
    handover: str | Path | None = None
    merge_into: Mapping[str, str] | None = None
    merge: Merge = prefer_live
    name: str = NAME


class Reprocessing:
    """The methods of an application that reprocess history."""

    @overload
    def reprocess(
        self, data: str | Path = DATA, *, containers: Literal[1] = 1, **options: Unpack[ReprocessOptions]
    ) -> Run: ...

    @overload
    def reprocess(
        self, data: str | Path = DATA, *, containers: int, **options: Unpack[ReprocessOptions]
    ) -> Run | Containers: ...

    @overload
    def reprocess(self, data: str | Path = DATA, *, on: Spark, **options: Unpack[ReprocessOptions]) -> BatchRun: ...

    def reprocess(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, object] | None = None,
        start: Points = None,
        until: Points = None,
        per_second: float | None = None,
        handover: str | Path | None = None,
        merge_into: Mapping[str, str] | None = None,
        merge: Merge = prefer_live,
        name: str = NAME,
        live: bool = False,
        watch: Watch | None = None,
        containers: int = 1,
        on: Spark | None = None,
    ) -> Run | Containers | BatchRun:
        """Compute the results of history anew, while the live run of the same directory goes on untouched.

        It reads what `bind` puts in the place of the inputs (an archive, other files, a list), else the streams in
        `data`: from `start`, an offset or an aware datetime of event time, to `until`, which is now where nothing is
        said; a mapping says it by stream, or by partition as "flights:3". Outputs are files that are bound, or other
        streams, as {"delays": "stream:delays-2"}, and must not hold anything yet. Of the inputs it reads at most
        `per_second` records. State, positions and what lies between stages are of the application `name` behind its
        own; they are dropped at the end, and kept where the run is stopped or fails, so that it goes on when asked
        again.

        With `environment`, a `KafkaCluster` or its address, all this is of the topics there, as in a run.

        At the end of history all that is open fires. With `handover`, a directory that is made, nothing does: state,
        watermarks and positions are written there, and `take_over` has the live application go on from them.

        With `merge_into`, as {"delays": "delays"}, what was recomputed of an output is appended to a stream of live
        results. Where that has one of the same key, and of the same time where windows have emitted it, the live one
        holds, or what `merge(key, live, recomputed)` returns. What was merged has the header "recomputed".

        >>> from samza_dsl import App, total
        >>> from tempfile import TemporaryDirectory
        >>> app = App("adding")
        >>> app.input("numbers", value=int).map(lambda n: n + 1).send_to(app.output("sums", value=int))
        >>> with TemporaryDirectory() as data:
        ...     run = app.reprocess(data, bind={"numbers": [1, 2, 3]}, start=1)
        ...     run.received("sums")
        [3, 4]

        Raises SamzaError and PlanError for what can't be run so.
        """
        run = RunRequest(data, environment=environment, bind=bind, live=live, watch=watch, containers=containers, on=on)
        request = ReprocessRequest(run, start, until, per_second, handover, merge_into, merge, name)
        return reprocessed(cast("App", self), request)

    def take_over(
        self,
        handover: str | Path,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, object] | None = None,
        at: Mapping[str, int | Literal["earliest", "latest"]] | None = None,
    ) -> None:
        """Let the application go on from a handover when it runs next; it must not be running now.

        Its state until now is dropped; its outputs stay. `bind` has what that run will bind. Where
        history was read from files that know no offsets of the stream, `at` says by stream where the stream goes on.
        Raises SamzaError and PlanError, before anything is changed, where the handover is not of this application, or
        where records would be missing.

        >>> from samza_dsl import App, produce
        >>> from tempfile import TemporaryDirectory
        >>> app = App("numbering")
        >>> numbers = app.input("numbers", value=int, key=lambda n: "all")
        >>> counted = numbers.scan(lambda seen, n: seen + 1, init=int, op_id="count")
        >>> counted.send_to(app.output("counts", value=int))
        >>> with TemporaryDirectory() as directory:
        ...     data, handover = f"{directory}/data", f"{directory}/handover"
        ...     _ = app.reprocess(data, bind={"numbers": [7, 8, 9]}, handover=handover)
        ...     app.take_over(handover, data, at={"numbers": "earliest"})
        ...     _ = produce("numbers", [5, 5], data=data)
        ...     app.run(data, until_now=True).received("counts")
        [1, 2, 3, 4, 5]
        """
        from runtime.reprocessing.recomputation import take_over

        app = cast("App", self)
        if at is not None and not isinstance(at, Mapping):
            raise SamzaError(f'at={at!r} names no streams; write instead: at={{"flights": "earliest"}}')
        take_over(app.pipeline(), data, handover, at=at, bind=bind, cluster=environment)


def reprocessed(app: App, request: ReprocessRequest) -> Run | Containers | BatchRun:
    """Run an application over history as was asked, to its end; raises SamzaError and PlanError."""
    check_not_loading()
    site, per_second = here(), request.per_second
    check_name(site, "a reprocessing", request.name)
    check_whole(site, "containers", request.run.containers)
    if per_second is not None and not per_second > 0:
        raise refuse(site, f"per_second={per_second!r} is no rate", "per_second=10_000")
    _check_read_again(app.graph(), request.run.bind or {})
    # Under a name of its own it has its own state and positions, and the live run goes on untouched.
    asked = replace(request.run.viewed(), beside=request.name)
    span = HistorySpan(start=_by_stream(request.start), until=_by_stream(request.until), per_second=per_second)
    from runtime.reprocessing.merge import Merges
    from runtime.reprocessing.recomputation import Recomputation, recompute

    merges = Merges({} if request.merge_into is None else request.merge_into, request.merge)
    recomputation = Recomputation(request.name, span, request.handover, merges)
    if asked.on is not None:
        _check_bounded(site, asked.on, asked)
        check_installed()
        from runtime.spark.recomputation import recompute_on_spark

        done = recompute_on_spark(app.pipeline(), asked.data, asked.on, recomputation, asked.bind, asked.watch)
        return ended(done, asked.live)

    def run(graph: Graph, span: HistorySpan, merged: Mapping[str, str]) -> Run | Containers:
        return run_live(app, graph, replace(asked, span=span, bind={**(asked.bind or {}), **merged}))

    return ended(recompute(run, app.graph(), asked.data, recomputation, asked.environment), asked.live)


def _check_read_again(graph: Graph, bind: Mapping[str, object]) -> None:
    """Raise SamzaError for an input that is bound to what only a live run takes in, and this one would read nothing of.

    On Spark it is refused as sources are opened.
    """
    from runtime.ports.connectors import PushedSource
    from runtime.systems.connectors.schemes import connected_at

    for stream in sorted(bind.keys() & {spec.stream for spec in graph.inputs.values()}):
        if isinstance(source := connected_at(bind[stream], writes=False), PushedSource):
            raise SamzaError(
                f"{stream!r} is bound to {source.name}, which only a live run takes into the stream of that name: "
                "leave the binding out to read what that has; or bind what can be read again, as a folder or a glob"
            )


def _check_bounded(site: Site, on: Spark, asked: RunRequest) -> None:
    """Raise PlanError for what a reprocessing on Spark, which has an end and no environment, can't be asked."""
    check_for_spark(site, on, asked)
    if asked.environment is not None:
        wrong = "on Spark a reprocessing reads and writes the topics that streams are bound to"
        raise refuse(site, wrong, 'bind={"flights": "kafka://host:9092/flights", ...}, without environment=')
    if on.checkpoint is not None:
        wrong = "a reprocessing has an end, and Spark(checkpoint=...) is about a run that goes on and on"
        raise refuse(site, wrong, "on=Spark()")


def _by_stream(points: Points) -> Mapping[str, Point]:
    if points is None:
        return {}
    return points if isinstance(points, Mapping) else {ALL: points}
