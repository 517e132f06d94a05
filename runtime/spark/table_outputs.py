"""Outputs that a run's session keeps: laid down as Parquet by workers, then written to tables or handed to the user."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import msgspec

from operators.core.base import Output
from planner.model.graph import Graph
from runtime.model.errors import Damaged, Owned, SamzaError, system_errors_told
from runtime.model.metrics import RunMetrics
from runtime.ports.environment import Environment
from runtime.ports.streams import StreamConfig
from runtime.spark.session import Spark
from runtime.spark.table_writer import KeptOutput, TableWriter
from runtime.systems.files.places.tables import IntoTable, into_table
from runtime.systems.host.durable import make_durable, replace_durably
from runtime.systems.host.locks import lock
from runtime.units.publication.publishing import ByEngine, remove_others
from runtime.units.publication.staged_topics import place_of
from runtime.units.staging import is_left, locked_directory


class KeptNote(msgspec.Struct):
    """The note of a run that keeps outputs: which it is, and where each of them goes."""

    run: str
    into: dict[str, str]


class ThroughNote(msgspec.Struct):
    """The note of a run whose outputs are all laid down, before any is in its table."""

    metrics: RunMetrics


class KeptOutputs:
    """The outputs of one run on Spark that go to tables, or are collected as DataFrames.

    Workers lay them down in a directory of the application's, and all come to be there at once, with the other outputs.
    From then on the run is through: whoever runs the application again after a death writes what is not yet in its
    table, and computes nothing. Into Delta and Iceberg rows come once however often that is tried.
    """

    def __init__(
        self, on: Spark, graph: Graph, bind: Mapping[str, object], data: str | Path | Environment, collect: object
    ) -> None:
        declared = {one.stream: one for spec in graph.specs.values() for one in spec.outputs}
        into = {name: found for name, what in bind.items() if name in declared and (found := into_table(what))}
        asked = _collected(collect, declared, bind)
        self._on = on
        self._is_temporary = not isinstance(data, str | Path)
        self.place = (
            (place_of(Path(data), graph.app) / "outputs").absolute()
            if isinstance(data, str | Path)
            else Path(tempfile.gettempdir(), f"samza-dsl-{uuid4().hex}", "outputs")
        )
        self.kept = {
            name: KeptOutput(declared[name], self.place / f"{name}.parquet", into.get(name))
            for name in {**into, **asked}
        }
        self._app = graph.app
        self._lock: int | None = None
        self._run = uuid4().hex

    def __bool__(self) -> bool:
        return bool(self.kept)

    def bound(self, bind: Mapping[str, object]) -> dict[str, object]:
        """Return what streams are bound to while workers lay outputs down."""
        return {**bind, **{name: str(one.path) for name, one in self.kept.items()}}

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Hold the place for a block, which ends with all in its tables; what was collected stays there."""
        if not self.kept:
            yield
            return
        with system_errors_told(self.place, "made"):
            self.place.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.place / "lock", wait=False)
        if self._lock is None:
            raise Owned(f"another run of {self._app!r} writes its outputs just now, as {self.place} says")
        try:
            yield
        except BaseException:
            if self._is_temporary:  # nobody could go on with it
                remove(self.place)
            raise
        finally:
            os.close(self._lock)
            self._lock = None

    @property
    def left(self) -> RunMetrics | None:
        """The numbers of an earlier run that died behind its end; None where there is none. Raises SamzaError.

        While that run has other outputs to publish it is not at its end: what is left of it is the application's.
        """
        begun = self._begun() if self.kept else None
        if begun is None or not all((self.place / f"{name}.parquet").exists() for name in begun.into):
            return None
        self._check_same(begun)
        self._run = begun.run
        with suppress(FileNotFoundError):
            return msgspec.msgpack.decode((self.place / "through.msgpack").read_bytes(), type=ThroughNote).metrics
        return RunMetrics()

    def begin(self, goes_on: bool) -> None:
        """Note which outputs are kept, unless an earlier run `goes_on`, which has noted that before it died.

        Raises SamzaError for what can't come to its table, before any row is computed.
        """
        if not self.kept:
            return
        for one in self.kept.values():
            one.check(self._on.opened())
        for one in self.kept.values():
            if one.into is not None:
                TableWriter(self._on.opened(), one, one.into, self._run).check()
        if goes_on and (begun := self._begun()) is not None:
            self._check_same(begun)
            self._run = begun.run
            return
        for left in self.place.iterdir():
            if left.name != "lock":
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        self._note("begun.msgpack", KeptNote(self._run, self._into))

    def finish(self, metrics: RunMetrics) -> None:
        """Write to tables what is not there yet, and remove it here."""
        if not self.kept:
            return
        assert all(one.path.exists() for one in self.kept.values()), "all outputs are laid down when a run is through"
        self._note("through.msgpack", ThroughNote(metrics))
        for name, one in self.kept.items():
            done = self.place / f"{name}.done"
            if one.into is not None and not done.exists():
                try:
                    TableWriter(self._on.opened(), one, one.into, self._run).write(self.place / f"{name}.files")
                except SamzaError as error:
                    if self._is_temporary:  # it goes with the run
                        raise
                    # Whoever mends the program alone would have the same rows refused again and again.
                    raise SamzaError(
                        f"{error}. The run is through, and {self.place} has its rows: run it again once the table "
                        "takes them, which computes nothing; or remove that, and it is computed anew"
                    ) from error
                done.touch()
                make_durable(self.place)
        # Not before all are through: whoever finds no note has nothing to go on with.
        (self.place / "begun.msgpack").unlink()
        make_durable(self.place)
        for name, one in self.kept.items():
            if one.into is not None:
                shutil.rmtree(one.path, ignore_errors=True)
            for left in (f"{name}.done", f"{name}.files"):
                (self.place / left).unlink(missing_ok=True)
        (self.place / "through.msgpack").unlink(missing_ok=True)

    def collected(self) -> Collected:
        """Move what was collected to a place of the run's own, and return it; the rest of this place is gone."""
        moving = {name: one for name, one in self.kept.items() if one.into is None}
        if not moving:
            return Collected({}, None, None)
        for left in filter(is_left, self.place.parent.glob("collected-*")):
            shutil.rmtree(left, ignore_errors=True)
        own = self.place.with_name(f"collected-{uuid4().hex}")
        descriptor = locked_directory(own)
        moved = {name: replace(one, path=one.path.replace(own / one.path.name)) for name, one in moving.items()}
        return Collected(moved, own, descriptor)

    def tidy(self) -> None:
        """Remove the place, where nothing is left there that is to be gone on with."""
        if self.kept and not (self.place / "begun.msgpack").exists():
            remove(self.place)

    @property
    def _into(self) -> dict[str, str]:
        return {name: "" if one.into is None else repr(one.into) for name, one in sorted(self.kept.items())}

    def _begun(self) -> KeptNote | None:
        try:
            return msgspec.msgpack.decode((self.place / "begun.msgpack").read_bytes(), type=KeptNote)
        except FileNotFoundError:
            return None

    def _check_same(self, begun: KeptNote) -> None:
        if begun.into != self._into:
            raise SamzaError(
                f"an earlier run of {self._app!r} died while it wrote to {', '.join(begun.into.values())}: run it "
                f"again with these outputs bound as they were, which computes nothing; or remove {self.place}"
            )

    def _note(self, name: str, note: KeptNote | ThroughNote) -> None:
        with system_errors_told(self.place, "written"):
            unfinished = self.place / f".{name}"
            with unfinished.open("wb") as file:
                file.write(msgspec.msgpack.encode(note))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self.place / name)
            make_durable(self.place)


@dataclass(frozen=True)
class Collected:
    """Outputs that are DataFrames: `place` has their rows, and is locked while anybody may ask for them."""

    outputs: Mapping[str, KeptOutput]
    place: Path | None
    descriptor: int | None

    def remove(self) -> None:
        """Remove the rows; to be called once."""
        if self.place is not None:
            remove(self.place)
        if self.descriptor is not None:
            os.close(self.descriptor)


class TableNote(msgspec.Struct):
    """The note of a table that micro-batches go to: the last that is in it, and the first of all that wrote rows."""

    written: int = 0
    first: int = 0


class PartTable:
    """The table that an output of a run in micro-batches goes to, each of which is written there once.

    Workers lay rows down in `staging`, in files that the manifest names. Delta and Iceberg know the number of a
    micro-batch that they have, a folder has it in the names of its files, and of other tables it is noted which files
    they had before.
    """

    config = StreamConfig()

    def __init__(self, on: Spark, output: Output, into: IntoTable, place: Path, name: str, begins: bool) -> None:
        self._on, self._place, self._name = on, place, name
        self._one = KeptOutput(output, self.staging, into)
        self._into = into
        self._note = self._noted()
        self._writer((), 1).check(begins)

    @property
    def staging(self) -> Path:
        """The directory that attempts write to, whose suffix says what."""
        return self._place / "staged.parquet"

    def begin(self) -> None:
        """Make the place where attempts write to."""
        with system_errors_told(self._place, "made"):
            self.staging.mkdir(parents=True, exist_ok=True)

    def publish(self, batch: int, files: Sequence[str]) -> None:
        """Write what these files hold to the table, where it has nothing of that micro-batch yet."""
        assert batch >= self._note.written, "micro-batches are published one after the other"
        if batch == self._note.written or not files:
            return
        lost = [name for name in files if not (self.staging / name).exists()]
        if lost:
            raise Damaged(f"{self.staging / lost[0]} is gone, which a commit of this run on Spark holds: restore it")
        if not self._note.first:
            # Noted before it is written: what was there before goes with this micro-batch, however often it is tried.
            self._change(first=batch)
        writer = self._writer(tuple(sorted(files)), batch)
        if self._into.name is None:
            self._add_to_folder(writer, batch)
        else:
            writer.write(self._place / "files", replaces=batch == self._note.first)
        self._change(written=batch)

    def sweep(self, kept: Iterable[str]) -> None:
        """Remove what attempts wrote that nobody will publish."""
        remove_others(self.staging, kept)

    def _writer(self, files: tuple[str, ...], batch: int) -> TableWriter:
        one = replace(self._one, parts=files)
        return TableWriter(self._on.opened(), one, self._into, self._name, batch)

    def _add_to_folder(self, writer: TableWriter, batch: int) -> None:
        """Add files to a folder: all are written beside their places first, and then each gets its name there."""
        folder = self._into.folder.absolute()
        staged, whole = folder / ".staged", folder / ".staged" / f"whole-{batch:09}"
        if not whole.exists():
            shutil.rmtree(staged, ignore_errors=True)
            writer.write_parted(staged / "unfinished")
            with system_errors_told(folder, "written"):
                for number, file in enumerate(sorted((staged / "unfinished").rglob("*.parquet"))):
                    file.rename(file.with_name(f"part-{batch:09}-{number:05}.parquet"))
                    make_durable(file.parent)
                (staged / "unfinished").rename(whole)
                make_durable(staged)
        with system_errors_told(folder, "written"):
            for file in sorted(whole.rglob("*.parquet")):
                to = folder / file.relative_to(whole)
                to.parent.mkdir(parents=True, exist_ok=True)
                file.replace(to)
                make_durable(to.parent)
            make_durable(folder)
        assert not [*whole.rglob("*.parquet")], "each file has its place"
        shutil.rmtree(staged, ignore_errors=True)

    def _noted(self) -> TableNote:
        with suppress(FileNotFoundError):
            return msgspec.msgpack.decode((self._place / "note.msgpack").read_bytes(), type=TableNote)
        return TableNote()

    def _change(self, **changes: int) -> None:
        self._note = msgspec.structs.replace(self._note, **changes)
        replace_durably(self._place / "note.msgpack", msgspec.msgpack.encode(self._note))


def into_tables(on: Spark, graph: Graph, bind: Mapping[str, object]) -> dict[str, object]:
    """Return what streams of a run in micro-batches are bound to: outputs that go to tables as parts of these."""
    declared = {one.stream: one for spec in graph.specs.values() for one in spec.outputs}
    found = {name: into for name, what in bind.items() if name in declared and (into := into_table(what)) is not None}
    made = {name: ByEngine(partial(PartTable, on, declared[name], into), into) for name, into in found.items()}
    return {**bind, **made}


def _collected(collect: object, declared: Collection[str], bind: Mapping[str, object]) -> dict[str, None]:
    """Return the outputs that are to be DataFrames; raises SamzaError for what is none, or goes elsewhere."""
    if collect is True:
        return dict.fromkeys(name for name in declared if name not in bind)
    names = [collect] if isinstance(collect, str) else [] if collect is False else collect
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise SamzaError(
            f'app.run(collect={collect!r}): write collect=True, or the names of outputs: collect=["delays"]'
        )
    for name in names:
        if name not in declared:
            raise SamzaError(f"app.run(collect=[{name!r}]): there is no such output; there are {', '.join(declared)}")
        if name in bind:
            raise SamzaError(f"app.run(collect=[{name!r}]): this output is bound to {bind[name]}: read it there")
    return dict.fromkeys(names)


def remove(place: Path) -> None:
    """Remove a directory, and the application's own, which it is in, where that has nothing else."""
    shutil.rmtree(place, ignore_errors=True)
    with suppress(OSError):
        place.parent.rmdir()
