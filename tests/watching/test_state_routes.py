"""Requests are routed to the containers that have the tasks: all together they answer as one that has all tasks."""

import asyncio
import json
from contextlib import closing
from urllib.parse import quote

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runtime.queries.state_requests import NoAnswer, StateAnswer, StateDesk, StateRequest
from runtime.queries.state_routes import StateRoutes
from runtime.queries.state_shape import shapes_of
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options
from tests.scale import examples

TASKS = 4


def counting():
    app = App("counting", Options(commit_interval_ms=1))
    keyed = app.input("keys", value=int).partition_by(lambda key: key, partitions=TASKS, key_type=int, op_id="keyed")
    keyed.scan(lambda total, key: total + 1, init=int, op_id="count").send_to(app.output("counts"))
    return app


class Container(LogEnvironment):
    """A log that shows the state of some tasks alone."""

    def __init__(self, path, held):
        super().__init__(path)
        self.held = held

    def snapshot(self, app):
        found = super().snapshot(app)
        tasks = found.tasks
        found.tasks = lambda store: {task: place for task, place in tasks(store).items() if task in self.held}
        return found


async def pages(ask, limit):
    found = await ask(StateRequest("count", f"limit={limit}"))
    entries = []
    while True:
        told = json.loads(found.json)
        assert found.status == 200 and len(told["entries"]) <= limit
        entries += told["entries"]
        if told["next"] is None:
            return entries
        found = await ask(StateRequest("count", f"page={quote(told['next'])}"))


@given(data=st.data(), keys=st.lists(st.integers(-3, 40), min_size=1, max_size=30), limit=st.integers(1, 7))
@settings(max_examples=examples(20, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_containers_answer_together_as_one_that_has_all_tasks(tmp_path_factory, data, keys, limit):
    app, folder = counting(), tmp_path_factory.mktemp("state")
    app.run(folder, bind={"keys": keys}, until_now=True)
    slots = [data.draw(st.integers(0, 2)) for _ in range(TASKS)]
    held = {slot: [task for task in range(TASKS) if slots[task] == slot] for slot in {*slots}}
    asked = []

    async def ask_all():
        opened = {slot: (lambda tasks=tasks: closing(Container(folder, tasks))) for slot, tasks in held.items()}
        desks = {slot: StateDesk(app.graph(), one) for slot, one in opened.items()}

        def of(slot):
            async def answer(request):
                asked.append(slot)
                return await desks[slot].answer(request)

            return answer

        routes = StateRoutes(app.graph(), TASKS, lambda: held, of)
        for key in {*keys}:
            asked.clear()
            told = json.loads((await routes.answer(StateRequest("count", f"key={key}"))).json)
            assert told["value"] == keys.count(key)
            assert len(asked) == 1, "the container that its hash names has it, and no other is asked"
        assert (await routes.answer(StateRequest("count", "key=99"))).status == 404
        entries = await pages(routes.answer, limit)
        assert sorted((one["key"], one["value"]) for one in entries) == sorted((k, keys.count(k)) for k in {*keys})
        for desk in desks.values():
            assert not desk._ranges
            desk.close()

    asyncio.run(ask_all())


@given(
    moves=st.lists(st.lists(st.integers(0, 2), min_size=TASKS, max_size=TASKS), min_size=1, max_size=5),
    ends=st.sets(st.integers(0, 2)),
    key=st.integers(0, 40),
)
@example(moves=[[0, 1, 0, 1], [1, 0, 0, 0], [0, 1, 0, 1]], ends=set(), key=0)
def test_a_key_whose_task_moves_while_it_is_asked_for_is_found_where_it_comes_to_rest(moves, ends, key):
    """Each answer may come after the tasks have moved; a container that ends cannot say, and so nobody has said no."""
    graph, left = counting().graph(), [*moves]
    [shape] = [one for one in shapes_of(graph) if one.operator == "count"]
    task = shape.likely(key, shape.key.encode(key), TASKS)

    def held():
        return {slot: [one for one in range(TASKS) if left[0][one] == slot] for slot in {*left[0]}}

    def of(slot):
        async def answer(request):
            if len(left) > 1:
                del left[0]
            if slot in ends:
                return NoAnswer(503, "ended").answer
            return StateAnswer(200, "found") if left[0][task] == slot else NoAnswer(404, "none").answer

        return answer

    answer = asyncio.run(StateRoutes(graph, TASKS, held, of).answer(StateRequest("count", f"key={key}")))
    if left[0][task] in ends:
        assert answer.status == 503
    else:
        # Where all stay that were asked, the last one that has it was asked after it had come there.
        assert answer.status == 200 or len(left) > 1


def test_a_page_of_a_container_that_is_gone_and_one_that_nobody_made_are_told():
    async def refusing(request):
        return NoAnswer(503, "gone").answer

    async def ask():
        routes = StateRoutes(counting().graph(), TASKS, lambda: {1: [0, 1, 2, 3]}, lambda slot: refusing)
        for token in ("0.abc.", "x", "1..%21", "9.9.9", "\u0661.a.b"):
            status = (await routes.answer(StateRequest("count", f"page={quote(token)}"))).status
            assert status in (410, 503)
        assert (
            await StateRoutes(counting().graph(), 1, dict, lambda slot: refusing).answer(StateRequest(""))
        ).status == 503

    asyncio.run(ask())


@given(
    slots=st.lists(st.integers(0, 2), min_size=TASKS, max_size=TASKS),
    keys=st.lists(st.integers(0, 40), min_size=1, max_size=20),
)
@settings(max_examples=examples(10, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_who_follows_from_machine_to_machine_comes_to_an_end_and_ranges_say_whose_they_are(
    tmp_path_factory, slots, keys
):
    app, folder = counting(), tmp_path_factory.mktemp("state")
    app.run(folder, bind={"keys": keys}, until_now=True)
    held = {slot: [task for task in range(TASKS) if slots[task] == slot] for slot in range(3)}
    desks = {
        slot: StateDesk(app.graph(), lambda own=own: closing(Container(folder, own))) for slot, own in held.items()
    }

    async def others():
        return {task: f"c.0 on {slot}" for task, slot in enumerate(slots)}

    def machine(own):
        return StateRoutes(
            app.graph(), TASKS, lambda: {0: held[own]} if held[own] else {}, lambda _: desks[own].answer, others
        )

    async def ask_all():
        machines = [machine(own) for own in {*slots}]
        for key in {*keys, 99}:
            for first in machines:
                answer = await first.answer(StateRequest("count", f"key={key}"))
                if answer.status == 421:
                    on = int(json.loads(answer.json)["error"].rpartition(" ")[2])
                    answer = await machine(on).answer(StateRequest("count", f"key={key}"))
                assert answer.status == (200 if key in keys else 404)
            assert (await first.answer(StateRequest("nobody", f"key={key}"))).status == 404
        entries = []
        for own in {*slots}:
            found = json.loads((await machine(own).answer(StateRequest("count", "limit=100"))).json)
            entries += found["entries"]
            if len(held[own]) < TASKS:
                assert found["tasks"] == held[own]
                assert {one["task"]: one["in"] for one in found["elsewhere"]} == {
                    task: f"c.0 on {slot}" for task, slot in enumerate(slots) if slot != own
                }
            else:
                assert "elsewhere" not in found
        assert sorted((one["key"], one["value"]) for one in entries) == sorted((k, keys.count(k)) for k in {*keys})
        for desk in desks.values():
            desk.close()

    asyncio.run(ask_all())
