"""Keys go where Kafka's own producers put them, or where the user says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.partition_by import ByFunction, ByHash, hash_, murmur2, ranges
from samza_dsl import App, testing


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key, signed):
    assert murmur2(key) == signed & 0x7FFFFFFF


@given(st.binary(max_size=40), st.integers(1, 300))
def test_a_key_has_one_partition_and_it_exists(key, partitions):
    assert 0 <= hash_.partition(None, key, partitions) == ByHash().partition("any", key, partitions) < partitions


@given(st.lists(st.integers(), unique=True, min_size=1, max_size=5).map(sorted), st.integers())
def test_ranges_count_the_bounds_at_or_below(bounds, key):
    assert ranges(bounds).partition(key, b"", len(bounds) + 1) == sum(bound <= key for bound in bounds)


def test_ranges_refuse_bounds_that_do_not_increase():
    with pytest.raises(ValueError, match="do not rise"):
        ranges([3, 3])


@pytest.mark.parametrize("chosen", [-1, 3, 1.0, True, None])
def test_a_function_must_name_a_partition_that_exists(chosen):
    with pytest.raises(ValueError, match=r"must be an int in \[0, 3\)"):
        ByFunction(lambda key, partitions: chosen).partition("key", b"key", 3)


@given(st.lists(st.text(max_size=3), max_size=30), st.integers(1, 4))
def test_repartitioning_loses_and_doubles_nothing_and_keeps_the_order_of_a_key(words, partitions):
    app = App("laws")
    keyed = app.input("words", value=str).partition_by(lambda word: word[:1], partitions=partitions, op_id="by")
    keyed.send_to(app.output("out", value=str))
    out = testing.run(app, {"words": words})["out"]
    for letter in {word[:1] for word in words}:
        assert [w for w in out if w[:1] == letter] == [w for w in words if w[:1] == letter]
    assert len(out) == len(words)


@given(st.lists(st.integers(), max_size=10), st.integers(1, 4))
def test_a_broadcast_reaches_every_task_once(numbers, partitions):
    app = App("laws")
    app.input("numbers", value=int).broadcast(partitions=partitions, op_id="to-all").send_to(
        app.output("out", value=int)
    )
    assert sorted(testing.run(app, {"numbers": numbers})["out"]) == sorted(numbers * partitions)
