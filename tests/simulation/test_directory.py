"""The simulated environment against LMDB itself, operation by operation, and that a crash leaves all or nothing."""

import contextlib
from tempfile import TemporaryDirectory

import lmdb
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, StreamConfig
from tests.simulation.crash import Crash
from tests.simulation.directory import Directory, SimulatedDatabase, SimulatedLog, Transaction

KEYS = st.binary(min_size=1, max_size=2)
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=3)),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("set_range"), KEYS),
    st.tuples(st.just("delete")),
    st.tuples(st.sampled_from(["next", "prev", "last", "walk"])),
)


def answers(transaction, table, operations):
    """Do operations in a transaction and on a cursor of it, and return all that comes back."""
    cursor, found = transaction.cursor(table), []
    for name, *arguments in operations:
        if name == "put":
            transaction.put(*arguments, db=table)
            cursor = transaction.cursor(table)
        elif name == "delete" and arguments:
            found.append(transaction.delete(*arguments, db=table))
            cursor = transaction.cursor(table)
        elif name == "get":
            value = transaction.get(*arguments, db=table)
            found.append(None if value is None else bytes(value))
        elif name == "walk":
            found.append([(bytes(key), bytes(value)) for key, value in cursor.iternext()])
            cursor = transaction.cursor(table)
        elif name in ("set_range", "last"):
            found.append(getattr(cursor, name)(*arguments))
            cursor = cursor if found[-1] else transaction.cursor(table)
        elif cursor.key():
            found.append(getattr(cursor, name)())
            cursor = cursor if cursor.key() else transaction.cursor(table)
        found.append((bytes(cursor.key()), bytes(cursor.value())))
    return found


@given(st.lists(st.lists(OPERATIONS, max_size=12), max_size=4))
def test_it_answers_as_lmdb_does(transactions):
    directory = Directory()
    simulated = SimulatedDatabase(directory, lambda name: None)
    with contextlib.ExitStack() as stack:
        real = stack.enter_context(lmdb.open(stack.enter_context(TemporaryDirectory()), max_dbs=1, sync=False))
        table = real.open_db(b"log")
        for operations in transactions:
            with real.begin(write=True, buffers=True) as theirs, simulated.writing() as ours:
                assert answers(ours, "log", operations) == answers(theirs, table, operations)
            with real.begin(buffers=True) as theirs, simulated.reading() as ours:
                reads = [("set_range", b"\0"), ("walk",), ("last",), ("prev",)]
                assert answers(ours, "log", reads) == answers(theirs, table, reads)
                assert ours.stat("log")["entries"] == theirs.stat(table)["entries"]


def test_memory_is_gone_with_its_transaction():
    directory = Directory()
    with SimulatedDatabase(directory, lambda name: None).writing() as transaction:
        transaction.put(b"k", b"v", "log")
        view = transaction.get(b"k", db="log")
    try:
        bytes(view)
    except ValueError:
        return
    raise AssertionError("it can still be read")


@given(st.integers(1, 40))
def test_a_commit_that_dies_at_any_step_leaves_all_or_nothing(number):
    directory = Directory()
    whole = SimulatedLog(directory, now_ms=lambda: 0)
    whole.create_stream("s", StreamConfig())
    generation = whole.own("app")
    steps = []

    def step(name):
        steps.append(name)
        if len(steps) == number:
            raise Crash(name)

    appends = [Append("s", 0, Batch([b"%d" % row])) for row in range(3)]
    state = [StateWrites("st", 0, [(b"a", b"1"), (b"b", b"2")])]
    with contextlib.suppress(Crash):
        SimulatedLog(directory, now_ms=lambda: 0, step=step).commit(Commit("app", generation, appends, state, {}))
    done = "acknowledge" in steps
    assert whole.offsets("s", 0).end == (3 if done else 0)
    assert len(list(whole.state_range("app", "st", 0))) == (2 if done else 0)
    assert Transaction(directory).stat("log")["entries"] == (3 if done else 0)
