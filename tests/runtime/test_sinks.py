"""A sink can't be taken back: it is called once per message, when all other effects of the record have succeeded."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.model.errors import OperatorFailure
from samza_dsl import App, Options, dead_letter, fail, retry, skip, testing
from samza_dsl.testing import Record
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_once
from tests.simulation.loop import rest

numbers = st.lists(st.integers(0, 15), max_size=12)
failures = st.dictionaries(st.integers(0, 15), st.integers(1, 4), max_size=5)
"""How often in a row a function fails on which numbers."""


class Job:
    """Numbers that come to two sinks, an output and a repartitioning; one function of them fails, so often."""

    def __init__(self, place, times, policy, awaits):
        self.place, self.policy, self.awaits = place, policy, awaits
        self.times, self.left = times, dict(times)
        self.calls = {"first": [], "second": []}

    def check(self, place, number):
        if place == self.place and self.left.get(number, 0):
            self.left[number] -= 1
            raise ValueError(place)
        if place == self.place and number in self.left:
            self.left[number] = self.times[number]
        return number

    def sink(self, name):
        def call(number):
            self.check(name, number)
            self.calls[name].append(number)

        return call

    async def slowly(self, number):
        await rest(number % 3)
        return [number]

    def app(self):
        how = {"on_error": self.policy}
        app = App("sinks", Options(batch_records=5))
        stream = app.input("in", value=int)
        if self.awaits == "some":
            parts = stream.branch(lambda n: "now" if n % 3 else "later", into=("now", "later"))
            stream = parts["later"].async_flat_map(self.slowly, **how).merge(parts["now"])
        elif self.awaits == "all":
            stream = stream.async_flat_map(self.slowly, order="partition", **how)
        twice = stream.flat_map(lambda n: [n, n])
        twice.sink(self.sink("first"), op_id="first", **how)
        stream.sink(self.sink("second"), op_id="second", **how)
        stream.map(lambda n: self.check("mapped", n), **how).send_to(app.output("out", value=int))
        stream.partition_by(lambda n: self.check("keyed", n), value=int, **how).send_to(app.output("keyed", value=int))
        return app


def sent(environment, stream):
    return Counter(int(value) for part in rows_of(environment, stream) for _, value, _ in part)


def run(job, values):
    environment = memory()
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in values]])
    run_once(job.app(), environment)
    return environment


places = st.sampled_from(("first", "second", "mapped", "keyed"))
awaits = st.sampled_from(("nothing", "some", "all"))


@given(numbers, places, failures, awaits)
@settings(max_examples=examples(160, 10_000))
def test_a_sink_that_is_retried_makes_no_other_call_again(values, place, times, awaits):
    values = [*dict.fromkeys(values)]
    job = Job(place, times, retry(4), awaits)
    environment = run(job, values)
    assert job.calls == {"first": [n for n in values for _ in range(2)], "second": values}
    assert sent(environment, "out") == sent(environment, "keyed") == Counter(values)


@given(numbers, places, st.sets(st.integers(0, 15), max_size=5), awaits, st.booleans())
@settings(max_examples=examples(160, 10_000))
def test_of_a_record_that_is_dropped_no_sink_hears_but_those_before_the_one_that_fails(
    values, place, bad, awaits, again
):
    policy = retry(1, then=skip) if again else dead_letter("letters")
    job = Job(place, dict.fromkeys(bad, 1_000), policy, awaits)
    environment = run(job, values)
    good = [n for n in values if n not in bad]
    heard = values if place == "second" else good
    assert job.calls == {"first": [n for n in heard for _ in range(2)], "second": good}
    assert sent(environment, "out") == sent(environment, "keyed") == Counter(good)
    assert again or sent(environment, "letters") == Counter(n for n in values if n in bad)


@given(numbers, places, st.sets(st.integers(0, 15), min_size=1, max_size=3), awaits, st.integers(1, 3))
@settings(max_examples=examples(160, 10_000))
def test_where_the_policy_is_to_fail_nothing_is_done_again(values, place, bad, awaits, times):
    values = [*dict.fromkeys(values)]
    job = Job(place, dict.fromkeys(bad, times), fail, awaits)
    if bad.isdisjoint(values):
        run(job, values)
        return
    with pytest.raises(OperatorFailure, match=f"{place}.*in/0 "):
        run(job, values)
    calls = Counter(job.calls["first"]), Counter(job.calls["second"])
    assert set(calls[0].values()) <= {1, 2} and set(calls[1].values()) <= {1}
    if place not in ("first", "second"):
        assert bad.isdisjoint(calls[0] | calls[1])


def test_records_with_an_async_sink_are_applied_together():
    heard = []

    async def sink(number):
        heard.append(number)

    app = App("sinks")
    app.input("in", value=int).sink(sink, on_error=skip)
    environment = memory()
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in range(100)]])
    run = run_once(app, environment)
    assert heard == list(range(100)) and all(lane.guard.together for task in run._loop.tasks for lane in task.lanes)


def test_what_a_process_emits_does_not_go_on_where_a_sink_fails():
    def sink(number):
        if number == 1:
            raise ValueError(number)

    async def alone(number):
        return [number]

    app = App("failing")
    numbers = app.input("numbers", value=int, key=str)
    numbers.sink(sink, on_error=skip)
    emitted = numbers.process(lambda number, context: [number])
    emitted.async_flat_map(alone).send_to(app.output("out", value=int))
    assert testing.run(app, {"numbers": [Record(n, str(n)) for n in range(3)]})["out"] == [0, 2]
