"""An archive holds a stream as it is: what is made of it is what was made of the stream, late records included."""

import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.errors import Damaged, SamzaError
from runtime.ports.streams import OUTSIDE, Append, Control, StreamConfig
from runtime.reprocessing.recomputation import take_over
from runtime.systems.files.archive import ArchiveSource, archive_stream
from runtime.systems.files.files import open_source
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, dead_letter, total, tumbling
from tests.building import build
from tests.runtime.test_handover import drawn_cuts, recompute
from tests.runtime.test_laws import worlds
from tests.scale import examples
from tests.simulation.crash import memory, run_once

KINDS = ("parquet", "jsonl")
stored = (
    st.none() | st.binary(max_size=5) | st.sampled_from([b"1", b'{"a": [1, "\xc3\xa9"]}', b" 2", b'"\\n"', b"[\n]"])
)
times = st.integers(0, 2**41)
controls = st.none() | times.map(lambda at: Control(OUTSIDE, at))
batches = st.lists(st.tuples(st.lists(st.tuples(stored, stored, times), max_size=4), controls), max_size=6)


def read_all(read, offset, most):
    """Return everything there is from an offset on: rows, what was said behind which offsets, and where it ends."""
    rows, said = [], {}
    while (found := read(offset, most)) is not None:
        batch = found.batch
        rows += zip(batch.offsets or (), batch.timestamps or (), batch.keys or (), batch.values, strict=True)
        if found.control is not None:
            said[found.next_offset] = found.control.watermark
        offset = found.next_offset
    return rows, said, offset


@given(st.lists(batches, min_size=1, max_size=3), st.sampled_from(KINDS), st.integers(1, 5), st.data())
def test_an_archive_reads_as_its_stream(partitions, kind, rows_per_file, data):
    environment = memory()
    environment.create_stream("s", StreamConfig(partitions=len(partitions)))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "archive"
        for partition, found in enumerate(partitions):
            for rows, control in found:
                keys, values, at = ([*column] for column in zip(*rows, strict=True)) if rows else ([], [], [])
                if rows or control:
                    environment.append([Append("s", partition, Batch(values, keys, at), control)])
                if data.draw(st.integers(0, 3)) == 0:
                    archive_stream(environment, "s", path, kind, rows_per_file)
        archive_stream(environment, "s", path, kind, rows_per_file)
        source = open_source(path)
        assert source.partitions == len(partitions)
        for partition in range(len(partitions)):
            start, end, _ = environment.offsets("s", partition)
            assert source.offsets(partition) == (start, end, True)
            offset, most = data.draw(st.integers(start, end)), data.draw(st.integers(1, 5))
            of_stream = read_all(lambda at, most: environment.read("s", partition, at, most), offset, most)  # noqa: B023
            assert read_all(lambda at, most: source.read(partition, at, most), offset, most) == of_stream  # noqa: B023


@given(worlds(), st.sampled_from(KINDS))
@settings(max_examples=examples(30, 5_000))
def test_what_is_made_of_archives_is_what_the_records_say(world, kind):
    with tempfile.TemporaryDirectory() as scratch:
        bind = {stream: archived(world, stream, scratch, kind) for stream in world.pipeline.inputs().values()}
        for stream in bind:
            world.environment.delete_stream(stream)
        run_once(build(world.pipeline, world.options, world.seed), world.environment, world.seed, bind)
    world.outcome.check_results()


@given(worlds(), st.sampled_from(KINDS), st.data())
@settings(max_examples=examples(30, 5_000))
def test_history_in_archives_is_handed_over_to_the_streams(world, kind, data):
    with tempfile.TemporaryDirectory() as scratch:
        cuts, directory = drawn_cuts(data, world), Path(scratch) / "handover"
        bind = {stream: archived(world, stream, scratch, kind) for stream in world.pipeline.inputs().values()}
        recompute(world, cuts, directory=directory, bind=bind)
        app = build(world.pipeline, world.options, world.seed)
        take_over(app.pipeline(), world.environment, directory)
    assert world.run() == 0
    world.outcome.check_results()


def archived(world, stream, scratch, kind):
    path = Path(scratch) / stream
    archive_stream(world.environment, stream, path, kind, rows_per_file=3)
    return path


def test_late_and_malformed_records_are_as_they_were(tmp_path):
    app = App("late")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n, on_error=dead_letter("malformed"))
    by_rest = numbers.partition_by(lambda n: n % 2, partitions=1, op_id="by-rest")
    sums = by_rest.window(tumbling(milliseconds=10), total(lambda n: n), late=dead_letter("late"), op_id="sums")
    sums.map(lambda pane: [pane.start, pane.value]).send_to(app.output("out", value=list))
    outputs = ("out", "late", "malformed")
    with closing(LogEnvironment(tmp_path / "live")) as environment:
        environment.create_stream("numbers", StreamConfig())
        environment.append([Append("numbers", 0, Batch([b"1", b"12"]), Control(OUTSIDE, 31))])
        environment.append([Append("numbers", 0, Batch([b"4", b"25", b"33", b"{"]))])
        environment.end_stream("numbers")
    live = app.run(tmp_path / "live")
    with closing(LogEnvironment(tmp_path / "live")) as environment:
        archive_stream(environment, "numbers", tmp_path / "archive", "jsonl")
    again = app.reprocess(tmp_path / "again", bind={"numbers": tmp_path / "archive"})
    assert {name: again.received(name) for name in outputs} == {name: live.received(name) for name in outputs}
    assert [len(live.received(name)) for name in outputs] == [3, 2, 1]


def test_an_archive_is_gone_on_with_and_only_with_its_stream(tmp_path):
    environment, path = memory(), tmp_path / "archive"
    environment.create_stream("s", StreamConfig())
    environment.append([Append("s", 0, Batch([b"1", b"2"]))])
    assert archive_stream(environment, "s", path, "jsonl").rows == 2
    environment.append([Append("s", 0, Batch([b"3"]))])
    assert archive_stream(environment, "s", path, "jsonl").rows == 3
    assert [file.name for file in sorted(path.iterdir())][:2] == [
        "00000-00000000000000000000.jsonl",
        "00000-00000000000000000002.jsonl",
    ]
    environment.create_stream("other", StreamConfig())
    with pytest.raises(SamzaError, match="is an archive of 's' in jsonl files, in 1 partitions: name another"):
        archive_stream(environment, "other", path, "jsonl")
    environment.delete_stream("s")
    environment.create_stream("s", StreamConfig())
    with pytest.raises(SamzaError, match="up to offset 3, and the stream has 0 to 0: records between are gone"):
        archive_stream(environment, "s", path, "jsonl")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(SamzaError, match="has something in it that is no archive"):
        archive_stream(environment, "s", tmp_path / "full", "jsonl")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_was_changed_is_told(tmp_path, kind):
    environment, path = memory(), tmp_path / "archive"
    environment.create_stream("s", StreamConfig())
    environment.append([Append("s", 0, Batch([b"1", b"2", b"3"]))])
    archive_stream(environment, "s", path, kind)
    (file,) = path.glob("00000-*")
    if kind == "jsonl":
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    else:
        file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(Damaged, match="restore it"):
        read_all(lambda at, most: ArchiveSource(path).read(0, at, most), 0, 10)
