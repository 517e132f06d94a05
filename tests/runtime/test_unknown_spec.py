"""A spec that nobody has heard of is an error that names it, and never becomes another operator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from operators.core.base import Site, Spec
from planner.model.errors import PlanError
from samza_dsl import App, testing
from samza_dsl.fluent.stream import MessageStream
from tests.specs import specs


@dataclass(frozen=True, eq=False, kw_only=True)
class Mystery(Spec):
    """Keeps state, and says of no operator that it does so."""

    kind: ClassVar[str] = "mystery"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., Any]]:
        return {"on_message": lambda value, context: [value]}  # as a process has, which it is not


@dataclass(frozen=True, eq=False, kw_only=True)
class Shapeless(Spec):
    """Has neither code nor state."""

    kind: ClassVar[str] = "shapeless"


def application(kind: type[Spec]) -> App:
    app = App("unknown")
    numbers = app.input("numbers", value=int, key=str, timestamp=lambda n: n)
    spec = app.add(kind(parents=(numbers.spec,), op_id="odd", site=Site("app.py", 7)))
    stream: MessageStream[str, int] = MessageStream(app, spec)
    stream.send_to(app.output("out", value=int))
    return app


def test_state_without_an_operator_is_an_error() -> None:
    with pytest.raises(TypeError) as raised:
        testing.run(application(Mystery), {"numbers": [("a", 1)]})
    assert str(raised.value) == (
        "mystery 'odd' at app.py:7: Mystery has no operator; write instead: def build(self, context) in Mystery, "
        "which returns one"
    )


def test_what_has_neither_code_nor_state_is_an_error() -> None:
    with pytest.raises(PlanError) as raised:
        testing.run(application(Shapeless), {"numbers": [("a", 1)]})
    assert str(raised.value) == (
        "shapeless 'odd' at app.py:7: nothing says where the messages go that come to a Shapeless; write instead: "
        "code = (...) in its class, or stateful = True and def build(self, context)"
    )


def test_all_that_keeps_state_builds_its_operator() -> None:
    keeping = [kind for kind in specs() if kind.stateful is not False]
    assert len(keeping) > 10
    without = [kind.__name__ for kind in keeping if kind.build is Spec.build and not (kind.in_calls or kind.source)]
    assert without == []
