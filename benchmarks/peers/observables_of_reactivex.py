"""ReactiveX for Python: observables made from a list, on the thread of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import reactivex
from reactivex import Observable
from reactivex import operators as ops

from benchmarks.async_calls import IN_FLIGHT
from benchmarks.messages import (
    increased,
    is_large,
    is_wanted,
    itself,
    look_up,
    spread_key_of,
    to_count,
    to_pair,
    weigh,
    words_of,
)
from benchmarks.peers.case import Case, by_id, by_key


def observed(results_of: Callable[[Observable[Any]], Observable[Any]], messages: list[Any]) -> list[Any]:
    results: list[Any] = []
    errors: list[Exception] = []
    results_of(reactivex.from_iterable(messages)).subscribe(on_next=results.append, on_error=errors.append)
    if errors:
        raise errors[0]
    return results


def chain(messages: Observable[Any]) -> Observable[Any]:
    return messages.pipe(ops.filter(is_large), ops.map(weigh), ops.filter(is_wanted), ops.map(to_pair))


def grouped(key_of: Callable[[Any], Any]) -> Callable[[Observable[Any]], Observable[Any]]:
    """Count with what the library has for it: an observable per key."""

    def counts(group: Any) -> Observable[Any]:
        counted = ops.scan(lambda count, message: increased(count), 0)
        return group.pipe(counted, ops.map(lambda count: to_count(group.key, count)))

    return lambda messages: messages.pipe(ops.group_by(key_of), ops.flat_map(counts))


def in_a_dict(messages: Observable[Any]) -> Observable[Any]:
    counts: dict[Any, int] = {}

    def counted(message: Any) -> tuple[Any, int]:
        key = spread_key_of(message)
        counts[key] = count = increased(counts.get(key))
        return to_count(key, count)

    return messages.pipe(ops.map(counted))


def words(lines: Observable[Any]) -> Observable[Any]:
    return grouped(itself)(lines.pipe(ops.flat_map(lambda line: reactivex.from_iterable(words_of(line)))))


def called(messages: list[Any]) -> list[Any]:
    results: list[Any] = []

    def call(message: Any) -> Observable[Any]:
        return reactivex.defer(lambda _: reactivex.from_future(asyncio.ensure_future(look_up(message))))

    async def subscribe() -> None:
        done = asyncio.get_running_loop().create_future()
        calls = reactivex.from_iterable(messages).pipe(ops.map(call), ops.merge(max_concurrent=IN_FLIGHT))
        calls.subscribe(on_next=results.extend, on_error=done.set_exception, on_completed=lambda: done.set_result(None))
        await done

    asyncio.run(subscribe())
    return results


CASES = {
    "B1": Case(lambda workload: observed(chain, workload.messages), 1_000_000),
    "B3": Case(
        lambda workload: observed(grouped(spread_key_of), workload.messages),
        5_000,
        "`group_by` and `scan`; a message costs the more, the more keys there are, and all are new here",
    ),
    "B3 dict": Case(
        lambda workload: observed(in_a_dict, workload.messages), 500_000, "no keyed state: a dict in `map`"
    ),
    "B4": Case(lambda workload: called(workload.messages), 20_000, "`merge(max_concurrent=1000)`", results=by_id),
    "B5": Case(
        lambda workload: observed(words, workload.lines),
        2_000,
        "`group_by` and `scan`, 5,000 words; the order of different words is not kept",
        results=lambda results: by_key(None, results),
        expected=by_key,
    ),
}
