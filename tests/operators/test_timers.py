"""Timers against a plain set, whatever is set, taken back, called and rolled back, and however few are held."""

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP, NEVER
from operators.state.timers import Timers
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.stores.cache import CachedStore
from runtime.stores.memory import MemoryStore
from runtime.systems.memory.environment import MemoryEnvironment
from tests.scale import examples

KEYS = [0, "a", 7, 300, -1, "b", "longer", b"\x00\xc3"]
PLACES = st.integers(0, len(KEYS) - 1)
TIMES = st.integers(-5, 20)
STEPS = st.one_of(
    st.tuples(st.just("set"), PLACES, TIMES),
    st.tuples(st.just("delete"), PLACES, TIMES),
    st.tuples(st.just("due of"), PLACES, TIMES),
    st.tuples(st.just("take"), TIMES),
    st.tuples(st.just("look ahead"), TIMES),
    st.tuples(st.sampled_from(["write back", "roll back", "begin anew", "drop"])),
)


def first_of(timers, until, encode):
    due = sorted((at, encode(key), key) for at, key in timers if at <= until)
    return (due[0][0], due[0][2]) if due else None


def durable():
    return CachedStore(MemoryEnvironment(), "app", "timers", 0, Tagged())


@settings(max_examples=examples(100, 5_000))
@given(
    st.lists(STEPS, min_size=5, max_size=60),
    st.sampled_from([0, 1, 2, 5, 100]),
    st.sampled_from([durable, MemoryStore]),
    st.booleans(),
    st.sampled_from([1, 2, len(KEYS)]),
)
def test_timers_are_a_set_in_the_order_of_time_and_key(steps, most_held, make, asks, few):
    keys, store = KeySerde(Tagged()), make()

    store.put(b"s", "an entry before them")
    store.put(b"u", "and one behind")
    timers, expected, written = Timers(store, keys, b"t", most_held), set(), set()
    for what, *arguments in steps:
        match what, arguments:
            case "set", (place, at):
                key = KEYS[place % few]
                timers.set(key, at)
                expected.add((at, key))
            case "delete", (place, at):
                key = KEYS[place % few]
                timers.delete(key, at)
                expected.discard((at, key))
            case "take", (until,):
                due = first_of(expected, until, keys.encode)
                assert timers.take(until) == due
                expected.discard(due)
            case "look ahead", (until,):
                held = timers.look_ahead(until)
                found = {(at, key) for key, times in held.items() for at in times if at <= until}
                assert found == {one for one in expected if one[0] <= until}
                assert all(times == sorted(times) for times in held.values())
            case "due of", (place, until):
                timers.write_back()
                timers.look_ahead(until)
                written, key = expected.copy(), KEYS[place % few]
                due = sorted(one for one in expected if one[1] == key and one[0] <= until)
                assert [*timers.due_of(key, until)] == due
                expected.difference_update(due)
            case "write back", _:
                timers.write_back()
                assert not timers.unwritten
                written = expected.copy()
            case "roll back", _:  # to what was written back, as at a savepoint
                timers.forget()
                expected = written.copy() if not timers.unwritten else expected
            case "begin anew", _:
                timers.write_back()
                written = expected.copy()
                timers = Timers(store, keys, b"t", most_held)
            case "drop", _ if expected:
                due = first_of(expected, MAX_TIMESTAMP, keys.encode)
                assert timers.drop() == due
                expected.remove(due)
        # What is read on, when few are held, writes back what has changed before.
        if what in ("take", "look ahead", "drop"):
            timers.write_back()
            written = expected.copy()
        # Not at every step: to ask for it looks ahead, which others must not need.
        if asks:
            assert timers.first == min((at for at, _ in expected), default=NEVER)
        written = expected.copy() if not timers.unwritten else written
    assert [*iter(lambda: timers.take(MAX_TIMESTAMP), None)] == [
        (at, key) for at, _, key in sorted((at, keys.encode(key), key) for at, key in expected)
    ]
    timers.write_back()
    assert [*store.range(b"t", b"u")] == []


@given(st.lists(TIMES, min_size=1, max_size=9), st.sampled_from([1, 100]), st.booleans())
def test_timers_that_are_not_due_are_not_read(times, most_held, sets):
    keys, store, read = KeySerde(Tagged()), durable(), []
    written = Timers(store, keys, b"t")
    for at in times:
        for number in range(20):
            written.set(number, at)
    written.write_back()
    range_of = store.range
    store.range = lambda *bounds: (read.append(one) or one for one in range_of(*bounds))
    timers, first = Timers(store, keys, b"t", most_held), min(times)
    for _ in range(3):
        if sets:
            timers.set(20, first + 1)
        assert timers.first == first and timers.take(first - 1) is None and not timers.look_ahead(first - 1)
    assert len(read) == 1
