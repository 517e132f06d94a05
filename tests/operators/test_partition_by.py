"""Keys go where Kafka's own producers put them, or where the user says."""

from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.partition_by import ByFunction, ByHash, bucket_of, hash_, murmur2, ranges
from runtime.encoding.serdes import Tagged
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


FACTORS = st.sampled_from([1, 2, 4, 8, 256])


@given(st.binary(max_size=40) | st.none(), st.integers(0, 2**62), FACTORS)
def test_a_bucket_is_split_into_two_and_two_become_one_again(key, offset, factor):
    bucket = bucket_of(key, offset, factor)
    assert 0 <= bucket < factor
    assert bucket_of(key, offset, factor * 2) in (bucket, bucket + factor)
    assert key is None or bucket == bucket_of(key, offset + 1, factor), "a key stays where it is"
    assert key is not None or bucket == offset % factor


@pytest.mark.parametrize("factor", [0, -2, 3, 6])
def test_the_number_of_buckets_is_a_power_of_two(factor):
    with pytest.raises(AssertionError, match="no power of two"):
        bucket_of(b"key", 0, factor)


MADE = {
    "numbers": range(40_000),
    "texts": [f"customer-{n}" for n in range(40_000)],
    "codes": [f"{n:06x}" for n in range(40_000)],
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("factor", [2, 8])
@pytest.mark.parametrize("partitions", [1, 4, 6])
@pytest.mark.parametrize("hashed", [murmur2.__wrapped__, crc32], ids=["Kafka", "librdkafka"])
def test_keys_are_spread_evenly_within_each_partition_of_the_partitioner(kind, factor, partitions, hashed):
    found = Counter()
    for key in MADE[kind]:
        data = Tagged().encode(key)
        found[hashed(data) % partitions, bucket_of(data, 0, factor)] += 1
    ideal = len(MADE[kind]) / partitions / factor
    assert len(found) == partitions * factor
    assert all(0.85 * ideal < number < 1.15 * ideal for number in found.values()), found
