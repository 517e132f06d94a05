"""The environment of one task of one stage in a micro-batch: state and event time go on from the one before."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from runtime.job.job_model import JOB
from runtime.model.checkpoint import Checkpoint
from runtime.ports.commits import Commit
from runtime.units.micro_batch import MicroBatch, Snapshot, Told
from runtime.units.program import Program
from runtime.units.shuffle_rows import BlockRun, Reached, telling
from runtime.units.unit_state import KeptState
from runtime.units.worker.environment import MERGED, Arrivals, TaskEnvironment

if TYPE_CHECKING:
    from runtime.systems.log.environment import LogEnvironment


class KeptEnvironment(TaskEnvironment):
    """Streams and state as one unit sees them in a micro-batch; the next one begins with its `snapshot`."""

    def __init__(
        self, program: Program, number: int, runs: Iterator[BlockRun], on_commit: Callable[[], None], batch: MicroBatch
    ) -> None:
        unit = program.units[number]
        self._batch, self._begun_with = batch, batch.begin(unit.stage, unit.task)
        self._checkpoint = self._begun_with.checkpoint
        super().__init__(program, number, runs, on_commit)
        self._told = dict(self._begun_with.told)
        name = f"{unit.stage}-{unit.task}"
        self._kept = KeptState(
            batch.directory,
            _scratch() / f"samza-dsl-{batch.name}" / f"{unit.job}-{name}",
            self._job.plan.app,
            unit.task,
            self._begun_with.files,
            f"{name}.{batch.number}.{uuid4().hex}",
        )

    def commit(self, commit: Commit) -> None:
        """Hand on what goes to the next stage and to outputs, and take state and positions on."""
        self._checkpoint = commit.checkpoints.get(str(self._unit.task), self._checkpoint)
        super().commit(commit)

    def checkpoints(self, app: str) -> dict[str, Checkpoint]:
        """Return the checkpoint that the unit begins with, and what is noted of runs before."""
        before = Checkpoint(0, meanings={**self._batch.keys})
        return {JOB: before, str(self._unit.task): self._begun_with.checkpoint}

    def left(self) -> Snapshot:
        """Return what the unit leaves behind, once all is committed; its state is durable then."""
        return msgspec.structs.replace(
            self._begun_with, checkpoint=self._checkpoint, files=self._kept.finish(), told=self._told
        )

    def tell_event_time(self) -> None:
        """Tell all that read what the unit writes how far event time has come behind the micro-batch."""
        self._going.append(telling(self._reached(), self._number))

    def close(self) -> None:
        """Release everything; a copy of state that is finished stays where it is."""
        super().close()
        self._kept.close()

    def _reached(self) -> Iterable[tuple[int, Reached]]:
        job = self._unit.job
        for stream in self._job.writes[self._unit.stage]:
            told, place = self._told.get(stream, Told()), self._job.places[stream]
            for partition in range(self._job.streams[stream].partitions):
                for target in self._program.readers.get((job, stream, partition), ()):
                    yield target, Reached(place, told.watermark, told.idle)

    def _arriving(self, runs: Iterator[BlockRun], places: dict[int, str]) -> Arrivals:
        positions = {position.stream: position for position in self._checkpoint.positions}
        told = {
            stream: Told(positions[stream].producers[MERGED], bool(positions[stream].idle))
            for stream in places.values()
            if stream in positions
        }
        return Arrivals(runs, places, told, ends=self._batch.is_last)

    def _kept_state(self) -> LogEnvironment | None:
        return self._kept.log()

    def _put_away(self, commit: Commit) -> None:
        self._kept.put(commit.state)


def _scratch() -> Path:
    """Return the directory that Spark gives its workers to write to, and removes behind them."""
    return Path(os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or tempfile.gettempdir())
