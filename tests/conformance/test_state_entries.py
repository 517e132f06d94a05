"""Entries of state in every environment: each is what was written last, and their number and size are known."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from tests.conformance.test_environment import clock, environment  # noqa: F401
from tests.scale import examples

keys = st.binary(max_size=3) | st.sampled_from([b"\x05" * 471, b"\x05" * 472, b"\x05" * 600, b"\x05" * 600 + b"\x06"])
entries = st.dictionaries(keys, st.none() | st.binary(max_size=20), max_size=6)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), entries), max_size=12), st.data())
@settings(max_examples=examples(24, 1_000), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_state_is_what_was_written_last_and_its_size_is_known(environment, writes, data):  # noqa: F811
    app = f"app{environment.version()}"
    generation, model = environment.own(app), {}
    readers = {(store, task): environment.state_reader(app, store, task) for store in "ab" for task in (0, 1)}
    for store, task, items in writes:
        environment.commit(Commit(app, generation, [], [StateWrites(store, task, sorted(items.items()))], {}))
        held = model.setdefault((store, task), {})
        held.update(items)
        model[store, task] = {key: value for key, value in held.items() if value is not None}
        stats = {
            place: (len(items), sum(len(key) + len(value) for key, value in items.items()))
            for place, items in model.items()
            if items
        }
        assert environment.state_stats(app) == stats
        for place, items in model.items():
            assert dict(environment.state_range(app, *place)) == items
            reader = readers[place]
            reader.release()
            for key in data.draw(st.lists(st.sampled_from([*items, b"nosuch"]))):
                assert reader.get(key) == environment.state_get(app, *place, key) == items.get(key)
    for reader in readers.values():
        reader.release()
