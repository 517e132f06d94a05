"""The state of a run's containers is asked for from any thread but that of the event loop which hears them."""

import asyncio
from types import SimpleNamespace

import pytest

from runtime.containers.crew_state import CrewState
from runtime.model.assignment import JobModel
from runtime.systems.kafka import environment
from runtime.systems.kafka.client.topic import cluster_of
from samza_dsl import App, SamzaError


class Brokers:
    """A cluster on which one container of this process has the only task."""

    opened = 0

    def __init__(self, *_):
        Brokers.opened += 1

    def job_model(self, app):
        return JobModel(1, 1, ("c.0",), ("c.0",), ("here",), (), ("",))

    def close(self):
        pass


@pytest.fixture
def crew(monkeypatch):
    monkeypatch.setattr(environment, "KafkaEnvironment", Brokers)
    monkeypatch.setattr(Brokers, "opened", 0)
    app = App("counting")
    keyed = app.input("words", value=str).partition_by(lambda word: word, partitions=1, op_id="keyed")
    keyed.scan(lambda total, _: total + 1, init=int, op_id="count").send_to(app.output("counts"))
    asked = asyncio.Event()

    async def never(request):
        asked.set()
        await asyncio.Event().wait()

    container = SimpleNamespace(name="c.0", joined=True, tasks=(0,), state_answer=never)
    found = CrewState(app.graph(), Brokers(), cluster_of("kafka://nowhere:1"), {0: container}, None)
    Brokers.opened = 0
    yield SimpleNamespace(state=found, asked=asked)
    found.end()


def test_the_event_loop_of_a_run_opens_no_cluster_and_asks_none(crew):
    async def in_the_loop():
        crew.state.begin(1)
        count = crew.state.state("count")
        for ask in (lambda: count.get("a"), lambda: [*count.range()]):
            with pytest.raises(SamzaError, match=r"asyncio\.to_thread"):
                ask()
        return count

    count = asyncio.run(in_the_loop())
    assert Brokers.opened == 0
    crew.state.end()
    with pytest.raises(SamzaError, match="query\\(app, environment="):
        count.get("a")


@pytest.mark.parametrize("is_ended", [False, True])
def test_who_asks_as_a_run_ends_is_told_that_it_is_over(crew, is_ended):
    async def run():
        crew.state.begin(1)
        asking = asyncio.get_running_loop().run_in_executor(None, crew.state.state("count").get, "a")
        await crew.asked.wait()
        if is_ended:
            crew.state.end()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # as asyncio.run does
        await asking

    with pytest.raises(SamzaError, match="has ended"):
        asyncio.run(run())
