"""The size of an application: the newest word on its factor holds, and so does the one on its containers."""

import asyncio
import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.errors import PlanError
from runtime.containers.supervisor import Containers
from runtime.job.job_model import job_of
from runtime.model.assignment import REFUSED, Scale
from runtime.model.clock import LoopClock
from runtime.model.errors import Fenced
from runtime.ports.streams import StreamConfig
from runtime.run import scaling
from runtime.run.driver import keeping_size
from runtime.run.run import Run, running
from runtime.run.settings import UNSAID, CrewSettings, RunSettings
from runtime.systems.kafka.state.ledger import Ledger, said_of_refusal, said_of_scale, scale_in
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


@st.composite
def asked_beside(draw) -> tuple[list[Scale], int]:
    """Draw what is asked, of which one request is refused, and the others come before and after that is noted."""
    asked = draw(st.lists(st.builds(Scale, FACTORS, st.none() | st.integers(1, 4)), min_size=1, max_size=4))
    return asked, draw(st.integers(1, len(asked)))


@pytest.mark.parametrize("place", ["memory", "log", "ledger"])
@given(asked_beside(), st.integers(0, 3), st.sampled_from((None, 2)))
@settings(max_examples=examples(60, 2_000))
def test_a_refusal_keeps_what_is_asked_while_it_is_noted(place, found, behind, containers):
    asked, refused = found
    refusal = Scale(8, containers, REFUSED, refused)
    with noting(place) as (ask, refuse, newest):
        for number, scale in enumerate(asked, start=1):
            ask(scale)
            if number == min(refused + behind, len(asked)):
                refuse(refusal)
        told = newest()
    factors = [(number, one.factor) for number, one in enumerate(asked, start=1) if one.factor is not None]
    numbers = [(number, one.containers) for number, one in enumerate(asked, start=1) if one.containers is not None]
    expected_factor = factors[-1][1] if factors else None
    expected_containers = numbers[-1][1] if numbers else None
    if factors and factors[-1][0] <= refused:
        expected_factor = 8
    if numbers and numbers[-1][0] <= refused and containers is not None:
        expected_containers = containers
    assert (told.factor, told.containers, told.number) == (expected_factor, expected_containers, len(asked))
    assert (told.why == REFUSED) == (refused == len(asked))


@contextmanager
def noting(place: str):
    """What notes requests and refusals, and says the newest: an environment, or the ledger of one on Kafka."""
    if place == "ledger":
        entries: dict[bytes, bytes] = {}

        def write(said) -> None:
            entries.update(zip(said.keys, said.values, strict=True))

        def ask(scale: Scale) -> None:
            write(said_of_scale(scale.behind(scale_in(entries))))

        yield ask, lambda refusal: write(said_of_refusal(refusal)), lambda: scale_in(entries)
        assert not Ledger(entries).checkpoints, "a refusal is no checkpoint"
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(LogEnvironment(folder) if place == "log" else memory()) as environment,
    ):
        environment.own(APP)
        ask, refuse, newest = environment.ask_scale, environment.refuse_scale, environment.asked_scale
        yield partial(ask, APP), partial(refuse, APP), partial(newest, APP)


@pytest.mark.parametrize("asked", [Scale(2), Scale(2, 3)])
def test_what_is_asked_while_a_run_refuses_is_taken_up(asked, monkeypatch):
    environment, planned = memory(), scaling.make_plan
    environment.create_stream("clicks", StreamConfig(partitions=1))

    def plan(graph, options, *arguments, **how):
        if options.factor == 4:
            environment.ask_scale(APP, asked)
            raise PlanError("its tasks can't be split into four")
        return planned(graph, options, *arguments, **how)

    async def main() -> None:
        run = Run(app_of(None).pipeline(), environment, RunSettings(clock=LoopClock(0)))
        driving = asyncio.create_task(run.drive())
        environment.ask_scale(APP, Scale(4))
        await rest(1_000)
        assert run.plan.options.factor == 2
        run.stop()
        await driving

    monkeypatch.setattr(scaling, "make_plan", plan)
    simulate(main)
    assert environment.asked_scale(APP).factor == 2


@pytest.mark.parametrize("asked", [Scale(2), Scale(containers=3)])
def test_what_is_asked_while_containers_refuse_is_taken_up(asked, tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.containers.supervisor.LOOK_MS", 1.0)
    with closing(LogEnvironment(tmp_path)) as log:
        log.create_stream("clicks", StreamConfig(partitions=1))
        containers = begun(Life(True, None, 2, [], []), str(tmp_path), UNSAID, None)

        def check(plan, factor: int) -> None:
            if factor == 4:
                log.ask_scale(APP, asked)
                raise PlanError("its tasks can't be split into four")

        monkeypatch.setattr("runtime.containers.supervisor.check_factor", check)
        log.ask_scale(APP, Scale(4))

        async def main() -> None:
            await asyncio.wait_for(containers._heed_scale([]), 30)

        asyncio.run(main())
        assert containers._goes_on == "here"
        containers._take_up()
        assert containers.plan.options.factor == (asked.factor or 1)
        assert asked.containers in (None, containers.number)
        assert log.asked_scale(APP).factor == (asked.factor or 1)
        containers._release()


def test_who_starts_containers_is_no_run_in_one_process_also_while_none_has_come(tmp_path):
    with closing(LogEnvironment(tmp_path)) as log:
        log.create_stream("clicks", StreamConfig(partitions=1))
        for _ in range(2):
            with closing(LogEnvironment(tmp_path)) as other:
                alone = Run(app_of(None).pipeline(), other, RunSettings())
                assert job_of(log, APP).is_alone and not log.runs(APP).is_run()
                del alone
            assert not job_of(log, APP).containers and not log.runs(APP).is_run()
            containers = begun(Life(True, None, 2, [], []), str(tmp_path), UNSAID, None)
            for _ in range(2):
                assert not job_of(log, APP).containers and log.runs(APP).is_run()
                containers._take_up()
            containers._release()
            assert not log.runs(APP).is_run()


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
