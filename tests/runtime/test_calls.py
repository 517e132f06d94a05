"""Async calls by themselves: timeouts, retries, bounds, cancellation, on a virtual clock."""

import asyncio
import random
from contextlib import suppress
from contextvars import ContextVar
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.policies import fail, retry, skip
from runtime.functions.calls import Asked, Calls
from tests.scale import examples
from tests.simulation.loop import rest, simulate


class Call(Asked):
    """One call, and what it came to."""

    def __init__(self, argument):
        super().__init__([argument])
        self.argument = argument

    @property
    def failure(self):
        return self.failed.get(0)


class Pool:
    """Calls of one function, and what they came to."""

    def __init__(self, function, most=10, timeout_ms=1_000, policy=fail):
        self.done = []
        self.calls = Calls("op", function, most, timeout_ms, policy, self._told)
        self.all_done = asyncio.get_running_loop().create_future()
        self.expected = 0

    def _told(self, call):
        self.done.append(call)
        if len(self.done) == self.expected and not self.all_done.done():
            self.all_done.set_result(None)

    async def run(self, *arguments):
        self.expected = len(arguments)
        for argument in arguments:
            self.calls.submit(Call(argument), 1)
        if arguments:
            await self.all_done
        return self.done


def now_ms():
    return round(asyncio.get_running_loop().time() * 1_000)


def outcomes(done):
    return [(call.argument, call.values, call.failure and type(call.failure.error)) for call in done]


waits = st.lists(st.integers(0, 2_000), max_size=20)


@given(waits, st.integers(1, 6), st.integers(0, 99))
def test_every_call_is_told_once_in_time_and_at_most_so_many_run(waits, most, seed):
    running, seen = set(), []

    async def work(numbered):
        place, wait = numbered
        seen.append(place)
        running.add(place)
        assert len(running) <= most
        try:
            await rest(wait)
        finally:
            running.discard(place)
        return [place]

    async def main():
        pool = Pool(work, most)
        done = await pool.run(*enumerate(waits))
        assert sorted(call.argument[0] for call in done) == list(range(len(waits)))
        for call in done:
            late = call.argument[1] > 1_000
            if call.argument[1] != 1_000:
                assert (call.failure is not None) == late and call.values == ([] if late else [call.argument[0]])
        assert len(pool.calls) == 0

    simulate(main)
    assert seen == sorted(seen), "calls start in the order in which they were submitted"


@given(st.integers(1, 4), st.integers(0, 50), st.integers(0, 6))
def test_retries_wait_twice_as_long_each_time_and_end_after_so_many(times, backoff, failures):
    async def main():
        tries = []

        async def work(argument):
            tries.append(now_ms())
            if len(tries) <= failures:
                raise ValueError(argument)
            return [argument]

        pool = Pool(work, policy=retry(times, backoff_ms=backoff, then=skip))
        (call,) = await pool.run("x")
        made = min(failures, times) + 1
        pauses = [later - earlier for earlier, later in pairwise(tries)]
        assert pauses == [backoff * 2**n for n in range(made - 1)]
        assert pool.calls.retried == made - 1
        assert call.values == (["x"] if failures <= times else [])
        assert (call.failure is None) == (failures <= times)

    simulate(main)


@given(st.integers(1, 500), st.integers(0, 3))
def test_a_call_that_takes_too_long_fails_at_its_timeout(timeout, times):
    async def main():
        pool = Pool(rest, timeout_ms=timeout, policy=retry(times) if times else fail)
        (call,) = await pool.run(5_000)
        assert isinstance(call.failure.error, TimeoutError) and now_ms() == timeout * (times + 1)

    simulate(main)


def test_a_call_that_swallows_its_cancellation_is_given_up_and_what_it_says_later_is_ignored():
    said = []

    async def stubborn(argument):
        try:
            await rest(5_000)
        except asyncio.CancelledError:
            await rest(700)
            said.append(argument)
            return ["too late"]

    async def main():
        pool = Pool(stubborn, most=1, timeout_ms=100)
        done = await pool.run(1, 2)
        assert outcomes(done) == [(1, [], TimeoutError), (2, [], TimeoutError)] and now_ms() == 200
        await asyncio.wait(pool.calls.cancel())
        await rest(1_000)

    simulate(main)
    assert sorted(said) in ([1, 2], [])


def test_results_at_the_moment_of_the_timeout_are_told_once():
    async def main():
        pool = Pool(exactly, timeout_ms=100)
        done = await pool.run(*range(5))
        assert sorted(call.argument for call in done) == list(range(5))

    async def exactly(argument):
        await rest(100)
        return [argument]

    for seed in range(20):
        simulate(main, seed)


@pytest.mark.parametrize("policy", [fail, retry(2, then=skip), retry(2, backoff_ms=10, then=skip)])
def test_a_function_that_raises_before_it_is_a_coroutine(policy):
    def work(argument):
        raise ValueError(argument)

    async def main():
        return outcomes(await Pool(work, policy=policy).run(1, 2))

    assert simulate(main) == [(1, [], ValueError), (2, [], ValueError)]


def failing_generator():
    yield 1
    raise KeyError("in the middle")


@pytest.mark.parametrize(
    ("result", "error"), [(None, TypeError), (7, TypeError), (failing_generator(), KeyError), (iter([1, 2]), None)]
)
def test_what_a_function_returns_is_iterated_where_failures_are_caught(result, error):
    async def work(argument):
        return result

    async def main():
        return outcomes(await Pool(work).run("x"))

    assert simulate(main) == [("x", [] if error else [1, 2], error)]


def test_a_function_that_cancels_itself_fails():
    async def work(argument):
        raise asyncio.CancelledError

    async def main():
        (call,) = await Pool(work).run("x")
        assert isinstance(call.failure.error, RuntimeError)

    simulate(main)


class Odd(BaseException):
    """Neither an Exception nor a cancellation."""


def test_a_function_that_raises_what_is_no_exception_fails():
    async def work(argument):
        raise Odd

    async def main():
        (call,) = await Pool(work).run("x")
        assert "Odd" in str(call.failure.error)

    simulate(main)


@given(waits, st.integers(1, 4), st.integers(0, 2_500), st.integers(0, 99))
@settings(max_examples=examples(120, 100_000))
def test_cancellation_leaves_no_task_and_tells_nothing_more(waits, most, moment, seed):
    async def main():
        pace, begun, ended = random.Random(seed), [], []

        async def work(wait):
            begun.append(wait)
            try:
                await rest(wait)
                if pace.random() < 0.3:
                    raise ValueError(wait)
            finally:
                ended.append(wait)
            return [wait]

        pool = Pool(work, most, policy=retry(2, backoff_ms=50, then=skip))
        for wait in waits:
            pool.calls.submit(Call(wait), 1)
        await rest(moment)
        left = pool.calls.cancel()
        if left:
            await asyncio.wait(left)
        told, tries = len(pool.done), len(begun)
        await rest(10_000)
        assert (len(pool.done), len(begun), len(ended)) == (told, tries, tries)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    simulate(main)


def test_a_call_that_failed_at_once_is_not_made_again_after_cancellation():
    calls = []

    def work(argument):
        calls.append(argument)
        raise ValueError

    async def main():
        pool = Pool(work, policy=retry(3, backoff_ms=10, then=skip))
        pool.calls.submit(Call(1), 1)
        await rest(5)
        pool.calls.cancel()
        await rest(1_000)
        assert pool.done == []

    simulate(main)
    assert calls == [1]


def test_what_waits_starts_before_what_is_submitted_when_a_call_is_told():
    started = []

    async def work(argument):
        started.append(argument)
        await rest(1)
        return []

    def told(call):
        if call.argument == "first":
            calls.submit(Call("new"), 1)

    async def main():
        nonlocal calls
        calls = Calls("op", work, 1, 1_000, fail, told)
        calls.submit(Call("first"), 1)
        calls.submit(Call("waiting"), 1)
        await rest(100)

    calls = None
    simulate(main)
    assert started == ["first", "waiting", "new"]


def test_a_worker_takes_the_next_call_without_a_turn_of_the_loop_in_between():
    workers = set()

    async def work(wait):
        workers.add(asyncio.current_task())
        await rest(wait)
        return [wait]

    async def main():
        await Pool(work, most=3).run(*[1] * 30)
        return len(workers), now_ms()

    assert simulate(main) == (3, 10)


secret = ContextVar("secret", default="nothing")


@given(st.lists(st.sampled_from(("sets", "sets and resets", "reads")), max_size=12), st.integers(1, 3))
def test_what_a_call_sets_in_its_context_no_other_call_sees(kinds, most):
    async def work(kind):
        seen = secret.get()
        token = secret.set(kind)
        await rest(1)
        if kind == "sets and resets":
            secret.reset(token)
        elif kind == "reads":
            secret.set("nothing")
        return [seen]

    async def main():
        secret.set("of the run")
        return [call.values for call in await Pool(work, most).run(*kinds)]

    assert simulate(main) == [["of the run"]] * len(kinds)


def cancelled_and_returns():
    asyncio.current_task().cancel()


async def cancelled_and_swallows():
    asyncio.current_task().cancel()
    with suppress(asyncio.CancelledError):
        await rest(1)


async def out_of_time():
    with suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            await rest(10)


async def group_that_fails():
    async with asyncio.TaskGroup() as group:
        group.create_task(cancelled_and_swallows())
        group.create_task(fails())


async def fails():
    await rest(1)
    raise ValueError


HABITS = {
    "returns": (lambda: None, None),
    "is cancelled and returns": (cancelled_and_returns, RuntimeError),
    "swallows its cancellation": (cancelled_and_swallows, None),
    "has a timeout of its own": (out_of_time, None),
    "has a group that fails": (group_that_fails, ExceptionGroup),
}


@given(st.lists(st.sampled_from(sorted(HABITS)), max_size=12), st.integers(1, 3), st.integers(0, 9))
def test_no_call_is_cancelled_for_another_one(names, most, seed):
    async def work(name):
        assert asyncio.current_task().cancelling() == 0
        await rest(1)
        done = HABITS[name][0]()
        if done is not None:
            await done
        return [name]

    async def main():
        found = {}
        for call in await Pool(work, most).run(*names):
            found.setdefault(call.argument, set()).add(type(call.failure.error) if call.failure else None)
        assert found == {name: {HABITS[name][1]} for name in names}

    simulate(main, seed)


def test_any_awaitable_may_be_returned_and_what_can_not_be_awaited_is_an_error():
    class Later:
        def __await__(self):
            yield from rest(1).__await__()
            return ["later"]

    async def told():
        await rest(1)
        return ["told"]

    answers = {
        "object": Later,
        "future": lambda: asyncio.ensure_future(told()),
        "list": lambda: ["at once"],
    }

    async def main():
        done = await Pool(lambda kind: answers[kind]()).run(*answers)
        return {call.argument: call.values or type(call.failure.error) for call in done}

    assert simulate(main) == {"object": ["later"], "future": ["told"], "list": TypeError}
