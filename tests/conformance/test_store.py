"""What every store does, whichever it is: a dict of bytes that can go back to a savepoint."""

from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from operators.core.entry_keys import OF_KEYS
from planner.model.errors import PlanError
from runtime.encoding.serdes import MessagePack, Tagged
from runtime.model.errors import SamzaError
from runtime.ports.commits import Commit
from runtime.ports.store import StorePlace
from runtime.stores.cache import CachedStore
from runtime.stores.joint import EntryPlaces, JointStore
from runtime.stores.memory import MemoryStore
from runtime.stores.registry import StoreKind, register, store_kind, store_kinds
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, skip, testing
from tests.conformance.redis_shaped_store import REDIS_SHAPED, SERVER

KEYS = st.sampled_from([b"", b"a", b"aa", b"b", b"c" * 471, b"c" * 600 + b"1", b"c" * 600 + b"0", b"d"])
VALUES = st.one_of(st.none(), st.integers(-9, 9), st.lists(st.integers(0, 9), max_size=3))


def cached(environment, capacity=100):
    return CachedStore(environment, "app", "st", 3, MessagePack(), capacity)


def opened(kind, environment):
    return store_kind(kind).open(StorePlace(environment, "app", "st", 3, MessagePack()))


@pytest.fixture(params=["lmdb on log", "joint", *store_kinds()])
def store(request, tmp_path):
    if request.param == "joint":
        yield JointStore([MemoryStore("st"), MemoryStore("st")], EntryPlaces(OF_KEYS, lambda key: crc32(key) % 2))
        return
    kind, _, place = request.param.partition(" on ")
    environment = LogEnvironment(tmp_path) if place else MemoryEnvironment()
    yield opened(kind, environment)
    environment.close()


def test_it_reads_its_own_writes(store):
    store.put(b"b", 2)
    store.put(b"a", None)
    store.put(b"c", [3])
    store.delete(b"b")
    store.delete(b"nosuch")
    assert store.get(b"a", "default") is None
    assert store.get(b"b", "default") == "default"
    assert list(store.range()) == [(b"a", None), (b"c", [3])]
    assert list(store.range(b"a", b"c")) == [(b"a", None)]
    assert list(store.range(b"b")) == [(b"c", [3])]


def test_a_range_is_as_at_its_call(store):
    for key in (b"a", b"b", b"c"):
        store.put(key, 1)
    entries = store.range()
    store.put(b"aa", 2)
    for key, _ in entries:
        store.delete(key)
    assert list(store.range()) == [(b"aa", 2)]


def test_there_is_one_savepoint_at_a_time(store):
    store.savepoint()
    with pytest.raises(RuntimeError, match="savepoint already"):
        store.savepoint()
    store.release()
    store.savepoint()
    store.rollback()
    store.savepoint()


def test_changes_are_encoded_and_stay_until_committed():
    store = cached(MemoryEnvironment())
    store.put(b"b", [1])
    store.put(b"a", 2)
    store.delete(b"c")
    changes = store.changes()
    assert changes == ("st", 3, [(b"b", MessagePack().encode([1])), (b"a", MessagePack().encode(2)), (b"c", None)])
    assert store.changes() == changes
    assert store.dirty_count == 3
    store.committed()
    assert (store.dirty_count, store.changes().items) == (0, [])
    store.savepoint()
    with pytest.raises(RuntimeError, match="under a savepoint"):
        store.committed()


def test_values_in_memory_are_bounded_by_the_capacity():
    environment = MemoryEnvironment()
    generation = environment.own("app")
    store = cached(environment, capacity=2)
    for key in (b"a", b"b", b"c", b"d"):
        store.put(key, [1])
    environment.commit(Commit("app", generation, [], [store.changes()], {}))
    store.committed()
    kept = store.get(b"d")
    assert store.get(b"d") is kept
    store.get(b"b")
    store.get(b"a")  # b and a have taken the two places
    assert store.get(b"d") is not kept
    a = store.get(b"a")
    assert store.get(b"nosuch") is None
    assert store.get(b"a") is a
    assert list(store.range()) == [(key, [1]) for key in (b"a", b"b", b"c", b"d")]


@pytest.mark.parametrize("committed", [False, True])
def test_what_was_changed_in_place_is_as_before_after_a_rollback(committed):
    environment = MemoryEnvironment()
    generation = environment.own("app")
    store = cached(environment)
    store.put(b"a", [1])
    if committed:
        environment.commit(Commit("app", generation, [], [store.changes()], {}))
        store.committed()
    store.savepoint()
    store.get(b"a").append(2)
    store.rollback()
    assert store.get(b"a") == [1]


def test_nothing_is_copied_without_a_savepoint():
    copied = []

    class Watched(Tagged):
        def encode(self, value):
            copied.append(value)
            return super().encode(value)

    store = CachedStore(MemoryEnvironment(), "app", "st", 0, Watched())
    store.put(b"a", [1])
    store.put(b"b", 1)
    store.get(b"a")
    store.savepoint()
    store.get(b"b")
    assert copied == []
    store.get(b"a")
    store.get(b"a")
    assert copied == [[1]]


class StoreMachine(RuleBasedStateMachine):
    """The store against a dict: writes, changes in place, savepoints, commits, losses of what was not committed."""

    def __init__(self):
        super().__init__()
        self.model = {}
        self.saved = None

    @rule(key=KEYS, value=VALUES)
    def put(self, key, value):
        self.store.put(key, deepcopy(value))
        self.model[key] = deepcopy(value)

    @rule(entries=st.dictionaries(KEYS, VALUES))
    def update(self, entries):
        self.store.update(deepcopy(entries))
        self.model |= deepcopy(entries)

    @rule(key=KEYS)
    def delete(self, key):
        self.store.delete(key)
        self.model.pop(key, None)

    @rule(keys=st.lists(KEYS, max_size=4))
    def delete_all(self, keys):
        self.store.delete_all(iter(keys))
        for key in keys:
            self.model.pop(key, None)

    @rule(start=KEYS, end=KEYS, most=st.none() | st.integers(0, 3))
    def drop(self, start, end, most):
        expected = [key for key in sorted(self.model) if start <= key < end][:most]
        assert self.store.drop(start, end, most) == len(expected)
        for key in expected:
            del self.model[key]

    @rule(key=KEYS)
    def get(self, key):
        assert self.store.get(key, "absent") == self.model.get(key, "absent")

    @rule(key=KEYS, item=st.integers(0, 9))
    def change_in_place(self, key, item):
        value = self.store.get(key)
        if isinstance(value, list):
            value.append(item)
            self.store.put(key, value)
            self.model[key] = [*self.model[key], item]

    @rule(item=st.integers(0, 9))
    def change_in_place_what_a_range_yields(self, item):
        for key, value in self.store.range():
            if isinstance(value, list):
                value.append(item)
                self.store.put(key, value)
                self.model[key] = [*self.model[key], item]

    @rule(start=KEYS, end=st.one_of(st.none(), KEYS))
    def range(self, start, end):
        expected = [key for key in sorted(self.model) if key >= start and (end is None or key < end)]
        assert list(self.store.range(start, end)) == [(key, self.model[key]) for key in expected]

    @precondition(lambda self: self.saved is None)
    @rule()
    def savepoint(self):
        self.store.savepoint()
        self.saved = deepcopy(self.model), self.store.dirty_count, self.store.changes()

    @precondition(lambda self: self.saved is not None)
    @rule()
    def rollback(self):
        self.store.rollback()
        self.model, dirty_count, changes = self.saved
        self.saved = None
        assert (self.store.dirty_count, self.store.changes()) == (dirty_count, changes)

    @precondition(lambda self: self.saved is not None)
    @rule(item=st.integers(0, 9), by_range=st.booleans())
    def change_in_place_without_putting_and_rollback(self, item, by_range):
        values = (value for _, value in self.store.range()) if by_range else map(self.store.get, sorted(self.model))
        for value in values:
            if isinstance(value, list):
                value.append(item)
        self.rollback()

    @precondition(lambda self: self.saved is not None)
    @rule()
    def release(self):
        self.store.release()
        self.saved = None

    @invariant()
    def all_is_as_in_the_model(self):
        if self.saved is None and hasattr(self, "store"):
            assert list(self.store.range()) == sorted(self.model.items())


class MemoryStoreMachine(StoreMachine):
    @initialize()
    def begin(self):
        self.store = MemoryStore()


class CachedStoreMachine(StoreMachine):
    """It also commits, and forgets what it has not committed, as after a crash."""

    def __init__(self):
        super().__init__()
        self.directory = None
        self.durable = {}

    @initialize(on_log=st.booleans(), capacity=st.sampled_from([0, 1, 3, 100]))
    def begin(self, on_log, capacity):
        self.capacity = capacity
        if on_log:
            self.directory = TemporaryDirectory()
        self.environment = self.open()
        self.restart()

    def open(self):
        return LogEnvironment(Path(self.directory.name), sync=False) if self.directory else MemoryEnvironment()

    def restart(self):
        self.generation = self.environment.own("app")
        self.store = cached(self.environment, self.capacity)

    @precondition(lambda self: self.saved is None)
    @rule()
    def commit(self):
        self.environment.commit(Commit("app", self.generation, [], [self.store.changes()], {}))
        self.store.committed()
        self.durable = deepcopy(self.model)
        assert self.store.dirty_count == 0
        committed = self.environment.state_range("app", "st", 3)
        assert [(key, MessagePack().decode(value)) for key, value in committed] == sorted(self.model.items())

    @precondition(lambda self: self.saved is None)
    @rule(item=st.integers(0, 9), by_range=st.booleans())
    def commit_and_take_back_what_was_changed_in_place(self, item, by_range):
        self.commit()
        self.savepoint()
        self.change_in_place_without_putting_and_rollback(item, by_range)

    @rule()
    def crash(self):
        if self.directory:
            self.environment.close()
            self.environment = self.open()
        self.restart()
        self.model, self.saved = deepcopy(self.durable), None

    def teardown(self):
        if hasattr(self, "environment"):
            self.environment.close()
        if self.directory:
            self.directory.cleanup()


class RedisShapedStoreMachine(CachedStoreMachine):
    """A store of another kind, which goes through the same."""

    def restart(self):
        self.generation = self.environment.own("app")
        self.store = opened(REDIS_SHAPED, self.environment)


class Committed(JointStore):
    """The stores of three tasks as one, which are committed together."""

    def changes(self):
        return [store.changes() for store in self.stores]

    def committed(self):
        for store in self.stores:
            store.committed()


class JointStoreMachine(CachedStoreMachine):
    """What is run once for several tasks keeps each entry in the store of one of them."""

    def restart(self):
        self.generation = self.environment.own("app")
        stores = [CachedStore(self.environment, "app", "st", task, MessagePack(), self.capacity) for task in range(3)]
        self.store = Committed(stores, EntryPlaces(OF_KEYS, lambda key: crc32(key) % 3))

    @precondition(lambda self: self.saved is None)
    @rule()
    def commit(self):
        self.environment.commit(Commit("app", self.generation, [], self.store.changes(), {}))
        self.store.committed()
        self.durable = deepcopy(self.model)
        for task in range(3):
            committed = self.environment.state_range("app", "st", task)
            mine = sorted((key, value) for key, value in self.model.items() if crc32(key) % 3 == task)
            assert [(key, MessagePack().decode(value)) for key, value in committed] == mine


TestJointStore = JointStoreMachine.TestCase
TestMemoryStore = MemoryStoreMachine.TestCase
TestRedisShapedStore = RedisShapedStoreMachine.TestCase
TestCachedStore = CachedStoreMachine.TestCase


@pytest.mark.parametrize("kind", store_kinds())
def test_a_kind_is_durable_as_its_stores_are(kind):
    assert opened(kind, MemoryEnvironment()).durable == store_kind(kind).durable


def test_the_kinds_that_are_there_keep_their_names():
    with pytest.raises(SamzaError, match="'memory' is a built-in kind of store"):
        register(StoreKind("memory", MemoryStore.open, durable=True))
    assert not store_kind("memory").durable


def test_a_kind_that_is_not_registered_is_told():
    with pytest.raises(SamzaError, match=r"'nosuch' is not registered in this process.*lmdb, memory"):
        store_kind("nosuch")


def summing(store, **said):
    """Send on the sum of the numbers so far; 0 fails."""

    def add(n, context):
        context.state += n
        1 // n
        return [context.state]

    app = App("summing")
    numbers = app.input("numbers", value=int, key=lambda n: "all")
    numbers.process(add, init=int, op_id="sum", store=store, **said).send_to(app.output("sums", value=int))
    return app


@pytest.mark.parametrize("kind", store_kinds())
def test_an_app_keeps_its_state_in_a_store_of_any_kind(kind):
    app = summing(kind, on_error=skip)
    assert [store.kind for store in app.plan().stores] == [kind]
    with testing.running(app) as run:
        run.send("numbers", 1)
        run.send("numbers", 0)
        run.send("numbers", 2)
        assert run.received("sums") == [1, 3]
        run.restart()
        run.send("numbers", 3)
        assert run.received("sums") == ([1, 3, 6] if store_kind(kind).durable else [1, 3, 3])
        assert run.state("sum") == {"all": run.received("sums")[-1]}


def test_what_a_server_has_beyond_the_last_commit_is_forgotten():
    with testing.running(summing(REDIS_SHAPED)) as run:
        run.send("numbers", 1)
        committed = SERVER.hgetall("summing:sum:0")
        run.crash("before_commit")
        run.send("numbers", 2)
        assert run.crashed
        assert SERVER.hgetall("summing:sum:0") != committed
        run.restart()
        run.send("numbers", 3)
        assert (run.received("sums"), run.state("sum")) == ([1, 3, 6], {"all": 6})


def test_what_is_no_kind_is_refused_with_those_that_there_are():
    with pytest.raises(PlanError, match='write instead: store="lmdb" or store="memory" or store="redis-shaped"'):
        summing("redis")
