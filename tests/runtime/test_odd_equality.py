"""Values and keys whose == does what it likes: no step compares them with anything but what the user said."""

import numpy as np
import pytest
from msgspec import Struct

from samza_dsl import App, collect, count, counted, session, skip, testing, tumbling


class Point(Struct, frozen=True):
    """A value that can be compared with its like alone."""

    x: int

    def __eq__(self, other):
        return self.x == other.x

    def __hash__(self):
        return hash(self.x)


class Query(Struct, frozen=True):
    """A value whose == builds something that counts as true, as an expression of SQL does."""

    x: int

    def __eq__(self, other):
        return ["="]

    __hash__ = Point.__hash__


MADE = [Point, Query, lambda n: np.arange(n, n + 3), lambda n: {"a": Point(n)}]
IDS = ["raises", "is true", "array", "in a dict"]


@pytest.mark.parametrize("made", MADE, ids=IDS)
@pytest.mark.parametrize("how", ["partition_by", "broadcast", "state", "collect", "outbox"])
def test_such_a_value_goes_through(tmp_path, made, how):
    app, seen = App("odd"), []
    values = app.input("in", value=int, timestamp=lambda n: n).map(made, on_error=skip)
    if how == "partition_by":
        values = values.partition_by(lambda value: "k", partitions=2, on_error=skip)
    elif how == "broadcast":
        values = values.broadcast(on_error=skip)
    elif how != "outbox":
        keyed = values.partition_by(lambda value: "k", partitions=1)
        if how == "state":
            values = keyed.scan(lambda last, value: value, emit=lambda key, value: value)
        else:
            panes = keyed.window(tumbling(seconds=1), collect())
            values = panes.flat_map(lambda pane: pane.value)
    values.sink(seen.append)
    if how == "outbox":
        values.map(lambda value: 0).send_to(app.output("out", value=int))
    app.run(tmp_path, bind={"in": [1, 2, 3]})
    assert len(seen) == 3
    seen.clear()
    testing.run(app, {"in": [1, 2, 3]})
    assert len(seen) == 3


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "avro"])
@pytest.mark.parametrize("made", [Point, Query])
def test_such_a_value_is_written_to_files(tmp_path, made, kind):
    app = App("odd")
    app.input("in", value=int).map(made).send_to(app.output("out", value=made))
    app.run(tmp_path / "data", bind={"in": [1, 2, 3], "out": tmp_path / f"out.{kind}"})
    back = App("back")
    seen = []
    back.input("out", value=made).sink(lambda value: seen.append(value.x))
    back.run(tmp_path / "back", bind={"out": tmp_path / f"out.{kind}"})
    assert sorted(seen) == [1, 2, 3]


@pytest.mark.parametrize("windows", ["tumbling", "session", "counted"])
def test_such_a_value_is_a_key(tmp_path, windows):
    kinds = {"tumbling": tumbling(seconds=1), "session": session(seconds=1), "counted": counted(1)}
    app, seen = App("odd"), []
    keyed = app.input("in", value=int, timestamp=lambda n: n).partition_by(Point, partitions=2)
    keyed.window(kinds[windows], count()).sink(lambda pane: seen.append(pane.key.x))
    app.run(tmp_path, bind={"in": [1, 2, 3]})
    assert sorted(seen) == [1, 2, 3]
