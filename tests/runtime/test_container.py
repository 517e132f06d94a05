"""A container answers how far it is."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.entry_keys import ordered
from runtime.containers import crew_numbers
from runtime.containers.crew_numbers import SILENCE_S, SILENT_MS, Round, Silences
from runtime.containers.protocol import Ask, AskNumbers, Go
from runtime.containers.worker import _answer, _run
from runtime.model.clock import LoopClock
from runtime.model.errors import SamzaError, Unavailable
from samza_dsl.application.container import _failed
from tests.simulation.loop import simulate


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


class Told:
    """A run that is driven until it is stopped, and whose numbers can't be had."""

    keeps_state = False

    def __init__(self):
        self.over, self.done = asyncio.Event(), []

    def stop(self):
        self.over.set()

    def release(self):
        self.done.append("released")

    async def drive(self):
        await self.over.wait()
        self.done.append("driven")

    def metrics(self, stores):
        raise RuntimeError("no numbers")

    def when_finished(self, call):
        pass

    when_shared = when_finished


@pytest.mark.parametrize(("told", "done"), [([AskNumbers()], ["released"]), ([Go(), AskNumbers()], ["driven"])])
def test_who_does_not_hear_the_starter_any_more_ends_and_says_why(told, done):
    async def main():
        run, line, messages = Told(), Line(), iter(told)

        async def heed():
            return next(messages)

        line.heed = heed
        with pytest.raises(RuntimeError, match="no numbers"):
            await _run(run, line)
        assert run.done == done

    asyncio.run(asyncio.wait_for(main(), 60))


@given(st.lists(st.tuples(st.sampled_from((1_000.0, 4_000.0, 12_000.0)), st.booleans()), max_size=40))
def test_a_silence_is_told_once_and_once_that_it_is_over(looks):
    """Each look comes some time after the one before, and the container may have said something just then.

    Behind a long pause between two looks nobody is silent, as what was said in it has not been read.
    """
    one = SimpleNamespace(name="0.0", joined=False, heard_ms=0.0, process=SimpleNamespace(pid=7), tasks=(3,))
    told, expected, now_ms, is_silent, since_ms = [], [], 0.0, False, 0.0
    silences = Silences("app")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew_numbers._log, "warning", lambda text, *said: told.append(text % said))
        silences.tell([one], 10 * SILENT_MS)
        assert told == [], "one that loads the application is not told"
        one.joined = True
        silences = Silences("app")
        for passed_ms, speaks in looks:
            now_ms += passed_ms
            since_ms = now_ms if passed_ms >= SILENT_MS / 2 else since_ms
            if speaks:
                expected += [f"goes on, after {(now_ms - one.heard_ms) / 1_000:.0f} s"] * is_silent
                one.heard_ms, is_silent = now_ms, False
            elif now_ms - max(one.heard_ms, since_ms) >= SILENT_MS and not is_silent:
                expected.append(f"has said nothing for {(now_ms - one.heard_ms) / 1_000:.0f} s")
                is_silent = True
            silences.tell([one], now_ms)
    assert len(told) == len(expected) and all(word in line for word, line in zip(expected, told, strict=True))
    assert all("container 0.0 (process 7)" in line for line in told)


def test_those_that_have_answered_are_asked_again_while_another_one_is_waited_for(monkeypatch):
    told, clock, containers = [], LoopClock(), {}
    monkeypatch.setattr(crew_numbers._log, "warning", lambda text, *said: told.append(text % said))

    async def main():
        waiting = Round(containers, Silences("app"), clock)

        def hears(word):
            well.heard_ms = clock.elapsed_ms()
            waiting.changed.set()

        how = {"joined": True, "heard_ms": 0.0, "tasks": (0,), "line": SimpleNamespace(say=hears)}
        well = SimpleNamespace(name="0.0", report=SimpleNamespace(round=1), process=SimpleNamespace(pid=7), **how)
        hung = SimpleNamespace(name="1.0", report=None, process=SimpleNamespace(pid=8), **how)
        containers.update({0: well, 1: hung})
        assert (await waiting.answers(1, 4 * SILENT_MS / 1_000)).keys() == {"0.0"}
        assert clock.elapsed_ms() - well.heard_ms <= 1_000 * SILENCE_S

    simulate(main, 0)
    assert len(told) == 1 and "container 1.0 (process 8) has said nothing for 10 s" in told[0]


def test_a_fault_of_the_library_is_logged_with_its_lines_and_one_of_the_user_is_told_with_his_own(caplog):
    with pytest.raises(TypeError) as found:
        ordered("no number")
    of_user, of_library = found.value, TypeError("no number")
    assert of_user.__traceback__ is not None
    of_library.__traceback__ = of_user.__traceback__.tb_next  # without the line of this file, which has called it
    assert _failed(of_user).lines
    assert not caplog.records, "whoever has started it tells the user's lines"
    assert not _failed(of_library).lines
    assert "entry_keys.py" in caplog.text and "please report it" in caplog.text
    caplog.clear()
    _failed(SamzaError("brokers have not answered"))
    assert not caplog.records
