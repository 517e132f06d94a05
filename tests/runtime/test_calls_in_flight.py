"""Messages that make one call each go on as columns, and nobody can tell by results, commits, order or failures."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.checks.single_calls import makes_one_call
from planner.model.levers import ALL, Levers
from samza_dsl import App, Options, dead_letter, retry, skip
from tests.runtime.histories import crashing
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through
from tests.simulation.loop import rest

numbers = st.lists(st.lists(st.integers(0, 9), min_size=10, max_size=40), min_size=1, max_size=2)
crashes = crashing(latest=20, most=2)

PLACES = ("enters", "awaits", "takes too long", "goes on")
"""Where the functions below fail on a number."""
KEYS = 3
WAYS = (ALL, Levers(flights=False))
"""Messages go on as columns, or each as a unit by itself, as they do where they make several calls."""


def key_of(number):
    return number // 1_000, number % KEYS


class Job:
    """A stage in which a number makes a call, or is filtered out, and comes to none, one or two."""

    def __init__(self, bad, policy, order, width, seed):
        self.bad, self.policy, self.order, self.width = bad, policy, order, width
        self.pace = random.Random(seed)
        self.failed = set()
        self.under_way = Counter()

    def __repr__(self):
        return f"Job({self.bad}, {self.policy!r}, {self.order!r}, {self.width})"

    def fails_now(self, place, number):
        now = self.bad.get(number % 10) == place and not (self.policy == "retry" and (place, number) in self.failed)
        self.failed |= {(place, number)} if now else set()
        return now

    def check(self, place, number):
        if self.fails_now(place, number):
            raise ValueError(place)
        return number

    async def slowly(self, number):
        task, key = key_of(number)
        self.under_way[task] += 1
        self.under_way[task, key] += 1
        try:
            if "takes too long" not in self.bad.values():  # who was given up may not have heeded it yet
                assert self.under_way[task] <= self.width
                assert self.order != "key" or self.under_way[task, key] == 1
            await rest(5_000 if self.fails_now("takes too long", number) else self.pace.choice((0, 0, 1, 20)))
            return [-self.check("awaits", number)] * (number % 4 % 3)
        finally:
            self.under_way[task] -= 1
            self.under_way[task, key] -= 1

    def app(self, **options):
        on_error = {"skip": skip, "dead_letter": dead_letter("letters"), "retry": retry(1)}[self.policy]
        app = App("flights", Options(**options))
        stream = app.input("in", value=int, key=key_of)
        stream = stream.map(lambda n: self.check("enters", n), on_error=on_error).filter(lambda n: n % 10 != 5)
        called = stream.async_flat_map(
            self.slowly, order=self.order, max_in_flight=self.width, timeout_ms=1_000, on_error=on_error
        )
        called.map(lambda n: -self.check("goes on", -n), on_error=on_error).send_to(app.output("out", value=int))
        return app

    def fails(self, number):
        place = None if self.policy == "retry" else self.bad.get(number % 10)
        return place == "enters" or (
            number % 10 != 5 and (place in PLACES[1:3] or (place == "goes on" and number % 4 % 3 > 0))
        )

    def comes_to(self, numbers):
        """Return what is written for numbers that come in this order, when their calls do not overtake."""
        good = [n for n in numbers if n % 10 != 5 and not self.fails(n)]
        return [n for n in good for _ in range(n % 4 % 3)]


jobs = st.builds(
    Job,
    st.dictionaries(st.integers(0, 9), st.sampled_from(PLACES), max_size=4),
    st.sampled_from(("skip", "dead_letter", "retry")),
    st.sampled_from(("key", "none")),
    st.integers(1, 6),
    st.integers(0, 99),
)


def written(environment, stream):
    """Return what is stored, by the partition of the input that it came from."""
    found = [abs(int(value)) for part in rows_of(environment, stream) for _, value, _ in part]
    return [[number for number in found if number // 1_000 == partition] for partition in range(2)]


def stored(parts):
    """Return an environment with the numbers, each made to be another one: by tens, and thousands for partitions."""
    environment = memory()
    distinct = [[1_000 * part + 10 * at + n for at, n in enumerate(own)] for part, own in enumerate(parts)]
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in part] for part in distinct])
    return environment, distinct


def reached(environment, partitions):
    """Return how many messages of each partition lie before the committed positions."""
    positions = [p for checkpoint in environment.checkpoints("flights").values() for p in checkpoint.positions]
    found = {position.partition: position.offset for position in positions if position.stream == "in"}
    return [found.get(partition, 0) for partition in range(partitions)]


def compared(job, environment, parts):
    """Yield, per partition, what is written, and what the messages before the committed positions come to."""
    for part, end, found in zip(parts, reached(environment, len(parts)), written(environment, "out"), strict=False):
        yield found, job.comes_to(part[:end])


@pytest.mark.parametrize("way", WAYS, ids=["columns", "units"])
@given(numbers, jobs, crashes, st.sampled_from((1, 3, 1_000)), st.sampled_from((1, 7, 1_000)))
@settings(max_examples=examples(60, 20_000))
def test_every_commit_holds_exactly_what_lies_before_it(way, parts, job, crashes, most, uncommitted):
    environment, parts = stored(parts)

    def check(commit=None):
        for found, expected in compared(job, environment, parts):
            assert sorted(found) == sorted(expected)
            for key in range(KEYS if job.order == "key" else 0):
                assert [n for n in found if n % KEYS == key] == [n for n in expected if n % KEYS == key]
        before = [part[:end] for part, end in zip(parts, reached(environment, len(parts)), strict=True)]
        if job.policy == "dead_letter":
            letters = [number for part in written(environment, "letters") for number in part]
            assert sorted(letters) == sorted(n for part in before for n in part if job.fails(n))

    run_through(
        lambda: job.app(max_in_flight=most, max_uncommitted=uncommitted), environment, crashes, 1, check, levers=way
    )
    check()
    assert all(end >= len(part) for end, part in zip(reached(environment, len(parts)), parts, strict=True))


@pytest.mark.parametrize("way", WAYS, ids=["columns", "units"])
@given(numbers, jobs, crashes, st.sampled_from((1, 7, 1_000)))
def test_at_least_once_has_all_that_lies_before_a_commit(way, parts, job, crashes, uncommitted):
    environment, parts = stored(parts)

    def check(commit=None):
        for found, expected in compared(job, environment, parts):
            assert Counter(found) >= Counter(expected)

    run_through(
        lambda: job.app(guarantee="at_least_once", max_uncommitted=uncommitted),
        environment,
        crashes,
        1,
        check,
        levers=way,
    )
    check()
    assert all(end >= len(part) for end, part in zip(reached(environment, len(parts)), parts, strict=True))


async def call(number):
    return [number]


PIPELINES = {
    "a call for each": (lambda s: s.filter(bool).map(abs).async_flat_map(call), True),
    "in the order of the input": (lambda s: s.async_flat_map(call, order="partition"), False),
    "two in a row": (lambda s: s.async_flat_map(call).async_flat_map(call), False),
    "several calls for one": (lambda s: s.flat_map(range).async_flat_map(call), False),
    "by two ways": (lambda s: s.map(abs).merge(s.filter(bool)).async_flat_map(call), False),
    "beside others that take effect at once": (lambda s: s.async_flat_map(call).merge(s.filter(bool)), False),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_only_messages_that_make_one_call_go_on_as_columns(name):
    pipeline, expected = PIPELINES[name]
    app = App("flights")
    pipeline(app.input("in", value=int, key=abs)).send_to(app.output("out", value=int))
    plan = app.plan()
    assert [makes_one_call(stage, app.graph()) is not None for stage in plan.stages] == [expected]
