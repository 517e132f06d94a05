"""Timers against a plain set, whatever is set, taken back, called and rolled back, and however few are held."""

from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP, NEVER
from operators.state.timers import Timers
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.stores.cache import CachedStore
from runtime.stores.memory import MemoryStore
from runtime.systems.memory.environment import MemoryEnvironment

KEYS = st.sampled_from([0, 7, 300, -1, "a", "b", "longer", b"\x00\xc3"])
TIMES = st.integers(-5, 20)
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, TIMES),
    st.tuples(st.just("delete"), KEYS, TIMES),
    st.tuples(st.just("take"), TIMES),
    st.tuples(st.just("look ahead"), TIMES),
    st.tuples(st.sampled_from(["write back", "roll back", "begin anew", "drop"])),
)


def durable():
    return CachedStore(MemoryEnvironment(), "app", "timers", 0, Tagged())


@given(st.lists(STEPS, max_size=60), st.sampled_from([0, 1, 2, 5, 100]), st.sampled_from([durable, MemoryStore]))
def test_timers_are_a_set_in_the_order_of_time_and_key(steps, most_held, make):
    keys, store = KeySerde(Tagged()), make()

    def begun():
        return Timers(store, keys, b"t", most_held)

    def first(until):
        due = sorted((at, keys.encode(key), key) for at, key in expected if at <= until)
        return (due[0][0], due[0][2]) if due else None

    store.put(b"s", "an entry before them")
    store.put(b"u", "and one behind")
    timers, expected, written = begun(), set(), set()
    for what, *arguments in steps:
        match what, arguments:
            case "set", (key, at):
                timers.set(key, at)
                expected.add((at, key))
            case "delete", (key, at):
                timers.delete(key, at)
                expected.discard((at, key))
            case "take", (until,):
                due = first(until)
                assert timers.take(until) == due
                expected.discard(due)
            case "look ahead", (until,):
                held = timers.look_ahead(until)
                found = {(at, key) for key, times in held.items() for at in times if at <= until}
                assert found == {one for one in expected if one[0] <= until}
                assert all(times == sorted(times) for times in held.values())
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
                timers = begun()
            case "drop", _ if expected:
                due = first(MAX_TIMESTAMP)
                assert timers.drop() == due
                expected.remove(due)
        # What is read on, when few are held, writes back what has changed before.
        if what in ("take", "look ahead", "drop"):
            timers.write_back()
            written = expected.copy()
        assert timers.first == min((at for at, _ in expected), default=NEVER)
        written = expected.copy() if not timers.unwritten else written
    assert [*iter(lambda: timers.take(MAX_TIMESTAMP), None)] == [
        (at, key) for at, _, key in sorted((at, keys.encode(key), key) for at, key in expected)
    ]
    timers.write_back()
    assert [*store.range(b"t", b"u")] == []
