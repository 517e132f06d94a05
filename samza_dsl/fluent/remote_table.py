"""The remote table, whose rows a service has, and the options of asking for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from operators.async_flat_map import Order
from operators.core.base import Site
from operators.core.durations import Duration
from operators.core.sites import here
from operators.joins.remote_join import RemoteRows
from planner.model.errors import refuse
from samza_dsl.fluent.checks import check_function, check_whole, ms_said

K = TypeVar("K")
V = TypeVar("V")


class RemoteTable(Generic[K, V]):
    """A table whose rows a service has; `remote_table` makes it, and `join` asks it for rows.

    >>> async def fetch_many(keys):
    ...     return {}
    >>> remote_table(fetch_many).rows.batch_size
    100
    """

    def __init__(self, rows: RemoteRows) -> None:
        self.rows = rows


def remote_table(
    fetch_many: Callable[[list[K]], Awaitable[Mapping[K, V | Exception]]],
    *,
    batch_size: int = 100,
    batch_wait_ms: Duration = 5,
    timeout_ms: Duration = 2_000,
    cache_size: int = 10_000,
    ttl_ms: Duration = 60_000,
    absent_ttl_ms: Duration | None = None,
    fetches_per_second: float | None = None,
    max_in_flight: int = 1_000,
    order: Order = "key",
) -> RemoteTable[K, V]:
    """Return a table that is read from a service: `join` takes it in the place of a table, with `on=`.

    `await fetch_many(keys)` returns the rows of up to `batch_size` different keys, as a mapping; keys without a row, or
    with None, are absent, and an exception in place of a row fails the messages of that key alone. It is an async
    function, or an object with `open(context)` and `close()`, of which every task has its own. Up to `max_in_flight`
    messages of a task await rows at once, in an `order` as in `async_flat_map`. Messages of one key wait for one
    answer; keys of several are gathered for `batch_wait_ms`. An answer that takes longer than `timeout_ms` has failed,
    and the join's `on_error` says what then, e.g. `retry(3, backoff_ms=100)`.

    Each task keeps up to `cache_size` rows for `ttl_ms`, and knows for `absent_ttl_ms` (without it, as long) that there
    is none; 0 keeps nothing. All tasks together make at most `fetches_per_second` calls. Raises PlanError for a
    malformed argument.

    >>> async def names_of(numbers):
    ...     return {number: f"n{number}" for number in numbers if number}
    >>> app, numbers = example()
    >>> named = numbers.join(remote_table(names_of), lambda n, name: (n, name), on=lambda n: n % 3, how="left")
    >>> sorted(shown(app, named))
    [(0, None), (1, 'n1'), (2, 'n2'), (3, None)]
    """
    site = here()
    check_function(site, "remote_table(...)", fetch_many, 1, awaits=True)
    check_whole(site, "batch_size", batch_size)
    check_whole(site, "max_in_flight", max_in_flight)
    check_whole(site, "cache_size", cache_size, least=0)
    absent = ttl_ms if absent_ttl_ms is None else absent_ttl_ms
    lengths = {"batch_wait_ms": batch_wait_ms, "ttl_ms": ttl_ms, "absent_ttl_ms": absent}
    kept = {name: ms_said(site, name, length, least=0) for name, length in lengths.items()}
    if order not in ("partition", "key", "none"):
        raise refuse(site, f"order={order!r} is not an order", 'order="key", "partition" or "none"')
    rows = RemoteRows(
        fetch_many=fetch_many,
        batch_size=batch_size,
        timeout_ms=ms_said(site, "timeout_ms", timeout_ms),
        fetches_per_second=_rate_said(site, fetches_per_second),
        max_in_flight=max_in_flight,
        order=order,
        cache_size=cache_size,
        **kept,
    )
    return RemoteTable(rows)


def _rate_said(site: Site, rate: float | None) -> float | None:
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e9):
        raise refuse(site, f"fetches_per_second={rate!r} is not a number above 0", "fetches_per_second=50")
    return rate
