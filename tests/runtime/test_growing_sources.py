"""Sources of the user's own that get more partitions: each key goes on with its state, if it has one alone."""

from pathlib import Path

import pytest

from planner.model.errors import PlanError
from runtime.encoding.serdes import Bytes
from samza_dsl import App
from tests.runtime.test_connectors import Shelf


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "by value"])
def test_state_by_the_keys_of_a_source_follows_them_where_a_partition_comes(stored: bool, tmp_path: Path) -> None:
    app = App("counting")
    numbers = (
        app.input("numbers", value=int, key=Bytes())
        if stored
        else app.input("numbers", value=int, key=lambda n: "key", partitioned_by_key=True)
    )
    counted = numbers.scan(lambda seen, n: seen + n, init=int, op_id="counted")
    counted.send_to(app.output("seen", value=int))
    shelf = Shelf({"empty": [], "a": [1, 2]})
    app.run(tmp_path, bind={"numbers": shelf.source()})
    shelf.partitions |= {"b": [3], "c": []}
    app.run(tmp_path, bind={"numbers": shelf.source()})
    shelf.partitions |= {"d": [4]}
    run = app.run(tmp_path, bind={"numbers": shelf.source()})
    assert run.output("seen").to_pandas()["value"].tolist() == [1, 3, 6, 10]


@pytest.mark.parametrize("grows", [False, True], ids=["as it is", "grown"])
def test_equal_keys_in_several_partitions_of_a_source_are_told(
    grows: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("counting")
    counted = app.input("numbers", value=int, key=Bytes()).scan(lambda seen, n: seen + n, init=int, op_id="counted")
    counted.send_to(app.output("seen", value=int))
    shelf = Shelf({"a": [1], "b": [2]})
    app.run(tmp_path, bind={"numbers": shelf.source()})
    assert "equal keys of 'numbers' lie in several of its partitions" in caplog.text
    if grows:
        shelf.partitions["c"] = [3]
        with pytest.raises(PlanError, match=r"records of it lay in several partitions.*write instead: \.partition_by"):
            app.run(tmp_path, bind={"numbers": shelf.source()})
