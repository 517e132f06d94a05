"""Keyed state in async functions: whatever the schedule, the failures and the crashes, as one call after the other."""

import random
from collections import defaultdict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.async_flat_map import KeyedMessage, StatefulCalls
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.model.errors import OperatorFailure
from runtime.stores.memory import MemoryStore
from samza_dsl import App, Options, dead_letter, fail, retry, skip, testing
from tests.runtime.histories import crashing
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_once, run_through
from tests.simulation.loop import rest

KEYS = 3
POLICIES = {
    "fail": fail,
    "skip": skip,
    "dead_letter": dead_letter("letters"),
    "retry": retry(2, backoff_ms=3),
}
crashes = crashing(most=2)

numbers = st.lists(st.integers(0, 9), min_size=5, max_size=25)


class Job:
    """An async function that folds the numbers of a key in their order, and often fails when it has written already."""

    def __init__(self, bad, slow, policy, in_place, seed, copies=1, before=False):
        self.bad, self.slow, self.policy, self.in_place = bad, slow, policy, in_place
        self.copies, self.before = copies, before
        self.pace = random.Random(seed)
        self.tries = defaultdict(int)

    async def fold(self, item, context):
        number = item[1]
        if self.in_place:
            context.state.append(number)
            seen = list(context.state)
        else:
            context.state = (*(context.state or ()), number)
            seen = list(context.state)
        await rest(self.pace.choice((0, 1, 10)))
        self.tries[tuple(item)] += 1
        first = self.tries[tuple(item)] == 1
        if number in self.slow and (first or self.policy != "retry"):
            await rest(1_000)
        if number in self.bad and (first or self.policy != "retry"):
            raise ValueError(number)
        return [[*item, seen]]

    async def hurry(self, item):
        await rest(self.pace.choice((0, 30)))
        return [item]

    def app(self, **options):
        app = App("folding", Options(**options))
        stream = app.input("in", value=list, key=lambda item: item[1] % KEYS)
        if self.copies > 1:
            stream = stream.flat_map(lambda item: [[*item, copy] for copy in range(self.copies)])
        if self.before:
            stream = stream.async_flat_map(self.hurry, order="none", max_in_flight=4, timeout_ms=500)
        folded = stream.async_flat_map(
            self.fold,
            init=list if self.in_place else None,
            timeout_ms=200,
            max_in_flight=3,
            on_error=POLICIES[self.policy],
            op_id="folded",
        )
        folded.send_to(app.output("out", value=list, partitions=1))
        return app

    def fails(self, number):
        return self.policy != "retry" and number in (*self.bad, *self.slow)


def folded(job, part):
    """Return what the messages of a partition come to one after the other: what goes on, and each key's state."""
    state, out = defaultdict(list), defaultdict(list)
    for item in part:
        number, key = item[1], item[1] % KEYS
        for copy in range(job.copies if not job.fails(number) else 0):
            state[key].append(number)
            out[key].append([*item, *([copy] if job.copies > 1 else []), list(state[key])])
    return out, dict(state)


jobs = st.builds(
    Job,
    st.sets(st.integers(0, 9), max_size=6),
    st.sets(st.integers(0, 9), max_size=3),
    st.sampled_from(("skip", "dead_letter", "retry")),
    st.booleans(),
    st.integers(0, 99),
    st.sampled_from((1, 1, 3)),
    st.booleans(),
)


def state_of(environment, task):
    rows = environment.state_range("folding", "folded", task)
    return {Tagged().decode(key[1:]): list(Tagged().decode(value)) for key, value in rows}


def reached(environment):
    """Return the offset of the input that is committed."""
    checkpoints = environment.checkpoints("folding").values()
    return max((position.offset for one in checkpoints for position in one.positions), default=0)


def in_log(values):
    environment = memory()
    items = [[place, number] for place, number in enumerate(values)]
    fill(environment, "in", [[(None, msgspec.json.encode(item), 0) for item in items]], random.Random(len(values)))
    return environment, items


@given(numbers, jobs, crashes, st.sampled_from((1, 4, 1_000)), st.sampled_from((0, 100)))
@settings(max_examples=examples(100, 20_000))
def test_state_and_results_are_those_of_one_call_after_the_other_in_every_commit(values, job, crashes, most, cache):
    environment, items = in_log(values)

    def check(commit=None):
        out, state = folded(job, items[: reached(environment)])
        found = [msgspec.json.decode(value) for part in rows_of(environment, "out") for _, value, _ in part]
        for key in range(KEYS):
            assert [item for item in found if item[1] % KEYS == key] == out[key]
        assert state_of(environment, 0) == state

    options = {"max_in_flight": most, "max_uncommitted": 5, "cache_entries": cache}
    run_through(lambda: job.app(**options), environment, crashes, most, check)
    if values:
        check()


@given(numbers, jobs, crashes)
def test_at_least_once_a_key_is_folded_in_order(values, job, crashes):
    environment, items = in_log(values)
    run_through(lambda: job.app(guarantee="at_least_once", max_uncommitted=5), environment, crashes, 1)
    found = state_of(environment, 0)
    for key, state in folded(job, items)[1].items():
        later = iter(found[key])
        assert all(number in later for number in state), "the messages of a key are a subsequence of what was folded"


@given(numbers, st.integers(0, 9), st.booleans())
def test_nothing_of_a_message_that_ends_the_run_is_kept(values, bad, in_place):
    environment, items = in_log(values)
    job = Job({bad}, (), "fail", in_place, 0)
    if bad not in values:
        run_once(job.app(), environment)
    else:
        with pytest.raises(OperatorFailure, match=r"folded.*in/0 at .*nothing of that record was committed"):
            run_once(job.app(), environment)
        assert state_of(environment, 0) == folded(job, items[: reached(environment)])[1]


@pytest.mark.parametrize("store", ["lmdb", "memory"])
def test_a_context_has_key_time_and_state(store):
    seen = []

    async def remember(n, context):
        seen.append((context.key, context.timestamp, context.state))
        context.state = None if n == 3 else n
        return ()

    app = App("contexts")
    numbers = app.input("in", value=int, key=lambda n: f"k{n % 2}", timestamp=lambda n: n * 10)
    numbers.async_flat_map(remember, store=store).send_to(app.output("out"))
    testing.run(app, {"in": [1, 2, 3, 4, 5]})
    keys = sorted(seen)
    assert keys == [("k0", 20, None), ("k0", 40, 2), ("k1", 10, None), ("k1", 30, 1), ("k1", 50, None)]


def test_a_context_without_a_time_says_so():
    calls = StatefulCalls(
        {"async_flat_map": lambda value, context: context}, MemoryStore(), KeySerde(Tagged()), Tagged()
    )
    with pytest.raises(ValueError, match=r"no timestamp; give the input timestamp="):
        assert calls.call(KeyedMessage(1, Tagged().encode("k"), None)).timestamp


def test_a_message_without_a_key_is_an_error_of_the_record():
    async def remember(n, context):
        context.state = n
        return [n]

    app = App("keyless")
    numbers = app.input("in", value=int, key=lambda n: None if n == 2 else n)
    numbers.async_flat_map(remember, on_error=dead_letter("letters")).send_to(app.output("out", value=int))
    found = testing.run(app, {"in": [1, 2, 3]})
    assert sorted(found["out"]) == [1, 3] and found["letters"] == [b"2"]


def test_the_store_is_planned():
    async def remember(n, context):
        return ()

    app = App("planned")
    numbers = app.input("in", value=int, key=lambda n: n)
    numbers.async_flat_map(remember, op_id="kept", store="memory").send_to(app.output("out"))
    (store,) = app.plan().stores
    assert (store.name, store.operator, store.kind) == ("kept", "kept", "memory")
    assert app.plan().operator("kept").stateful and "kept" in app.plan().to_text()


@pytest.mark.parametrize("store", ["lmdb", "memory"])
def test_under_test_state_is_what_calls_that_ended_well_have_left(store):
    async def add_up(n, context):
        context.state += n
        return [context.state]

    app = App("awaiting")
    numbers = app.input("numbers", value=int, key=str)
    sums = numbers.async_flat_map(add_up, init=int, op_id="sum", store=store, on_error=skip)
    sums.send_to(app.output("sums", value=int))
    with testing.running(app) as run:
        run.send("numbers", 1, 2, key="a")
        run.hold("sum")
        run.send("numbers", 4, 5, key="a")
        run.calls("sum")[0].fails(ValueError("no"))
        assert run.read("sums") == [1, 3] and run.state("sum") == {"a": 3}
        run.calls("sum")[0].completes()
        assert run.read("sums") == [8] and run.state("sum") == {"a": 8}
