"""A record that fails leaves nothing behind, wherever it fails, and takes nothing of another with it."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.model.errors import OperatorFailure
from runtime.stage.error_policy import Guard
from samza_dsl import App, Options, dead_letter, retry, skip
from tests.scale import examples
from tests.simulation.crash import CrashPoint, fill, memory, rows_of, run_once, run_through
from tests.simulation.loop import rest

PLACES = ("first", "call", "left", "right", "key", "state")
"""Where a record may fail: before all, in the call, in one of two branches, at the repartitioning, in the state."""
numbers = st.lists(st.integers(0, 30), max_size=20)


def numbers_in(environment, stream):
    return Counter(int(value) for part in rows_of(environment, stream) for _, value, _ in part)


class Failing:
    """Functions that fail for good on some numbers, and on others but once."""

    def __init__(self, bad, flaky):
        self.bad, self.flaky, self.failed = bad, flaky, set()

    def check(self, place, n):
        if self.bad.get(n) == place or (self.flaky.get(n) == place and (place, n) not in self.failed):
            self.failed.add((place, n))
            raise ValueError(place)
        return n


def app_of(failing, policy, awaits, seen, batch_records=2_000):
    app = App("policies", Options(batch_records=batch_records))
    stream = app.input("in", value=int, key=lambda n: n % 2, timestamp=lambda n: n)
    stream = stream.map(lambda n: failing.check("first", n), on_error=policy)
    if awaits:

        async def call(n):
            await rest(n % 5)
            return [failing.check("call", n)]

        stream = stream.async_flat_map(call, timeout_ms=1_000, on_error=policy)
    both = stream.branch(lambda n: ("left", "right"), into=("left", "right"))
    both["left"].map(lambda n: failing.check("left", n), on_error=policy).send_to(app.output("left", value=int))
    both["right"].map(lambda n: failing.check("right", n), on_error=policy).sink(seen.append)
    parted = stream.partition_by(lambda n: failing.check("key", n), partitions=2, on_error=policy)
    parted.send_to(app.output("parted", value=int))

    def remember(n, context):
        context.state.append(n)  # in place, before it fails
        context.set_timer(1_000 + n)
        return [failing.check("state", n)]

    kept = stream.process(remember, on_timer=lambda at, context: [-at], init=list, on_error=policy, op_id="kept")
    kept.send_to(app.output("kept", value=int))
    return app


POLICIES = {"skip": skip, "dead_letter": dead_letter("letters"), "retry": retry(2, then=dead_letter("letters"))}


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
@given(numbers, st.data(), st.sampled_from((1, 4, 2_000)))
@settings(max_examples=examples(24, 10_000))
def test_a_record_that_fails_leaves_nothing_and_takes_nothing_with_it(policy, awaits, values, data, batch_records):
    places = st.dictionaries(st.integers(0, 30), st.sampled_from(PLACES), max_size=10)
    bad, flaky = data.draw(places), data.draw(places) if policy == "retry" else {}
    if not awaits:
        bad = {n: place for n, place in bad.items() if place != "call"}
    seen, environment = [], memory()
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in values]])
    failing = Failing(bad, flaky)
    run_once(app_of(failing, POLICIES[policy], awaits, seen, batch_records), environment)

    passed = Counter(n for n in values if n not in bad)
    assert numbers_in(environment, "left") == numbers_in(environment, "parted") == Counter(seen) == passed
    assert numbers_in(environment, "kept") == passed + Counter({-1_000 - n: 1 for n in passed})
    state = environment.state_range("policies", "kept", 0)
    lists = [msgspec.msgpack.decode(value[1:]) for key, value in state if key.startswith(b"s")]
    assert Counter(n for one in lists for n in one) == passed
    letters = numbers_in(environment, "letters")
    assert letters == (Counter() if policy == "skip" else Counter(n for n in values if n in bad))


def totals_of(failing, policy):
    app = App("totals")
    checked = app.input("in", value=int, key=lambda n: n % 3).map(lambda n: failing.check("first", n), on_error=policy)
    step = checked.scan(lambda total, n: total + failing.check("state", n), init=int, on_error=policy, op_id="totals")
    step.send_to(app.output("out", value=int))
    return app


@pytest.mark.parametrize("policy", POLICIES)
@given(st.sampled_from([1, 2, 199, 200, 201, 450]), st.data())
@settings(max_examples=examples(60, 5_000), deadline=None)
def test_what_fails_among_many_changes_neither_order_nor_state_of_the_others(policy, size, data):
    some, place = st.sets(st.integers(0, size - 1), max_size=5), st.sampled_from(["first", "state"])
    runs = st.builds(
        lambda start, length: {*range(start, start + length)}, st.integers(0, size - 1), st.integers(0, 60)
    )
    places = st.builds(lambda found, where: dict.fromkeys(found, where), some | runs, place)
    bad = data.draw(places) | data.draw(places)
    environment, failing = memory(), Failing(bad, data.draw(places) if policy == "retry" else {})
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in range(size)]])
    run_once(totals_of(failing, POLICIES[policy]), environment)

    totals, expected = Counter(), []
    for n in (n for n in range(size) if n not in bad):
        totals[n % 3] += n
        expected.append(totals[n % 3])
    assert [int(value) for _, value, _ in rows_of(environment, "out")[0]] == expected
    letters = rows_of(environment, "letters")
    assert [int(value) for part in letters for _, value, _ in part] == [
        n for n in range(size) if n in bad and policy != "skip"
    ]


@pytest.mark.parametrize("place", ["first", "state"])
def test_one_that_fails_among_many_has_few_done_by_themselves(place, monkeypatch):
    tried, attempt = [], Guard.attempt
    monkeypatch.setattr(Guard, "attempt", lambda self, work: tried.append(work) or attempt(self, work))
    environment = memory()
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in range(1_000)]])
    run_once(totals_of(Failing({700: place}, {}), skip), environment)
    assert len(rows_of(environment, "out")[0]) == 999
    assert len(tried) < 40


@given(numbers, st.integers(0, 30), st.sampled_from(PLACES), st.booleans())
@settings(max_examples=examples(60, 10_000))
def test_where_the_policy_is_to_fail_nothing_of_the_record_is_committed(values, bad, place, awaits):
    environment = memory()
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in values]])

    def app():
        return app_of(Failing({bad: place}, {}), retry(1), awaits, [], batch_records=3)

    if bad not in values or (place == "call" and not awaits):
        run_once(app(), environment)
    else:
        with pytest.raises(OperatorFailure, match=f"{place}.*nothing of that record was committed"):
            run_once(app(), environment)
        for stream in ("left", "parted", "kept"):
            assert bad not in numbers_in(environment, stream)


@given(numbers, st.integers(1, 20), st.booleans())
@settings(max_examples=examples(60, 10_000))
def test_after_a_mended_function_a_restart_goes_on_and_doubles_nothing(values, bad, awaits):
    environment = memory()
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in values]])
    try:
        run_once(app_of(Failing({bad: "state"}, {}), retry(1), awaits, [], batch_records=2), environment)
    except OperatorFailure:
        run_through(lambda: app_of(Failing({}, {}), skip, awaits, []), environment, [CrashPoint("after_commit", 1)])
    assert numbers_in(environment, "left") == numbers_in(environment, "parted") == Counter(values)
