"""The fluent stream: each method is a docstring and a few lines, and adds one frozen spec to the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeGuard, TypeVar, Unpack, cast, overload

from operators.aggregations.aggregation import Aggregation
from operators.async_flat_map import AsyncFlatMap, Order
from operators.core.base import Output, Serde, Site, Spec
from operators.core.durations import Duration
from operators.core.policies import DeadLetterPolicy, Policy, fail
from operators.core.sites import here, takes
from operators.deduplicate import Deduplicate
from operators.io import SendTo, SinkCall
from operators.joins.asof_join import Direction
from operators.joins.interval_join import How, Keep
from operators.joins.own_table import OwnTable, OwnTableJoin
from operators.partition_by import Broadcast, ByFunction, PartitionBy, Partitioner, hash_
from operators.process import Process, ProcessContext
from operators.retractions import Revision, Revisions
from operators.scan import Scan
from operators.state.keyed_state import KeyContext
from operators.stateless import Branch, BranchArm, Filter, FlatMap, Map, Merge, SideArm
from operators.windows.triggers import Trigger
from operators.windows.window import Emit, Pane, Panes, Window
from operators.windows.window_types import Assigner, Windows
from planner.model.errors import refuse
from runtime.encoding.serdes import NoKey
from runtime.stores.registry import DEFAULT
from samza_dsl.fluent.arguments import (
    AsofJoinOptions,
    AsyncOptions,
    Bounds,
    IntervalJoinOptions,
    JoinFields,
    JoinOptions,
    Kept,
    OperatorFields,
    OperatorOptions,
    ProcessOptions,
    Sides,
    StoreOptions,
    StreamJoinOptions,
    WindowJoinOptions,
)
from samza_dsl.fluent.checks import (
    check_function,
    check_name,
    check_policy,
    check_store,
    check_type,
    check_whole,
    handed_on_said,
    is_coroutine_function,
    key_said,
    ms_said,
    optional_ms_said,
    remember_said,
    serde_said,
    state_said,
)
from samza_dsl.fluent.joins import (
    AsofJoinArguments,
    JoinArguments,
    WindowJoinArguments,
    asof_join,
    interval_join,
    own_table_join,
    remote_join,
    table_join,
    window_join,
)
from samza_dsl.fluent.pace import Throttle, sampler
from samza_dsl.fluent.remote_table import RemoteTable
from samza_dsl.fluent.state_types import StateTypes, serdes_of_state
from samza_dsl.fluent.table import JoinedTable, Table
from samza_dsl.fluent.windows import WindowArguments, WindowsBy, fields_of_window

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from samza_dsl.application.app import App

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
K2 = TypeVar("K2")

Undeclared = ProcessContext[K, Any]
"""The context of a `process` that does not declare the type of its state, which may then be anything."""


class MessageStream(Generic[K, V]):
    """A stream of messages with keys of type K and values of type V; its methods make further streams of it.

    The functions that are passed in receive the value. They may be plain functions, or objects with `__call__` that
    may also have `open(context)` and `close()`, plain or async: then every task has its own copy, opened in the run's
    event loop before its first message, and closed there at the end, also after a failure.

    >>> app, numbers = example()
    >>> shown(app, numbers.filter(lambda n: n > 0).map(lambda n: n * n))
    [1, 4, 9]
    """

    def __init__(self, app: App, spec: Spec) -> None:
        # The spec is frozen and kept by the application already, so that a stream can be used any number of times: each
        # method adds a spec that points at this one, and changes nothing here. Pipelines are built in one thread.
        self.app = app
        self.spec = spec

    @overload
    def filter(
        self, keep: Callable[[V], TypeGuard[R]], *, on_error: Policy = fail, op_id: str | None = None
    ) -> MessageStream[K, R]: ...

    @overload
    def filter(
        self, keep: Callable[[V], TypeIs[R]], *, on_error: Policy = fail, op_id: str | None = None
    ) -> MessageStream[K, R]: ...

    @overload
    def filter(
        self, keep: Callable[[V], object], *, on_error: Policy = fail, op_id: str | None = None
    ) -> MessageStream[K, V]: ...

    def filter(
        self, keep: Callable[[V], object], *, on_error: Policy = fail, op_id: str | None = None
    ) -> MessageStream[K, R]:
        """Keep the messages for which `keep(value)` is true.

        Where `keep` is declared to return a TypeGuard or TypeIs, type checkers know what is left. Raises PlanError when
        it is not a plain function of one argument.

        >>> app, numbers = example()
        >>> shown(app, numbers.filter(lambda n: n % 2))
        [1, 3]
        """
        return self._with_function(Filter, "filter(...)", keep, on_error, op_id)

    @overload
    def map(
        self,
        function: Callable[[V], R],
        *,
        headers: Literal[False] = False,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    @overload
    def map(
        self,
        function: Callable[[V, Mapping[str, bytes | None]], R],
        *,
        headers: Literal[True],
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    def map(
        self,
        function: Callable[..., R],
        *,
        headers: bool = False,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]:
        """Replace each message by `function(value)`, with `headers` by `function(value, headers)`; key and time stay.

        Headers are names and bytes, as the writer of an input of `headers=True` gave them. Raises PlanError when
        `function` is not a plain function of so many arguments.

        >>> app, numbers = example()
        >>> shown(app, numbers.map(lambda n: n * 10))
        [0, 10, 20, 30]
        """
        site = here()
        check_function(site, "map(...)", function, 2 if headers else 1)
        return self._then(Map, site, on_error, op_id, function=function, headers=headers)

    def flat_map(
        self, function: Callable[[V], Iterable[R]], *, on_error: Policy = fail, op_id: str | None = None
    ) -> MessageStream[K, R]:
        """Replace each message by the messages in `function(value)`: any number, also none.

        Raises PlanError when `function` is not a plain function of one argument.

        >>> app, numbers = example()
        >>> shown(app, numbers.flat_map(range))
        [0, 0, 1, 0, 1, 2]
        """
        return self._with_function(FlatMap, "flat_map(...)", function, on_error, op_id)

    @overload
    def async_flat_map(
        self,
        function: Callable[[V], Awaitable[Iterable[R]]],
        *,
        order: Order = "key",
        remember: bool | str = False,
        **options: Unpack[AsyncOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def async_flat_map(
        self,
        function: Callable[[V, KeyContext[K, S]], Awaitable[Iterable[R]]],
        *,
        init: Callable[[], S] | None = None,
        state: type[S] | Serde | None = None,
        store: Kept = "lmdb",
        order: Literal["key"] = "key",
        **options: Unpack[AsyncOptions],
    ) -> MessageStream[K, R]: ...

    def async_flat_map(
        self,
        function: Callable[..., Awaitable[Iterable[R]]],
        *,
        init: Callable[[], S] | None = None,
        state: object = None,
        store: Kept = "lmdb",
        max_in_flight: int = 100,
        timeout_ms: Duration = 2_000,
        order: Order = "key",
        remember: bool | str = False,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]:
        """Replace each message by the messages that an async function returns; many calls are in flight at once.

        `order` is "key" (the default: one key's messages start, finish and go on in order, others overtake),
        "partition" (all go on in input order) or "none". A call that takes longer than `timeout_ms` is cancelled and
        goes to `on_error`. After Samza's async high-level API. Raises PlanError when the function is not async, or
        when timeouts and retries may take longer than a commit may wait.

        >>> async def look_up(n):
        ...     return [n, -n]
        >>> app, numbers = example()
        >>> shown(app, numbers.async_flat_map(look_up, timeout_ms=500))
        [0, 0, 1, -1, 2, -2, 3, -3]

        A function of two arguments, `function(value, context)`, has the state of the message's key, as in `process`:
        `context.state`, `init()` at first, of the type or serde `state`. What a call leaves there is written when the
        message takes effect; a call that fails, is cancelled or is made again leaves nothing. Its messages have keys,
        and `order` is "key".

        >>> async def running_total(n, context):
        ...     context.state += n
        ...     return [context.state]
        >>> app, numbers = example(key=lambda n: "all")
        >>> shown(app, numbers.async_flat_map(running_total, init=int))
        [0, 1, 3, 6]

        With `remember` an answer is paid for once: it is kept as soon as it comes, and a run that goes on after a crash
        calls only for what has no answer yet, at most `max_in_flight` of a task. Questions and answers are plain
        values, Structs or dataclasses. A changed function asks anew, and so does another word, as in
        `remember="prompt-2"`.

        >>> app, numbers = example()
        >>> shown(app, numbers.async_flat_map(look_up, remember=True))
        [0, 0, 1, -1, 2, -2, 3, -3]
        """
        site = here()
        keeps_state = (
            init is not None or state is not None or store != DEFAULT or (takes(function, 2) and not takes(function, 1))
        )
        check_function(site, "async_flat_map(...)", function, 2 if keeps_state else 1, awaits=True)
        if init is not None:
            check_function(site, "async_flat_map(init=...)", init, 0)
        check_whole(site, "max_in_flight", max_in_flight)
        if order not in ("partition", "key", "none"):
            raise refuse(site, f"order={order!r} is not an order", 'order="key", "partition" or "none"')
        return self._then(
            AsyncFlatMap,
            site,
            on_error,
            op_id,
            function=function,
            max_in_flight=max_in_flight,
            timeout_ms=ms_said(site, "timeout_ms", timeout_ms),
            order=order,
            remember=remember_said(site, remember, keeps_state),
            keeps_state=keeps_state,
            init=init,
            state=state_said(site, "async_flat_map", "state", state),
            store=check_store(site, store),
        )

    def partition_by(
        self,
        key: Callable[[V], K2],
        *,
        partitions: int | None = None,
        by: Partitioner | Callable[[K2, int], int] = hash_,
        key_type: type[K2] | Serde | None = None,
        value: type[V] | Serde | None = None,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K2, V]:
        """Give each message the key `key(value)`, and send it through an intermediate stream to that key's partition.

        `by` is `hash_` (Kafka's own), `ranges([...])` or a function of key and partition count. Without `key_type`
        and `value` any plain value, Struct or dataclass can pass. A key that would come back as another, as a date of
        `key_type=tuple`, goes where `on_error` says. Raises PlanError for a malformed argument.

        >>> app, numbers = example()
        >>> shown(app, numbers.partition_by(lambda n: n % 2, partitions=1))
        [0, 1, 2, 3]
        """
        site = here()
        check_function(site, "partition_by(...)", key, 1)
        check_whole(site, "partitions", partitions, optional=True)
        if not isinstance(by, Partitioner):
            check_function(site, "partition_by(by=...)", by, 2)
            by = ByFunction(by)
        return self._then(
            PartitionBy,
            site,
            on_error,
            op_id,
            key_of=key,
            partitions=partitions,
            by=by,
            key=key_said(site, "key_type", key_type) if key_type is not None else None,
            value=handed_on_said(site, value),
        )

    def merge(self, *others: MessageStream[K, V], op_id: str | None = None) -> MessageStream[K, V]:
        """Put this stream and `others` together, as their messages come.

        Raises PlanError when one is not a stream of this application.

        >>> app, numbers = example()
        >>> shown(app, numbers.filter(lambda n: n > 2).merge(numbers.filter(lambda n: n < 1)))
        [0, 3]
        """
        site = here()
        for other in others:
            check_ours(self.app, site, "merge(...)", other, MessageStream)
        if not others:
            raise refuse(site, "merge() has nothing to merge with", ".merge(other)")
        parents = (self.spec, *(other.spec for other in others))
        if len(set(map(id, parents))) < len(parents):
            raise refuse(site, "merge(...) got one stream twice", ".flat_map(lambda value: (value, value))")
        merge = Merge(parents=parents, **self._said(site, fail, op_id))
        return MessageStream(self.app, self.app.add(merge))

    def branch(
        self,
        choose: Callable[[V], str | Collection[str]],
        into: Collection[str],
        *,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> Mapping[str, MessageStream[K, V]]:
        """Split or replicate: `choose(value)` names the branch, or the branches, that a message goes to.

        Choosing none drops it; choosing what is not in `into` is an error of the record. Raises PlanError when the
        names are not distinct.

        >>> app, numbers = example()
        >>> parts = numbers.branch(lambda n: "even" if n % 2 == 0 else "odd", into=("even", "odd"))
        >>> shown(app, parts["odd"])
        [1, 3]
        """
        site = here()
        check_function(site, "branch(...)", choose, 1)
        return self._branched(site, BranchArm, choose, into, on_error, op_id)

    def _branched(
        self,
        site: Site,
        arm: type[BranchArm],
        choose: Callable[..., str | Collection[str]],
        into: Collection[str],
        on_error: Policy,
        op_id: str | None,
    ) -> Mapping[str, MessageStream[K, R]]:
        names = tuple(into) if not isinstance(into, str) else ()
        if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
            raise refuse(site, f"into={into!r} does not name the branches", 'into=("late", "on_time")')
        parent: MessageStream[K, V] = self._then(Branch, site, on_error, op_id, function=choose, names=names)
        return {name: parent._then(arm, site, fail, None, name=name) for name in names}

    @overload
    def scan(
        self,
        step: Callable[[S | None, V], S],
        *,
        state: type[S] | Serde | None = None,
        **options: Unpack[StoreOptions],
    ) -> MessageStream[K, S]: ...

    @overload
    def scan(
        self,
        step: Callable[[S, V], S],
        *,
        init: Callable[[], S],
        state: type[S] | Serde | None = None,
        **options: Unpack[StoreOptions],
    ) -> MessageStream[K, S]: ...

    @overload
    def scan(
        self,
        step: Callable[[S | None, V], S],
        *,
        emit: Callable[[K, S], R],
        state: type[S] | Serde | None = None,
        **options: Unpack[StoreOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def scan(
        self,
        step: Callable[[S, V], S],
        *,
        init: Callable[[], S],
        emit: Callable[[K, S], R],
        state: type[S] | Serde | None = None,
        **options: Unpack[StoreOptions],
    ) -> MessageStream[K, R]: ...

    def scan(
        self,
        step: Callable[..., S],
        *,
        init: Callable[[], S] | None = None,
        emit: Callable[[K, S], R] | None = None,
        state: object = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]:
        """Keep a state per key: `step(state, value)` returns the next one, which goes on, message by message.

        The state is `init()` at first, else None; a step to None removes it. With `emit` what goes on is
        `emit(key, state)`. `state` declares its type or serde, as in `process`. Raises PlanError when the messages have
        no key. It is the scan of functional libraries, and costs less than `process`, which can do more.

        >>> app, numbers = example(key=lambda n: n % 2)
        >>> shown(app, numbers.scan(lambda total, n: total + n, init=int, emit=lambda key, total: (key, total)))
        [(0, 0), (1, 1), (0, 2), (1, 4)]
        """
        site = here()
        check_function(site, "scan(...)", step, 2)
        for said, function, arguments in (("init", init, 0), ("emit", emit, 2)):
            if function is not None:
                check_function(site, f"scan({said}=...)", function, arguments)
        how = {"state": state_said(site, "scan", "state", state), "store": check_store(site, store)}
        return self._then(Scan, site, on_error, op_id, step=step, init=init, emit=emit, **how)

    @overload
    def process(
        self,
        on_message: Callable[[V, Undeclared[K]], Iterable[R] | None],
        *,
        on_timer: Callable[[int, Undeclared[K]], Iterable[R] | None] | None = None,
        on_alarm: Callable[[int, Undeclared[K]], Iterable[R] | None] | None = None,
        init: Callable[[], object] | None = None,
        state: Serde | StateTypes | None = None,
        into: None = None,
        **options: Unpack[ProcessOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def process(
        self,
        on_message: Callable[[V, Undeclared[K]], Iterable[tuple[str, R]] | None],
        *,
        on_timer: Callable[[int, Undeclared[K]], Iterable[tuple[str, R]] | None] | None = None,
        on_alarm: Callable[[int, Undeclared[K]], Iterable[tuple[str, R]] | None] | None = None,
        init: Callable[[], object] | None = None,
        state: Serde | StateTypes | None = None,
        into: Collection[str],
        **options: Unpack[ProcessOptions],
    ) -> Mapping[str, MessageStream[K, R]]: ...

    @overload
    def process(
        self,
        on_message: Callable[[V, ProcessContext[K, S]], Iterable[R] | None],
        *,
        on_timer: Callable[[int, ProcessContext[K, S]], Iterable[R] | None] | None = None,
        on_alarm: Callable[[int, ProcessContext[K, S]], Iterable[R] | None] | None = None,
        init: Callable[[], S] | None = None,
        state: type[S],
        into: None = None,
        **options: Unpack[ProcessOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def process(
        self,
        on_message: Callable[[V, ProcessContext[K, S]], Iterable[tuple[str, R]] | None],
        *,
        on_timer: Callable[[int, ProcessContext[K, S]], Iterable[tuple[str, R]] | None] | None = None,
        on_alarm: Callable[[int, ProcessContext[K, S]], Iterable[tuple[str, R]] | None] | None = None,
        init: Callable[[], S] | None = None,
        state: type[S],
        into: Collection[str],
        **options: Unpack[ProcessOptions],
    ) -> Mapping[str, MessageStream[K, R]]: ...

    def process(
        self,
        on_message: Callable[..., Iterable[object] | None],
        *,
        on_timer: Callable[..., Iterable[object] | None] | None = None,
        on_alarm: Callable[..., Iterable[object] | None] | None = None,
        init: Callable[[], S] | None = None,
        ttl_ms: Duration | None = None,
        state: object = None,
        into: Collection[str] | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R] | Mapping[str, MessageStream[K, R]]:
        """Call `on_message(value, context)` with the state of the message's key; what it returns goes on.

        `context.state` is the key's value (`init()` at first); `context.list(name)` and `context.map(name)` are read
        and written entry by entry. `context.set_timer(at_ms)` asks for `on_timer(at_ms, context)` in event time,
        `context.set_alarm(at_ms)` for `on_alarm(at_ms, context)` by the clock, which `context.now_ms` tells. All state
        of a key is dropped when event time is `ttl_ms` past its last message. `state` is the type of `context.state`,
        or the serde that stores it, or `StateTypes(...)`, which has those of lists and maps as well; without one any
        plain value, record or common type can be kept. Raises PlanError when the messages have no key, or the type
        can't be stored.

        >>> def running_total(n, context):
        ...     context.state += n
        ...     return [context.state]
        >>> app, numbers = example(key=lambda n: "all")
        >>> shown(app, numbers.process(running_total, init=int))
        [0, 1, 3, 6]

        With `into=` there are several outputs: the functions return pairs of a name and a value.

        >>> def first_and_more(n, context):
        ...     context.state += 1
        ...     return [("first" if context.state == 1 else "more", n)]
        >>> app, numbers = example(key=lambda n: n % 2)
        >>> shown(app, numbers.process(first_and_more, init=int, into=("first", "more"))["more"])
        [2, 3]
        """
        site = here()
        check_function(site, "process(...)", on_message, 2, yields=True)
        for name, function in (("on_timer", on_timer), ("on_alarm", on_alarm)):
            if function is not None:
                check_function(site, f"process({name}=...)", function, 2, yields=True)
        if init is not None:
            check_function(site, "process(init=...)", init, 0)
        ttl = optional_ms_said(site, "ttl_ms", ttl_ms)
        how: dict[str, object] = {"on_timer": on_timer, "on_alarm": on_alarm, "init": init, "ttl_ms": ttl}
        how |= {**serdes_of_state(site, state), "store": check_store(site, store)}
        processed: MessageStream[K, R] = self._then(Process, site, on_error, op_id, on_message=on_message, **how)
        if into is None:
            return processed
        return processed._branched(site, SideArm, _branch_of, into, on_error, None)

    def deduplicate(
        self,
        id_of: Callable[[V], object],
        *,
        within_ms: Duration,
        id_type: type[object] | Serde | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, V]:
        """Drop messages whose `id_of(value)` another message had that went on less than `within_ms` before or after.

        Duplicates are looked for in each partition: where copies of one message may lie in several, `partition_by` the
        id first. Messages need timestamps. An id is any plain value, record or common type, kept for `within_ms` of
        event time; `id_type` is its type, or the serde by whose bytes ids are the same.

        >>> app, numbers = example()
        >>> shown(app, numbers.deduplicate(lambda n: n % 2, within_ms=60_000))
        [0, 1]
        """
        site = here()
        check_function(site, "deduplicate(...)", id_of, 1)
        within, kept = ms_said(site, "within_ms", within_ms), check_store(site, store)
        serde = None if id_type is None else serde_said(site, "id_type", id_type, operator="deduplicate")
        how: dict[str, object] = {"id_of": id_of, "within_ms": within, "store": kept, "id_serde": serde}
        return self._then(Deduplicate, site, on_error, op_id, **how)

    def sample(
        self,
        share: float,
        *,
        by: Callable[[V], object] | None = None,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, V]:
        """Keep a share of all messages, from 0 to 1, chosen by their values, or by `by(value)`.

        Equal ones are all kept or all dropped, in every run and on every machine; what a larger share keeps has what a
        smaller one keeps in it. Values are plain ones, Structs or dataclasses.

        >>> app, numbers = example()
        >>> shown(app, numbers.sample(0.5))
        [2, 3]
        """
        site = here()
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise refuse(site, f"share={share!r} is no share of all messages", "sample(0.01)")
        if by is not None:
            check_function(site, "sample(by=...)", by, 1)
        chosen = sampler(float(share), by)
        return self.filter(chosen, on_error=on_error, op_id=op_id)

    def throttle(self, per_second: float, *, op_id: str | None = None) -> MessageStream[K, V]:
        """Let no more than `per_second` messages go on each second, in each task, in their order; the rest wait unread.

        Raises PlanError when one message would wait longer than a commit may.

        >>> app, numbers = example()
        >>> shown(app, numbers.throttle(1_000))
        [0, 1, 2, 3]
        """
        site = here()
        if isinstance(per_second, bool) or not isinstance(per_second, int | float) or not per_second > 0:
            raise refuse(site, f"per_second={per_second!r} is no rate", "throttle(100)")
        # Messages wait as async calls in order: `max_in_flight` bounds how many wait, and no others are read.
        pace = Throttle(float(per_second))
        return self.async_flat_map(
            pace, order="partition", max_in_flight=pace.at_once, timeout_ms=pace.longest_ms, op_id=op_id
        )

    def window(
        self,
        windows: Windows | WindowsBy | Assigner[K, V],
        aggregation: Aggregation[V, R],
        *,
        allowed_lateness_ms: Duration = 0,
        panes: Panes = "accumulating",
        early: Trigger | None = None,
        late_trigger: Trigger | None = None,
        emit: Emit = "all",
        late: DeadLetterPolicy | None = None,
        state: type[object] | Serde | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Pane[K, R]]:
        """Aggregate per key and event-time window; a pane goes on when the watermark passes the window's end.

        A value is late when the end of its window, or in sessions its own time, had passed for its own source
        partition, whatever others have read. For `allowed_lateness_ms` after that late values make further panes, of
        all that the window has by then ("accumulating", or "retracting", where the pane before is withdrawn) or of just
        these ("discarding"); a `late_trigger` says when, and else each makes one. Later ones are counted, and sent to
        `late` if that is `dead_letter("name")`. With `early`, a trigger such as `after_count(100)` or
        `after_delay(minutes=1)`, a window has panes before its end, too; with `emit="final"` it has just one, when no
        late value can come any more. The windows may be your own (`Assigner`). `state` is the type or serde of what is
        kept: of the accumulator of a `fold`, else of each value. Raises PlanError when the messages have no key.

        >>> from samza_dsl import after_count, count, tumbling
        >>> app, numbers = example(key=lambda n: str(n))
        >>> shown(app, numbers.window(tumbling(seconds=1), count()).map(lambda pane: (pane.key, pane.value)))
        [('0', 1), ('1', 1), ('2', 1), ('3', 1)]

        >>> app, numbers = example(key=lambda n: "all")
        >>> panes = numbers.window(tumbling(seconds=1), count(), early=after_count(3))
        >>> shown(app, panes.map(lambda pane: (pane.value, pane.timing)))
        [(3, 'early'), (4, 'on_time')]
        """
        site = here()
        how = WindowArguments(allowed_lateness_ms, panes, early, late_trigger, emit, late, state, store)
        fields = fields_of_window(site, windows, aggregation, how)
        # Rows of a table say the windows, so each value first meets its row, by a join like any other.
        stream: MessageStream[K, V] | MessageStream[K, tuple[V, object]] = self
        kind: Windows | WindowsBy | Assigner[K, V] = windows
        if isinstance(windows, WindowsBy):
            with_row: Callable[[V, object], tuple[V, object]] = lambda value, row: (value, row)  # noqa: E731
            stream = self.join(windows.table, with_row, on=windows.on, how="left", on_error=on_error)
            kind = windows.windows
        return stream._then(Window, site, on_error, op_id, windows=kind, **fields)

    def window_all(
        self,
        windows: Windows | WindowsBy | Assigner[None, V],
        aggregation: Aggregation[V, R],
        *,
        allowed_lateness_ms: Duration = 0,
        panes: Panes = "accumulating",
        early: Trigger | None = None,
        late_trigger: Trigger | None = None,
        emit: Emit = "all",
        late: DeadLetterPolicy | None = None,
        state: type[object] | Serde | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[None, Pane[None, R]]:
        """Aggregate all messages per window, whatever their key, in one task; the panes' key is None.

        >>> from samza_dsl import count, tumbling
        >>> app, numbers = example()
        >>> shown(app, numbers.window_all(tumbling(seconds=1), count()).map(lambda pane: pane.value))
        [4]
        """
        # One key for all, in one partition: windows are by key, so this makes one window of all, in one task.
        same = cast("Callable[[V], None]", lambda value: b"")
        gathered = self.partition_by(same, partitions=1, key_type=NoKey(), op_id=op_id and f"{op_id}-gathered")
        return gathered.window(
            windows,
            aggregation,
            allowed_lateness_ms=allowed_lateness_ms,
            panes=panes,
            early=early,
            late_trigger=late_trigger,
            emit=emit,
            late=late,
            state=state,
            store=store,
            on_error=on_error,
            op_id=op_id,
        )

    def revisions(self, *, op_id: str | None = None) -> MessageStream[K, Revision[V]]:
        """Replace each message by a `Revision`, which says whether it is withdrawn, as with `panes="retracting"`.

        >>> from samza_dsl import after_count, count, tumbling
        >>> app, numbers = example(key=lambda n: "all")
        >>> panes = numbers.window(tumbling(seconds=1), count(), early=after_count(3), panes="retracting")
        >>> shown(app, panes.map(lambda pane: pane.value).revisions())
        [Revision(value=3), Revision(value=3, withdrawn=True), Revision(value=4)]
        """
        return self._then(Revisions, here(), fail, op_id)

    @overload
    def join(
        self,
        other: MessageStream[K, T],
        with_: Callable[[V, T], R],
        *,
        within: Bounds,
        how: Literal["inner"] = "inner",
        **options: Unpack[IntervalJoinOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: MessageStream[K, T],
        with_: Callable[[V, T | None], R],
        *,
        within: Bounds,
        how: Literal["left"],
        **options: Unpack[IntervalJoinOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: MessageStream[K, T],
        with_: Callable[[V | None, T], R],
        *,
        within: Bounds,
        how: Literal["right"],
        **options: Unpack[IntervalJoinOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: MessageStream[K, T],
        with_: Callable[[V | None, T | None], R],
        *,
        within: Bounds,
        how: Literal["outer"],
        **options: Unpack[IntervalJoinOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: Table[K2, T],
        with_: Callable[[V, T], R],
        *,
        on: Callable[[V], object] | None = None,
        how: Literal["inner"] = "inner",
        **options: Unpack[StreamJoinOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: Table[K2, T],
        with_: Callable[[V, T | None], R],
        *,
        on: Callable[[V], object] | None = None,
        how: Literal["left"],
        **options: Unpack[StreamJoinOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: JoinedTable[K, T],
        with_: Callable[[V, T], R],
        *,
        how: Literal["inner"] = "inner",
        **options: Unpack[JoinOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: JoinedTable[K, T],
        with_: Callable[[V, T | None], R],
        *,
        how: Literal["left"],
        **options: Unpack[JoinOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: RemoteTable[S, T],
        with_: Callable[[V, T], R],
        *,
        on: Callable[[V], S],
        how: Literal["inner"] = "inner",
        **options: Unpack[OperatorOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def join(
        self,
        other: RemoteTable[S, T],
        with_: Callable[[V, T | None], R],
        *,
        on: Callable[[V], S],
        how: Literal["left"],
        **options: Unpack[OperatorOptions],
    ) -> MessageStream[K, R]: ...

    def join(
        self,
        other: MessageStream[K, T] | Table[K2, T] | JoinedTable[K, T] | RemoteTable[S, T],
        with_: Callable[..., R],
        *,
        on: Callable[[V], object] | None = None,
        how: How = "inner",
        within: Bounds | None = None,
        keep: Keep = "all",
        late: DeadLetterPolicy | None = None,
        store: Kept = "lmdb",
        state: Sides = None,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]:
        """Join each message with the row of a table, or with the messages of another stream of about the same time.

        Of a table it is `with_(value, row)`, with the row of `on(value)`, or of the message's key. A broadcast table
        needs `on`; another is joined by key, and has as many partitions as the stream. Where there is no row, an inner
        join drops the message, a left join passes None. Raises PlanError when keys can't meet.

        >>> app, numbers = example()
        >>> words = app.table("words", key=int, value=str, broadcast=True)
        >>> named = numbers.join(words, lambda n, word: (n, word), on=lambda n: n, how="left")
        >>> shown(app, named, words=[(1, "one")])
        [(0, None), (1, 'one'), (2, None), (3, None)]

        Of a table of versions, which has `retention_ms`, it is the row as of the message's time: the last version up to
        and with that time. So a message waits until the watermarks of stream and table have passed it. One that lies
        more than `retention_ms` before its stamp, and a version before its own, is late, as below.

        >>> app, numbers = example(key=lambda n: "all")
        >>> of_all = {"key": lambda price: "all", "timestamp": lambda price: price // 10}
        >>> prices = app.table("prices", value=int, **of_all, retention_ms=0)
        >>> shown(app, numbers.join(prices, lambda n, price: (n, price), how="left"), prices=[10, 30])
        [(0, None), (1, 10), (2, 10), (3, 30)]

        Of a table that the application makes itself, by `to_table` or by a join of tables, it is the row that the
        message's key has there by then. The join keeps the rows, in their type or serde, `state=(None, Row)`.

        Of a `remote_table` it is the row that its service has for `on(value)`, awaited as in `async_flat_map`.

        With a stream of equal keys, a message at `t` is joined by `with_(value, other_value)` with each message of the
        same key from `t + low_ms` to `t + high_ms` there, both included, where `within` is `(low_ms, high_ms)`; with
        `keep="latest"`, when it comes, only with the newest of these. The result has the later of the two times. By
        `how` a message of the left, the right or either stream that has met none is joined with None, once the
        watermark says that no match can come. Both streams need keys, and lie in equally many partitions. A message
        whose time had already passed for its own source partition is late: it is counted, not joined, and sent to
        `late` if that is `dead_letter("name")`. `state=(Left, Right)` has the types of what is kept of either side, or
        the serdes that store it.

        >>> app, numbers = example(key=lambda n: "all")
        >>> pairs = numbers.join(numbers, lambda n, next: (n, next), within=(1, 1), how="left")
        >>> shown(app, pairs)
        [(0, 1), (1, 2), (2, 3), (3, None)]
        """
        site = here()
        check_function(site, "join(with_=...)", with_, 2)
        said: JoinFields = {**self._said(site, on_error, op_id), "with_": with_}
        how_joined = JoinArguments(on=on, how=how, within=within, keep=keep, late=late, store=store, state=state)
        if isinstance(other, MessageStream):
            check_ours(self.app, site, "join(...)", other, MessageStream)
            join: Spec = interval_join(self.spec, other.spec, how_joined, said)
        elif isinstance(other, RemoteTable):
            join = remote_join(self.spec, other.rows, how_joined, said)
        elif isinstance(other, JoinedTable):
            return self._join_own(site, other, how_joined, with_, on_error, op_id)
        else:
            check_table(self.app, site, other)
            join = table_join(self.spec, other.spec, how_joined, said)
        return MessageStream(self.app, self.app.add(join))

    def _join_own(
        self,
        site: Site,
        table: JoinedTable[K, T],
        how: JoinArguments,
        with_: Callable[..., R],
        on_error: Policy,
        op_id: str | None,
    ) -> MessageStream[K, R]:
        """Return the join with a table of this application; refuses what only other joins have."""
        check_type(site, "join(...)", table, JoinedTable, "what .to_table(...) returns")
        if table.app is not self.app:
            raise refuse(site, f"join(...) got a table of the app {table.app.name!r}", "a table of this app")
        kept = own_table_join(site, how)
        spec = OwnTableJoin(
            parents=(self.spec, table.spec),
            with_=with_,
            left=kept.left,
            state=kept.rows or table.rows,
            store=check_store(site, how.store),
            **self._said(site, on_error, op_id),
        )
        return MessageStream(self.app, self.app.add(spec))

    def to_table(
        self,
        name: str,
        *,
        state: type[object] | Serde | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
    ) -> JoinedTable[K, V]:
        """Keep the newest value of each key as a table, which streams and other tables of the application join.

        A value of None removes the row of its key. The table is state: its rows are in commits and changelogs as any
        other's, under the id `name`, and are there again after a restart. A message of a stream that is joined with it
        meets the row that its key has by then. Of two ways to the join nothing says which message comes first, unless
        by the `priority` of inputs: `join_asof` goes by event time instead. `state` is the type of the rows, or the
        serde that stores them. Raises PlanError when messages have no key.

        >>> app, numbers = example(key=lambda n: n % 2)
        >>> newest = numbers.filter(lambda n: n < 2).to_table("newest")
        >>> shown(app, numbers.filter(lambda n: n >= 2).join(newest, lambda n, row: (n, row)))
        [(2, 0), (3, 1)]
        """
        site = here()
        check_name(site, "a table", name)
        serde = state_said(site, "to_table", "state", state)
        changes: MessageStream[K, Any] = self._then(
            OwnTable, site, on_error, name, state=serde, store=check_store(site, store)
        )
        return JoinedTable(self.app, changes.spec, serde)

    @overload
    def join_asof(
        self,
        other: MessageStream[K, T],
        with_: Callable[[V, T], R],
        *,
        on: None = None,
        how: Literal["inner"] = "inner",
        **options: Unpack[AsofJoinOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def join_asof(
        self,
        other: MessageStream[K, T],
        with_: Callable[[V, T | None], R],
        *,
        on: None = None,
        how: Literal["left"],
        **options: Unpack[AsofJoinOptions],
    ) -> MessageStream[K, R]: ...

    @overload
    def join_asof(
        self,
        other: MessageStream[Any, T],
        with_: Callable[[V, T], R],
        *,
        on: tuple[Callable[[V], K2], Callable[[T], K2]],
        how: Literal["inner"] = "inner",
        **options: Unpack[AsofJoinOptions],
    ) -> MessageStream[K2, R]: ...

    @overload
    def join_asof(
        self,
        other: MessageStream[Any, T],
        with_: Callable[[V, T | None], R],
        *,
        on: tuple[Callable[[V], K2], Callable[[T], K2]],
        how: Literal["left"],
        **options: Unpack[AsofJoinOptions],
    ) -> MessageStream[K2, R]: ...

    def join_asof(
        self,
        other: MessageStream[Any, T],
        with_: Callable[..., R],
        *,
        on: tuple[Callable[[V], Any], Callable[[T], Any]] | None = None,
        direction: Direction = "backward",
        tolerance: Duration | None = None,
        how: Literal["inner", "left"] = "inner",
        late: DeadLetterPolicy | None = None,
        store: Kept = "lmdb",
        state: Sides = None,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[Any, R]:
        """Join each message with the one message of its key in another stream that is nearest to it in event time.

        Of a message at `t` it is `with_(value, other_value)`, with the last one there up to and with `t`; the first
        from `t` on, `direction="forward"`; or the nearer of these two, `"nearest"`, the earlier where both are as near.
        It lies at most `tolerance` from `t`; without one, which only `"backward"` can do, however long ago. A message
        that meets none is dropped, or joined with None if `how="left"`.

        The result has the message's time. It comes when the watermark is past `t`, and past the tolerance after `t`
        where it looks forward: so it is the same whatever came first, after a crash, and on Spark. Of messages of one
        time there the one with the larger stamp counts, whose source was further when it came; of those alike the one
        whose bytes are larger. What is late, `late` and `state` are as in `join`. Both streams need keys, and lie in
        equally many partitions; `on=(key, other_key)` first gives them keys, as `partition_by` does. Raises PlanError
        when keys can't meet.

        >>> app, numbers = example(key=lambda n: "all")
        >>> even, odd = numbers.filter(lambda n: n % 2 == 0), numbers.filter(lambda n: n % 2)
        >>> shown(app, even.join_asof(odd, lambda n, before: (n, before), how="left"))
        [(0, None), (2, 1)]
        >>> app, numbers = example(key=lambda n: "all")
        >>> even, odd = numbers.filter(lambda n: n % 2 == 0), numbers.filter(lambda n: n % 2)
        >>> shown(app, even.join_asof(odd, lambda n, after: (n, after), direction="forward", tolerance=1))
        [(0, 1), (2, 3)]
        """
        site = here()
        check_function(site, "join_asof(with_=...)", with_, 2)
        check_ours(self.app, site, "join_asof(...)", other, MessageStream)
        said: JoinFields = {**self._said(site, on_error, op_id), "with_": with_}
        how_joined = AsofJoinArguments(direction, tolerance, how, late, store, state)
        left: MessageStream[Any, Any] = self
        right: MessageStream[Any, Any] = other
        if on is not None:
            if not (isinstance(on, tuple) and len(on) == 2):
                wrong = f"join_asof(on=...) got {on!r}, and the keys of two streams are read off their values"
                raise refuse(site, wrong, "on=(lambda value: value.id, lambda other: other.id)")
            left = self.partition_by(on[0], on_error=on_error, op_id=op_id and f"{op_id}-left")
            right = other.partition_by(on[1], on_error=on_error, op_id=op_id and f"{op_id}-right")
        return MessageStream(self.app, self.app.add(asof_join(left.spec, right.spec, how_joined, said)))

    @overload
    def join_windows(
        self,
        others: MessageStream[K, T],
        windows: Windows,
        with_: Callable[[V, T], R],
        *,
        how: Literal["inner"] = "inner",
        **options: Unpack[WindowJoinOptions],
    ) -> MessageStream[K, Pane[K, list[R]]]: ...

    @overload
    def join_windows(
        self,
        others: MessageStream[K, T],
        windows: Windows,
        with_: Callable[[V, T | None], R],
        *,
        how: Literal["left"],
        **options: Unpack[WindowJoinOptions],
    ) -> MessageStream[K, Pane[K, list[R]]]: ...

    @overload
    def join_windows(
        self,
        others: MessageStream[K, T],
        windows: Windows,
        with_: Callable[[V | None, T], R],
        *,
        how: Literal["right"],
        **options: Unpack[WindowJoinOptions],
    ) -> MessageStream[K, Pane[K, list[R]]]: ...

    @overload
    def join_windows(
        self,
        others: MessageStream[K, T],
        windows: Windows,
        with_: Callable[[V | None, T | None], R],
        *,
        how: Literal["outer"],
        **options: Unpack[WindowJoinOptions],
    ) -> MessageStream[K, Pane[K, list[R]]]: ...

    @overload
    def join_windows(
        self,
        others: Sequence[MessageStream[K, Any]],
        windows: Windows,
        with_: Callable[..., R],
        *,
        how: Literal["inner", "left", "outer"] = "inner",
        **options: Unpack[WindowJoinOptions],
    ) -> MessageStream[K, Pane[K, list[R]]]: ...

    def join_windows(
        self,
        others: MessageStream[K, T] | Sequence[MessageStream[K, Any]],
        windows: Windows,
        with_: Callable[..., R],
        *,
        how: How = "inner",
        allowed_lateness_ms: Duration = 0,
        emit: Emit = "all",
        late: DeadLetterPolicy | None = None,
        state: Sequence[type[object] | Serde | None] | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Pane[K, list[R]]]:
        """Join the messages of this stream and another one, or several, that have one key and lie in one window.

        A pane has `with_(value, other_value, ...)` of each choice of one value per stream. Where a stream has none in
        the window, an inner join has no pane; a left join has None, but for the first stream; a right one, of two
        streams, but for the second; an outer one for any. What fires when, and what is late, is as in `window`; a later
        pane of a window has what the ones before it had. `state` has a type or a serde, or None, for each stream,
        whose values are kept. Raises PlanError when keys can't meet.

        >>> from samza_dsl import tumbling
        >>> app, numbers = example(key=lambda n: "all")
        >>> even, odd = numbers.filter(lambda n: n % 2 == 0), numbers.filter(lambda n: n % 2)
        >>> panes = even.join_windows(odd, tumbling(milliseconds=3), lambda one, other: (one, other), how="outer")
        >>> shown(app, panes.map(lambda pane: (pane.start, pane.value)))
        [(0, [(0, 1), (2, 1)]), (3, [(None, 3)])]
        """
        site = here()
        streams: list[MessageStream[K, Any]]
        streams = [self, *([others] if isinstance(others, MessageStream) else others)]
        for stream in streams:
            check_ours(self.app, site, "join_windows(...)", stream, MessageStream)
        how_joined = WindowJoinArguments(windows, how, allowed_lateness_ms, emit, late, state, store)
        said = self._said(site, on_error, op_id)
        join = self.app.add(window_join([stream.spec for stream in streams], with_, how_joined, said))
        # A window in which the streams do not meet fires with no pair, and is no pane of the join.
        panes: MessageStream[K, Pane[K, list[R]]] = MessageStream(self.app, join)
        return panes.filter(lambda pane: pane.value)

    def sink(
        self,
        function: Callable[[V], object],
        *,
        max_in_flight: int = 100,
        timeout_ms: Duration = 2_000,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> None:
        """Call `function(value)`, plain or async, for its effect outside; after a crash it may see a message again.

        Raises PlanError when `function` does not take one argument.

        >>> app, numbers = example()
        >>> seen = []
        >>> numbers.sink(seen.append)
        >>> shown(app)
        >>> seen
        [0, 1, 2, 3]
        """
        site = here()
        check_function(site, "sink(...)", function, 1, awaits=None)
        if not is_coroutine_function(function):
            self._then(SinkCall, site, on_error, op_id, function=function)
            return
        # An async sink is an async flat map with a sink behind it that does nothing: so its calls are in flight, time
        # out and are retried as all others, and a commit waits for them.
        awaited = self.async_flat_map(
            Forgetting(function), max_in_flight=max_in_flight, timeout_ms=timeout_ms, on_error=on_error, op_id=op_id
        )
        awaited._then(SinkCall, site, fail, None, function=None)

    def send_to(
        self,
        output: OutputStream[V],
        *,
        headers: Callable[[V, Mapping[str, bytes | None]], Mapping[str, bytes | None]] | None = None,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> None:
        """Write every message to an output of the application, with the headers that it has from an input.

        It has others where `headers(value, headers)` makes them: names and bytes. Raises PlanError when `output` is
        not one.

        >>> app, numbers = example()
        >>> numbers.send_to(app.output("copy", value=int))
        >>> print(app.plan().stream("copy").role)
        output
        """
        site = here()
        check_ours(self.app, site, "send_to(...)", output, OutputStream)
        if headers is not None:
            check_function(site, "send_to(headers=...)", headers, 2)
        self._then(SendTo, site, on_error, op_id, output=output.spec, headers=headers)

    def broadcast(
        self,
        *,
        partitions: int | None = None,
        value: type[V] | Serde | None = None,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, V]:
        """Send every message to every task of the next stage.

        >>> app, numbers = example()
        >>> sorted(shown(app, numbers.broadcast(partitions=2)))
        [0, 0, 1, 1, 2, 2, 3, 3]
        """
        site = here()
        check_whole(site, "partitions", partitions, optional=True)
        said = handed_on_said(site, value)
        return self._then(Broadcast, site, on_error, op_id, partitions=partitions, value=said)

    flatMap = flat_map
    asyncFlatMap = async_flat_map
    partitionBy = partition_by
    sendTo = send_to

    def _with_function(
        self, kind: Callable[..., Spec], said: str, function: object, on_error: Policy, op_id: str | None
    ) -> MessageStream[K, R]:
        site = here()
        check_function(site, said, function, 1, yields=kind is FlatMap)
        return self._then(kind, site, on_error, op_id, function=function)

    def _then(
        self, kind: Callable[..., Spec], site: Site, on_error: Policy, op_id: str | None, **said: object
    ) -> MessageStream[K2, R]:
        """Return the stream behind a new spec; its types are those that the caller says."""
        spec = kind(parents=(self.spec,), **self._said(site, on_error, op_id), **said)
        return MessageStream(self.app, self.app.add(spec))

    def _said(self, site: Site, on_error: Policy, op_id: str | None) -> OperatorFields:
        """Return the fields of every spec; refuses anything but a policy and an id."""
        check_policy(site, on_error)
        if op_id is not None:
            check_name(site, "an operator", op_id)
        return {"site": site, "on_error": on_error, "op_id": op_id}


class OutputStream(Generic[V]):
    """A stream that the pipeline writes; `app.output` makes it.

    >>> from samza_dsl import App
    >>> App("a").output("totals", value=int).spec.stream
    'totals'
    """

    def __init__(self, app: App, spec: Output) -> None:
        self.app = app
        self.spec = spec


class Forgetting(Generic[V]):
    """An async sink as a function of `async_flat_map`, whose result is ignored."""

    def __init__(self, function: Callable[[V], Awaitable[object]]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    async def __call__(self, value: V) -> Iterable[V]:
        """Await the sink, and hand the value itself on."""
        await self.function(value)
        return (value,)

    def open(self, context: object) -> object:
        """Open the sink, if it is an object with `open`."""
        return self.function.open(context) if hasattr(self.function, "open") else None

    def close(self) -> object:
        """Close the sink, if it is an object with `close`."""
        return self.function.close() if hasattr(self.function, "close") else None


def check_ours(
    app: App, site: Site, said: str, thing: MessageStream[K, V] | Table[K, V] | OutputStream[V], kind: type
) -> None:
    """Refuse anything but a stream, table or output of this application."""
    made_by = {MessageStream: "app.input(...)", Table: "app.table(...)", OutputStream: "app.output(...)"}[kind]
    check_type(site, said, thing, kind, f"what {made_by} returns")
    if thing.app is not app:
        raise refuse(site, f"{said} got something of the app {thing.app.name!r}", f"what {made_by} of this app returns")


def check_table(app: App, site: Site, table: Table[K, V]) -> None:
    """Refuse anything but a table that a stream of this application can be joined with."""
    check_ours(app, site, "join(...)", table, Table)


def _branch_of(pair: tuple[str, object]) -> str:
    return pair[0]
