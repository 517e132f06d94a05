"""Joins with a remote table on a virtual clock: who is asked for what, when, how often, and what a failure does."""

import asyncio
from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.model.errors import OperatorFailure
from samza_dsl import App, Options, PlanError, dead_letter, remote_table, retry, skip, testing
from tests.runtime.histories import crashing
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through
from tests.simulation.loop import rest

PRESENT = 5
crashes = crashing(most=2)


class Service:
    """Answers some time later, fails now and then, and notes what it is asked, and when, in each life of a task."""

    def __init__(self, delays=(0,), failing=()):
        self.delays, self.failing = delays, set(failing)
        self.calls, self.under_way, self.number = [], [], 0

    async def __call__(self, keys):
        now = asyncio.get_running_loop().time() * 1_000
        number, self.number = self.number, self.number + 1
        assert not {key for others in self.under_way for key in others} & set(keys), "a key is asked for once at a time"
        assert len(set(keys)) == len(keys)
        self.calls.append((now, list(keys)))
        self.under_way.append(keys)
        try:
            await rest(self.delays[number % len(self.delays)])
        finally:
            self.under_way.remove(keys)
        if number in self.failing:
            raise ConnectionError("busy")
        return {key: key * 10 for key in keys if key < PRESENT}


tables = st.fixed_dictionaries(
    {
        "order": st.sampled_from(("partition", "key", "none")),
        "batch_size": st.integers(1, 5),
        "batch_wait_ms": st.sampled_from((0, 5, 30)),
        "cache_size": st.integers(0, 4),
        "ttl_ms": st.sampled_from((0, 20, 100_000)),
        "fetches_per_second": st.sampled_from((None, 20, 200)),
        "max_in_flight": st.integers(1, 10),
    }
)


@given(
    numbers=st.lists(st.integers(0, 7), max_size=40),
    how=st.sampled_from(("inner", "left")),
    said=tables,
    delays=st.lists(st.sampled_from((0, 3, 40)), min_size=1, max_size=4),
    failing=st.sets(st.integers(0, 10), max_size=3),
    crashes=crashes,
    seed=st.integers(0, 2**32),
)
@settings(max_examples=examples(80, 2_000))
def test_it_comes_to_what_a_dict_says_and_asks_no_more_than_it_may(numbers, how, said, delays, failing, crashes, seed):
    lives = []

    def app():
        app = App("remote", Options(max_drain_ms=600_000))
        lives.append(Service(delays, failing))
        table = remote_table(lives[-1].__call__, **said)
        stream = app.input("in", value=int, key=lambda n: n % 3)
        joined = stream.join(
            table, lambda n, row: [n, row], on=lambda n: n or None, how=how, on_error=retry(5, backoff_ms=10)
        )
        joined.send_to(app.output("out", value=list))
        return app

    environment = memory()
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in numbers]])
    run_through(app, environment, crashes, seed)
    found = [tuple(msgspec.json.decode(value)) for part in rows_of(environment, "out") for _, value, _ in part]
    expected = [(n, n * 10 if 0 < n < PRESENT else None) for n in numbers if how == "left" or 0 < n < PRESENT]
    assert Counter(found) == Counter(expected)
    if said["order"] == "partition":
        assert found == expected
    for service in lives:
        check_asked(
            service,
            said,
            keeps_all=not failing and said["ttl_ms"] == 100_000 and said["cache_size"] >= len(set(numbers)),
        )


def check_asked(service, said, keeps_all):
    """No call asks for too many or comes too soon, and what is kept is not asked for again."""
    assert not any(None in keys for _, keys in service.calls)
    assert all(len(keys) <= said["batch_size"] for _, keys in service.calls)
    if said["fetches_per_second"] is not None:
        every_ms = 1_000 / said["fetches_per_second"]
        assert all(later - at >= every_ms - 0.001 for (at, _), (later, _) in pairwise(service.calls))
    asked = [key for _, keys in service.calls for key in keys]
    assert not keeps_all or len(asked) == len(set(asked))


def joined(service, on_error=None, how="left", **said):
    app = App("remote")
    stream = app.input("in", value=int, key=lambda n: n)
    how = {"how": how, "op_id": "rows"} | ({} if on_error is None else {"on_error": on_error})
    table = remote_table(service.__call__, **said)
    stream.join(table, lambda n, row: [n, row], on=lambda n: n % 10, **how).send_to(app.output("out", value=list))
    return app


def test_messages_of_one_key_wait_for_one_answer():
    service = Service(delays=(100,))
    with testing.running(joined(service, batch_wait_ms=0)) as run:
        run.send("in", 1, 11, 21, 2)
        run.advance_time(seconds=0.1)
        assert sorted(run.read("out")) == [[1, 10], [2, 20], [11, 10], [21, 10]]
    assert [keys for _, keys in service.calls] == [[1, 2]]


def test_keys_are_gathered_for_a_short_time_or_until_there_are_enough():
    service = Service()
    with testing.running(joined(service, batch_wait_ms=50, batch_size=3)) as run:
        run.send("in", 1)
        run.advance_time(seconds=0.049)
        run.send("in", 2)
        assert service.calls == []
        run.advance_time(seconds=0.001)
        assert [keys for _, keys in service.calls] == [[1, 2]]
        run.send("in", 3, 4, 5, 6)
        assert [keys for _, keys in service.calls[1:]] == [[3, 4, 5]]
        run.advance_time(seconds=0.05)
        assert [keys for _, keys in service.calls[2:]] == [[6]]


def test_a_row_is_kept_for_its_time_and_no_longer_and_so_is_that_there_is_none():
    service = Service()
    with testing.running(joined(service, batch_wait_ms=0, ttl_ms=1_000, absent_ttl_ms=100)) as run:
        asked = []
        for after_ms, number in ((0, 1), (0, 7), (99, 17), (1, 27), (899, 11), (1, 21)):
            run.advance_time(seconds=after_ms / 1_000) if after_ms else None
            before = len(service.calls)
            run.send("in", number)
            asked.append(len(service.calls) > before)
        assert asked == [True, True, False, True, False, True]


def test_of_more_rows_than_are_kept_those_go_that_were_not_used_for_longest():
    service = Service()
    with testing.running(joined(service, batch_wait_ms=0, cache_size=2)) as run:
        for number in (1, 2, 11, 3, 21, 12):
            run.send("in", number)
    assert [keys for _, keys in service.calls] == [[1], [2], [3], [2]]


def test_calls_are_made_no_more_often_than_they_may_and_carry_what_has_come_meanwhile():
    service = Service()
    with testing.running(joined(service, batch_wait_ms=0, fetches_per_second=10)) as run:
        for number in range(5):
            run.send("in", number)
            run.advance_time(seconds=0.01)
        run.advance_time(seconds=1)
        assert len(run.read("out")) == 5
    (first, one), (second, others) = service.calls
    assert (one, others) == ([0], [1, 2, 3, 4]) and second - first == pytest.approx(100)


def test_all_tasks_together_share_what_may_be_asked():
    services = []

    class Connected(Service):
        def open(self, context):
            services.append(self)

    app = App("remote")
    stream = app.input("in", value=int, partitions=2)
    table = remote_table(Connected(), batch_wait_ms=0, fetches_per_second=10, cache_size=0)
    stream.join(table, lambda n, row: n, on=lambda n: n).send_to(app.output("out", value=int, partitions=1))
    with testing.running(app) as run:
        for _ in range(3):
            for partition in (0, 1):
                run.send("in", testing.Record(1, partition=partition))
            run.advance_time(seconds=0.001)
        run.advance_time(seconds=2)
    times = [[at for at, _ in service.calls] for service in services]
    assert len(times) == 2 and all(second - first == pytest.approx(200) for first, second in times)


@pytest.mark.parametrize(("policy", "out", "bad"), [(skip, 0, 0), (dead_letter("bad"), 0, 2), (retry(1), 2, 0)])
def test_an_answer_that_fails_meets_the_policy_of_each_message_that_waits_for_it(policy, out, bad):
    service = Service(failing=[0])
    with testing.running(joined(service, policy)) as run:
        run.send("in", 1, 2)
        run.advance_time(seconds=1)
        assert len(run.read("out")) == out
        assert bad == 0 or [one.error for one in run.dead_letters("bad")] == ["ConnectionError: busy"] * bad
    assert [keys for _, keys in service.calls] == [[1, 2]] * (2 if out else 1)


@given(
    numbers=st.lists(st.integers(0, 39), max_size=20),
    bad=st.sets(st.integers(0, 9)),
    said=tables,
    error=st.sampled_from((ValueError("no such"), KeyError(), StopIteration("no such"), TimeoutError())),
)
@settings(max_examples=examples(40, 500))
def test_an_error_in_place_of_a_row_is_of_the_messages_of_its_key_alone(numbers, bad, said, error):
    class Partial(Service):
        async def __call__(self, keys):
            return await super().__call__(keys) | {key: error for key in keys if key in bad}

    with testing.running(joined(Partial(), dead_letter("bad"), **said)) as run:
        run.send("in", *numbers)
        run.advance_time(seconds=60)
        out, letters = run.read("out"), [int(one.value) for one in run.dead_letters("bad")]
    rows = {key: key * 10 for key in range(PRESENT)}
    assert sorted(out) == sorted([n, rows.get(n % 10)] for n in numbers if n % 10 not in bad)
    assert sorted(letters) == sorted(n for n in numbers if n % 10 in bad)


def test_an_answer_that_takes_too_long_has_failed_for_all_who_wait_for_it():
    service = Service(delays=(5_000, 0))
    with testing.running(joined(service, dead_letter("bad"), timeout_ms=100, batch_wait_ms=0)) as run:
        run.send("in", 1, 11)
        run.advance_time(seconds=0.2)
        late = "TimeoutError: no rows for 1 keys after timeout_ms=100"
        assert [one.error for one in run.dead_letters("bad")] == [late] * 2
        run.send("in", 21)
        run.advance_time(seconds=0.2)
        assert run.read("out") == [[21, 10]]


def test_what_is_no_mapping_is_told():
    class Listed:
        async def __call__(self, keys):
            return list(keys)

    with pytest.raises(OperatorFailure, match="fetch_many must return a mapping from keys to rows, and returned list"):
        testing.run(joined(Listed()), {"in": [1]})


def test_a_commit_counts_what_waits_for_a_row_only_when_it_has_it():
    service = Service(delays=(1_000,))
    with testing.running(joined(service)) as run:
        run.send("in", 1)
        run.advance_time(seconds=0.5)
        run.crash()
        run.restart()
        run.advance_time(seconds=2)
        assert run.read("out") == [[1, 10]]
    assert len(service.calls) == 2


def test_what_may_not_drain_in_time_is_refused():
    app = joined(Service(), retry(20))
    with pytest.raises(PlanError, match="a call may take 44,205 ms along this path"):
        app.plan()
