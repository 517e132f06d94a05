"""A handover on its way from Spark: each attempt of a task writes state of its own, and the driver puts it together."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import msgspec

from planner.model.graph import Graph
from planner.model.plan import Plan
from runtime.job.key_kinds import kinds_of_all
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import system_errors_told
from runtime.reprocessing.handover import StoreFile, write_manifest
from runtime.units.shuffle_rows import AttemptReport


class StagedHandover:
    """The directory in which attempts write state for a handover to `path`, for the application named `app`."""

    def __init__(self, path: Path, app: str) -> None:
        self.path = path.absolute()
        self.directory = self.path.parent / f".{self.path.name}.{uuid4().hex}"
        self._whole = self.directory / "whole"
        self._app = app
        with system_errors_told(self.path, "written"):
            self.directory.mkdir(parents=True)
            self._whole.mkdir()

    def complete(self, graph: Graph, plan: Plan, reports: Iterable[AttemptReport]) -> None:
        """Put what units have reported together; a table has the same state in each stage that joins it."""
        positions: dict[tuple[str, int], Position] = {}
        state: dict[tuple[str, int], StoreFile] = {}
        kinds: list[Checkpoint] = []
        for report in reports:
            kinds.append(Checkpoint(0, meanings=report.keys))
            for position in report.positions:
                positions.setdefault((position.stream, position.partition), position)
            for one in report.state:
                state.setdefault((one.store, one.task), one)
        by_task: dict[str, list[Position]] = {}
        for (_, partition), position in positions.items():
            by_task.setdefault(str(partition), []).append(position)
        # A live run unites what all tasks have noted as it begins.
        keys = kinds_of_all(kinds)
        checkpoints = {task: Checkpoint(0, tuple(found), meanings=keys) for task, found in by_task.items()}
        with system_errors_told(self.path, "written"):
            moved = [self._moved(one) for one in state.values()]
            write_manifest(self._whole, graph, plan, self._app, checkpoints, moved, {})

    @property
    def rename(self) -> tuple[str, str]:
        """Its path when it is complete, and its place."""
        return str(self._whole), str(self.path)

    def remove(self) -> None:
        """Remove what attempts have written."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _moved(self, one: StoreFile) -> StoreFile:
        file = Path(one.file)
        file.rename(self._whole / file.name)
        return msgspec.structs.replace(one, file=file.name)
