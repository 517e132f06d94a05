"""Spark reads a folder of files that roll, which it knows nothing of, while a run writes there, dies, and behind it."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import SamzaError, connectors
from tests.connectors.test_rolling_crashes import HERE, ProcessIsGone, ending, leftovers
from tests.connectors.test_rolling_files import Leg, copying, rows_in

LEGS = [Leg(n, "AB"[n % 2], date(2026, 1, 1 + n % 3)) for n in range(12)]
ROWS = 4
"""The rows of a delivery."""


def read(session: Any, kind: str, where: Path, files: Sequence[str] | None = None) -> list[Leg]:
    """Return the rows that Spark reads in a folder, or in files of it."""
    there = where.exists() and any(one.is_file() and one.name[0] not in "._" for one in where.rglob("part-*"))
    if not there or files == []:
        return []  # of which Spark says that there is no such path
    reader = session.read.schema("n LONG, carrier STRING, day DATE").option("basePath", str(where))
    form = "parquet" if kind == "parquet" else "json"
    return [
        Leg(row.n, row.carrier, row.day)
        for row in reader.format(form).load(str(where) if files is None else [*files]).collect()
    ]


@contextmanager
def looking(look: Callable[[], None]) -> Iterator[None]:
    """Look before each step that a run does to a folder of this machine."""

    def stepping(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **said: Any) -> Any:
            look()
            return function(*arguments, **said)

        return step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in HERE:
            patch.setattr(owner, name, stepping(getattr(owner, name)))
        yield


@pytest.mark.ci
@pytest.mark.parametrize(("kind", "by"), [("parquet", ()), ("parquet", ("day",)), ("jsonl.gz", ())])
def test_spark_reads_what_counts_at_every_step_of_a_run(
    session: Any, kind: Any, by: tuple[str, ...], tmp_path: Path
) -> None:
    where, counts, looks = tmp_path / "out", list[int](), set[Any]()

    def look() -> None:
        files = connectors.committed_files(where)
        there = sorted((str(one), one.stat().st_size) for one in where.rglob("*") if one.is_file())
        # Most steps change nothing that Spark could read.
        if (state := (*files, *there)) in looks:
            return
        looks.add(state)
        committed, found = rows_in(files), read(session, kind, where)
        assert Counter(read(session, kind, where, files)) == Counter(committed)
        # The files of one delivery are there before the entry that lets them count.
        assert Counter(committed) <= Counter(found) <= Counter(LEGS) and len(found) <= len(committed) + ROWS
        counts.append(len(committed))

    sink = connectors.rolling_files(where, kind, rows=ROWS, partition_by=by)
    with looking(look):
        copying().run(MemoryEnvironment(), bind={"legs": LEGS, "copies": sink})
    assert {*range(0, len(LEGS), ROWS)} <= {*counts}, "it was looked between all deliveries"
    assert Counter(read(session, kind, where)) == Counter(LEGS)


@pytest.mark.ci
def test_spark_reads_each_row_once_behind_a_death_at_any_step(session: Any, tmp_path: Path) -> None:
    deaths = 0
    for at in itertools.count(1):
        where, environment = tmp_path / f"out-{at}", MemoryEnvironment()
        bind = {"legs": LEGS, "copies": connectors.rolling_files(where, rows=ROWS)}
        with ending(str(where), at, True):
            try:
                copying().run(environment, bind=bind)
                break
            except (ProcessIsGone, SamzaError):
                deaths += 1
        assert Counter(read(session, "parquet", where)) <= Counter(LEGS), "no row is there twice"
        copying().run(environment, bind=bind)
        assert Counter(read(session, "parquet", where)) == Counter(LEGS) and not leftovers(str(where))
    assert deaths > 20, "there were steps to die at"
