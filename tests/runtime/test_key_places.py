"""Streams whose equal keys have to meet, and lie where writers of different partitioners have put them."""

import logging
import zlib
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.partition_by import murmur2
from planner.checks.copartitioning import meetings
from planner.model.errors import PlanError
from runtime.reading.key_places import SURE, KeyPlaces, Meeting
from samza_dsl import App
from tests.scale import examples

HASHES = {"murmur2": murmur2, "crc32": zlib.crc32, "one": lambda key: 0}
KEYS = st.sets(st.binary(min_size=1, max_size=12), min_size=4 * SURE, max_size=8 * SURE)


def _joined():
    app = App("joined")
    left = app.input("left", value=int, key=str)
    right = app.input("right", value=int, key=str)
    left.join(right, lambda one, other: one, within=(0, 1_000), op_id="join").sink(print)
    app.input("alone", value=int, key=str).scan(lambda total, n: n, op_id="scan").sink(print)
    return app


def _noted(graph, ways, keys, partitions):
    """Note keys of streams, a few at a time and in turn, where the partitioner of each puts them."""
    places = KeyPlaces(Meeting(*one) for one in meetings(graph))
    keys = sorted(keys)
    for start in range(0, len(keys), 7):
        for stream, way in ways.items():
            for partition in range(partitions):
                here = [key for key in keys[start : start + 7] if HASHES[way](key) % partitions == partition]
                places.note(stream, partition, partitions, [None, *here])


@settings(max_examples=examples(25, 250))
@given(
    keys=KEYS, left=st.sampled_from(sorted(HASHES)), right=st.sampled_from(sorted(HASHES)), partitions=st.integers(2, 9)
)
def test_streams_of_two_partitioners_are_told_where_they_meet(keys, left, right, partitions):
    graph, ways = _joined().graph(), {"left": left, "right": right}
    if left == right or "murmur2" not in (left, right):
        _noted(graph, ways, keys, partitions)
        return
    with pytest.raises(PlanError) as error:
        _noted(graph, ways, keys, partitions)
    odd, told = "right" if left == "murmur2" else "left", str(error.value)
    assert f"keys of {odd!r} do not lie" in told and ".partition_by(...)" in told
    assert ("CRC32" in told) == ("crc32" in (left, right))


def test_what_a_partition_by_writes_is_met_by_kafkas_own_hash_alone():
    app = App("shuffled")
    left = app.input("left", value=int, key=str)
    right = app.input("right", value=int).partition_by(str, key_type=str, op_id="by")
    left.join(right, lambda one, other: one, within=(0, 1_000), op_id="join").sink(print)
    with pytest.raises(PlanError, match="what a partition_by writes"):
        _noted(app.graph(), {"left": "crc32"}, [b"%d" % n for n in range(40)], 4)
    _noted(app.graph(), {"left": "murmur2"}, [b"%d" % n for n in range(40)], 4)


def test_a_table_by_key_is_met_too_and_one_of_all_is_not():
    for broadcast in (False, True):
        app = App("looked-up")
        table = app.table("rows", key=str, value=int, broadcast=broadcast)
        stream = app.input("left", value=int, key=str)
        how = {"on": str} if broadcast else {}
        stream.join(table, lambda value, row: row, op_id="join", **how).sink(print)
        found = [one[1] for one in meetings(app.graph())]
        assert found == ([] if broadcast else [frozenset({"rows", "left"})])


def test_two_streams_of_unknown_partitioners_are_told_once(caplog):
    with caplog.at_level(logging.WARNING, "samza_dsl"):
        _noted(_joined().graph(), {"left": "crc32", "right": "one"}, [b"%d" % n for n in range(40)], 4)
    assert caplog.text.count("whether equal keys meet can't be seen") == 1


def test_only_streams_with_state_by_key_behind_them_are_looked_at():
    app = _joined()
    app.input("passing", value=int, key=str).map(lambda n: n).sink(print)
    app.input("shuffled", value=int, key=str).partition_by(str, op_id="by").scan(lambda t, n: n, op_id="s").sink(print)
    places = KeyPlaces(Meeting(*one) for one in meetings(app.graph()))
    assert all(map(places.concerns, ("left", "right", "alone"))) and not places.concerns("passing")
    assert not places.concerns("shuffled"), "it is written anew, each key where it belongs"


@settings(max_examples=examples(25, 250))
@given(keys=KEYS, way=st.sampled_from(sorted(HASHES)), partitions=st.integers(2, 9), data=st.data())
def test_state_by_key_over_one_stream_is_told_where_its_equal_keys_lie_apart(keys, way, partitions, data):
    places = KeyPlaces(Meeting(*one) for one in meetings(_joined().graph()))
    with _heard() as heard:
        for key in sorted(keys):
            places.note("alone", HASHES[way](key) % partitions, partitions, [key, None, key])
    odd = way == "one"
    assert [("neither" in line) for line in heard] == [True] * odd
    twice = data.draw(st.sampled_from(sorted(keys)))
    with _heard() as heard:
        for partition in range(partitions):
            places.note("alone", partition, partitions, [twice])
            places.note("alone", partition, partitions, [twice])
    (line,) = heard
    assert "scan 'scan'" in line and "equal keys of 'alone' lie in several" in line and ".partition_by(...)" in line


def test_a_writer_that_goes_by_turns_is_told_in_each_process_though_none_sees_all_partitions():
    for partition in range(2):
        places = KeyPlaces(Meeting(*one) for one in meetings(_joined().graph()))
        with _heard() as heard:
            places.note("alone", partition, 2, [b"%d" % n for n in range(60)])
        assert len(heard) == 1 and "goes by turns" in heard[0]


@contextmanager
def _heard():
    """Yield the lines that are logged during a block."""
    heard, logger, handler = [], logging.getLogger("samza_dsl"), logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)
