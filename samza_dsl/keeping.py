"""What of the fluent stream keeps something from message to message: the user's own state, what was seen, a pace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from operators.base import Site, Spec
from operators.deduplicate import Deduplicate
from operators.policies import Policy, fail
from operators.process import Process, ProcessContext
from operators.sites import here
from operators.stateless import SideArm
from planner.errors import refuse
from samza_dsl.checks import check_function, check_store, check_whole
from samza_dsl.pacing import Throttle, is_in_sample
from samza_dsl.shown import example, shown  # noqa: F401  (what the examples run)

if TYPE_CHECKING:
    from samza_dsl.stream import Kept, MessageStream

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class Keeping(Generic[K, V]):
    """What a stream of messages with keys of type K and values of type V can be made of with a memory."""

    spec: Spec

    if TYPE_CHECKING:

        def _then(
            self, kind: Any, site: Site, on_error: Policy, op_id: str | None, **said: Any
        ) -> MessageStream[Any, Any]: ...

    @overload
    def process(
        self,
        on_message: Callable[[V, ProcessContext[K, Any]], Iterable[R] | None],
        *,
        on_timer: Callable[[int, ProcessContext[K, Any]], Iterable[R] | None] | None = None,
        on_alarm: Callable[[int, ProcessContext[K, Any]], Iterable[R] | None] | None = None,
        init: Callable[[], Any] | None = None,
        ttl_ms: int | None = None,
        into: None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, R]: ...

    @overload
    def process(
        self,
        on_message: Callable[[V, ProcessContext[K, Any]], Iterable[tuple[str, R]] | None],
        *,
        on_timer: Callable[[int, ProcessContext[K, Any]], Iterable[tuple[str, R]] | None] | None = None,
        on_alarm: Callable[[int, ProcessContext[K, Any]], Iterable[tuple[str, R]] | None] | None = None,
        init: Callable[[], Any] | None = None,
        ttl_ms: int | None = None,
        into: Collection[str],
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> Mapping[str, MessageStream[K, R]]: ...

    def process(
        self,
        on_message: Callable[[V, ProcessContext[K, Any]], Iterable[Any] | None],
        *,
        on_timer: Callable[[int, ProcessContext[K, Any]], Iterable[Any] | None] | None = None,
        on_alarm: Callable[[int, ProcessContext[K, Any]], Iterable[Any] | None] | None = None,
        init: Callable[[], Any] | None = None,
        ttl_ms: int | None = None,
        into: Collection[str] | None = None,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, Any] | Mapping[str, MessageStream[K, Any]]:
        """Call `on_message(value, context)` with the state of the message's key; what it returns goes on.

        `context.state` is the key's value (`init()` at first); `context.list(name)` and `context.map(name)` are read
        and written entry by entry. `context.set_timer(at_ms)` asks for `on_timer(at_ms, context)` in event time,
        `context.set_alarm(at_ms)` for `on_alarm(at_ms, context)` by the clock, which `context.now_ms` tells. All state
        of a key is dropped when event time is `ttl_ms` past its last message. Raises PlanError when the messages have
        no key.

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
        check_whole(site, "ttl_ms", ttl_ms, optional=True)
        how = {"on_timer": on_timer, "on_alarm": on_alarm, "init": init, "ttl_ms": ttl_ms}
        kept = check_store(site, store)
        processed = self._then(Process, site, on_error, op_id, on_message=on_message, store=kept, **how)
        if into is None:
            return processed
        return processed._branched(site, SideArm, _name_of, into, on_error, None)

    def deduplicate(
        self,
        id_of: Callable[[V], object],
        *,
        within_ms: int,
        store: Kept = "lmdb",
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, V]:
        """Drop messages with an `id_of(value)` that another had which went on, less than `within_ms` before or after.

        Duplicates are looked for in each partition: where copies of one message may lie in several, `partition_by` the
        id first. Messages need timestamps. An id is any plain value, kept for `within_ms` of event time.

        >>> app, numbers = example()
        >>> shown(app, numbers.deduplicate(lambda n: n % 2, within_ms=60_000))
        [0, 1]
        """
        site = here()
        check_function(site, "deduplicate(...)", id_of, 1)
        check_whole(site, "within_ms", within_ms)
        how = {"id_of": id_of, "within_ms": within_ms, "store": check_store(site, store)}
        return self._then(Deduplicate, site, on_error, op_id, **how)

    def sample(
        self,
        share: float,
        *,
        by: Callable[[V], object] | None = None,
        on_error: Policy = fail,
        op_id: str | None = None,
    ) -> MessageStream[K, V]:
        """Keep so large a share of all messages, from 0 to 1, chosen by their values, or by `by(value)`.

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
        chosen = is_in_sample(float(share), by)
        return cast("MessageStream[K, V]", self).filter(chosen, on_error=on_error, op_id=op_id)

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
        pace = Throttle(float(per_second))
        stream = cast("MessageStream[K, V]", self)
        return stream.async_flat_map(
            pace, order="partition", max_in_flight=pace.at_once, timeout_ms=pace.longest_ms, op_id=op_id
        )


def _name_of(pair: tuple[str, Any]) -> str:
    return pair[0]
