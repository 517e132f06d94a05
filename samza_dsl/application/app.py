"""The application: its inputs, tables, outputs and tasks, and the methods that plan and run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from operators.core.base import Output, Serde, Site, Spec
from operators.core.durations import Duration
from operators.core.policies import Policy, fail
from operators.core.sites import here, takes
from operators.io import Input, TableInput, VersionedTable
from operators.task import Every, Form, UserTask
from planner.model.errors import refuse
from planner.model.identities import identified
from planner.model.plan import Options, Plan
from samza_dsl.application.reprocessing import Reprocessing
from samza_dsl.application.run_request import (
    ContainersOptions,
    LiveRunOptions,
    RunRequest,
    SparkRunOptions,
    exiting,
    in_background,
    served,
)
from samza_dsl.fluent.arguments import Compression, InputOptions, Kept, OutputOptions, TableOptions
from samza_dsl.fluent.checks import (
    DATA,
    check_function,
    check_name,
    check_options,
    check_policy,
    check_store,
    check_type,
    check_whole,
    function_said,
    in_whole_ms,
    is_coroutine_function,
    kept_said,
    key_said,
    ms_said,
    optional_ms_said,
    serde_said,
    source_said,
    state_said,
)
from samza_dsl.fluent.pace import Pace, PaceFields, paced
from samza_dsl.fluent.stream import MessageStream, OutputStream, check_ours
from samza_dsl.fluent.table import Table

if TYPE_CHECKING:
    from planner.model.graph import Graph
    from runtime.containers.supervisor import Containers
    from runtime.job.pipeline import Pipeline
    from runtime.model.metrics import Metrics
    from runtime.model.sizing import Sizing
    from runtime.model.state_choice import State
    from runtime.run.driver import Watch
    from runtime.run.run import Run
    from runtime.run.settings import Cluster
    from runtime.spark.batch import SparkRun
    from runtime.spark.session import Spark
    from runtime.units.driver.engine import BatchRun
    from samza_dsl.application.placement import Said

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S", bound=Spec)

Around = Callable[[Callable[..., Any], str], Callable[..., object]]


class App(Reprocessing):
    """A pipeline: streams in, operators, streams out. Written once, it can be planned, drawn, tested and run.

    Invariant: `_specs` has each spec under its own id, a parent before its children, and no spec ever changes.
    Pipelines are built in one thread.

    >>> app = App("shouting")
    >>> words = app.input("words", value=str)
    >>> words.map(str.upper).send_to(app.output("shouts", value=str))
    >>> from samza_dsl import testing
    >>> testing.run(app, {"words": ["ahoy"]})["shouts"]
    ['AHOY']
    """

    def __init__(self, name: str, options: Options | None = None) -> None:
        site = here()
        check_name(site, "an application", name)
        self.name = name
        self.options = Options() if options is None else in_whole_ms(options)
        check_options(site, self.options)
        self.around: tuple[Around, ...] = ()
        self._specs: dict[str, Spec] = {}

    @overload
    def input(
        self,
        stream: str,
        *,
        value: type[V],
        key: type[K],
        timestamp: Callable[[V], object] | None = None,
        watermark: Callable[[V], object] | None = None,
        **options: Unpack[InputOptions],
    ) -> MessageStream[K, V]: ...

    @overload
    def input(
        self,
        stream: str,
        *,
        value: type[V],
        key: Callable[[V], K],
        timestamp: Callable[[V], object] | None = None,
        watermark: Callable[[V], object] | None = None,
        partitioned_by_key: bool = False,
        **options: Unpack[InputOptions],
    ) -> MessageStream[K, V]: ...

    @overload
    def input(
        self,
        stream: str,
        *,
        value: type[V],
        key: None = None,
        timestamp: Callable[[V], object] | None = None,
        watermark: Callable[[V], object] | None = None,
        **options: Unpack[InputOptions],
    ) -> MessageStream[None, V]: ...

    @overload
    def input(
        self,
        stream: str,
        *,
        value: Serde | UnionType | None = None,
        key: object = None,
        timestamp: Callable[[Any], object] | None = None,
        watermark: Callable[[Any], object] | None = None,
        partitioned_by_key: bool = False,
        **options: Unpack[InputOptions],
    ) -> MessageStream[Any, Any]: ...

    def input(
        self,
        stream: str,
        *,
        value: object = None,
        key: object = None,
        timestamp: Callable[..., object] | None = None,
        watermark: Callable[..., object] | None = None,
        max_disorder_ms: Duration = 0,
        partitions: int | None = None,
        priority: int = 0,
        partitioned_by_key: bool = False,
        headers: bool = False,
        on_error: Policy = fail,
        **pace: Unpack[Pace],
    ) -> MessageStream[K, V]:
        """Read a stream, or all streams whose names match a pattern such as "orders-*".

        A stream that comes to match while the app runs is read within a second, from its start. There are as many tasks
        as the largest stream has partitions at the start, or as `partitions` says, if some may come to have more; all
        streams must have as many where an operator keeps state by key and no `partition_by` lies between.
        `value` is a type (read as JSON; str and bytes as such) or a serde. `key` is a type or serde, if records carry
        it, or a function of the value; without it messages have no key. `timestamp` gives the event time, as ms since
        the epoch or an aware datetime; without it, it is the record's. Event time follows it, less `max_disorder_ms`,
        by which records may be out of order; or with `watermark` it is what that function says of a value, if not None.
        A `pace` says when a partition is idle, and how far ahead one may be. Streams of a higher `priority` are read
        first. With `headers` the headers of records are read, and go on with what is made of each, up to the outputs.
        `on_error` is for records that can't be decoded. Raises PlanError for a malformed argument.

        Where `key` is a function and the stream has several partitions, one key may lie in any of them. With
        `partitioned_by_key` you say that its writer puts all records of a key into one partition; without it, operators
        that keep state by key need a `partition_by` before them.

        >>> App("a").input("numbers", value=int).spec.describe()
        'numbers'
        """
        site = here()
        check_name(site, "a stream", stream, pattern=True)
        check_whole(site, "partitions", partitions, optional=True)
        check_whole(site, "priority", priority, least=None)
        return MessageStream(
            self,
            self.add(
                Input(
                    stream=stream,
                    watermark_of=function_said(site, "input(watermark=...)", watermark),
                    timestamp_of=function_said(site, "input(timestamp=...)", timestamp),
                    max_disorder_ms=ms_said(site, "max_disorder_ms", max_disorder_ms, least=0),
                    **paced(site, pace),
                    partitions=partitions,
                    priority=priority,
                    headers=headers,
                    **source_said(site, "input", stream, value, key, partitioned_by_key, on_error),
                )
            ),
        )

    @overload
    def table(
        self,
        stream: str,
        *,
        value: type[V],
        key: type[K],
        timestamp: Callable[[V], object] | None = None,
        **options: Unpack[TableOptions],
    ) -> Table[K, V]: ...

    @overload
    def table(
        self,
        stream: str,
        *,
        value: type[V],
        key: Callable[[V], K],
        partitioned_by_key: bool = False,
        timestamp: Callable[[V], object] | None = None,
        **options: Unpack[TableOptions],
    ) -> Table[K, V]: ...

    @overload
    def table(
        self,
        stream: str,
        *,
        value: Serde | UnionType | None = None,
        key: object,
        partitioned_by_key: bool = False,
        timestamp: Callable[[Any], object] | None = None,
        **options: Unpack[TableOptions],
    ) -> Table[Any, Any]: ...

    def table(
        self,
        stream: str,
        *,
        value: object = None,
        key: object,
        broadcast: bool = False,
        partitions: int | None = None,
        partitioned_by_key: bool = False,
        timestamp: Callable[..., object] | None = None,
        max_disorder_ms: Duration = 0,
        retention_ms: Duration | None = None,
        on_error: Policy = fail,
        **pace: Unpack[Pace],
    ) -> Table[K, V]:
        """Read a stream as a table: the newest value of each key, complete before what joins it is read.

        With `broadcast` every task has all of it; else a task has the keys of its own partition, and the table is
        joined with a stream that is partitioned alike. Where `key` is a function, its writer has to put all rows of a
        key into one partition, which you say by `partitioned_by_key`. Raises PlanError for a malformed argument.

        >>> app = App("a")
        >>> app.table("planes", key=str, value=dict, broadcast=True).spec.kind
        'table'

        With `retention_ms` it is a table of versions, each from its own time on, and a message joins the one of its own
        time. `timestamp`, `max_disorder_ms` and a `pace` are as those of `app.input`; a record without a value removes
        its key as of the time that the record has itself. Versions are kept for messages that lie up to `retention_ms`
        before the watermark; at 0, only for those that are in time.

        >>> app.table("prices", key=str, value=int, timestamp=lambda price: 0, retention_ms=3_600_000).spec.kind
        'versioned_table'
        """
        site = here()
        check_name(site, "a stream", stream)
        check_whole(site, "partitions", partitions, optional=True)
        check_type(site, "table(broadcast=...)", broadcast, bool, "broadcast=True")
        read_as = source_said(site, "table", stream, value, key, partitioned_by_key, on_error)
        times = _times_said(site, timestamp, max_disorder_ms, retention_ms, pace, broadcast)
        spec: TableInput | VersionedTable
        if times:
            spec = VersionedTable(stream=stream, partitions=partitions, **read_as, **times)
        else:
            spec = TableInput(stream=stream, partitions=partitions, broadcast=broadcast, **read_as)
        return Table(self, self.add(spec))

    @overload
    def output(
        self,
        stream: str,
        *,
        value: type[V],
        **options: Unpack[OutputOptions],
    ) -> OutputStream[V]: ...

    @overload
    def output(
        self,
        stream: str,
        *,
        value: Serde | UnionType | None = None,
        **options: Unpack[OutputOptions],
    ) -> OutputStream[Any]: ...

    def output(
        self,
        stream: str,
        *,
        value: object = None,
        key: object = None,
        partitions: int | None = None,
        retention_ms: Duration | None = None,
        retention_bytes: int | None = None,
        compression: Compression | None = None,
    ) -> OutputStream[V]:
        """Declare a stream to write: with `value` and `key` as types or serdes; keys are as they came without `key`.

        Where the stream is absent it is made with so many `partitions`. Each of them drops its oldest records, some at
        every write: those written longer than `retention_ms` ago, and what is above `retention_bytes` as stored.
        Without these it keeps all. `compression` is "zstd" or "zlib". Raises PlanError for a malformed argument.

        >>> App("a").output("totals", value=int, key=str, retention_ms=7 * 86_400_000).spec.retention_ms
        604800000
        """
        site = here()
        check_name(site, "a stream", stream)
        check_whole(site, "partitions", partitions, optional=True)
        retention = kept_said(site, retention_ms, retention_bytes, compression)
        return OutputStream(
            self,
            Output(
                stream,
                value=serde_said(site, "value", value),
                key=key_said(site, "key", key) if key is not None else None,
                partitions=partitions,
                site=site,
                retention_ms=retention,
                retention_bytes=retention_bytes,
                compression=compression,
            ),
        )

    def task(
        self,
        inputs: MessageStream[K, V] | list[MessageStream[Any, Any]],
        process: Callable[..., object],
        *,
        op_id: str,
        outputs: list[OutputStream[Any]] | None = None,
        window: Every | None = None,
        max_in_flight: int = 1,
        timeout_ms: Duration = 2_000,
        state: type[object] | Serde | None = None,
        keyed: bool = False,
        store: Kept = "lmdb",
        on_error: Policy = fail,
    ) -> None:
        """Run your own task over whole messages, the lower level of Samza's designs.

        `process(envelope, context)` may be plain or async; with a third argument it is handed a callback, whose
        `complete()` or `fail(error)` any thread may call. `context` has state, `send(output, ...)`, `commit()` and
        `shutdown()`. `window=every(fn, seconds=10)` is called alone in the task. `state` is the type of what is put
        into the state, or the serde that stores it. With `keyed` a call for a message uses the state at `message.key`
        alone, so that the task can be split by keys. Raises PlanError for a malformed argument.

        >>> app = App("counting")
        >>> numbers, totals = app.input("numbers", value=int), app.output("totals", value=int)
        >>> def add_up(message, context):
        ...     context.put("total", context.get("total", 0) + message.value)
        ...     context.send(totals, context.get("total"))
        >>> app.task(numbers, add_up, outputs=[totals], op_id="adding")
        >>> from samza_dsl import testing
        >>> testing.run(app, {"numbers": [1, 2, 3]})["totals"]
        [1, 3, 6]
        """
        site = here()
        check_name(site, "an operator", op_id)
        check_policy(site, on_error)
        check_whole(site, "max_in_flight", max_in_flight)
        streams = inputs if isinstance(inputs, list) else [inputs]
        if not streams:
            raise refuse(site, "task([]) reads nothing", "task([app.input(...)], ...)")
        for stream in streams:
            check_ours(self, site, "task(...)", stream, MessageStream)
        check_type(site, "task(outputs=...)", outputs or [], list, "outputs=[app.output(...)]")
        for output in outputs or []:
            check_ours(self, site, "task(outputs=...)", output, OutputStream)
        if window is not None:
            check_type(site, "task(window=...)", window, Every, "window=every(fn, seconds=10)")
            check_function(site, "every(...)", window.function, 1)
        self.add(
            UserTask(
                parents=tuple(stream.spec for stream in streams),
                site=site,
                op_id=op_id,
                on_error=on_error,
                process=process,
                form=_form(site, process),
                outputs=tuple(output.spec for output in outputs or ()),
                window=window,
                max_in_flight=max_in_flight,
                timeout_ms=ms_said(site, "timeout_ms", timeout_ms),
                state=state_said(site, "task", "state", state),
                by_key=keyed,
                store=check_store(site, store),
            )
        )

    def wrap(self, around: Around) -> Around:
        """Wrap every user function: `around` gets the function and its operator's id, and returns another function.

        Async functions must be wrapped by async ones. Can be used as a decorator.

        >>> app = App("careful")
        >>> @app.wrap
        ... def counted(function, operator):
        ...     def call(*arguments):
        ...         calls.append(operator)
        ...         return function(*arguments)
        ...     return call
        >>> calls = []
        >>> app.input("numbers", value=int).map(abs).send_to(app.output("absolute", value=int))
        >>> from samza_dsl import testing
        >>> _ = testing.run(app, {"numbers": [-1]})
        >>> calls
        ['map-numbers']
        """
        check_function(here(), "wrap(...)", around, 2)
        self.around = (*self.around, around)
        return around

    def plan(self, partitions: Mapping[str, int] | None = None) -> Plan:
        """Plan the application; `partitions` has the counts of streams that exist already.

        Raises PlanError for every mistake that can be seen without running it.
        """
        # Imported late, here and below: who only writes a pipeline, or asks a command for help, plans nothing.
        from planner.passes import plan

        return plan(self.graph(), self.options, partitions, wrapped=bool(self.around))

    def graph(self) -> Graph:
        """Return the application as it is so far, as a graph of specs by id."""
        from planner.model.graph import build

        return build(self.name, self._specs)

    def pipeline(self) -> Pipeline:
        """Return the application as it is so far, in the form that every runner takes."""
        from runtime.job.pipeline import Pipeline

        return Pipeline(self.graph(), self.options, self.around)

    @overload
    def run(self, data: str | Path = DATA, *, containers: Literal[1] = 1, **options: Unpack[LiveRunOptions]) -> Run: ...

    @overload
    def run(
        self, data: str | Path = DATA, *, containers: int, **options: Unpack[ContainersOptions]
    ) -> Run | Containers: ...

    @overload
    def run(
        self, data: str | Path = DATA, *, autosize: Sizing, containers: int = 1, **options: Unpack[ContainersOptions]
    ) -> Containers: ...

    @overload
    def run(self, data: str | Path = DATA, *, on: Spark, **options: Unpack[SparkRunOptions]) -> SparkRun: ...

    def run(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, object] | None = None,
        from_start: bool = False,
        state: State = None,
        until_now: bool = False,
        live: bool = False,
        watch: Watch | None = None,
        metrics: str | Metrics | None = None,
        containers: int = 1,
        host_id: str | None = None,
        placement: Said = "sticky",
        standby: int = 0,
        autosize: Sizing | None = None,
        join: bool = False,
        on: Spark | None = None,
        collect: bool | str | Sequence[str] = False,
    ) -> Run | Containers | BatchRun:
        """Run on the embedded log in the directory `data` until the inputs end, or until SIGINT or SIGTERM.

        With `environment`, a `KafkaCluster` or its address ("kafka://host:9092"), streams, checkpoints and changelogs
        are topics there, and `data` has the state alone.

        `bind` puts a file (a path), a list of values, or a source or sink of your own in the place of a stream. Where
        the app has run before it goes on from there; with `from_start` it reads its inputs again, and `state` says what
        becomes of what it remembers, "reset" or "keep". Without, `state=Forget("old-id")` drops the state of operators
        that do not fit the app any more. With `until_now` it ends when it has read what is there now.

        With `live` it shows how it goes: a picture that stays in place on a terminal or, of a run on Spark, in a
        notebook, a line now and then elsewhere;
        `watch(run)` is awaited beside the run instead. With `metrics`, an address such as ":9464" or a `Metrics`, it
        serves its numbers for Prometheus there, and its health. Without `live` the log (`logging`, "samza_dsl") tells
        at the end what is worth a word: why nothing was read, what came late, joins that met hardly anything. Returns
        the finished run, for its metrics. Inside a running event loop use `await app.run_async()`.

        With `containers` so many processes share the tasks. They load the application anew, so it must be a variable of
        a module, and `app.run` be called under `if __name__ == "__main__":`. With `environment`, too, they share them
        with all containers of the application that run already, on whichever machine. Tasks then go to the machine that
        has their state where `placement` is "sticky", and are shared in turn with "round_robin"; or a function at the
        top level of a module says the container of each, given a `Placing`. `host_id` is the machine's name, if not its
        own. With `standby`, so many other machines keep a copy of each task's state, which follows its changelog: one
        of them takes the task over where its machine is gone. With `autosize=ByLoad(max=8)` there are more containers
        while it is behind, and fewer while they have little to do; a function of the last `Load`s decides otherwise.
        With `join` its containers share the tasks of a run in containers that goes on in `data`, begun by another
        program, and begin none.

        With `on=Spark()` it runs on Spark over what its inputs hold now, as all there will be, and writes the whole of
        its outputs when all of it is through: files and streams that must not hold anything yet. With
        `on=Spark(checkpoint="directory")` it goes on and on there, in micro-batches, and is started again from there;
        it is shown, or watched, as of the last one. Of outputs that a run to its end was told to `collect`, by their
        names or True for all that are bound to nothing, `run.output(name)` is a DataFrame.
        """
        request = RunRequest(
            data=data,
            environment=environment,
            bind=bind,
            from_start=from_start,
            state=state,
            until_now=until_now,
            live=live,
            watch=watch,
            metrics=metrics,
            containers=containers,
            host_id=host_id,
            placement=placement,
            standby=standby,
            autosize=autosize,
            join=join,
            on=on,
            collect=collect,
        )
        with exiting(self.name):
            return served(self, request)

    async def run_async(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, object] | None = None,
        from_start: bool = False,
        state: State = None,
        until_now: bool = False,
        metrics: str | Metrics | None = None,
    ) -> Run:
        """Run as `run` does, inside the running event loop."""
        request = RunRequest(data, environment, bind, from_start, state, until_now, metrics=metrics)
        with exiting(self.name):
            async with in_background(self, request) as run:
                await run.ended()
        return run

    def running(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, object] | None = None,
        from_start: bool = False,
        state: State = None,
        until_now: bool = False,
        metrics: str | Metrics | None = None,
    ) -> AbstractAsyncContextManager[Run]:
        """Run as `run` does in the background of an `async with`, and drain, commit and stop at its end.

        With `metrics=Metrics(ui=True)` a program with a loop of its own, as a web server, has the page of the run.
        """
        return in_background(self, RunRequest(data, environment, bind, from_start, state, until_now, metrics=metrics))

    def add(self, spec: S) -> S:
        """Add a spec under its id, and return it with that id; the fluent methods call this."""
        named = identified(spec, self._specs)
        assert named.op_id is not None
        self._specs[named.op_id] = named
        return named


def _form(site: Site, process: Callable[..., object]) -> Form:
    if is_coroutine_function(process):
        check_function(site, "task(process=...)", process, 2, awaits=True)
        return "async"
    # A function of two or three arguments is taken for one of two: its third has a default, and means something else.
    asks_for_callback = takes(process, 3) and not takes(process, 2)
    check_function(site, "task(process=...)", process, 3 if asks_for_callback else 2)
    return "callback" if asks_for_callback else "plain"


class VersionFields(PaceFields):
    """The fields that only a table of versions has."""

    timestamp_of: Callable[..., object] | None
    max_disorder_ms: int
    retention_ms: int


def _times_said(
    site: Site,
    timestamp: Callable[..., object] | None,
    max_disorder_ms: Duration,
    retention_ms: Duration | None,
    pace: Pace,
    broadcast: bool,
) -> VersionFields | None:
    """Return the fields that only a table of versions has; None for another table. Refuses what can't be meant."""
    disorder = ms_said(site, "max_disorder_ms", max_disorder_ms, least=0)
    retention = optional_ms_said(site, "retention_ms", retention_ms, least=0)
    how = paced(site, pace)
    if retention is None:
        said = {"timestamp": timestamp is not None, "max_disorder_ms": bool(disorder)} | dict.fromkeys(pace, True)
        for name in (name for name, is_said in said.items() if is_said):
            wrong = f"{name}= is about versions, and a table without retention_ms= has only the newest rows"
            raise refuse(site, wrong, f"retention_ms=0, or no {name}=")
        return None
    if broadcast:
        wrong = "a table of versions is joined by key, and not broadcast"
        raise refuse(site, wrong, ".partition_by(...) on the stream, and no broadcast=True")
    timestamp_of = function_said(site, "table(timestamp=...)", timestamp)
    return {"timestamp_of": timestamp_of, "max_disorder_ms": disorder, "retention_ms": retention, **how}
