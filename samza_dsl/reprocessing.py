"""What an application does with history: computes it anew, and goes on live from what that came to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from operators.sites import here
from planner.errors import refuse
from runtime.errors import SamzaError
from runtime.history import ALL, Point, Span
from runtime.merging import Merge, Merges, prefer_live
from samza_dsl.checks import DATA, check_for_spark, check_name, check_not_loading, check_whole

if TYPE_CHECKING:
    from planner.graph import Graph
    from runtime.containers import Containers
    from runtime.driving import Watch
    from runtime.run import Cluster, Run
    from runtime.spark.batch import SparkRun
    from runtime.spark.session import Spark
    from samza_dsl.app import App

NAME = "recomputing"

Points = Point | Mapping[str, Point] | None
"""An offset or a time, for all inputs or by stream, or by partition as "flights:3"."""


class Reprocessing:
    """What an application does with history."""

    @overload
    def reprocess(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, Any] | None = None,
        start: Points = None,
        until: Points = None,
        per_second: float | None = None,
        handover: str | Path | None = None,
        merge_into: Mapping[str, str] | None = None,
        merge: Merge = prefer_live,
        name: str = NAME,
        live: bool = False,
        watch: Watch | None = None,
        containers: Literal[1] = 1,
    ) -> Run: ...

    @overload
    def reprocess(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, Any] | None = None,
        start: Points = None,
        until: Points = None,
        per_second: float | None = None,
        handover: str | Path | None = None,
        merge_into: Mapping[str, str] | None = None,
        merge: Merge = prefer_live,
        name: str = NAME,
        live: bool = False,
        watch: Watch | None = None,
        containers: int,
    ) -> Run | Containers: ...

    @overload
    def reprocess(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, Any] | None = None,
        start: Points = None,
        until: Points = None,
        per_second: float | None = None,
        handover: str | Path | None = None,
        merge_into: Mapping[str, str] | None = None,
        merge: Merge = prefer_live,
        name: str = NAME,
        live: bool = False,
        watch: Watch | None = None,
        on: Spark,
    ) -> SparkRun: ...

    def reprocess(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, Any] | None = None,
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
    ) -> Run | Containers | SparkRun:
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
        check_not_loading()
        site = here()
        check_name(site, "a reprocessing", name)
        check_whole(site, "containers", containers)
        if per_second is not None and not per_second > 0:
            raise refuse(site, f"per_second={per_second!r} is no rate", "per_second=10_000")
        if live:
            from samza_dsl.live import view

            watch = view().watch
        app = cast("App", self)
        merges = Merges({} if merge_into is None else merge_into, merge)
        span = Span(start=_by_stream(start), until=_by_stream(until), per_second=per_second)
        if on is not None:
            check_for_spark(site, on, containers=containers)
            if environment is not None:
                wrong = "on Spark a reprocessing reads and writes the topics that streams are bound to"
                raise refuse(site, wrong, 'bind={"flights": "kafka://host:9092/flights", ...}, without environment=')
            if on.checkpoint is not None:
                wrong = "a reprocessing has an end, and Spark(checkpoint=...) is about a run that goes on and on"
                raise refuse(site, wrong, "on=Spark()")
            from runtime.spark.session import check_installed

            check_installed()
            from runtime.spark.recompute import recompute_on_spark

            where = app.graph(), app.options, app.around, data
            how = {"name": name, "span": span, "handover": handover, "merges": merges, "watch": watch}
            return recompute_on_spark(*where, on=on, bind=bind, **how)  # type: ignore[arg-type]
        from runtime.recompute import recompute

        def run(graph: Graph, span: Span, merged: Mapping[str, str]) -> Run | Containers:
            how: dict[str, Any] = {"bind": {**(bind or {}), **merged}, "span": span, "watch": watch}
            how["environment"] = environment
            if containers > 1:
                from samza_dsl.container import run_app

                return run_app(app, data, containers, name=name, **how)
            from runtime.run import run_blocking

            return run_blocking(graph, app.options, app.around, data, **how)

        how = {"name": name, "span": span, "handover": handover, "merges": merges, "cluster": environment}
        return recompute(run, app.graph(), data, **how)  # type: ignore[arg-type]

    def take_over(
        self,
        handover: str | Path,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, Any] | None = None,
        at: Mapping[str, int | Literal["earliest", "latest"]] | None = None,
    ) -> None:
        """Have the application, which must not be running, go on from a handover when it runs next.

        What it remembered until now is dropped; what it has written stays. `bind` has what that run will bind. Where
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
        from runtime.recompute import take_over

        app = cast("App", self)
        if at is not None and not isinstance(at, Mapping):
            raise SamzaError(f'at={at!r} names no streams; write instead: at={{"flights": "earliest"}}')
        where = app.graph(), app.options, data, handover
        take_over(*where, at=at, bind=bind, wrapped=bool(app.around), cluster=environment)


def _by_stream(points: Points) -> Mapping[str, Point]:
    if points is None:
        return {}
    return points if isinstance(points, Mapping) else {ALL: points}
