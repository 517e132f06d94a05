"""Lists in the state of keys against Python's, whatever is appended, dropped, read, written back and rolled back."""

from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Form
from operators.state.key_collections import LIST, KeyLists, place_of
from runtime.encoding.serdes import Tagged
from runtime.stores.cache import CachedStore
from runtime.stores.memory import MemoryStore
from runtime.systems.memory.environment import MemoryEnvironment

NUMBERS = st.integers(0, 9)
VALUES = NUMBERS | st.none() | st.lists(NUMBERS, max_size=2) | st.tuples(NUMBERS, st.text(max_size=1))
STEPS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from("ab"), VALUES),
    st.tuples(st.just("drop"), st.sampled_from("ab"), st.integers(-1, 4)),
    st.tuples(st.sampled_from(["clear", "walk", "change on the way"]), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.sampled_from(["read one", "read some"]), st.sampled_from("ab"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["write back", "roll back", "begin anew"]), st.just(""), st.just(0)),
)
FORMS = [None, Form(lambda value: [value], lambda stored: stored[0])]


def durable():
    return CachedStore(MemoryEnvironment(), "app", "lists", 0, Tagged())


@given(
    st.lists(STEPS, max_size=50),
    st.sampled_from([0, 1, 100]),
    st.sampled_from(FORMS),
    st.sampled_from([durable, MemoryStore]),
)
def test_lists_of_keys_are_those_of_python(steps, most_held, form, make):
    store = make()

    def begun():
        return KeyLists(store, lambda key, name: place_of(LIST, key.encode(), name), lambda name: form, most_held)

    lists, expected, written = begun(), {"a": [], "b": []}, {"a": [], "b": []}
    for what, key, more in steps:
        if not key:
            if what == "roll back":
                lists.forget()
                expected = {key: [*values] for key, values in written.items()}
                continue
            lists.write_back()
            assert not lists.unwritten
            written = {key: [*values] for key, values in expected.items()}
            lists = begun() if what == "begin anew" else lists
            continue
        held, values = lists.of(key, "values"), expected[key]
        if what == "append":
            held.append(more)
            values.append(more)
        elif what == "drop":
            held.drop(more)
            del values[: max(more, 0)]
        elif what == "clear":
            held.clear()
            values.clear()
        elif what == "walk":
            assert [*held] == values
        elif what == "change on the way":
            # A walk shows the list as it was at its start.
            before, found = [*values], []
            for one in held:
                found.append(one)
                held.append(0)
                held.drop(2)
                values.append(0)
                del values[:2]
            assert found == before
        elif values[more : more + 1]:
            assert held[more] == values[more]
            assert next(iter(held)) == values[0] and held[-1] == values[-1]
        assert len(held) == len(values)
    lists.write_back()
    again = begun()
    assert {key: [*again.of(key, "values")] for key in expected} == expected
    for key in expected:
        again.of(key, "values").clear()
    again.write_back()
    assert [*store.range()] == []


def test_what_is_appended_and_dropped_between_two_commits_never_touches_the_store():
    store = durable()
    lists = KeyLists(store, lambda key, name: place_of(LIST, key.encode(), name), lambda name: None)
    for number in range(100):
        lists.of("a", "values").append(number)
        lists.of("a", "values").drop()
    lists.write_back()
    assert store.dirty_count == 0
