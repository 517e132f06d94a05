"""Files that roll, through the end of the process at any step: what counts has each row once, at any time."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pyarrow.fs import FSSpecHandler, PyFileSystem

from runtime.model.errors import Fenced
from runtime.systems.files.places.remote import written_system
from runtime.systems.folders import manifest, object_place
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import SamzaError, connectors
from samza_dsl.connectors import SinkOwner, SinkRow
from tests.connectors.test_rolling_files import Leg, copying, rows_in
from tests.scale import examples

PLACES = itertools.count()
HERE = [
    (os, "link"),
    (os, "fsync"),
    (Path, "replace"),
    (Path, "unlink"),
    (Path, "mkdir"),
    (object_place, "make_durable"),
]
REMOTE = ("pipe_file", "rm_file", "find", "cat")


def steps_of(place: str) -> list[tuple[Any, str]]:
    """Return all that a write does to a place."""
    if "://" not in place:
        return HERE
    system, _ = written_system(place)
    assert written_system(place)[0] is system, "one object for all, of which functions are replaced"
    return [(system, name) for name in REMOTE]


class ProcessIsGone(BaseException):
    """The process has ended: nothing of it goes on, as little as what it leaves is put in order."""


@contextmanager
def ending(place: str, at: int, is_done: bool) -> Iterator[None]:
    """End the process at a step, before that is done or behind it; every later one of it fails."""
    count = itertools.count(1)

    def stepping(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **said: Any) -> Any:
            number = next(count)
            if number > at or (number == at and not is_done):
                raise ProcessIsGone("the process is gone")
            found = function(*arguments, **said)
            if number == at:
                raise ProcessIsGone("the process is gone")
            return found

        return step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in steps_of(place):
            patch.setattr(owner, name, stepping(getattr(owner, name)))
        yield


def lying(where: str) -> list[Leg]:
    """Return the rows that pyarrow finds in a folder that it knows nothing of."""
    system, path = written_system(where) if "://" in where else (fsspec.filesystem("file"), where)
    found = ds.dataset(path, filesystem=PyFileSystem(FSSpecHandler(system)), format="parquet")
    return [Leg(**row) for row in found.to_table().to_pylist()]


def leftovers(where: str) -> list[str]:
    """Return the names of what lies there and counts for nothing."""
    named = {*connectors.committed_files(where)}
    return [
        str(file)
        for file in Path(where).rglob("*")
        if file.is_file() and str(file) not in named and file.suffix != ".json"
    ]


@given(
    steps=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 40), st.booleans()), min_size=1, max_size=5),
    rows=st.integers(1, 8),
    whole=st.integers(2, 5),
)
@settings(deadline=None, max_examples=examples(8, 60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_counts_has_each_row_once_whenever_a_process_ends(
    place: str, steps: list[tuple[int, int, bool]], rows: int, whole: int
) -> None:
    where = f"{place}-{next(PLACES)}"
    environment, legs, counted = MemoryEnvironment(), list[Leg](), Counter[Leg]()
    sink = connectors.rolling_files(where, rows=rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "WHOLE_EVERY", whole)
        for number, at, is_done in [*steps, (3, 1_000_000, True)]:
            legs += [Leg(len(legs) + n) for n in range(number)]
            with ending(place, at, is_done):
                try:
                    copying().run(environment, bind={"legs": legs, "copies": sink})
                except (ProcessIsGone, SamzaError):  # by whichever of its functions it was told
                    event("a process has ended")
            found = Counter(rows_in(connectors.committed_files(where)))
            assert counted <= found <= Counter(legs), "what counts goes on counting, and nothing counts twice"
            counted = found
    assert counted == Counter(legs) == Counter(lying(where))
    assert "://" in place or not leftovers(where)


def test_what_a_run_leaves_that_was_taken_over_is_gone_soon(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lives on behind the claim of another one, writes a file, and ends before its entry would be refused."""
    monkeypatch.setattr(manifest, "WHOLE_EVERY", 4)
    former, later = (SinkOwner("shop", "legs", 0, generation, 5, Leg) for generation in (1, 2))
    zombie, sink = connectors.rolling_files(place), connectors.rolling_files(place)
    zombie.claim(former)
    sink.claim(later)
    ends = 1 if "://" in place else 4  # its file is there, and its entry is not
    with ending(place, ends, True), pytest.raises(ProcessIsGone):
        zombie.write(former, [SinkRow(Leg(0))], 0, 1)
    for number in range(8):
        sink.write(later, [SinkRow(Leg(number))], number, number + 1)
    assert Counter(lying(place)) == Counter(map(Leg, range(8))) == Counter(rows_in(connectors.committed_files(place)))
    with pytest.raises(Fenced):
        zombie.write(former, [SinkRow(Leg(0))], 0, 1)
