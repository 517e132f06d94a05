"""What awaits: which order is kept, what may overtake, and how much is in flight at once."""

import random
from collections import defaultdict

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import App, Options, retry, skip
from tests.scale import examples
from tests.simulation.crash import CrashPoint, fill, memory, rows_of, run_through
from tests.simulation.loop import rest

orders = st.sampled_from(("key", "partition", "none"))
numbers = st.lists(st.lists(st.integers(0, 20), max_size=20), min_size=1, max_size=3)


class Diary:
    """Async functions that write down what happens, and take a virtual time that a seed decides."""

    def __init__(self, seed, failing=0):
        self.pace = random.Random(seed)
        self.failing = failing
        self.started, self.finished = [], []
        self.running = self.most = 0
        self.tries = defaultdict(int)
        self.open, self.overlaps = {}, []

    async def call(self, item):
        self.started.append(item)
        if self.open.setdefault((item[0], item[2]), item) != item:
            self.overlaps.append(item)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await rest(self.pace.choice((0, 1, 5, 30)))
            self.tries[tuple(item)] += 1
            if self.failing and item[1] % self.failing == 0 and self.tries[tuple(item)] == 1:
                raise ValueError(item)
        finally:
            self.running -= 1
        self.finished.append(item)
        self.open.pop((item[0], item[2]), None)
        return [[*item, "a"], [*item, "b"]]


def items_of(parts):
    """Number the records, so that each is told from all others: [partition, place, key]."""
    return [[[part, place, number % 3] for place, number in enumerate(row)] for part, row in enumerate(parts)]


def run(parts, diary, order, width=5, crashes=(), seed=None, keyless=None, **options):
    def app():
        app = App("order", Options(**options))
        app.input("in", value=list, key=lambda item: None if item[2] == keyless else item[2]).async_flat_map(
            diary.call,
            order=order,
            max_in_flight=width,
            timeout_ms=1_000,
            on_error=retry(1, backoff_ms=7, then=skip),
        ).send_to(app.output("out", value=list, partitions=1))
        return app

    environment = memory()
    rows = [[(None, msgspec.json.encode(item), 0) for item in part] for part in items_of(parts)]
    fill(environment, "in", rows)
    run_through(app, environment, crashes, seed)
    return [msgspec.json.decode(value) for part in rows_of(environment, "out") for _, value, _ in part]


def by(found, *columns):
    groups = defaultdict(list)
    for item in found:
        groups[tuple(item[column] for column in columns)].append(item[1])
    return groups


def is_sorted(places):
    return places == sorted(places)


@given(numbers, st.integers(0, 999), orders, st.integers(1, 6), st.integers(1, 6), st.sampled_from((0, 2)))
def test_never_more_in_flight_than_allowed_and_nothing_is_lost(parts, seed, order, width, most, failing):
    diary = Diary(seed, failing)
    found = run(parts, diary, order, width, seed=seed, max_in_flight=most)
    assert diary.most <= min(width, most) * len(parts)
    assert sorted(found) == sorted([*item, which] for part in items_of(parts) for item in part for which in "ab")


@given(numbers, st.integers(0, 999), st.sampled_from((0, 2)), st.integers(1, 6))
def test_by_key_the_messages_of_a_key_start_finish_and_go_on_in_order(parts, seed, failing, most):
    diary = Diary(seed, failing)
    found = run(parts, diary, "key", most)
    for happened in (diary.started, diary.finished, found):
        assert all(is_sorted(places) for places in by(happened, 0, 2).values())
    assert diary.overlaps == []


@given(numbers, st.integers(0, 999), st.sampled_from((0, 2)), st.integers(1, 6))
def test_by_partition_everything_goes_on_in_input_order(parts, seed, failing, most):
    diary = Diary(seed, failing)
    found = run(parts, diary, "partition", most)
    assert all(is_sorted(places) for places in by(found, 0).values())


@given(numbers, st.integers(0, 999), st.sampled_from(("partition", "none")), st.integers(1, 6))
def test_calls_start_in_offset_order(parts, seed, order, most):
    diary = Diary(seed)
    run(parts, diary, order, most)
    assert all(is_sorted(places) for places in by(diary.started, 0).values())


@given(numbers, st.integers(0, 999), st.integers(1, 12), st.sampled_from(("before_commit", "after_commit", "turn")))
@settings(max_examples=examples(80, 5_000))
def test_order_by_key_survives_crashes(parts, seed, number, when):
    diary = Diary(seed)
    found = run(parts, diary, "key", crashes=[CrashPoint(when, number)], seed=seed, max_uncommitted=3)
    assert all(is_sorted(places) for places in by(found, 0, 2).values())


def pace_of(slow):
    async def call(item):
        await rest(100 if item[2] == slow else 1)
        return [item]

    return call


def test_by_key_other_keys_overtake():
    diary = Diary(0)
    diary.call = pace_of(slow=0)
    found = run([[0, 1, 2, 0, 1]], diary, "key")
    assert [item[1] for item in found] == [1, 2, 4, 0, 3]


def test_by_partition_calls_run_at_once_all_the_same():
    diary = Diary(3)
    run([[0] * 10], diary, "partition", 10)
    assert diary.most > 2


def test_without_order_results_overtake():
    diary = Diary(0)
    diary.call = pace_of(slow=0)
    found = run([[0, 1, 2]], diary, "none")
    assert [item[1] for item in found] == [1, 2, 0]


def test_messages_without_a_key_are_not_ordered_among_each_other():
    diary = Diary(0)
    diary.call = pace_of(slow=0)
    found = run([[0, 0, 1, 1]], diary, "key", keyless=0)
    assert [item[1] for item in found][:2] == [2, 3]
    assert sorted(item[1] for item in found) == [0, 1, 2, 3]
