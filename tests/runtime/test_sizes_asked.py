"""The size of an application: the newest word on its factor holds, and so does the one on its containers."""

import asyncio
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.containers.supervisor import Containers
from runtime.model.assignment import Scale
from runtime.model.clock import LoopClock
from runtime.model.errors import Fenced
from runtime.ports.streams import StreamConfig
from runtime.run.driver import keeping_size
from runtime.run.run import Run, running
from runtime.run.settings import UNSAID, CrewSettings, RunSettings
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options
from tests.scale import examples
from tests.simulation.crash import memory
from tests.simulation.loop import rest, simulate
from tests.strategies import APP

FACTORS = st.none() | st.sampled_from((1, 2, 4))
ASKS = st.lists(st.builds(Scale, FACTORS, st.none() | st.integers(1, 4)), max_size=2)


@dataclass
class Life:
    """One life of a run: whether that is a new one, what its program says, and what is asked before and within."""

    is_new: bool
    factor: int | None
    containers: int
    before: list[Scale]
    within: list[Scale]


@dataclass
class Words:
    """The words on a size so far: the newest of the run, and of any run before."""

    factor: int | None = None
    containers: int = 1
    factor_asked: int | None = None
    factor_of_run: int | None = None
    containers_of_run: int | None = None
    seen: list[Scale] = field(default_factory=list)

    def begin(self, life: Life) -> None:
        """Begin a new run."""
        self.factor, self.containers = life.factor, life.containers
        self.factor_of_run = self.containers_of_run = None

    def ask(self, scale: Scale) -> None:
        """Take in a request."""
        if scale.factor is not None:
            self.factor_asked = self.factor_of_run = scale.factor
        if scale.containers is not None:
            self.containers_of_run = scale.containers

    @property
    def size(self) -> tuple[int, int]:
        """The factor and the number of containers that are in force."""
        said = (self.factor_of_run, self.factor, self.factor_asked, 1)
        return next(one for one in said if one is not None), self.containers_of_run or self.containers


LIVES = st.lists(st.builds(Life, st.booleans(), FACTORS, st.integers(1, 4), ASKS, ASKS), min_size=2, max_size=5)


def app_of(factor: int | None) -> App:
    app = App(APP, Options(commit_interval_ms=5, elasticity=factor))
    summed = app.input("clicks", value=int, key=str, partitions=1).scan(lambda n, one: n + one, init=int)
    summed.send_to(app.output("sums"))
    return app


@given(LIVES)
@settings(max_examples=examples(60, 3_000))
def test_the_newest_word_on_the_factor_holds_in_one_process_however_often_it_begins_anew(lives):
    environment, words = memory(), Words()
    environment.create_stream("clicks", StreamConfig(partitions=1))

    async def live(life: Life) -> None:
        run = made(RunSettings(clock=LoopClock(0)))
        assert run.plan.options.factor == words.size[0]
        driving = asyncio.create_task(run.drive())
        for scale in life.within:
            environment.ask_scale(APP, scale)
            words.ask(scale)
            await rest(500)
            assert run.plan.options.factor == words.size[0]
        run.stop()
        await driving

    made = None
    for life in lives:
        for scale in life.before:
            environment.ask_scale(APP, scale)
            words.ask(scale)
        if made is None or life.is_new:
            made = keeping_size(partial(Run, app_of(life.factor).pipeline(), environment))
            words.begin(life)
        simulate(partial(live, life))


@given(LIVES)
@settings(max_examples=examples(30, 1_000))
def test_the_newest_word_on_either_holds_in_containers_however_often_they_begin_anew(lives):
    with tempfile.TemporaryDirectory() as folder, closing(LogEnvironment(folder)) as log:
        log.create_stream("clicks", StreamConfig(partitions=1))
        words, made = Words(), None
        for life in lives:
            for scale in life.before:
                log.ask_scale(APP, scale)
                words.ask(scale)
            if made is None or life.is_new:
                made = keeping_size(partial(begun, life, folder))
                words.begin(life)
            containers = made(UNSAID, None)
            assert (containers.plan.options.factor, containers.number) == words.size
            for scale in life.within:
                # As it does where its containers have ended, to begin in another size, or as inputs have grown.
                log.ask_scale(APP, scale)
                words.ask(scale)
                containers._take_up()
                assert (containers.plan.options.factor, containers.number) == words.size
            containers._release()


def begun(life: Life, folder: str, settings: RunSettings, fenced: Fenced | None) -> Containers:
    """Return containers as they are before the first of them is started."""
    crew = CrewSettings(number=life.containers, command=[], found=("", ""), fenced=fenced)
    return Containers(app_of(life.factor).pipeline(), folder, crew, settings)


def test_what_is_asked_while_state_moves_is_asked_of_the_run_behind_it(monkeypatch):
    environment, drive = memory(), Run.drive
    environment.create_stream("clicks", StreamConfig(partitions=1))
    environment.own(APP)

    async def moved(run: Run) -> None:
        if run.is_moving:
            environment.ask_scale(APP, Scale(4))
        await drive(run)

    monkeypatch.setattr(Run, "drive", moved)
    pipeline = app_of_any_number().pipeline()

    async def main(grows: bool) -> int:
        async with running(pipeline, environment, RunSettings()) as run:
            await run.send("clicks", 1, "a")
            await run.settled()
            return run.plan.options.factor

    assert asyncio.run(main(False)) == 2
    environment.grow_stream("clicks", 2)
    assert asyncio.run(main(True)) == 4


def app_of_any_number() -> App:
    app = App(APP, Options(commit_interval_ms=5, elasticity=2))
    app.input("clicks", value=int, key=str).scan(lambda n, one: n + one, init=int).send_to(app.output("sums"))
    return app
