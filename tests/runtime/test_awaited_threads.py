"""What asks an environment in a thread ends only behind it, also where it is cancelled: who cancels it closes that."""

import asyncio
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from runtime.containers.leadership import Leadership, Spanning
from runtime.model.clock import LoopClock
from runtime.model.errors import Fenced
from runtime.ports.environment import LiveEnvironment
from runtime.run.driver import in_thread
from runtime.run.scaling import follow_ahead


class Asked:
    """An environment and its shared run, each question of which is answered when the test lets it."""

    def __init__(self):
        self.begun, self.answers, self.answered = threading.Event(), threading.Event(), False
        self.leads, self.name = False, "one"

    def ask(self, *of):
        self.begun.set()
        assert self.answers.wait(60)
        self.answered = True
        return False

    run = 1
    announced = newer = is_over = quiet = agree = are_others_ready = is_deserted = span = ask

    def asked_scale(self, app):
        self.ask()


def leadership(asked):
    return Leadership("app", asked, lambda: SimpleNamespace(inboxes=[1], outboxes=[]), LoopClock(0))


async def opened():
    raise AssertionError("nobody is gone")


QUESTIONS = {
    "what in_thread does": lambda asked: in_thread(asked.ask),
    "with arguments": lambda asked: in_thread(asked.ask, 1, 2),
    "whether others are ready": lambda asked: leadership(asked).others_ready(1, lambda: True),
    "who leads": lambda asked: leadership(asked).follow(lambda: False, opened),
    "whether all is delivered": lambda asked: leadership(asked).is_delivered(),
    "what others say": lambda asked: leadership(asked).said_by_others(),
    "whether all agree": lambda asked: leadership(asked).agree({}, {}, 2),
    "whether a cut has come": lambda asked: leadership(asked).rest(1_000.0, True),
    "the next run": lambda asked: leadership(asked).next_run(Fenced("fenced"), lambda: False),
    "belonging to two runs": lambda asked: Spanning(asked, "app").begin(1),
    "the size that is asked for": lambda asked: follow_ahead(
        asked, SimpleNamespace(app="app"), None, 0, lambda number: None, leadership(asked).rest
    ),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_who_is_cancelled_while_an_environment_is_asked_ends_behind_the_answer(question, monkeypatch):
    monkeypatch.setattr("runtime.containers.leadership.FAR_LOOK_MS", 0.0)
    monkeypatch.setattr(
        "runtime.containers.leadership.isinstance", lambda one, of: of is LiveEnvironment, raising=False
    )
    asked = Asked()

    async def main():
        asking = asyncio.create_task(question(asked))
        await asyncio.to_thread(partial(asked.begun.wait, 60))
        asking.cancel()
        try:
            done, _ = await asyncio.wait([asking], timeout=0)
            assert not done
        finally:
            asked.answers.set()
        await asyncio.wait([asking])
        assert asked.answered and asking.cancelled()

    asyncio.run(main())
