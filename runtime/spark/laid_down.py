"""Inputs that only Spark opens, laid down once by its executors as files that the workers of a run read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from planner.model.graph import Graph
from runtime.model.errors import SamzaError, system_errors_told
from runtime.ports.environment import Environment
from runtime.ports.streams import Offsets
from runtime.spark.connection import connected
from runtime.spark.frames import Frame, frame_of, same_spelling
from runtime.spark.own_code import keep_daemon_quiet, with_own_code
from runtime.spark.session import Spark
from runtime.spark.spark_errors import as_said
from runtime.systems.files.places.locations import DataFile, is_remote
from runtime.systems.files.places.tables import only_on_spark
from runtime.systems.kafka.client.topic import topic_of
from runtime.units.carried_error import told
from runtime.units.laid_rows import REPORT, LaidRows, Laying, lay_down
from runtime.units.publication.staged_topics import INPUTS, place_of
from runtime.units.splits import Splits
from runtime.units.staging import is_left, locked_directory

MOST_PARTITIONS = 100_000
"""The most partitions of an input; each is a file, and a task of a stage."""


@contextmanager
def laid_down(
    on: Spark, graph: Graph, bind: Mapping[str, object], data: str | Path | Environment
) -> Iterator[Mapping[str, object]]:
    """Lay inputs that only Spark opens down in files for a block, and give what all streams are bound to then.

    Raises SamzaError where their columns are not of the declared types, before a row is read.
    """
    inputs = {spec.stream for spec in graph.inputs.values()}
    asked = {name: what for name, what in bind.items() if name in inputs and needs_session(what)}
    if not asked:
        yield bind
        return
    session = on.opened()
    # A directory of its own: runs of one application may go on at the same time.
    within = place_of(Path(data), graph.app).absolute() if isinstance(data, str | Path) else _temporary()
    place = within / INPUTS / uuid4().hex
    with system_errors_told(place, "made"):
        place.parent.mkdir(parents=True, exist_ok=True)
        for left in filter(is_left, place.parent.iterdir()):
            shutil.rmtree(left, ignore_errors=True)
        descriptor = locked_directory(place)
    try:
        # All are looked at before any is read.
        frames = {
            name: frame_of(session, name, what, [spec for spec in graph.inputs.values() if spec.stream == name])
            for name, what in asked.items()
        }
        yield {**bind, **{name: laid(frame, place) for name, frame in frames.items()}}
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)
        with suppress(OSError):  # others have left something beside it
            place.parent.rmdir()
            within.rmdir()


def _temporary() -> Path:
    """Return a directory for an application whose environment is in memory, so that all of it is on this machine."""
    return Path(tempfile.mkdtemp(prefix="samza-dsl-"))


def needs_session(what: object) -> bool:
    """Whether only Spark opens what an input is bound to."""
    is_url = isinstance(what, str | Path) and topic_of(what) is None and is_remote(what)
    return is_url or only_on_spark(what) is not None


def laid(frame: Frame, place: Path) -> Splits:
    """Let executors write the rows of an input to files, and return these as the input."""
    name = f"bind={{{frame.stream!r}: ...}}"
    found = reports_of(frame, Laying(place, name, frame.suffix, frame.offsets))
    by_group = {same_spelling(one.group) if frame.fields else one.group: one for one in found}
    groups = _groups(frame, [*by_group])
    assert len(by_group) == len(found), "the rows of a group come to one task"
    assert by_group.keys() <= {*groups}, "each group is a partition"
    files, ranges = [], {}
    for number, group in enumerate(groups):
        one = by_group.get(group)
        path = Path(one.file) if one is not None else _empty(frame, place)
        files.append(DataFile(path, frame.fields.get(group, ())))
        if one is None or frame.suffix == ".parquet":
            ranges[number] = _range(one)
    return Splits(files, ranges, frame.opened)


def reports_of(frame: Frame, laying: Laying) -> list[LaidRows]:
    """Let executors write rows to files, and return the reports of those that count; raises SamzaError."""
    try:
        names = frame.rows.columns
        # By places: Spark itself takes a dot in the name of a column that goes to Python for a field within one.
        by_place = frame.rows.toDF(*[f"c{place}" for place in range(len(names))])
        # Made anew where it is run again: a server of Spark Connect keeps a frame with the modules there were before.
        asked = with_own_code(
            connected(by_place.sparkSession),
            lambda: by_place.mapInArrow(partial(_lay_down, laying, names), REPORT).collect(),
        )
        found = [LaidRows(*row) for row in asked]
    except Exception as error:
        same = told(error)
        raise same or as_said(error, f"{laying.name}: Spark could not read it") from None
    absent = next((one.file for one in found if not Path(one.file).exists()), None)
    if absent is not None:
        raise SamzaError(
            f"{laying.name}: a worker has written {absent}, which is not there for the driver: the data directory must "
            "be in a file system that driver and workers share; say data= where such a one is"
        )
    return found


def _lay_down(laying: Laying, names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    keep_daemon_quiet()
    context = TaskContext.get()
    assert context is not None, "Spark calls it in a task"
    return lay_down(laying, context.partitionId(), (batch.rename_columns(names) for batch in batches))


def _groups(frame: Frame, found: list[str]) -> list[str]:
    """Return the groups of an input, each of which is a partition, in their order; there is one at least."""
    if frame.fields:
        return [*frame.fields]
    numbers = sorted(map(int, found))
    if numbers and not 0 <= numbers[0] <= numbers[-1] < MOST_PARTITIONS:
        raise SamzaError(
            f"bind={{{frame.stream!r}: ...}}: its _partition goes from {numbers[0]:,} to {numbers[-1]:,}, and "
            f"partitions are numbered from 0 to {MOST_PARTITIONS - 1:,} at most: give other numbers, or drop the column"
        )
    if frame.numbered:
        return [str(number) for number in range(max(numbers, default=0) + 1)]
    return [*map(str, numbers)] or ["0"]


def _range(rows: LaidRows | None) -> Offsets:
    if rows is None:
        return Offsets(0, 0, ended=True)
    if rows.first is None or rows.last is None:
        return Offsets(0, rows.rows, ended=True)
    return Offsets(rows.first, rows.last + 1, ended=True)


def _empty(frame: Frame, place: Path) -> Path:
    """Return a file of an input that has no rows."""
    path = place / f"empty-{frame.stream}{frame.suffix}"
    if path.exists():
        return path
    if frame.suffix == ".parquet":
        pq.write_table(frame.schema.empty_table(), path)
    else:
        path.touch()
    return path
