"""The parts of a run on Spark by themselves: rows between stages, files on their way, errors, splits, and a Java."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch
from runtime.encoding.serdes import Declared, Evolving, decoded, encode_all
from runtime.model import errors
from runtime.model.metrics import RunMetrics
from runtime.spark.java import ABSENT, java_home_of_the_wheel
from runtime.spark.session import Spark
from runtime.spark.spark_errors import as_said
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.units import shuffle_rows as rows
from runtime.units.carried_error import WorkerFailed, carried, told
from runtime.units.program import Unit
from runtime.units.publication.intent import Intent
from runtime.units.shuffle_rows import ORDER, SCHEMA, BlockRun, Shuffled, marked, packed, runs_of
from runtime.units.splits import Splits
from runtime.units.staging import Staged, attempted
from runtime.units.topics import TopicSplits
from runtime.units.worker.environment import Arrivals
from samza_dsl import App, PlanError, SamzaError

stamps = st.lists(st.integers(0, 20), min_size=1, max_size=12)


class Ride(msgspec.Struct):
    """A record whose bytes are those of MessagePack behind the name of its class."""

    km: float
    via: str = ""


class Stop(msgspec.Struct, frozen=True):
    """Another one, of which some are beside it."""

    at: int


class Renamed(msgspec.Struct, rename="camel"):
    """One that is read field by field."""

    long_name: int


DRAWN = (
    st.builds(Ride, st.floats(allow_nan=False) | st.integers(-5, 5), st.text(max_size=300))
    | st.builds(Stop, st.integers(-(2**64), 2**64))
    | st.builds(Renamed, st.integers(0, 9))
    | st.sampled_from([None, 1, b"x", ("a", 2)])
)
ALIKE = st.lists(st.builds(Ride, st.floats(allow_nan=False), st.text(max_size=300)), max_size=9)


@given(
    st.lists(ALIKE | st.lists(DRAWN, max_size=9), min_size=1, max_size=3).filter(any), st.sampled_from([30, 1 << 20])
)
def test_values_come_out_of_blocks_as_out_of_their_own_bytes(parts, longest):
    serde, stored = Evolving(), []
    shuffled = Shuffled()
    with patch.object(rows, "BLOCK_BYTES", longest), patch.object(rows, "BLOCK", 4):
        for values in filter(None, parts):
            stored += encode_all(serde, values)
            for block in packed(Batch(encode_all(serde, values)), evolving=True):
                shuffled.add(0, 0, 0, block)
    found = BlockRun(0, 0, 0, shuffled.rows(0, 0)).batch()
    assert len(found) == len(stored) and [*found.values] == stored
    found = BlockRun(0, 0, 0, shuffled.rows(0, 0)).batch()
    if None in stored:
        return
    for reading in (serde, Declared(object)):
        assert repr(decoded(reading, found.values)) == repr(decoded(reading, stored))


def test_the_name_of_a_class_goes_once_for_a_block():
    values = encode_all(Evolving(), [Ride(at / 7, str(at)) for at in range(500)])
    (together,), (apart,) = packed(Batch(values), evolving=True), packed(Batch(values))
    assert together.count(b"Ride") == 1 < apart.count(b"Ride") == 500
    assert len(together) < 0.5 * len(apart)


@given(st.lists(stamps, min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 5))
def test_rows_come_to_their_task_behind_no_watermark_and_by_the_block_in_order(producers, block, at_once):
    batches = []
    rows_block, rows.BLOCK = rows.BLOCK, block
    try:
        for producer, column in enumerate(producers):
            shuffled = Shuffled()
            values = [b"%d %d" % (producer, place) for place in range(len(column))]
            batch = Batch(values, stamps=column, timestamps=column)
            for watermark, part in marked(batch, MIN_TIMESTAMP, MAX_TIMESTAMP):
                for packed_part in packed(part):
                    shuffled.add(0, 0, watermark, packed_part)
            batches.append(shuffled.rows(producer, 0))
    finally:
        rows.BLOCK = rows_block
    table = pa.Table.from_batches(batches, schema=SCHEMA).sort_by([(name, "ascending") for name in ORDER])
    arrivals = Arrivals(runs_of(table.to_batches(max_chunksize=at_once)), {0: "stream"})
    told_of, found, offset = MIN_TIMESTAMP, [], 0
    while (read := arrivals.read("stream", offset)) is not None:
        assert all(stamp >= told_of for stamp in read.batch.stamps or ())
        found += [tuple(map(int, value.split())) for value in read.batch.values]
        told_of, offset = read.control.watermark if read.control else told_of, read.next_offset
    assert told_of == MAX_TIMESTAMP
    for producer, column in enumerate(producers):
        assert [place for one, place in found if one == producer] == [*range(len(column))], "a task's own order stays"
    ahead = MIN_TIMESTAMP  # the earliest that the tasks of earlier blocks had still to write
    for producer, place in found:
        column = producers[producer]
        assert column[place] >= ahead
        begun = place // block * block if len(column) > block else 0
        ahead = max(ahead, min(column[begun:]) if len(column) > block else MIN_TIMESTAMP)


def test_a_column_that_no_row_has_is_none_and_stamps_have_no_gaps():
    shuffled = Shuffled()
    for block in packed(Batch([b"a", None], keys=[None, None], timestamps=[5, 6], stamps=[1, None])):
        shuffled.add(3, 1, 0, block)
    (run,) = runs_of([shuffled.rows(0, 0)])
    assert run.batch() == Batch([b"a", None], timestamps=[5, 6], stamps=[1, 6])


COLUMN = st.none() | st.integers(0, 9)


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=3), COLUMN), min_size=1),
    st.integers(1, 4),
    st.integers(20, 60),
)
def test_rows_are_the_same_behind_the_shuffle_in_blocks_of_any_length(found, block, most_bytes):
    values, keys, signs = map(list, zip(*found, strict=True))
    batch = Batch(values, keys, timestamps=[*range(len(found))], signs=signs)
    shuffled = Shuffled()
    with patch.object(rows, "BLOCK", block), patch.object(rows, "BLOCK_BYTES", most_bytes):
        for one in packed(batch):
            shuffled.add(3, 1, 0, one)
            assert len(one) <= most_bytes or len(msgspec.msgpack.decode(one)[0]) == 1
    came = Batch([])
    for run in runs_of([shuffled.rows(0, 0)]):
        came.extend(run.batch())
    assert [came.values, came.timestamps] == [batch.values, batch.timestamps]
    for name in ("keys", "signs"):
        assert (getattr(came, name) or [None] * len(found)) == getattr(batch, name)


def test_files_of_attempts_become_one_at_once(tmp_path):
    staged = Staged(tmp_path / "out.csv")
    paths = [attempted(staged.directory, Unit(0, 0, task)) for task in range(3)]
    for path, text in zip(paths, ('"a\nb",c\n1,2\n', "", '"a\nb",c\n3,4\n'), strict=True):
        path.write_text(text)
    assert not (tmp_path / "out.csv").exists()
    whole, place = staged.complete(map(str, paths))
    assert not (tmp_path / "out.csv").exists()
    Path(whole).replace(place)
    staged.remove()
    assert (tmp_path / "out.csv").read_text() == '"a\nb",c\n1,2\n3,4\n'
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    with pytest.raises(SamzaError, match="has something in it already"):
        Staged(tmp_path / "out.csv")


def test_files_of_attempts_stay_as_they_are_where_a_directory_takes_them(tmp_path):
    (tmp_path / "out.csv").mkdir()
    staged = Staged(tmp_path / "out.csv")
    paths = [attempted(staged.directory, Unit(0, 0, task)) for task in range(4)]
    for path, text in zip(paths, ("a\n1\n", "", "b\n2\n"), strict=False):
        path.write_text(text)
    lost = attempted(staged.directory, Unit(0, 0, 0))
    lost.write_text("a\n1\n")
    whole, place = staged.complete(map(str, paths))
    assert [*(tmp_path / "out.csv").iterdir()] == []
    Intent([(whole, place)], [], topics=False, metrics=RunMetrics()).rename()
    staged.remove()
    assert {path.name: path.read_text() for path in Path(place).iterdir()} == {
        "part-000000.csv": "a\n1\n",
        "part-000001.csv": "b\n2\n",
    }


def test_what_a_run_has_left_that_died_goes_with_the_next_one_and_no_sooner(tmp_path):
    paths = [tmp_path / "out.jsonl", tmp_path / "out(1).jsonl"]
    running, dead, published, another = (Staged(path) for path in (*paths[:1] * 3, paths[1]))
    for one in (dead, published, another):
        attempted(one.directory, Unit(0, 0, 0)).write_text("1\n")
        os.close(one._lock)  # as the system does where a process dies
    published.complete(map(str, published.directory.glob("0-0-0-*")))
    for path in paths:
        begun = Staged(path)
        assert begun.directory.exists() and published.directory.exists() and running.directory.exists()
        assert not dead.directory.exists() and another.directory.exists() is (path == paths[0])
        begun.remove()
        begun.remove()


def test_rows_of_other_columns_are_no_csv_file(tmp_path):
    staged = Staged(tmp_path / "out.csv")
    paths = [attempted(staged.directory, Unit(0, 0, task)) for task in range(2)]
    for path, text in zip(paths, ("a,b\n1,2\n", "b,a\n2,1\n"), strict=True):
        path.write_text(text)
    with pytest.raises(errors.SerdeError, match="different columns, a,b and b,a"):
        staged.complete(map(str, paths))
    assert not (tmp_path / "out.csv").exists()


def test_a_split_is_read_once_and_ends_where_it_was_read_to(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("b", "a"):
        (tmp_path / "in" / f"{name}.jsonl").write_text(f'"{name}"\n"{name}{name}"\n')
    splits = Splits.at(tmp_path / "in")
    assert (splits.name, splits.partitions, splits.offsets(1).end) == ("jsonl", 2, MAX_TIMESTAMP)
    assert splits.read(1, 0).batch.values == [b'"b"', b'"bb"']
    assert splits.read(1, 2) is None and splits.offsets(1).end == 2


def test_other_errors_than_ours_say_where_they_were_raised():
    assert told(RuntimeError("Job aborted")) is None
    for error, words in (
        (ValueError("not ours"), r"^ValueError: not ours, raised at .*test_parts.py:\d+ in a worker of Spark$"),
        (SystemExit(3), r"^SystemExit: 3, raised at .*test_parts.py:\d+ in a worker of Spark$"),
        (ModuleNotFoundError("No module named 'x'"), "^ModuleNotFoundError: No module named 'x', .*: install there"),
    ):
        with pytest.raises(WorkerFailed) as failed, carried():
            raise error
        with pytest.raises(SamzaError, match=words):
            raise told(failed.value)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "An error occurred while calling o740.getResult.\n: org.apache.spark.SparkException: Exception thrown in "
            "awaitResult: \n\tat org.apache.spark.util.X(X.scala:70)\nCaused by: org.apache.spark.SparkException: Job "
            "aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in "
            "stage 3.0 (TID 7) (192.0.2.2 executor driver): org.apache.spark.SparkException: Python worker exited "
            "unexpectedly (crashed):\n\tat org.apache.spark.api.python.Y(Z.scala:1136)\n",
            "a worker died, Python worker exited unexpectedly (crashed). The system may have ended it for want of "
            "memory (spark.executor.memoryOverhead), or something that a function of yours calls has crashed; a run "
            "without Spark shows where",
        ),
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File "
            "\"worker.py\", line 4327, in invoke_udf\n  run()\nModuleNotFoundError: No module named 'runtime'\n\tat a",
            "No module named 'runtime', in a worker: install there what your program imports",
        ),
        (
            "Total size of serialized results of 3 tasks (2 GiB) is bigger than spark.driver.maxResultSize (1 GiB)",
            "Total size of serialized results of 3 tasks (2 GiB) is bigger than spark.driver.maxResultSize (1 GiB)",
        ),
        (
            "Cannot call methods on a stopped SparkContext.\nThis",
            "its master is not there, or the session was stopped meanwhile",
        ),
    ],
)
def test_what_spark_says_is_told_without_its_stacks(said, words):
    assert str(as_said(RuntimeError(said))) == f"Spark could not run it: {words}"


def test_a_session_that_was_stopped_is_refused():
    with pytest.raises(SamzaError, match="it was stopped; begin another one"):
        Spark(SimpleNamespace(_sc=SimpleNamespace(_jsc=None), createDataFrame=None)).opened()


def test_what_raised_in_a_worker_is_told_with_its_lines():
    try:
        with carried():
            try:
                1 / 0  # noqa: B018
            except ZeroDivisionError as error:
                raise errors.OperatorFailure("map 'm' at app.py:3") from error
    except WorkerFailed as failed:
        lines = told(failed).__cause__.lines
    assert "1 / 0" in lines[-1] or "1 / 0" in lines[-2]


def test_the_java_of_the_wheel_is_started_without_what_it_has_not(tmp_path):
    home = java_home_of_the_wheel(tmp_path)
    assert home == java_home_of_the_wheel(tmp_path) and [one.name for one in tmp_path.iterdir()] == [home.name]
    done = subprocess.run(
        [home / "bin" / "java", ABSENT, "-version"], capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0 and "17." in done.stderr


def test_a_session_that_is_given_can_not_be_changed():
    with pytest.raises(SamzaError, match="leave master= out"):
        Spark(session=SimpleNamespace(createDataFrame=None), master="local[2]").opened()


def test_a_run_on_spark_refuses_what_has_no_meaning_there(tmp_path):
    app = App("refusing")
    app.input("numbers", value=int).send_to(app.output("out", value=int))
    with pytest.raises(PlanError, match=r"containers=2\): Spark shares tasks by itself"):
        app.run(tmp_path, on=Spark(), containers=2)
    with pytest.raises(PlanError, match=r"app.run\(on=...\) got 'spark', which is no Spark"):
        app.run(tmp_path, on="spark")
    with pytest.raises(PlanError, match=r"Spark\(end=True\) is about a run that goes on and on"):
        app.run(tmp_path, on=Spark(end=True))
    with pytest.raises(PlanError, match=r"Spark\(max_records=...\)=0 is not a whole number of at least 1"):
        app.run(tmp_path, on=Spark(checkpoint=tmp_path / "kept", max_records=0))
    kept = Spark(checkpoint=tmp_path / "kept")
    for spark, said, wrong in [
        (Spark(), {"from_start": True}, r"from_start=True\): a bounded run .*: leave from_start= out"),
        (kept, {"from_start": True}, r"from_start=True\): .* from another checkpoint it begins anew"),
        (Spark(), {"until_now": True}, r"until_now=True\): .* it needs Spark\(checkpoint="),
        (kept, {"state": "keep"}, r"state='keep'\)"),
        (kept, {"containers": True}, r"containers"),
    ]:
        with pytest.raises(PlanError, match=wrong):
            app.run(tmp_path, on=spark, **said)
    for spark in (Spark(), Spark(checkpoint=tmp_path / "kept")):
        with pytest.raises(SamzaError, match="there is no stream 'numbers' to read"):
            app.run(tmp_path / "data", on=spark)
    (tmp_path / "numbers.jsonl").write_text(json.dumps(1))
    (tmp_path / "out.jsonl").write_text("0\n")
    with pytest.raises(SamzaError, match="has something in it already"):
        app.run(on=Spark(), bind={"numbers": tmp_path / "numbers.jsonl", "out": tmp_path / "out.jsonl"})


def test_a_client_that_can_not_be_sent_to_workers_is_refused():
    topic = KafkaTopic("kafka://localhost:9/numbers", options={"ssl_context": object()})
    with pytest.raises(SamzaError, match="an ssl_context can't be sent to: say ssl_cafile"):
        TopicSplits(topic, 1)


@pytest.mark.parametrize("package", ["pyspark.sql", "pyarrow"])
def test_without_the_extra_one_error_names_it(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    name = package.partition(".")[0]
    app = App("refusing")
    with pytest.raises(SamzaError, match=rf"needs {name}, which is not installed: pip install 'samza-dsl\[spark\]'"):
        app.run(on=Spark())


def test_where_spark_does_not_start_nothing_is_left(tmp_path, monkeypatch):
    app = App("refusing")
    app.input("numbers", value=int).send_to(app.output("out", value=int))
    (tmp_path / "numbers.jsonl").write_text("1")

    def fails(self):
        raise SamzaError("Spark did not start")

    monkeypatch.setattr(Spark, "opened", fails)
    with pytest.raises(SamzaError, match="did not start"):
        app.run(on=Spark(), bind={"numbers": tmp_path / "numbers.jsonl", "out": tmp_path / "out.jsonl"})
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.jsonl"]
