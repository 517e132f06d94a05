"""What commits change in state: kept in journals, merged when it is much, and told from what was not written."""

import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.errors import Damaged
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.systems.log.environment import LogEnvironment, verify
from runtime.systems.log.journal import Budget, Journals
from tests.runtime.log_directory import flip, output, write


@pytest.fixture
def written(tmp_path):
    """A closed directory with a stream, a store whose entries are merged, and another with a journal."""
    return write(tmp_path)


@given(
    st.lists(
        st.dictionaries(st.binary(max_size=1) | st.just(b"long" * 200), st.none() | st.binary(max_size=3), max_size=5)
        | st.sampled_from([["st"], ["other"], None]),
        max_size=12,
    ),
    st.sampled_from([2, 8, 100]),
)
def test_what_is_kept_of_a_store_is_right_whatever_is_written(steps, most_entries):
    with tempfile.TemporaryDirectory() as path:
        log = LogEnvironment(path, sync=False)
        log._database.journals = Journals(log._database, Budget(most_entries), most_records=3)
        generation = log.own("app")
        expected = {}
        for number, step in enumerate(steps):
            if isinstance(step, dict):
                store, task = ("st", "other")[number % 2], number % 3
                log.commit(Commit("app", generation, [], [StateWrites(store, task, sorted(step.items()))], {}))
                held = {**expected.get((store, task), {}), **step}
                expected[store, task] = {key: value for key, value in held.items() if value is not None}
            else:
                log.reset("app", step)
                generation = log.generation("app")
                expected = {place: held for place, held in expected.items() if step and place[0] not in step}
        assert log.state_stats("app") == {
            place: (len(held), sum(len(key) + len(value) for key, value in held.items()))
            for place, held in sorted(expected.items())
            if held
        }
        for (store, task), held in expected.items():
            assert list(log.state_range("app", store, task)) == sorted(held.items())
        log.close()
        assert verify(path) == []


def test_a_damaged_journal_is_refused_with_its_store(written):
    flip(written, b"newer-001")
    log = LogEnvironment(written)
    of_the_store = "The journal of application 'app', store 'newer', task 0, is not what was written: its checksum"
    with pytest.raises(Damaged, match=of_the_store):
        log.state_get("app", "newer", 0, b"k0")
    for _ in range(2):
        with pytest.raises(Damaged, match=of_the_store):
            list(log.state_range("app", "newer", 0))
    with pytest.raises(Damaged, match=of_the_store):
        log.commit(Commit("app", log.own("app"), [], [StateWrites("newer", 0, [(b"k5", b"")])], {}))
    assert log.state_get("app", "st", 0, b"k3")
    log.close()
    (finding,) = verify(written)
    assert finding == "the journal of application 'app', store 'newer', task 0: its checksum does not match"


def test_missing_and_outdated_records_of_journals_are_found(written):
    log = LogEnvironment(written)
    with log._database.writing() as transaction:
        found = [(bytes(key), bytes(record)) for key, record in transaction.cursor(log._database.journal)]
        (first, record), *_ = found
        transaction.delete(first, db=log._database.journal)
        with pytest.raises(Damaged, match="store 'newer', task 0, is not what was written: records are missing"):
            log._database.journals.at(transaction, first[:8])
    missing = "the journal of application 'app', store 'newer', task 0: 2 records, not 3"
    assert verify(written) == [missing, "there are 2 records of journals, and not the 3 that all stores have"]
    with log._database.writing() as transaction:
        transaction.put(first, record, db=log._database.journal)
    assert verify(written) == []
    with log._database.writing() as transaction:
        transaction.put(b"\0" * 16, record, db=log._database.journal)
    assert verify(written) == ["there are 4 records of journals, and not the 3 that all stores have"]
    log.close()


def test_another_process_and_an_older_moment_see_what_is_theirs(written):
    log = LogEnvironment(written)
    generation = log.own("app")
    before = log.state_reader("app", "newer", 0)
    assert before.get(b"k0") == b"newer-000" * 30
    log.commit(Commit("app", generation, [], [StateWrites("newer", 0, [(b"k0", b"now"), (b"k4", b"four")])], {}))
    program = "print(*[key.decode() for key, _ in LogEnvironment(sys.argv[1]).state_range('app', 'newer', 0)])"
    assert output(program, written) == ["k0", "k1", "k2", "k4"]
    assert (before.get(b"k0"), before.get(b"k4")) == (b"newer-000" * 30, None)
    log._database.journals._most_records = 0
    log.commit(Commit("app", generation, [], [StateWrites("newer", 0, [(b"k1", None)])], {}))
    assert (before.get(b"k0"), before.get(b"k1")) == (b"newer-000" * 30, b"newer-001" * 30)
    before.release()
    assert (before.get(b"k0"), before.get(b"k1"), before.get(b"k4")) == (b"now", None, b"four")
    before.release()
    assert log.state_stats("app")["newer", 0] == (3, 6 + 3 + 30 * 9 + 4)
    log.close()
    assert verify(written) == []
