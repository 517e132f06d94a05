"""What a protocol is asked for by `isinstance` is answered as Python's own protocols do."""

from contextlib import closing
from types import SimpleNamespace
from typing import Protocol, runtime_checkable

import pytest

from operators.core.protocols import CheckedProtocol
from runtime.ports import environment, sink, source
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSource

MODULES = (environment, source, sink)
CHECKED = [found for module in MODULES for found in vars(module).values() if type(found) is CheckedProtocol]


@runtime_checkable
class Told(Protocol, metaclass=CheckedProtocol):
    """A protocol with a method and something that is kept."""

    kept: int

    def tell(self): ...


@runtime_checkable
class TwiceTold(Told, Protocol, metaclass=CheckedProtocol):
    def tell_again(self): ...


class Own(Told):
    """A class that implements one."""

    kept = 1


def as_python(protocol, one):
    return type(Protocol).__instancecheck__(protocol, one)


def test_real_ports_are_told_apart_as_python_does(tmp_path):
    with closing(LogEnvironment(tmp_path)) as log, closing(MemoryEnvironment()) as memory:
        answers = {
            (protocol.__name__, type(one).__name__): isinstance(one, protocol)
            for protocol in CHECKED
            for one in (log, memory, ListSource([1]), object(), None, 3)
            if isinstance(one, protocol) == as_python(protocol, one)
        }
    assert len(answers) == 6 * len(CHECKED) and {*answers.values()} == {True, False}


@pytest.mark.parametrize("protocol", [Told, TwiceTold])
@pytest.mark.parametrize(
    "one",
    [
        SimpleNamespace(kept=None, tell=print),
        SimpleNamespace(kept=1, tell=None),
        SimpleNamespace(kept=1),
        SimpleNamespace(kept=1, tell=print, tell_again=print),
        SimpleNamespace(kept=1, tell=print, tell_again=None),
        Own(),
    ],
    ids=["no value", "no method", "a method too few", "all", "a second method that is None", "a class's own"],
)
def test_members_may_be_an_objects_own_and_a_method_may_be_none(protocol, one):
    assert isinstance(one, protocol) == as_python(protocol, one)


def test_a_class_that_implements_one_is_told_by_its_bases():
    assert isinstance(Own(), Own) and not isinstance(SimpleNamespace(kept=1, tell=print), Own)
