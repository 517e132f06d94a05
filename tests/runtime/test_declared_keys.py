"""Keys of a declared type: one that the type can't read again meets its policy, and is never written."""

import datetime as dt
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pytest
from msgspec import Struct

from runtime.encoding.keys import KeySerde
from runtime.model.errors import OperatorFailure
from samza_dsl import App, collect, dead_letter, fail, produce, skip, testing, tumbling


class Colour(Enum):
    RED = "red"


class Place(Struct, frozen=True):
    row: int


KINDS: dict[str, tuple[Any, object, object]] = {
    "int": (int, 7, "8"),
    "bool": (bool, True, 8),
    "float": (float, 7.5, "8"),
    "date": (dt.date, dt.date(2024, 1, 1), "soon"),
    "uuid": (UUID, UUID(int=1), "none"),
    "decimal": (Decimal, Decimal("1.5"), "many"),
    "enum": (Colour, Colour.RED, "blue"),
    "literal": (Literal["a", "b"], "a", "c"),
    "struct": (Place, Place(1), {"row": "one"}),
    "tuple": (tuple[int, str], (1, "a"), ("a", 1)),
    "list": (list[int], [1], ["a"]),
    "optional": (int | None, 7, "8"),
}


def application(kind, right, wrong, seen, policy):
    app = App("declared")
    numbers = app.input("in", value=int, timestamp=lambda n: n)
    by = numbers.partition_by(lambda n: right if n % 2 else wrong, key_type=kind, on_error=policy, op_id="by")
    by.sink(seen.append, op_id="seen")
    by.window(tumbling(seconds=1), collect(), op_id="panes").sink(lambda pane: seen.extend(pane.value), op_id="all")
    return app


@pytest.mark.parametrize("policy", [skip, dead_letter("bad")], ids=["skip", "dead_letter"])
@pytest.mark.parametrize("name", KINDS)
def test_a_key_that_can_not_be_read_again_meets_the_policy_live_as_in_tests(tmp_path, name, policy):
    seen = []
    app = application(*KINDS[name], seen, policy)
    produce("in", [1, 2, 3], data=tmp_path)
    run = app.run(tmp_path, until_now=True)
    assert seen == [1, 3]
    if policy is not skip:
        assert sum(one.dead_lettered for one in run.metrics().operators) == 1
    produce("in", [5], data=tmp_path)
    app.run(tmp_path, until_now=True)  # nothing lies between the stages that ends it
    assert seen == [1, 3, 5]
    seen.clear()
    testing.run(app, {"in": [1, 2, 3]})
    assert sorted(seen) == [1, 1, 3, 3]


@pytest.mark.parametrize("name", KINDS)
def test_it_ends_the_run_with_its_operator_where_nothing_else_is_said(tmp_path, name):
    seen = []
    app = application(*KINDS[name], seen, fail)
    with pytest.raises(OperatorFailure, match=r"partition_by 'by' at .*test_declared_keys.py.*not be read again"):
        app.run(tmp_path, bind={"in": [1, 2, 3]})
    with pytest.raises(OperatorFailure, match=r"partition_by 'by' at .*test_declared_keys.py"):
        testing.run(app, {"in": [1, 2, 3]})


def test_one_that_a_former_version_wrote_meets_the_policy_of_who_reads_it(tmp_path, monkeypatch):
    def written(keys, key):
        return keys.serde.encode(key)

    produce("in", [1, 2, 3], data=tmp_path)
    with monkeypatch.context() as former:
        former.setattr(KeySerde, "_held", written)
        with pytest.raises(OperatorFailure, match=r"partition_by 'by' at .* on the key of declared-by/"):
            application(int, 7, "8", [], fail).run(tmp_path, until_now=True)
    seen = []
    application(int, 7, "8", seen, skip).run(tmp_path, until_now=True)
    assert seen[:2] == [1, 3] and 2 not in seen
