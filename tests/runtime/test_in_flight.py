"""Neighbours that await nothing go on as one, and nobody can tell: not by results, commits, order or failures."""

import random
from collections import Counter, defaultdict
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from planner.model.levers import Levers
from runtime.encoding.serdes import Declared
from runtime.task.in_flight import UnitInFlight, ends_within, how_many_end, shares, stops_of
from samza_dsl import App, Options, dead_letter, retry, skip
from tests.runtime.histories import crashing
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through
from tests.simulation.loop import rest

STORED = Levers(relays=False)
"""What goes on between stages is there to be looked at."""

numbers = st.lists(st.lists(st.integers(0, 9), min_size=10, max_size=30), min_size=1, max_size=2)
crashes = crashing(latest=20, most=2)

PLACES = ("enters", "chooses", "awaits", "goes on", "is keyed")
"""Where the functions below fail on a number."""


@given(st.integers(1, 20), st.sets(st.integers(0, 19)))
def test_a_unit_is_a_message_that_awaits_or_all_neighbours_that_do_not(messages, alone):
    alone = {row for row in alone if row < messages}
    stops = stops_of(messages, alone)
    units = [range(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
    assert [row for unit in units for row in unit] == list(range(messages))
    assert {unit[0] for unit in units if alone.intersection(unit)} == alone
    assert all(len(unit) == 1 for unit in units if alone.intersection(unit))
    assert all(alone & {first[-1], second[0]} for first, second in pairwise(units))


@given(st.integers(1, 8), st.lists(st.lists(st.integers(0, 7), max_size=12), max_size=3), st.data())
def test_what_units_hold_is_shared_out_and_comes_together_again(messages, held, data):
    exits = {
        f"exit-{n}": Batch([(n, row) for row in rows], owners=rows)
        for n, owners in enumerate(held)
        if (rows := sorted(owner for owner in owners if owner < messages))
    }
    stops = stops_of(messages, data.draw(st.sets(st.integers(0, messages - 1))))
    units = [
        UnitInFlight((), Batch([]), range(start, stop), None, None, None)
        for start, stop in zip([0, *stops], stops, strict=False)
    ]
    for exit, rows in exits.items():
        for unit, own in shares(rows, units, stops):
            unit.held.append((exit, own))
    for parts in (units, [message for unit in units for message in unit.messages()]):
        found = defaultdict(list)
        for unit in parts:
            for exit, own in unit.held:
                taken = Batch.gather([own])
                assert set(taken.owners) <= set(unit.rows)
                found[exit] += taken.values
        assert found == {exit: rows.values for exit, rows in exits.items()}
    assert [list(part.rows) for part in parts] == [[row] for row in range(messages)]


class Job:
    """A stage in which a number is written at once, awaits, does both or neither, and may fail in several places."""

    def __init__(self, bad, policy, order, width, seed):
        self.bad, self.policy, self.order, self.width = bad, policy, order, width
        self.pace = random.Random(seed)
        self.failed = set()

    def check(self, place, number):
        if self.bad.get(number) == place and not (self.policy == "retry" and (place, number) in self.failed):
            self.failed.add((place, number))
            raise ValueError(place)
        return number

    def arms(self, number):
        return ((), ("now",), ("now",), ("later",), ("now", "later"))[number % 5]

    async def slowly(self, number):
        await rest(self.pace.choice((0, 1, 20)))
        return [-self.check("awaits", number), -1_000 - number]

    def app(self, **options):
        on_error = {"skip": skip, "dead_letter": dead_letter("letters"), "retry": retry(1)}[self.policy]
        app = App("units", Options(**options))
        stream = app.input("in", value=int).map(lambda n: self.check("enters", n), on_error=on_error)
        parts = stream.branch(lambda n: self.arms(self.check("chooses", n)), into=("now", "later"), on_error=on_error)
        later = parts["later"].async_flat_map(
            self.slowly, order=self.order, max_in_flight=self.width, timeout_ms=1_000, on_error=on_error
        )
        both = parts["now"].merge(later).map(lambda n: n if n < 0 else self.check("goes on", n), on_error=on_error)
        both.send_to(app.output("out", value=int))
        keyed = parts["now"].partition_by(
            lambda n: self.check("is keyed", n), partitions=2, value=int, on_error=on_error
        )
        keyed.send_to(app.output("keyed", value=int))
        return app

    def fails(self, number):
        """Whether a number meets the place where it fails."""
        needed = {"awaits": "later", "goes on": "now", "is keyed": "now"}
        met = number in self.bad and needed.get(self.bad[number], "") in ("", *self.arms(number))
        return met and self.policy != "retry"

    def comes_to(self, numbers):
        """Return what is written for numbers that come in this order."""
        out, keyed = [], []
        for number in numbers:
            if not self.fails(number):
                out += [number] * ("now" in self.arms(number))
                out += [-number, -1_000 - number] * ("later" in self.arms(number))
                keyed += [number] * ("now" in self.arms(number))
        return out, keyed


jobs = st.builds(
    Job,
    st.dictionaries(st.integers(0, 9), st.sampled_from(PLACES), max_size=4),
    st.sampled_from(("skip", "dead_letter", "retry")),
    st.sampled_from(("key", "partition", "none")),
    st.integers(1, 6),
    st.integers(0, 99),
)


def written(environment, stream):
    return [[int(value) for _, value, _ in part] for part in rows_of(environment, stream)]


@given(numbers, jobs, crashes, st.sampled_from((1, 10, 1_000, 1_000)), st.sampled_from((1, 7, 1_000)))
@settings(max_examples=examples(80, 20_000))
def test_every_commit_holds_exactly_what_one_message_after_the_other_comes_to(parts, job, crashes, most, uncommitted):
    environment = memory()
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in part] for part in parts], random.Random(job.width))

    passed = []

    def check(commit=None):
        for append in commit.appends if commit is not None else ():
            passed.extend(
                Declared(int).decode(value) for value in append.batch.values if append.stream == "units-partition_by-in"
            )
        reached = {
            position.partition: position.offset
            for checkpoint in environment.checkpoints("units").values()
            for position in checkpoint.positions
            if position.stream == "in"
        }
        before = [part[: reached.get(partition, 0)] for partition, part in enumerate(parts)]
        assert written(environment, "out") == [job.comes_to(part)[0] for part in before]
        assert sorted(passed) == sorted(number for part in before for number in job.comes_to(part)[1])
        if job.policy == "dead_letter":
            letters = [number for part in written(environment, "letters") for number in part]
            assert sorted(letters) == sorted(number for part in before for number in part if job.fails(number))

    run_through(
        lambda: job.app(max_in_flight=most, max_uncommitted=uncommitted), environment, crashes, 1, check, levers=STORED
    )
    check()
    keyed = [number for part in written(environment, "keyed") for number in part]
    assert sorted(keyed) == sorted(number for part in parts for number in job.comes_to(part)[1])


@given(numbers, jobs, crashes, st.sampled_from((1, 7, 1_000)))
def test_at_least_once_loses_nothing_of_what_goes_on_together(parts, job, crashes, uncommitted):
    environment = memory()
    fill(environment, "in", [[(None, b"%d" % n, 0) for n in part] for part in parts], random.Random(job.width))
    run_through(lambda: job.app(guarantee="at_least_once", max_uncommitted=uncommitted), environment, crashes, 1)
    for part, found in zip(parts, written(environment, "out"), strict=True):
        assert Counter(found) >= Counter(job.comes_to(part)[0])


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(0, 99), st.integers(1, 6), crashes)
def test_what_awaits_nothing_keeps_its_order_and_waits_for_nobody(values, seed, width, crashes):
    pace = random.Random(seed)

    async def slowly(number):
        await rest(pace.choice((0, 5, 50)))
        return [number]

    def app():
        app = App("units")
        calls = app.input("calls", value=int, key=lambda n: n % 3)
        others = app.input("others", value=int, key=lambda n: n % 3)
        awaited = calls.filter(lambda n: n % 10 > 2).async_flat_map(slowly, max_in_flight=width)
        awaited.merge(others.filter(lambda n: n % 10 > 4)).send_to(app.output("out", value=int, partitions=1))
        return app

    environment = memory()
    calls = [10 * place + n for place, n in enumerate(values)]
    others = [1_000 + n for n in calls]
    for stream, rows in (("calls", calls), ("others", others)):
        fill(environment, stream, [[(None, b"%d" % n, 0) for n in rows]], random.Random(seed))
    run_through(app, environment, crashes, seed)
    (out,) = written(environment, "out") or [[]]
    for key in range(3):
        assert [n for n in out if n < 1_000 and n % 3 == key] == [n for n in calls if n % 10 > 2 and n % 3 == key]
    assert [n for n in out if n >= 1_000] == [n for n in others if n % 10 > 4]


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 4)),
    st.integers(0, 5),
    st.lists(st.none() | st.sampled_from("abcd"), max_size=12),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_as_many_come_in_as_end_in_time_with_each_of_those_before(depths, others, keys, width, rounds):
    total, found = sum(depths.values()) + others, 0
    for number in range(1, len(keys) + 1):
        counted = Counter(depths) + Counter(key for key in keys[:number] if key is not None)
        if not ends_within(total + number, max([1, *counted.values()]), width, rounds):
            break
        found = number
    assert how_many_end(Counter(depths), total, keys, width, rounds) == found
