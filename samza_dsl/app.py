"""The application: what it reads and writes, and the doors to planning and running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from operators.base import Serde, Site, Spec
from operators.io import Input, Output
from operators.policies import Policy, fail
from operators.sites import here, takes
from operators.task import Every, Form, Task
from planner import graph as graphs
from planner.errors import refuse
from planner.passes import plan as make_plan
from planner.plan import Options, Plan
from samza_dsl.checks import (
    DATA,
    check_for_spark,
    check_function,
    check_kept,
    check_name,
    check_not_loading,
    check_options,
    check_policy,
    check_standby,
    check_store,
    check_type,
    check_whole,
    function_said,
    is_coroutine_function,
    serde_said,
    source_said,
)
from samza_dsl.ends import OutputStream
from samza_dsl.pacing import Pace, paced
from samza_dsl.reprocessing import Reprocessing
from samza_dsl.stream import MessageStream, check_ours
from samza_dsl.tables import Tables

if TYPE_CHECKING:
    from runtime.containers import Containers
    from runtime.driving import Watch
    from runtime.run import Cluster, Run, State
    from runtime.spark.batch import SparkRun
    from runtime.spark.session import Spark
    from samza_dsl.placement import Said

K = TypeVar("K")
V = TypeVar("V")

Around = Callable[[Callable[..., Any], str], Callable[..., Any]]
Compression = Literal["zlib", "zstd"]


class App(Tables, Reprocessing):
    """A pipeline: streams in, operators, streams out. Written once, it can be planned, drawn, tested and run.

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
        self.options = Options() if options is None else options
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
        timestamp: Callable[[V], Any] | None = None,
        watermark: Callable[[V], Any] | None = None,
        max_disorder_ms: int = 0,
        partitions: int | None = None,
        priority: int = 0,
        on_error: Policy = fail,
        **pace: Unpack[Pace],
    ) -> MessageStream[K, V]: ...

    @overload
    def input(
        self,
        stream: str,
        *,
        value: type[V],
        key: Callable[[V], K],
        timestamp: Callable[[V], Any] | None = None,
        watermark: Callable[[V], Any] | None = None,
        max_disorder_ms: int = 0,
        partitions: int | None = None,
        priority: int = 0,
        partitioned_by_key: bool = False,
        on_error: Policy = fail,
        **pace: Unpack[Pace],
    ) -> MessageStream[K, V]: ...

    @overload
    def input(
        self,
        stream: str,
        *,
        value: type[V],
        key: None = None,
        timestamp: Callable[[V], Any] | None = None,
        watermark: Callable[[V], Any] | None = None,
        max_disorder_ms: int = 0,
        partitions: int | None = None,
        priority: int = 0,
        on_error: Policy = fail,
        **pace: Unpack[Pace],
    ) -> MessageStream[None, V]: ...

    @overload
    def input(
        self,
        stream: str,
        *,
        value: Serde | UnionType | None = None,
        key: Any = None,
        timestamp: Callable[[Any], Any] | None = None,
        watermark: Callable[[Any], Any] | None = None,
        max_disorder_ms: int = 0,
        partitions: int | None = None,
        priority: int = 0,
        partitioned_by_key: bool = False,
        on_error: Policy = fail,
        **pace: Unpack[Pace],
    ) -> MessageStream[Any, Any]: ...

    def input(
        self,
        stream: str,
        *,
        value: Any = None,
        key: Any = None,
        timestamp: Callable[[Any], Any] | None = None,
        watermark: Callable[[Any], Any] | None = None,
        max_disorder_ms: int = 0,
        partitions: int | None = None,
        priority: int = 0,
        partitioned_by_key: bool = False,
        on_error: Policy = fail,
        **pace: Unpack[Pace],
    ) -> MessageStream[Any, Any]:
        """Read a stream, or all streams whose names match a pattern such as "orders-*".

        A stream that comes to match while the app runs is read within a second, from its start. There are as many tasks
        as the largest stream has partitions at the start, or as `partitions` says, if some may come to have more; all
        streams must have as many where an operator keeps state by key and no `partition_by` lies between.
        `value` is a type (read as JSON; str and bytes as such) or a serde. `key` is a type or serde, if records carry
        it, or a function of the value; without it messages have no key. `timestamp` gives the event time, as ms since
        the epoch or an aware datetime; without it, it is the record's. Event time follows it, less `max_disorder_ms`,
        by which records may be out of order; or with `watermark` it is what that function says of a value, if not None.
        A `pace` says when a partition is idle, and how far ahead one may be. Streams of a higher `priority` are read
        first. `on_error` is for records that can't be decoded. Raises PlanError for a malformed argument.

        Where `key` is a function and the stream has several partitions, one key may lie in any of them. With
        `partitioned_by_key` you say that its writer puts all records of a key into one partition; without it, operators
        that keep state by key need a `partition_by` before them.

        >>> App("a").input("numbers", value=int).spec.describe()
        'numbers'
        """
        site = here()
        check_name(site, "a stream", stream, pattern=True)
        check_whole(site, "partitions", partitions, optional=True)
        check_whole(site, "max_disorder_ms", max_disorder_ms, least=0)
        check_whole(site, "priority", priority, least=None)
        return MessageStream(
            self,
            self.add(
                Input(
                    stream=stream,
                    watermark_of=function_said(site, "input(watermark=...)", watermark),
                    timestamp_of=function_said(site, "input(timestamp=...)", timestamp),
                    max_disorder_ms=max_disorder_ms,
                    **paced(site, pace),
                    partitions=partitions,
                    priority=priority,
                    **source_said(site, "input", value, key, partitioned_by_key, on_error),
                )
            ),
        )

    @overload
    def output(
        self,
        stream: str,
        *,
        value: type[V],
        key: type | Serde | None = None,
        partitions: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        compression: Compression | None = None,
    ) -> OutputStream[V]: ...

    @overload
    def output(
        self,
        stream: str,
        *,
        value: Serde | UnionType | None = None,
        key: type | Serde | None = None,
        partitions: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        compression: Compression | None = None,
    ) -> OutputStream[Any]: ...

    def output(
        self,
        stream: str,
        *,
        value: Any = None,
        key: Any = None,
        partitions: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        compression: Compression | None = None,
    ) -> OutputStream[Any]:
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
        check_kept(site, retention_ms, retention_bytes, compression)
        return OutputStream(
            self,
            Output(
                stream,
                value=serde_said(site, "value", value),
                key=serde_said(site, "key", key) if key is not None else None,
                partitions=partitions,
                site=site,
                retention_ms=retention_ms,
                retention_bytes=retention_bytes,
                compression=compression,
            ),
        )

    def task(
        self,
        inputs: MessageStream[Any, Any] | list[MessageStream[Any, Any]],
        process: Callable[..., Any],
        *,
        op_id: str,
        outputs: list[OutputStream[Any]] | None = None,
        window: Every | None = None,
        max_in_flight: int = 1,
        timeout_ms: int = 2_000,
        store: Literal["lmdb", "memory"] = "lmdb",
        on_error: Policy = fail,
    ) -> None:
        """Run your own task over whole messages, the lower level of Samza's designs.

        `process(envelope, context)` may be plain or async; with a third argument it is handed a callback, whose
        `complete()` or `fail(error)` any thread may call. `context` has state, `send(output, ...)`, `commit()` and
        `shutdown()`. `window=every(fn, seconds=10)` is called alone in the task. Raises PlanError for a malformed
        argument.

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
        check_whole(site, "timeout_ms", timeout_ms)
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
            Task(
                parents=tuple(stream.spec for stream in streams),
                site=site,
                op_id=op_id,
                on_error=on_error,
                process=process,
                form=_form(site, process),
                outputs=tuple(output.spec for output in outputs or ()),
                window=window,
                max_in_flight=max_in_flight,
                timeout_ms=timeout_ms,
                store=check_store(site, store),
            )
        )

    def wrap(self, around: Around) -> Around:
        """Run `around` about every user function: it gets the function and its operator's id, and returns another.

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
        return make_plan(self.graph(), self.options, partitions, wrapped=bool(self.around))

    def graph(self) -> graphs.Graph:
        """Return what has been said so far, as a graph of specs by id."""
        return graphs.build(self.name, self._specs)

    @overload
    def run(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, Any] | None = None,
        from_start: bool = False,
        state: State = None,
        until_now: bool = False,
        live: bool = False,
        watch: Watch | None = None,
        containers: Literal[1] = 1,
        host_id: str | None = None,
    ) -> Run: ...

    @overload
    def run(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, Any] | None = None,
        from_start: bool = False,
        state: State = None,
        until_now: bool = False,
        live: bool = False,
        watch: Watch | None = None,
        containers: int,
        host_id: str | None = None,
        placement: Said = "sticky",
        standby: int = 0,
    ) -> Run | Containers: ...

    @overload
    def run(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, Any] | None = None,
        until_now: bool = False,
        live: bool = False,
        watch: Watch | None = None,
        on: Spark,
    ) -> SparkRun: ...

    def run(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, Any] | None = None,
        from_start: bool = False,
        state: State = None,
        until_now: bool = False,
        live: bool = False,
        watch: Watch | None = None,
        containers: int = 1,
        host_id: str | None = None,
        placement: Said = "sticky",
        standby: int = 0,
        on: Spark | None = None,
    ) -> Run | Containers | SparkRun:
        """Run on the embedded log in the directory `data` until the inputs end, or until SIGINT or SIGTERM.

        With `environment`, a `KafkaCluster` or its address ("kafka://host:9092"), streams, checkpoints and changelogs
        are topics there, and `data` has the state alone.

        `bind` puts a file (a path), a list of values, or a source or sink of your own in the place of a stream. Where
        the app has run before it goes on from there; with `from_start` it reads its inputs again, and `state` says what
        becomes of what it remembers, "reset" or "keep". With `until_now` it ends when it has read what is there now.

        With `live` it shows how it goes: a picture that stays in place on a terminal or, of a run on Spark, in a
        notebook, a line now and then elsewhere;
        `watch(run)` is awaited beside the run instead. Returns the finished run, for its metrics. Inside a running
        event loop use `await app.run_async()`.

        With `containers` so many processes share the tasks. They load the application anew, so it must be a variable of
        a module, and `app.run` be called under `if __name__ == "__main__":`. With `environment`, too, they share them
        with all containers of the application that run already, on whichever machine. Tasks then go to the machine that
        has their state where `placement` is "sticky", and are shared in turn with "round_robin"; or a function at the
        top level of a module says the container of each, given a `Placing`. `host_id` is the machine's name, if not its
        own. With `standby`, so many other machines keep a copy of each task's state, which follows its changelog: one
        of them takes the task over where its machine is gone.

        With `on=Spark()` it runs on Spark over what its inputs hold now, as all there will be, and writes the whole of
        its outputs when all of it is through: files and streams that must not hold anything yet. With
        `on=Spark(checkpoint="directory")` it goes on and on there, in micro-batches, and is started again from there;
        it is shown, or watched, as of the last one.
        """
        from runtime.run import run_blocking

        check_not_loading()
        check_whole(here(), "containers", containers)
        if live:
            from samza_dsl.live import view

            watch = view().watch
        how: dict[str, Any] = {"bind": bind, "from_start": from_start, "state": state, "until_now": until_now}
        if on is not None:
            from runtime.spark.session import check_installed

            check_installed()
            from runtime.spark.batch import run_batch
            from runtime.spark.streaming import run_stream

            said: dict[str, Any] = {"containers": containers, "state": state, "from_start": from_start}
            said |= {"host_id": host_id, "placement": placement, "standby": standby}
            goes_on = on.checkpoint is not None
            check_for_spark(here(), on, **said, **({} if goes_on else {"until_now": until_now}))
            where = self.graph(), self.options, self.around, data
            there: dict[str, Any] = {"on": on, "bind": bind, "environment": environment, "watch": watch}
            return run_stream(*where, **there, until_now=until_now) if goes_on else run_batch(*where, **there)
        check_standby(here(), standby, containers, environment)
        how |= {"watch": watch, "environment": environment, "host_id": host_id}
        if containers > 1:
            from samza_dsl.container import run_app

            return run_app(self, data, containers, placement=placement, standby=standby, **how)
        return run_blocking(self.graph(), self.options, self.around, data, **how)

    async def run_async(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, Any] | None = None,
        from_start: bool = False,
        state: State = None,
        until_now: bool = False,
    ) -> Run:
        """Run as `run` does, inside the running event loop."""
        how: dict[str, Any] = {"environment": environment, "bind": bind, "from_start": from_start}
        async with self.running(data, **how, state=state, until_now=until_now) as run:
            await run.ended()
        return run

    def running(
        self,
        data: str | Path = DATA,
        *,
        environment: Cluster = None,
        bind: Mapping[str, Any] | None = None,
        from_start: bool = False,
        state: State = None,
        until_now: bool = False,
    ) -> AbstractAsyncContextManager[Run]:
        """Run as `run` does in the background of an `async with`, and drain, commit and stop at its end."""
        from runtime.run import running

        check_not_loading()
        how = {"bind": bind, "from_start": from_start, "state": state, "until_now": until_now}
        return running(self.graph(), self.options, self.around, data, environment=environment, **how)

    def add(self, spec: Any) -> Any:
        """Keep a spec under its id, and return it with that; the fluent methods call this."""
        named = graphs.identified(spec, self._specs)
        assert named.op_id is not None
        self._specs[named.op_id] = named
        return named


def _form(site: Site, process: Any) -> Form:
    if is_coroutine_function(process):
        check_function(site, "task(process=...)", process, 2, awaits=True)
        return "async"
    asks_for_callback = takes(process, 3) and not takes(process, 2)
    check_function(site, "task(process=...)", process, 3 if asks_for_callback else 2)
    return "callback" if asks_for_callback else "plain"
