"""State is asked for by key and range from anywhere: what is committed, as of one commit, and what it has."""

import threading
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from operators.core.base import Batch
from operators.windows.window_types import Hopping
from planner.model.errors import PlanError
from runtime.encoding.serdes import Evolving, Tagged
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import SamzaError
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import (
    App,
    Bytes,
    Json,
    MessagePack,
    Options,
    Pane,
    StateTypes,
    after_count,
    collect,
    count,
    counted,
    query,
    session,
    sliding,
    total,
    tumbling,
    whole,
)
from tests.scale import examples

KEYS = {
    "str": (str, st.text(max_size=5)),
    "long str": (str, st.text(alphabet="ab", min_size=1, max_size=2).map(lambda text: text * 300)),
    "int": (int, st.integers(-5, 300)),
    "tuple": (tuple[int, str], st.tuples(st.integers(0, 3), st.text(max_size=2))),
}


class Account(Struct):
    total: int = 0
    last: str = ""


def counting(tasks, kind, state=None, store="lmdb"):
    def step(account, key):
        return Account(account.total + 1, str(key))

    def process(key, context):
        context.state = (context.state or 0) + 1
        return []

    async def ask(key, context):
        context.state = (context.state or 0) + 1
        return []

    app = App("counting", Options(commit_interval_ms=1))
    keyed = app.input("keys", value=kind).partition_by(
        lambda key: tuple(key) if isinstance(key, list) else key, partitions=tasks, op_id="keyed"
    )
    keyed.scan(step, init=Account, state=state, op_id="scan", store=store).send_to(app.output("accounts"))
    keyed.process(process, op_id="process").send_to(app.output("none"))
    keyed.async_flat_map(ask, op_id="ask", state=int).send_to(app.output("asked"))
    keyed.window(sliding(seconds=1), count(), op_id="slides").send_to(app.output("panes"))
    return app


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("state", [None, Account, MessagePack(Account)], ids=["any", "type", "serde"])
@given(data=st.data(), tasks=st.integers(1, 4))
@settings(max_examples=examples(6, 120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_key_has_the_state_that_its_function_has_left(tmp_path_factory, kind, state, data, tasks):
    type_, strategy = KEYS[kind]
    keys = data.draw(st.lists(strategy, min_size=1, max_size=30))
    folder = tmp_path_factory.mktemp("state")
    app = counting(tasks, type_, state)
    app.run(folder, bind={"keys": keys}, until_now=True)
    counts = Counter(keys)
    with query(app, folder) as found:
        scanned = found.state("scan")
        assert {key: scanned.get(key) for key in counts} == {
            key: Account(number, str(key)) for key, number in counts.items()
        }
        for operator in ("process", "ask"):
            assert {key: found.state(operator).get(key) for key in counts} == counts
            assert dict(found.state(operator).range()) == counts
        assert {key: account.total for key, account in scanned.range()} == counts
        low, high = sorted([data.draw(strategy), data.draw(strategy)])
        wanted = {key: number for key, number in counts.items() if low <= key < high}
        assert {key: account.total for key, account in scanned.range(low, high)} == wanted
        absent = data.draw(strategy.filter(lambda key: key not in counts))
        assert scanned.get(absent) is None and scanned.get(absent, "none") == "none"


class Seen(Struct):
    at: int


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("declared", [False, True], ids=["any", "declared"])
@given(data=st.data(), tasks=st.integers(1, 4))
@settings(max_examples=examples(6, 120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_lists_and_maps_of_a_key_are_as_its_function_has_left_them(tmp_path_factory, kind, declared, data, tasks):
    type_, strategy = KEYS[kind]
    keys = data.draw(st.lists(strategy, min_size=1, max_size=30))
    lists, maps = {}, {}

    def remember(message, context):
        number, key = message
        seen, by = context.list("seen"), context.map("by")
        seen.append(Seen(number))
        if len(seen) > 3:
            seen.drop(2)
        if number % 5 == 4:
            seen.clear()
        by[number % 3, "rest"] = number
        by.pop((number % 2, "rest"), None)
        context.list("seen ").append(key)  # the bytes of no name begin with those of another
        return []

    app = App("remembering", Options(commit_interval_ms=1))
    keyed = app.input("keys", value=tuple[int, type_], timestamp=lambda message: message[0]).partition_by(
        lambda message: message[1], partitions=tasks, op_id="keyed"
    )
    types = StateTypes(int, lists={"seen": Seen}, maps={"by": int}) if declared else None
    keyed.process(remember, op_id="remember", state=types).send_to(app.output("none"))
    for number, key in enumerate(keys):
        last = lists.setdefault(key, [])
        last.append(Seen(number))
        if len(last) > 3:
            del last[:2]
        if number % 5 == 4:
            last.clear()
        maps.setdefault(key, {})[number % 3, "rest"] = number
        maps[key].pop((number % 2, "rest"), None)
    folder = tmp_path_factory.mktemp("state")
    app.run(folder, bind={"keys": [*enumerate(keys)]}, until_now=True)
    with query(app, folder) as found:
        state = found.state("remember")
        assert {key: state.list(key, "seen") for key in lists} == lists
        assert {key: state.map(key, "by") for key in maps} == maps
        assert {key: state.list(key, "seen ") for key in lists} == {key: [key] * keys.count(key) for key in lists}
        assert state.list(keys[0], "unknown") == [] and state.map(keys[0], "seen") == {}
        absent = data.draw(strategy.filter(lambda key: key not in lists))
        assert state.list(absent, "seen") == [] and state.map(absent, "by") == {}
        assert state.get(keys[0]) is None


def test_who_has_no_lists_says_so(tmp_path):
    app = counting(1, str)
    app.run(tmp_path, bind={"keys": ["a"]}, until_now=True)
    with query(app, tmp_path) as found:
        for ask in (found.state("scan").list, found.state("scan").map):
            with pytest.raises(PlanError, match=r"scan 'scan' has no lists and maps of a key.*get\(key\)"):
                ask("a", "seen")
        with pytest.raises(PlanError, match="without a name"):
            found.state("process").list("a", "")


def test_tables_and_tasks_are_asked_for_as_well(tmp_path):
    app = App("both")
    rows = app.table("rows", value=Json(int), key=str)
    app.input("numbers", value=int, key=str).join(rows, lambda number, row: row).send_to(app.output("joined"))

    def keep(message, context):
        context.put("sum", context.get("sum", 0) + message.value)

    app.task(app.input("more", value=int), keep, op_id="keep")
    log = LogEnvironment(tmp_path)
    for stream in ("rows", "numbers", "more"):
        log.create_stream(stream, StreamConfig())
    log.append([Append("rows", 0, Batch([b"7", b"8"], [b"one", b"two"]))])
    log.append([Append("more", 0, Batch([b"1", b"2"]))])
    log.close()
    app.run(tmp_path, until_now=True)
    with query(app, tmp_path) as found:
        table = next(id for id in app.graph().specs if "rows" in id)
        assert found.state(table).get("two") == 8
        assert dict(found.state(table).range()) == {"one": 7, "two": 8}
        assert found.state("keep").get("sum") == 3


@dataclass(frozen=True)
class Chosen:
    """Windows of two lengths, some of which overlap."""

    def assign(self, key, timestamp, value):
        return [(timestamp // 7 * 7, timestamp // 7 * 7 + 7 + timestamp % 2)]


@dataclass(frozen=True)
class ChosenToMerge:
    """Windows of three lengths, which become one where they overlap."""

    merges = True

    def assign(self, key, timestamp, value):
        return [(timestamp, timestamp + 2 + timestamp % 3)]


WINDOWS = {
    "tumbling": tumbling(milliseconds=10),
    "hopping": Hopping(10, 5),
    "session": session(milliseconds=4),
    "counted": counted(3),
    "counted, hopping": counted(4, every=2),
    "whole": whole(),
    "by a function": Chosen(),
    "by a function, merging": ChosenToMerge(),
}


@st.composite
def panes_kept(draw):
    """Draw windows with all that decides how they are kept."""
    name = draw(st.sampled_from([*WINDOWS]))
    how = {"allowed_lateness_ms": draw(st.sampled_from([0, 6]))} if "count" not in name and name != "whole" else {}
    if draw(st.booleans()):
        how["early"] = after_count(2)
        how["panes"] = draw(st.sampled_from(["accumulating", "discarding"]))
    return name, how


@given(
    kept=panes_kept(),
    records=st.lists(st.tuples(st.sampled_from(["a", "b", "cc"]), st.integers(0, 40)), min_size=1, max_size=25),
    elasticity=st.sampled_from([1, 2]),
    folds=st.sampled_from([count, total, collect]),
)
@settings(max_examples=examples(60, 600), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_windows_that_are_open_are_those_that_fire_when_the_inputs_end(
    tmp_path_factory, kept, records, elasticity, folds
):
    name, how = kept
    aggregation = folds(of=lambda n: n[1]) if folds is total else folds()
    folder = tmp_path_factory.mktemp("state")
    app = App("windows", Options(elasticity=elasticity, commit_interval_ms=1))
    read = app.input("records", value=tuple[str, int], timestamp=lambda n: n[1])
    keyed = read.partition_by(lambda n: n[0], partitions=2, op_id="by")
    keyed.window(WINDOWS[name], aggregation, op_id="open", **how).send_to(app.output("panes"), op_id="out")
    with closing(LogEnvironment(folder)) as log:
        log.create_stream("records", StreamConfig())
        log.append([Append("records", 0, Batch([Json().encode(one) for one in records]))])
        app.run(folder, until_now=True)
        before = written(log)
        with query(app, folder) as found:
            state = found.state("open")
            asked = {key: state.get(key, []) for key in ("a", "b", "cc")}
            every = [*state.range()]
        assert all(panes == sorted(panes, key=lambda pane: pane.start) for panes in asked.values())
        assert sorted(map(repr, every)) == sorted(repr((key, pane)) for key, panes in asked.items() for pane in panes)
        log.end_stream("records")
        app.run(folder)
        fired = [pane for was, now in zip(before, written(log), strict=True) for pane in now[len(was) :]]
    is_open = [Json(Pane).decode(Json().encode(p)) for panes in asked.values() for p in panes if p.timing == "early"]
    # Late values are told once they had their pane, so windows that have some are told otherwise until then.
    late = {(pane.key, pane.start, pane.end) for pane in fired if pane.timing == "late"}
    is_open, fired = ([p for p in panes if (p.key, p.start, p.end) not in late] for panes in (is_open, fired))
    assert sorted(map(in_common, is_open)) == sorted(map(in_common, fired))


def in_common(pane):
    return pane.key, pane.start, pane.end, repr(pane.value)


def written(log):
    """Return the panes that were written so far, by partition."""
    found = []
    for partition in range(log.streams()["panes"].partitions):
        offset, panes = 0, []
        while (rows := log.read("panes", partition, offset)) is not None and rows.batch.values:
            panes += map(Json(Pane).decode, rows.batch.values)
            offset = rows.next_offset
        found.append(panes)
    return found


@contextmanager
def giving_all_keys_one_number(data, store):
    """Commit again and again, each time one number for 300 keys: whoever saw two commits would have two numbers."""
    log = LogEnvironment(data)
    generation = log.own("counting")
    places = [b"s" + Tagged().encode(f"key {number}") for number in range(300)]
    stop = threading.Event()

    def commit(number):
        value = Evolving().encode(number)
        log.commit(Commit("counting", generation, [], [StateWrites(store, 0, [(p, value) for p in places])], {}))

    commit(0)

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            commit(number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
        log.close()


def test_a_range_is_of_one_commit_while_others_write(tmp_path):
    seen = []
    with giving_all_keys_one_number(tmp_path, "process"), query(counting(1, str), tmp_path) as found:
        state = found.state("process")
        while len(set(seen)) < 20:
            values = [value for _, value in state.range()]
            assert len(values) == 300 and len(set(values)) == 1
            seen.append(values[0])
            assert state.get("key 7") >= values[0]
    assert seen == sorted(seen)


def test_a_reader_waits_for_the_commit_that_it_asks_for(tmp_path):
    app = counting(2, str)
    log = LogEnvironment(tmp_path)
    log.create_stream("keys", StreamConfig())
    log.append([Append("keys", 0, Batch([b"a", b"a"]))])
    with query(app, tmp_path) as found:
        runner = threading.Timer(0.05, lambda: app.run(tmp_path, until_now=True))
        runner.start()
        assert found.state("process").get("a", at_least={"keys": 2}) == 2
        runner.join()
        # What the input's task has sent on is waited for, too: as if the next stage had not come to it.
        log.own("counting")
        stream = next(name for name, config in log.streams().items() if config.intermediate)
        log.append([Append(stream, one, Batch([b"x"], [b"x"])) for one in range(2)])
        with pytest.raises(SamzaError, match=rf"{stream}:0 is at \d"):
            found.state("process").get("a", at_least={"keys": 2}, timeout_ms=20)
        with pytest.raises(SamzaError, match=r"keys:0 is at 2.*does it run"):
            found.state("process").get("a", at_least={"keys:0": 3}, timeout_ms=20)
        with pytest.raises(PlanError, match=r"test_queries.py:\d+: .*does not read 'kyes'.*one of keys"):
            found.state("process").get("a", at_least={"kyes": 1})
    log.close()


def test_a_stage_of_which_no_commit_tells_is_waited_for(tmp_path):
    """Where containers begin one after the other, the first stage has committed and the second one has never."""
    log = LogEnvironment(tmp_path)
    log.create_stream("keys", StreamConfig())
    log.create_stream("counting-keyed", StreamConfig(partitions=2, intermediate=True))
    read = Checkpoint(generation := log.own("counting"), (Position("log", "keys", 0, 1),))
    sent_on = [Append("counting-keyed", 1, Batch([b"a"], [b"a"]))]
    log.commit(Commit("counting", generation, sent_on, [], {"task-0": read}))
    with query(counting(2, str), tmp_path) as found, pytest.raises(SamzaError, match="counting-keyed:1 is at 0"):
        found.state("process").get("a", at_least={"keys": 1}, timeout_ms=20)
    log.close()


@pytest.mark.parametrize(
    ("kind", "key", "others", "keys"),
    [
        (int, 7, ["7", 7.5, True], "int"),
        (str, "a", [7, b"a"], "str"),
        (Json(str), "a", [7], "str"),
        (Bytes(), b"a", ["a", 7], "bytes"),
        (float, 1.5, ["1.5"], "float"),
        (tuple[int, str], (1, "a"), [("1", "a"), (1,), "a"], r"tuple\[int, str\]"),
        (date, date(2020, 1, 1), [7, "yesterday"], "date"),
    ],
)
def test_a_key_of_another_type_than_is_declared_is_a_mistake_and_not_without_state(tmp_path, kind, key, others, keys):
    app = App("one")
    numbers = app.input("numbers", value=int, timestamp=lambda number: number)
    keyed = numbers.partition_by(lambda number: key, key_type=kind, partitions=2)

    def remember(number, context):
        context.state = number
        context.list("seen").append(number)
        return []

    keyed.process(remember, op_id="last").send_to(app.output("none"))
    app.run(tmp_path, bind={"numbers": [1]})
    with query(app, tmp_path) as found:
        state = found.state("last")
        assert (state.get(key), state.list(key, "seen"), state.list(key, "others")) == (1, [1], [])
        for other in others:
            for ask in (state.get, lambda key: state.list(key, "seen"), lambda key: state.map(key, "seen")):
                with pytest.raises(PlanError, match=rf"is no key of process 'last', whose keys are {keys}"):
                    ask(other)


def test_what_has_no_state_by_key_is_refused_with_what_to_ask_for(tmp_path):
    app = counting(1, str, store="memory")
    with pytest.raises(SamzaError, match="no data directory"):
        query(app, tmp_path)
    app.run(tmp_path, bind={"keys": ["a"]}, until_now=True)
    with query(app, tmp_path) as found:
        with pytest.raises(PlanError, match=r"no operator 'scam'; write instead: one of ask, process$"):
            found.state("scam")
        for operator in ("keyed", "slides"):
            with pytest.raises(PlanError, match="read the output"):
                found.state(operator)
        with pytest.raises(PlanError, match="memory"):
            found.state("scan")
