"""What is due by time beside a store, against a sorted list: over restarts, rollbacks, and however little is held."""

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import NEVER
from operators.state.noted_dues import NotedDues
from runtime.stores.memory import MemoryStore
from tests.scale import examples

TIMES = st.integers(-20, 60)
PLACES = st.sampled_from([b"", b"a", b"b", b"\xff", b"\xff\xff"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.tuples(TIMES, PLACES), min_size=1, max_size=6)),
        st.tuples(st.just("take"), TIMES, st.integers(1, 4)),
        st.tuples(st.sampled_from(["commit", "start", "try", "first", "drop"])),
    ),
    max_size=40,
)


class Durable(MemoryStore):
    """Has what is too much to hold be left to it."""

    durable = True


@settings(max_examples=examples(400, 20_000))
@given(STEPS, st.sampled_from([0, 1, 2, 100]))
def test_dues_come_in_order_whatever_happens_in_between(steps, most_held):
    def begun():
        return NotedDues(store, b"e", lambda places: places, most_held)

    store = Durable("dues")
    # Each pair of a time and a place is there once, or not at all.
    dues, expected, committed = begun(), set(), set()
    for what, *more in steps:
        if what == "add":
            for at, place in more[0]:
                if (at, place) not in expected:
                    dues.add(at, place, place)
                    expected.add((at, place))
        elif what == "take":
            until, most = more
            found = []
            for due in dues.each(until):
                found.append(due)
                if len(found) == most:
                    break
            assert found == sorted(due for due in expected if due[0] <= until)[:most]
            expected -= {*found}
        elif what == "drop" and expected:
            assert dues.drop() == min(expected)
            expected.remove(min(expected))
        elif what == "first":
            # Who asks may be in the midst of a commit, which has gathered what is to be written.
            before = [*store.range()]
            assert dues.first() == min(expected, default=(NEVER,))[0]
            assert [*store.range()] == before
        elif what == "commit":
            dues.write_back()
            assert not dues.unwritten
            committed = {*expected}
            assert [place for place, _ in store.range()] == sorted(dues._places([(*due, None) for due in committed]))
        elif what == "start":
            # What was never committed is gone with the process.
            dues.write_back()
            committed = {*expected}
            dues = begun()
        elif what == "try":
            dues.write_back()
            store.savepoint()
            for at, place in sorted(expected)[:2]:
                assert next(dues.each(at)) == (at, place)
            dues.add(-30, b"new", b"new")
            dues.write_back()
            store.rollback()
            dues.forget()
    assert [*dues.each(NEVER - 1)] == sorted(expected)
    dues.write_back()
    assert [*store.range()] == []


@given(st.lists(TIMES, min_size=1, max_size=9), st.sampled_from([1, 100_000]), st.booleans())
def test_what_is_not_due_is_not_read(times, most_held, adds):
    store, read = Durable("dues"), []
    written = NotedDues(store, b"e", lambda places: places)
    for at in {*times}:
        for number in range(1_500):
            written.add(at, b"%d" % number, b"")
    written.write_back()
    range_of = store.range
    store.range = lambda *bounds: (read.append(one) or one for one in range_of(*bounds))
    dues, first = NotedDues(store, b"e", lambda places: places, most_held), min(times)
    for _ in range(3):
        if adds:
            dues.add(first + 1, b"new", b"new")
        assert dues.first() == first and [*dues.each(first - 1)] == []
    assert len(read) == 1
    assert next(dues.each(first))[0] == first
    # All of one time are read together.
    assert len(read) <= 1 + 1_500 + 1
