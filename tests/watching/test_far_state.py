"""State that is asked for from afar is as a process reads it that has it: of keys, lists, maps, panes and ranges."""

import asyncio
import datetime as dt
import platform
from contextlib import closing, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from runtime.encoding.serdes import MessagePack
from runtime.model.assignment import JobModel
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.queries import far_state
from runtime.queries.far_state import FarStateQuery
from runtime.queries.state_query import NotReached
from runtime.queries.state_requests import StateDesk, StateRequest
from runtime.queries.state_routes import StateRoutes
from runtime.queries.state_shape import shapes_of
from runtime.queries.stored_entries import StoredEntry, stored_json
from runtime.systems.host.addresses import told_to_others
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, PlanError, SamzaError, count, query, tumbling
from tests.scale import examples
from tests.watching.test_state_routes import Container

TASKS = 4


@dataclass(frozen=True)
class Seat:
    """A key that only a serde which knows its class reads."""

    row: int
    day: dt.date


KEYS = {
    "int": (int, st.integers(-3, 40)),
    "text": (str, st.text(max_size=3)),
    "none declared": (None, st.one_of(st.integers(0, 9), st.text(max_size=2), st.dates(), st.binary(max_size=2))),
    "a serde": (
        MessagePack(Seat),
        st.builds(Seat, st.integers(0, 5), st.dates(dt.date(2026, 1, 1), dt.date(2026, 1, 3))),
    ),
}


def counting(kind):
    app = App("counting", Options(commit_interval_ms=1))
    read = app.input("keys", timestamp=lambda row: row[0])
    keyed = read.partition_by(lambda row: row[1], partitions=TASKS, key_type=kind, op_id="keyed")
    keyed.scan(lambda total, row: total + 1, init=int, op_id="count").send_to(app.output("counts"))

    def remember(row, context):
        context.list("times").append(row[0])
        context.map("by time")[row[0]] = row[0] * 2
        return []

    keyed.process(remember, op_id="remember").send_to(app.output("none"))
    keyed.window(tumbling(minutes=1), count(), op_id="panes").send_to(app.output("panes"))
    return app


class Cluster(LogEnvironment):
    """A log of which containers on several machines have the tasks, as `slots` says; it moves after some looks."""

    def __init__(self, path, graph, moves, addresses=None):
        super().__init__(path)
        self.graph, self.moves, self.looks, self.down = graph, [*moves], 0, set()
        self.addresses = addresses
        self.hands, self.is_early = [], True
        """Where tasks are really, one answer after the other, None for nowhere; they move before it is looked or after.

        Without any they are where the model says.
        """

    def job_model(self, app):
        self.looks += 1
        if len(self.moves) > 1 and self.looks > 1:
            del self.moves[0]
        names = sorted({*self.moves[0]})
        addresses = self.addresses or tuple(f"10.0.0.{name}:9464" for name in names)
        tasks = tuple(f"c.{slot}" for slot in self.moves[0])
        return JobModel(
            1, len(self.moves), tuple(f"c.{n}" for n in names), tasks, ("here",) * len(names), (), addresses
        )

    def ask(self, address, path, token):
        """Answer as the process at an address does, which knows the others."""
        machine, url = int(address.partition(":")[0].rpartition(".")[2]), urlsplit(path)
        if machine in self.down:
            raise ConnectionRefusedError(f"{address} is down")

        async def others():
            return {task: f"c.{slot}" for task, slot in enumerate(self.slots) if slot is not None}

        async def asked(request):
            if self.is_early:
                self.move()
            found = await self.desk(machine, self.held(machine)).answer(request)
            if not self.is_early:
                self.move()
            return found

        async def answer():
            routes = StateRoutes(self.graph, TASKS, lambda: {0: self.held(machine)}, lambda _: asked, others)
            return await routes.answer(StateRequest(url.path.removeprefix("/state/"), url.query))

        found = asyncio.run(answer())
        return found.status, found.json.encode()

    @property
    def slots(self):
        return self.hands[0] if self.hands else self.moves[0]

    def move(self):
        if len(self.hands) > 1:
            del self.hands[0]

    def held(self, machine):
        return [task for task in range(TASKS) if self.slots[task] == machine]

    def desk(self, machine, held):
        # Kept for its ranges, which go on from page to page.
        self.desks = getattr(self, "desks", {})
        if machine not in self.desks:
            self.desks[machine] = StateDesk(self.graph, lambda: closing(Container(self.path, held)))
        return self.desks[machine]

    def close(self):
        for desk in getattr(self, "desks", {}).values():
            desk.close()
        super().close()


def told(found, keys):
    """Return all that a query says of an application's state."""
    counts, remembered, panes = found.state("count"), found.state("remember"), found.state("panes")
    of_keys = [
        (counts.get(key, 0), remembered.list(key, "times"), remembered.map(key, "by time"), panes.get(key, []))
        for key in keys
    ]
    by_time = sorted(panes.range(), key=lambda one: (repr(one[0]), one[1].start))
    return of_keys, sorted(counts.range(), key=repr), by_time


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
@settings(max_examples=examples(12, 200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_all_that_is_asked_from_afar_is_as_it_lies(tmp_path_factory, kind, data):
    declared, drawn = KEYS[kind]
    app, folder = counting(declared), tmp_path_factory.mktemp("state")
    rows = data.draw(st.lists(st.tuples(st.integers(0, 200_000), drawn), min_size=1, max_size=20))
    app.run(folder, bind={"keys": rows}, until_now=True)
    slots = data.draw(st.lists(st.integers(0, 2), min_size=TASKS, max_size=TASKS))
    keys = [*{key: None for _, key in rows}, data.draw(drawn)]
    cluster = Cluster(folder, app.graph(), [slots])
    cluster.snapshot = None  # nothing is read but what containers answer
    with FarStateQuery(app.graph(), lambda: cluster, cluster.close, ask=cluster.ask) as far, query(app, folder) as near:
        assert told(far, keys) == told(near, keys)
        bounds = data.draw(drawn), data.draw(drawn)
        for start, end in ((bounds[0], None), (None, bounds[1]), bounds):
            with suppress(TypeError):  # keys of several types are in no order
                near_ones = sorted(near.state("count").range(start, end), key=repr)
                assert sorted(far.state("count").range(start, end), key=repr) == near_ones


@given(
    moves=st.lists(st.lists(st.integers(0, 2), min_size=TASKS, max_size=TASKS), min_size=1, max_size=3),
    down=st.sets(st.integers(0, 2)),
    key=st.integers(0, 12),
)
@settings(max_examples=examples(30, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_moves_or_is_down_is_found_all_the_same(tmp_path_factory, moves, down, key):
    app, folder = counting(int), tmp_path_factory.mktemp("state")
    app.run(folder, bind={"keys": [(at, at % 10) for at in range(30)]}, until_now=True)
    cluster = Cluster(folder, app.graph(), moves)
    cluster.down = down
    cluster.desk = lambda machine, held: StateDesk(app.graph(), lambda: closing(Container(folder, held)))
    with FarStateQuery(app.graph(), lambda: cluster, cluster.close, ask=cluster.ask) as far:
        assert far.state("count").get(key, 0) == (3 if key < 10 else 0)
        with suppress(SamzaError):  # which says that it is to be begun anew, as the next test sees
            assert dict(far.state("count").range()) == dict.fromkeys(range(10), 3)


def test_a_range_whose_tasks_move_meanwhile_is_to_be_begun_anew(tmp_path):
    app = counting(int)
    app.run(tmp_path, bind={"keys": [(1, 7)]}, until_now=True)
    cluster = Cluster(tmp_path, app.graph(), [[0] * TASKS, [0] * TASKS])
    with FarStateQuery(app.graph(), lambda: cluster, cluster.close, ask=cluster.ask) as far:
        with pytest.raises(SamzaError, match="begin it anew"):
            list(far.state("count").range())
        assert dict(far.state("count").range()) == {7: 1}


@given(
    hands=st.lists(st.lists(st.sampled_from([0, 1, None]), min_size=TASKS, max_size=TASKS), min_size=1, max_size=3),
    is_early=st.booleans(),
)
@example([[0, 1, 0, None]], True)  # one is in nobody's hands
@example([[0, 1, 0, 1], [1, 1, 0, 1]], False)  # one goes from a container that was asked to one that was not yet
@example([[0, 1, 0, 1], [0, 0, 0, 1]], False)  # and the other way
@example([[0, 1, 0, 1], [None, 1, 0, 1]], True)  # one goes as it is asked for
@settings(max_examples=examples(20, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_range_leaves_out_no_task_and_has_none_twice_without_a_word(tmp_path_factory, hands, is_early):
    app, folder = counting(int), tmp_path_factory.mktemp("state")
    app.run(folder, bind={"keys": [(at, at % 10) for at in range(30)]}, until_now=True)
    cluster = Cluster(folder, app.graph(), [[0, 1, 0, 1]])
    cluster.desk = lambda machine, held: StateDesk(app.graph(), lambda: closing(Container(folder, held)))
    is_still = len({*map(tuple, hands)}) == 1 and None not in hands[0]
    cluster.hands, cluster.is_early = hands, is_early
    # A task that stays in nobody's hands would be waited for, ten seconds each time.
    with (
        patch.object(far_state, "MOVING_MS", 0),
        FarStateQuery(app.graph(), lambda: cluster, cluster.close, ask=cluster.ask) as far,
    ):
        found, refused = [], ""
        try:
            found = sorted(far.state("count").range(timeout_ms=1))
        except SamzaError as error:
            refused = str(error)
    assert found == [(key, 3) for key in range(10)] or ("begin it anew" in refused and not is_still)


ASKED = {
    "key": lambda count, **how: count.get(3, **how),
    "range": lambda count, **how: dict(count.range(**how))[3],
}


@pytest.mark.parametrize("kind", ASKED)
def test_a_task_that_is_in_no_container_is_waited_for_by_a_key_and_by_a_range_alike(tmp_path, kind):
    app = counting(int)
    app.run(tmp_path, bind={"keys": [(at, at % 10) for at in range(30)]}, until_now=True)
    cluster = Cluster(tmp_path, app.graph(), [[0, 1, 0, 1]])
    cluster.desk = lambda machine, held: StateDesk(app.graph(), lambda: closing(Container(tmp_path, held)))
    cluster.snapshot = None  # nothing is read but what containers answer
    cluster.hands, paused = [[None] * TASKS], []

    def pause_ms(ms):
        paused.append(ms)
        if len(paused) == 3:  # a container has come in the place of who had died
            cluster.hands = [[0, 1, 0, 1]]

    with FarStateQuery(app.graph(), lambda: cluster, cluster.close, ask=cluster.ask) as far:
        far._clock = SimpleNamespace(pause_ms=pause_ms)
        assert ASKED[kind](far.state("count")) == 3 and len(paused) == 3


@pytest.mark.parametrize("kind", ASKED)
def test_where_a_task_stays_in_no_container_changelogs_are_read(tmp_path, monkeypatch, caplog, kind):
    app = counting(int)
    app.run(tmp_path, bind={"keys": [(at, at % 10) for at in range(30)]}, until_now=True)
    cluster = Cluster(tmp_path, app.graph(), [[0, 1, 0, 1]])
    cluster.hands = [[None] * TASKS]
    monkeypatch.setattr(far_state, "MOVING_MS", 0)
    with (
        caplog.at_level("WARNING", "samza_dsl"),
        FarStateQuery(app.graph(), lambda one=cluster: one, cluster.close, ask=cluster.ask) as far,
    ):
        assert ASKED[kind](far.state("count"), timeout_ms=1) == 3
    assert "read from its changelogs" in caplog.text


@given(held=st.lists(st.integers(0, 3), min_size=1, max_size=4), key=st.integers(0, 9))
@settings(max_examples=examples(20, 200), deadline=None)
def test_who_was_taken_for_dead_answers_for_no_longer_than_the_model_counts(held, key):
    """Of several that each say that they have the task, the answer is of who has it by the newest model."""
    graph, models = counting(int).graph(), [*held]
    [shape] = [one for one in shapes_of(graph) if one.operator == "count"]
    value = {one: shape.value.encode(one) for one in range(4)}
    place = shape.key.encode(key)

    class Moving:
        def job_model(self, app):
            slot = models[0] if len(models) == 1 else models.pop(0)
            return JobModel(1, slot, ("c",), ("c",) * TASKS, ("h",), (), (f"10.0.0.{slot}:9464",))

    def ask(address, path, token):
        slot = int(address.partition(":")[0].rpartition(".")[2])
        entry = StoredEntry(0, shape.entries[0].first + place, value[slot]).json
        return 200, f'{stored_json("counting", "count", [entry])},"next":null}}'.encode()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(far_state, "FRESH_MS", -1)
        with FarStateQuery(graph, Moving, lambda: None, ask=ask) as far:
            far._clock = SimpleNamespace(pause_ms=lambda ms: None)
            found = far.state("count").get(key)
    # Looked at once before and once behind the answer: models that went by between the two were never asked.
    assert any(one == two == found for one, two in zip(held, [*held[1:], held[-1]], strict=True))


def test_a_range_of_a_process_that_has_the_application_to_itself_is_whole_as_it_comes(tmp_path):
    app = counting(int)
    app.run(tmp_path, bind={"keys": [(1, 7)]}, until_now=True)
    cluster = Cluster(tmp_path, app.graph(), [[0] * TASKS])
    desk = cluster.desk(0, [*range(TASKS)])
    model = replace(cluster.job_model("counting"), tasks=())
    cluster.job_model = lambda app: model

    def ask(address, path, token):
        found = asyncio.run(desk.answer(StateRequest("count", urlsplit(path).query)))
        return found.status, found.json.encode()

    with FarStateQuery(app.graph(), lambda: cluster, cluster.close, ask=ask) as far:
        assert dict(far.state("count").range()) == {7: 1} and far.state("count").get(7) == 1
        assert far.state("count").get(8) is None


def test_what_changelogs_say_is_as_new_as_state_that_changed_alone(tmp_path):
    app, store = counting(int), "count"
    app.run(tmp_path, bind={"keys": [(1, 7), (2, 7)]}, until_now=True)
    cluster = Cluster(tmp_path, app.graph(), [[0] * TASKS], ("",))
    with closing(cluster.snapshot("counting")) as found:
        [(task, (place, _))] = [
            (task, one) for task in found.tasks(store) for one in found.between(store, task, b"", None)
        ]
    generation, told = cluster.own("counting"), far_snapshots(cluster)

    def forget():
        cluster.commit(Commit("counting", generation, [], [StateWrites(store, task, [(place, None)])], {}))

    with FarStateQuery(app.graph(), lambda: cluster, cluster.close, ask=cluster.ask) as far:
        assert far.state(store).get(7) == 2
        forget()
        assert far.state(store).get(7) is None and len(told) == 2
        assert far.state(store).get(7) is None and len(told) == 2  # kept, as nothing was committed since


def far_snapshots(cluster):
    """Return a list to which each snapshot of changelogs that is read of a cluster comes."""
    told, read = [], cluster.settled_snapshot

    def reading(app):
        told.append(read(app))
        return told[-1]

    cluster.settled_snapshot = reading
    return told


def test_a_range_of_what_ends_meanwhile_is_to_be_begun_anew(tmp_path):
    app = counting(int)
    app.run(tmp_path, bind={"keys": [(1, 7)]}, until_now=True)
    cluster = Cluster(tmp_path, app.graph(), [[0] * TASKS])
    models = [cluster.job_model("counting"), JobModel()]
    cluster.job_model = lambda app: models.pop(0)
    with (
        FarStateQuery(app.graph(), lambda one=cluster: one, cluster.close, ask=cluster.ask) as far,
        pytest.raises(SamzaError, match="no container runs it now; begin it anew"),
    ):
        list(far.state("count").range())


def test_what_serves_nothing_is_read_from_changelogs_and_said_once(tmp_path, caplog):
    app = counting(int)
    app.run(tmp_path, bind={"keys": [(1, 7), (2, 7)]}, until_now=True)
    for addresses in (("",), ("127.0.0.1:9464 another machine",)):
        cluster = Cluster(tmp_path, app.graph(), [[0] * TASKS], addresses)
        caplog.clear()
        with (
            caplog.at_level("WARNING", "samza_dsl"),
            FarStateQuery(app.graph(), lambda one=cluster: one, cluster.close, ask=cluster.ask) as far,
        ):
            assert [far.state("count").get(7) for _ in range(3)] == [2, 2, 2]
            assert dict(far.state("count").range()) == {7: 2}
        [line] = [one.message for one in caplog.records]
        assert "metrics='0.0.0.0:9464'" in line


@pytest.mark.parametrize(
    "answer",
    [
        (404, b"there is no such page"),
        (404, b'{"error":"\'count\' is no operator whose state can be asked for"}'),
        (404, b'{"app":"counting","operator":"other","stored":[],"error":"it has no state here"}'),
        (404, b'{"app":"other","operator":"count","stored":[],"error":"it has no state here"}'),
        (200, b'{"app":"counting","operator":"other","stored":[]}'),
        *((status, b"no") for status in (301, 400, 403, 431, 500)),
    ],
)
def test_whatever_is_no_answer_of_a_container_is_read_from_changelogs_at_once(tmp_path, answer):
    app = counting(int)
    app.run(tmp_path, bind={"keys": [(1, 7)]}, until_now=True)
    cluster = Cluster(tmp_path, app.graph(), [[0] * TASKS])
    with FarStateQuery(app.graph(), lambda: cluster, cluster.close, ask=lambda *_: answer) as far:
        far._clock = None  # which nobody waits by
        assert far.state("count").get(7) == 1 and dict(far.state("count").range()) == {7: 1}
        assert far._model is None  # it is looked anew who has which task


def test_another_application_at_an_address_and_one_that_asks_for_a_token_are_told(tmp_path):
    app = counting(int)
    app.run(tmp_path, bind={"keys": [(1, 7)]}, until_now=True)
    answers = [(200, b'{"app":"other","operator":"count","stored":[]}'), (200, b"<html>"), (401, b"a token")]
    cluster = Cluster(tmp_path, app.graph(), [[0] * TASKS])
    with FarStateQuery(app.graph(), lambda: cluster, cluster.close, ask=lambda *_: answers[0]) as far:
        for _ in range(2):
            assert far.state("count").get(7) == 1
            del answers[0]
        with pytest.raises(SamzaError, match="token_file"):
            far.state("count").get(7)


def test_at_least_is_waited_for_where_the_key_is_and_not_in_an_event_loop(tmp_path):
    app = counting(int)
    app.run(tmp_path, bind={"keys": [(1, 7)]}, until_now=True)
    cluster = Cluster(tmp_path, app.graph(), [[0] * TASKS])

    async def in_a_loop(state):
        return state.get(7, at_least={"keys": 1})

    with FarStateQuery(app.graph(), lambda: cluster, cluster.close, ask=cluster.ask) as far:
        state = far.state("count")
        assert state.get(7, at_least={"keys": 1}) == 1 and state.get(7, at_least={"keys:0": 1}) == 1
        with pytest.raises(NotReached, match=r"^no commit of .* does it run\?$"):
            state.get(7, at_least={"keys": 9}, timeout_ms=30)
        with pytest.raises(NotReached, match=r"^no commit of"):
            list(state.range(at_least={"keys": 9}, timeout_ms=30))
        with pytest.raises(PlanError, match="does not read 'others'"):
            state.get(7, at_least={"others": 9})
        with pytest.raises(SamzaError, match="event loop"):
            asyncio.run(in_a_loop(state))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("stored=1&key=%3f", "no base64"),
        ("stored=1&key=AA==&list=times&map=times", None),
        ("stored=1&key=AA==&limit=x", "no number"),
        ("stored=1&limit=0", "no number"),
        ("limit=x", "no number"),
        ("key=7&timeout_ms=x", "no number"),
        ("stored=1&from=%ff", "no base64"),
        ("stored=1&from=AAAA", "no key"),
        ("stored=1&key=AA==&task=x", None),
    ],
)
def test_what_is_said_wrongly_is_refused_and_ends_nothing(tmp_path, said, told):
    app = counting(int)
    app.run(tmp_path, bind={"keys": [(1, 7)]}, until_now=True)

    shown = []

    class Showing(LogEnvironment):
        def snapshot(self, app):
            shown.append(super().snapshot(app))
            return shown[-1]

    async def answer():
        with closing(StateDesk(app.graph(), lambda: closing(Showing(tmp_path)))) as desk:
            return await desk.answer(StateRequest("count", said))

    found = asyncio.run(answer())
    assert found.status in (400, 404), found
    assert all(one._is_closed for one in shown)
    assert told is None or told in found.text


def test_what_others_are_told_leads_here_and_says_whose_it_is():
    assert told_to_others("0.0.0.0", 9464, "nobody.invalid:9092").endswith(":9464")
    # What only this machine reaches, others must not ask themselves for.
    for every in ("0.0.0.0", "::"):
        assert told_to_others(every, 9464, "127.0.0.1:9092,b:1") == f"127.0.0.1:9464 {platform.node()}"
    assert told_to_others("localhost", 9464, "").startswith("127.0.0.1:9464 ")
