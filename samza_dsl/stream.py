"""The fluent stream: each method is a docstring and a line or two, and adds one frozen spec to the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar, cast, overload

from operators.async_flat_map import AsyncFlatMap, Order
from operators.base import Serde, Site, Spec
from operators.io import SendTo, Sink
from operators.keyed_state import KeyContext
from operators.partition_by import Broadcast, ByFunction, PartitionBy, Partitioner, hash_
from operators.policies import Policy, fail
from operators.scan import Scan
from operators.sites import here, takes
from operators.stateless import Branch, BranchArm, Filter, FlatMap, Map, Merge
from planner.errors import refuse
from samza_dsl.checks import (
    check_function,
    check_name,
    check_policy,
    check_store,
    check_type,
    check_whole,
    is_coroutine_function,
    serde_said,
)
from samza_dsl.ends import OutputStream, Table
from samza_dsl.forgetting import Forgetting
from samza_dsl.joining import Joins
from samza_dsl.keeping import Keeping
from samza_dsl.shown import example, shown  # noqa: F401  (what the examples run)
from samza_dsl.window_joins import WindowJoins
from samza_dsl.windowing import Windowing

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from samza_dsl.app import App

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
K2 = TypeVar("K2")


Kept = Literal["lmdb", "memory"]
"""Where state is kept."""


class MessageStream(Joins[K, V], WindowJoins[K, V], Keeping[K, V], Windowing[K, V]):
    """A stream of messages with keys of type K and values of type V; its methods make further streams of it.

    The functions that are passed in receive the value. They may be plain functions, or objects with `__call__` that
    may also have `open(context)` and `close()`, plain or async: then every task has its own copy, opened in the run's
    event loop before its first message, and closed there at the end, also after a failure.

    >>> app, numbers = example()
    >>> shown(app, numbers.filter(lambda n: n > 0).map(lambda n: n * n))
    [1, 4, 9]
    """

    def __init__(self, app: App, spec: Spec) -> None:
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
    ) -> MessageStream[K, Any]:
        """Keep the messages for which `keep(value)` is true.

        Where `keep` is declared to return a TypeGuard or TypeIs, type checkers know what is left. Raises PlanError when
        it is not a plain function of one argument.

        >>> app, numbers = example()
        >>> shown(app, numbers.filter(lambda n: n % 2))
        [1, 3]
        """
        kept: MessageStream[K, Any] = self._with_function(Filter, "filter(...)", keep, on_error, op_id)
        return kept

    def map(
        self, function: Callable[[V], R], *, on_error: Policy = fail, op_id: str | None = None
    ) -> MessageStream[K, R]:
        """Replace each message by `function(value)`; key and time stay.

        Raises PlanError when `function` is not a plain function of one argument.

        >>> app, numbers = example()
        >>> shown(app, numbers.map(lambda n: n * 10))
        [0, 10, 20, 30]
        """
        mapped: MessageStream[K, R] = self._with_function(Map, "map(...)", function, on_error, op_id)
        return mapped

    def flat_map(
        self, function: Callable[[V], Iterable[R]], *, on_error: Policy = fail, op_id: str | None = None
    ) -> MessageStream[K, R]:
        """Replace each message by the messages in `function(value)`: any number, also none.

        Raises PlanError when `function` is not a plain function of one argument.

        >>> app, numbers = example()
        >>> shown(app, numbers.flat_map(range))
        [0, 0, 1, 0, 1, 2]
        """
        mapped: MessageStream[K, R] = self._with_function(FlatMap, "flat_map(...)", function, on_error, op_id)
        return mapped

    @overload
    def async_flat_map(
        self,
        function: Callable[[V], Awaitable[Iterable[R]]],
        *,
        max_in_flight: int = 100,
        timeout_ms: int = 2_000,
        order: Order = "key",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    @overload
    def async_flat_map(
        self,
        function: Callable[[V, KeyContext[K, S]], Awaitable[Iterable[R]]],
        *,
        init: Callable[[], S] | None = None,
        store: Kept = "lmdb",
        max_in_flight: int = 100,
        timeout_ms: int = 2_000,
        order: Literal["key"] = "key",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    def async_flat_map(
        self,
        function: Callable[..., Awaitable[Iterable[Any]]],
        *,
        init: Callable[[], Any] | None = None,
        store: Kept = "lmdb",
        max_in_flight: int = 100,
        timeout_ms: int = 2_000,
        order: Order = "key",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Any]:
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
        `context.state`, `init()` at first. What a call leaves there is written when the message takes effect; a call
        that fails, is cancelled or is made again leaves nothing. Its messages have keys, and `order` is "key".

        >>> async def running_total(n, context):
        ...     context.state += n
        ...     return [context.state]
        >>> app, numbers = example(key=lambda n: "all")
        >>> shown(app, numbers.async_flat_map(running_total, init=int))
        [0, 1, 3, 6]
        """
        site = here()
        keeps_state = init is not None or store != "lmdb" or (takes(function, 2) and not takes(function, 1))
        check_function(site, "async_flat_map(...)", function, 2 if keeps_state else 1, awaits=True)
        if init is not None:
            check_function(site, "async_flat_map(init=...)", init, 0)
        check_whole(site, "max_in_flight", max_in_flight)
        check_whole(site, "timeout_ms", timeout_ms)
        if order not in ("partition", "key", "none"):
            raise refuse(site, f"order={order!r} is not an order", 'order="key", "partition" or "none"')
        return self._then(
            AsyncFlatMap,
            site,
            on_error,
            op_id,
            function=function,
            max_in_flight=max_in_flight,
            timeout_ms=timeout_ms,
            order=order,
            keeps_state=keeps_state,
            init=init,
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
        and `value` any plain value, Struct or dataclass can pass. Raises PlanError for a malformed argument.

        >>> app, numbers = example()
        >>> shown(app, numbers.partition_by(lambda n: n % 2, partitions=1))
        [0, 1, 2, 3]
        """
        site = here()
        check_function(site, "partition_by(...)", key, 1)
        check_whole(site, "partitions", partitions, optional=True)
        if not isinstance(by, Partitioner):
            check_function(site, "partition_by(by=...)", by, 2)
            by = ByFunction(cast("Callable[[Any, int], int]", by))
        return self._then(
            PartitionBy,
            site,
            on_error,
            op_id,
            key_of=key,
            partitions=partitions,
            by=by,
            key=serde_said(site, "key_type", key_type) if key_type is not None else None,
            value=serde_said(site, "value", value) if value is not None else None,
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
        merge = Merge(parents=parents, site=site, op_id=self._checked_id(site, op_id), on_error=fail)
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
        choose: Callable[[Any], str | Collection[str]],
        into: Collection[str],
        on_error: Policy,
        op_id: str | None,
    ) -> Mapping[str, MessageStream[K, Any]]:
        names = tuple(into) if not isinstance(into, str) else ()
        if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
            raise refuse(site, f"into={into!r} does not name the branches", 'into=("late", "on_time")')
        parent = self._then(Branch, site, on_error, op_id, function=choose, names=names)
        return {name: parent._then(arm, site, fail, None, name=name) for name in names}

    @overload
    def scan(
        self, step: Callable[[S | None, V], S], *, store: Kept = ..., on_error: Policy = ..., op_id: str | None = ...
    ) -> MessageStream[K, S]: ...

    @overload
    def scan(
        self,
        step: Callable[[S, V], S],
        *,
        init: Callable[[], S],
        store: Kept = ...,
        on_error: Policy = ...,
        op_id: str | None = ...,
    ) -> MessageStream[K, S]: ...

    @overload
    def scan(
        self,
        step: Callable[[S | None, V], S],
        *,
        emit: Callable[[K, S], R],
        store: Kept = ...,
        on_error: Policy = ...,
        op_id: str | None = ...,
    ) -> MessageStream[K, R]: ...

    @overload
    def scan(
        self,
        step: Callable[[S, V], S],
        *,
        init: Callable[[], S],
        emit: Callable[[K, S], R],
        store: Kept = ...,
        on_error: Policy = ...,
        op_id: str | None = ...,
    ) -> MessageStream[K, R]: ...

    def scan(
        self,
        step: Callable[[Any, V], Any],
        *,
        init: Callable[[], Any] | None = None,
        emit: Callable[[K, Any], Any] | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Any]:
        """Keep a state per key: `step(state, value)` returns the next one, and that goes on, message by message.

        The state is `init()` at first, else None; a step to None removes it. With `emit` what goes on is
        `emit(key, state)`. Raises PlanError when the messages have no key. It is the scan of functional libraries, and
        costs less than `process`, which can do more.

        >>> app, numbers = example(key=lambda n: n % 2)
        >>> shown(app, numbers.scan(lambda total, n: total + n, init=int, emit=lambda key, total: (key, total)))
        [(0, 0), (1, 1), (0, 2), (1, 4)]
        """
        site = here()
        check_function(site, "scan(...)", step, 2)
        for said, function, arguments in (("init", init, 0), ("emit", emit, 2)):
            if function is not None:
                check_function(site, f"scan({said}=...)", function, arguments)
        return self._then(Scan, site, on_error, op_id, step=step, init=init, emit=emit, store=check_store(site, store))

    def sink(
        self,
        function: Callable[[V], object],
        *,
        max_in_flight: int = 100,
        timeout_ms: int = 2_000,
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
            self._then(Sink, site, on_error, op_id, function=function)
            return
        awaited = self.async_flat_map(
            Forgetting(function), max_in_flight=max_in_flight, timeout_ms=timeout_ms, on_error=on_error, op_id=op_id
        )
        awaited._then(Sink, site, fail, None, function=None)

    def send_to(self, output: OutputStream[V], *, on_error: Policy = fail, op_id: str | None = None) -> None:
        """Write every message to an output of the application.

        Raises PlanError when `output` is not one.

        >>> app, numbers = example()
        >>> numbers.send_to(app.output("copy", value=int))
        >>> print(app.plan().stream("copy").role)
        output
        """
        site = here()
        check_ours(self.app, site, "send_to(...)", output, OutputStream)
        self._then(SendTo, site, on_error, op_id, output=output.spec)

    def broadcast(
        self,
        *,
        partitions: int | None = None,
        value: type[V] | Serde | None = None,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, V]:
        """Send every message to every task of what follows.

        >>> app, numbers = example()
        >>> sorted(shown(app, numbers.broadcast(partitions=2)))
        [0, 0, 1, 1, 2, 2, 3, 3]
        """
        site = here()
        check_whole(site, "partitions", partitions, optional=True)
        serde = serde_said(site, "value", value) if value is not None else None
        return self._then(Broadcast, site, on_error, op_id, partitions=partitions, value=serde)

    flatMap = flat_map
    asyncFlatMap = async_flat_map
    partitionBy = partition_by
    sendTo = send_to

    def _with_function(self, kind: Any, said: str, function: Any, on_error: Policy, op_id: str | None) -> Any:
        site = here()
        check_function(site, said, function, 1, yields=kind is FlatMap)
        return self._then(kind, site, on_error, op_id, function=function)

    def _then(self, kind: Any, site: Site, on_error: Policy, op_id: str | None, **said: Any) -> MessageStream[Any, Any]:
        check_policy(site, on_error)
        spec = kind(parents=(self.spec,), site=site, op_id=self._checked_id(site, op_id), on_error=on_error, **said)
        return MessageStream(self.app, self.app.add(spec))

    def _checked_id(self, site: Site, op_id: str | None) -> str | None:
        if op_id is not None:
            check_name(site, "an operator", op_id)
        return op_id


def check_ours(app: App, site: Site, said: str, thing: Any, kind: type) -> None:
    """Refuse what is no stream, table or output, or is another application's."""
    made_by = {MessageStream: "app.input(...)", Table: "app.table(...)", OutputStream: "app.output(...)"}[kind]
    check_type(site, said, thing, kind, f"what {made_by} returns")
    if thing.app is not app:
        raise refuse(site, f"{said} got something of the app {thing.app.name!r}", f"what {made_by} of this app returns")
