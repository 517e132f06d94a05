"""What generators yield, plain and async: each item once, as it comes, through deaths."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.systems.connectors import generator as module
from samza_dsl import App, SamzaError, connectors
from samza_dsl.connectors import PushedRecord
from samza_dsl.testing import check_source
from tests.connectors.test_pushed_sources import DyingEnvironment
from tests.real_time import until
from tests.scale import examples


def copying() -> App:
    app = App("copying")
    app.input("numbers", value=int).send_to(app.output("copies", value=int))
    return app


async def numbers_async(number: int, end: int) -> AsyncIterator[int]:
    for n in range(number, end):
        await asyncio.sleep(0)
        yield n


@given(
    end=st.integers(0, 30),
    is_async=st.booleans(),
    at_once=st.integers(1, 4),
    deaths=st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=4),
)
@settings(deadline=None, max_examples=examples(15, 300))
def test_each_item_takes_effect_once(end: int, is_async: bool, at_once: int, deaths: list[tuple[int, bool]]) -> None:
    environment = DyingEnvironment()
    source = connectors.generator("n", lambda n: numbers_async(n, end) if is_async else range(n, end))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "AT_ONCE", at_once)
        for environment.dies_at, environment.keeps in [*deaths, (-1, False)]:
            try:
                run = copying().run(environment, bind={"numbers": source})
            except SamzaError:
                continue
    assert run.received("copies") == [*range(end)]


@pytest.mark.parametrize("is_async", [True, False])
def test_the_suite_for_sources_passes(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3)
    check_source(
        lambda: connectors.generator("n", lambda n: numbers_async(n, 20) if is_async else range(n, 20)), times=5
    )


def test_an_item_does_not_wait_for_the_next(tmp_path: Path) -> None:
    later = threading.Event()

    def items(number: int) -> Iterator[Any]:
        yield PushedRecord(7, timestamp_ms=5)
        later.wait()

    async def main() -> None:
        async with copying().running(tmp_path, bind={"numbers": connectors.generator("slow", items)}) as run:
            await until(lambda: run.received("copies") == [7])

    asyncio.run(main())
    later.set()


def test_a_generator_without_end_is_left_where_it_is(tmp_path: Path) -> None:
    async def main(least: int) -> list[int]:
        source = connectors.generator("endless", itertools.count)
        async with copying().running(tmp_path, bind={"numbers": source}) as run:
            await until(lambda: len(run.received("copies")) > least)
        return run.received("copies")

    first = asyncio.run(main(0))
    second = asyncio.run(main(len(first)))
    assert second == [*range(len(second))]


def test_what_a_generator_raises_ends_the_run_behind_what_it_yielded(tmp_path: Path) -> None:
    def items(number: int) -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    with pytest.raises(
        SamzaError, match=r"odd: the generator has failed behind 1 items.*ValueError\('no more'\)\. Mend it.*1 on"
    ):
        copying().run(tmp_path, bind={"numbers": connectors.generator("odd", items)})
    run = copying().run(tmp_path, until_now=True)
    assert run.received("copies") == [1]


@pytest.mark.parametrize("returned", [None, 5, object()])
def test_a_function_that_returns_no_items_is_told(returned: Any, tmp_path: Path) -> None:
    with pytest.raises(SamzaError, match=r"odd: the function has returned a .* for number 0: return the items"):
        copying().run(tmp_path, bind={"numbers": connectors.generator("odd", lambda number: returned)})


def test_a_reader_of_batches_is_a_frame(tmp_path: Path) -> None:
    app = App("rows")
    app.input("rows", value=dict[str, int]).send_to(app.output("copies", value=dict[str, int]))
    batches = pa.table({"n": [*range(10)]}).to_batches(3)
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    assert [row["n"] for row in app.run(tmp_path, bind={"rows": reader}).received("copies")] == [*range(10)]


def test_what_is_no_function_is_told() -> None:
    with pytest.raises(SamzaError, match="write a function that returns the items from a number on"):
        connectors.generator("three", [1, 2, 3])  # type: ignore[arg-type]


def test_a_generator_that_is_bound_as_it_is_is_told(tmp_path: Path) -> None:
    app = App("bound")
    app.input("numbers", value=int).send_to(app.output("copies", value=int))
    with pytest.raises(SamzaError, match=r'connectors\.generator\("numbers", items\)'):
        app.run(tmp_path, bind={"numbers": (n for n in range(3))})
