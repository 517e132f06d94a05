"""Streams of the embedded log that are filled at once: nothing is seen before all of it is there."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.errors import EnvironmentFault, Fenced
from runtime.ports.environment import StagingEnvironment
from runtime.ports.streams import Append, Offsets, StreamConfig
from runtime.systems.log import staging as log_staging
from runtime.systems.log.environment import LogEnvironment, verify
from tests.runtime.log_directory import start
from tests.scale import examples
from tests.simulation.directory import Directory, SimulatedLog

STREAMS = {"one": 1, "two": 2}


def filled(log, appends):
    """Make streams, own the application, and stage appends; return the generation."""
    for name, partitions in STREAMS.items():
        log.create_stream(name, StreamConfig(partitions=partitions))
    generation = log.own("app")
    log.stage("app", generation, appends)
    return generation


def seen(log):
    """Return the values of all streams, by stream and partition."""
    found = {}
    for name, partitions in STREAMS.items():
        for place in range(partitions):
            values, offset = found.setdefault((name, place), []), 0
            while read := log.read(name, place, offset):
                values += read.batch.values
                offset = read.next_offset
    return found


NOTHING = {("one", 0): [], ("two", 0): [], ("two", 1): []}


@st.composite
def appends(draw):
    """Draw appends, and what there is of them in the end."""
    made, expected = [], {place: [] for place in NOTHING}
    for at, sizes in draw(st.lists(st.tuples(st.sampled_from(sorted(NOTHING)), st.lists(st.integers(0, 60)))))[:20]:
        rows = [bytes([len(made)]) * size for size in sizes]
        made.append(Append(*at, Batch(rows)))
        expected[at] += rows
    return made, expected


@given(appends(), st.integers(1, 500))
@settings(max_examples=examples(100, 5_000))
def test_however_rows_are_cut_all_of_them_are_seen_at_once(drawn, most_bytes):
    made, expected = drawn
    log = SimulatedLog(Directory(), now_ms=lambda: 1_000)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_staging, "STAGED_BYTES", most_bytes)
        generation = filled(log, made[: len(made) // 2])
        log.stage("app", generation, iter(made[len(made) // 2 :]))
    assert seen(log) == NOTHING
    log.publish("app", generation)
    assert seen(log) == expected
    log.publish("app", generation)
    assert seen(log) == expected


def test_the_log_on_disk_is_sound_with_what_is_staged_and_without(tmp_path, monkeypatch):
    monkeypatch.setattr(log_staging, "STAGED_BYTES", 1_000)
    rows = [Append("two", place, Batch([b"%d" % place * 300] * 5)) for place in (0, 1)] * 4
    log = LogEnvironment(tmp_path)
    assert isinstance(log, StagingEnvironment)
    generation = filled(log, rows)
    assert sorted(log.streams()) == ["one", "two"] and verify(tmp_path) == []
    log.discard("app")
    assert verify(tmp_path) == []
    log.stage("app", generation, rows)
    log.publish("app", generation)
    assert log.offsets("two", 0) == Offsets(0, 20, ended=False) and verify(tmp_path) == []
    log.append([Append("two", 0, Batch([b"more"]))])
    assert log.read("two", 0, 20).batch.values == [b"more"]
    log.close()


@pytest.mark.parametrize("begin", [LogEnvironment.own, LogEnvironment.reset, LogEnvironment.discard])
def test_who_begins_anew_has_nothing_of_what_another_has_staged(tmp_path, begin):
    log = LogEnvironment(tmp_path)
    filled(log, [Append("one", 0, Batch([b"old"]))])
    begin(log, "app")
    log.stage("app", log.generation("app"), [Append("two", 0, Batch([b"new"]))])
    log.publish("app", log.generation("app"))
    assert seen(log) == NOTHING | {("two", 0): [b"new"]}
    assert verify(tmp_path) == []
    log.close()


def test_what_is_staged_is_of_one_application_and_one_generation(tmp_path):
    log = LogEnvironment(tmp_path)
    generation = filled(log, [Append("one", 0, Batch([b"mine"]))])
    log.stage("ap", log.own("ap"), [Append("one", 0, Batch([b"others"]))])
    for call in (lambda: log.stage("app", 0, [Append("one", 0, Batch([b"x"]))]), lambda: log.publish("app", 0)):
        with pytest.raises(Fenced):
            call()
    log.publish("app", generation)
    assert seen(log)["one", 0] == [b"mine"]
    with pytest.raises(EnvironmentFault, match=r"'one' was empty when .* nothing of this run was written"):
        log.publish("ap", log.generation("ap"))
    log.discard("ap")
    assert verify(tmp_path) == []
    log.close()


def test_streams_are_filled_all_or_none(tmp_path):
    log = LogEnvironment(tmp_path)
    generation = filled(log, [Append(name, 0, Batch([b"staged"])) for name in STREAMS])
    log.append([Append("two", 1, Batch([b"meanwhile"]))])
    with pytest.raises(EnvironmentFault, match="'two' was empty"):
        log.publish("app", generation)
    assert seen(log) == NOTHING | {("two", 1): [b"meanwhile"]}
    with pytest.raises(EnvironmentFault, match="no stream 'absent'"):
        log.stage("app", generation, [Append("absent", 0, Batch([b"x"]))])
    log.close()


@pytest.mark.parametrize(("kept", "expected"), [({"retention_bytes": 2_000}, 10), ({"compacted": True}, 4)])
def test_retention_and_compaction_hold_for_what_is_filled(tmp_path, monkeypatch, kept, expected):
    monkeypatch.setattr(log_staging, "STAGED_BYTES", 1_000)
    log = LogEnvironment(tmp_path)
    log.create_stream("s", StreamConfig(**kept))
    generation = log.own("app")
    log.stage("app", generation, (Append("s", 0, Batch([bytes(300)], [b"k%d" % (at % 4)])) for at in range(40)))
    log.publish("app", generation)
    if "compacted" in kept:
        log.compact("s")
    assert log.stream_stats("s")[0] <= expected and log.offsets("s", 0).end == 40
    assert verify(tmp_path) == []
    log.close()


def test_a_process_that_is_killed_leaves_nothing_that_is_seen(tmp_path, monkeypatch):
    program = """
log = LogEnvironment(sys.argv[1])
log.create_stream("one", StreamConfig())
log.create_stream("two", StreamConfig(partitions=2))
log.stage("app", log.own("app"), [Append("one", 0, Batch([b"x" * 100_000]))])
print("staged", flush=True)
os.kill(os.getpid(), 9)
"""
    process = start(program, tmp_path)
    assert process.communicate()[0] == "staged\n"
    assert process.returncode == -9
    size = os.path.getsize(tmp_path / "data.mdb")
    log = LogEnvironment(tmp_path)
    assert seen(log) == NOTHING
    generation = filled(log, [Append("one", 0, Batch([b"y" * 100_000]))])
    log.publish("app", generation)
    assert [len(value) for value in seen(log)["one", 0]] == [100_000]
    assert os.path.getsize(tmp_path / "data.mdb") < size + 150_000, "what the other one took was used again"
    log.close()
    assert verify(tmp_path) == []
