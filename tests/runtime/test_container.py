"""A container answers how far it is."""

import asyncio
from dataclasses import dataclass, field

import pytest

from runtime.containers.protocol import Ask
from runtime.containers.worker import _answer
from runtime.model.errors import Unavailable


@dataclass
class Quiet:
    """A run with nothing left to do that it knows of, when brokers answer or do not."""

    fails: str
    finished: bool = True
    commits: int = 0
    tasks: tuple[int, ...] = (0,)

    async def is_caught_up(self):
        return self._answered("is_caught_up")

    async def settled(self):
        self._answered("settled")

    def _answered(self, asked):
        if self.fails == asked:
            raise Unavailable("no broker has answered")
        return True


@dataclass
class Line:
    said: list = field(default_factory=list)

    def say(self, message):
        self.said.append(message)


@pytest.mark.parametrize(("fails", "finished"), [("", True), ("is_caught_up", False), ("settled", False)])
def test_who_can_not_look_again_is_not_at_the_end(fails, finished):
    line = Line()
    asyncio.run(_answer(Quiet(fails), line, Ask(round=1)))
    assert [report.finished for report in line.said] == [finished]
