"""A table is the newest value of each key, and a join looks it up."""

import enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.joins.match_counts import Meetings
from operators.joins.table_join import TableContents
from runtime.assembly.lookups import lookups
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.stores.memory import MemoryStore
from samza_dsl import App, Options, testing
from tests.scale import examples
from tests.simulation.crash import fill, memory, run_once

UPDATES = st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers()), max_size=20)
NUMBERS = st.lists(st.integers(0, 6), max_size=20)


@given(UPDATES)
def test_contents_are_a_dict_in_which_none_deletes(updates):
    contents = TableContents(MemoryStore(), KeySerde(String()))
    contents.process(Batch([value for _, value in updates], keys=[b"%d" % key for key, _ in updates]))
    rows = {}
    for key, value in updates:
        rows.pop(key, None) if value is None else rows.update({key: value})
    assert dict(contents.store.range()) == {b"%d" % key: value for key, value in rows.items()}


def test_a_row_without_a_key_is_refused():
    with pytest.raises(ValueError, match="has no key"):
        TableContents(MemoryStore(), KeySerde(String())).process(Batch([1], keys=[None]))


class Letter(enum.StrEnum):
    """Text to Python, and another key to a table."""

    A = "a"


ALIKE = st.sampled_from([[1, True, 1.0], ["a", Letter.A, b"a", b"\x00\xa1a"], [(1,), (True,), 2**63, "1", "a", None]])
WHAT = st.sampled_from(["row", "no row", "look up", "look up by key"])
STEPS = ALIKE.flatmap(lambda alike: st.lists(st.tuples(WHAT, st.sampled_from(alike)), min_size=8, max_size=40))


def found(looked_up, on):
    """Return a row as the code of a join finds it."""
    row = looked_up["in_use"](on) if type(on) in looked_up["held_kinds"] else None
    return looked_up["lookup"](on) if row is None else row


def found_by_key(looked_up, held):
    row = looked_up["in_use_by_key"](held)
    return looked_up["lookup_key"](held) if row is None else row


@settings(max_examples=examples(200, 10_000))
@given(STEPS, st.sampled_from([0, 1, 2, 1_000]), st.sampled_from([Tagged(), String()]))
def test_a_look_up_finds_the_row_of_just_this_key_whatever_is_in_use(steps, most_used, serde_of_messages):
    own = KeySerde(Tagged())
    contents, meetings = TableContents(MemoryStore(), own, most_used), Meetings()
    looked_up = lookups(contents, Tagged(), KeySerde(serde_of_messages), meetings)
    rows, missed = {}, 0
    for number, (what, key) in enumerate(steps):
        if key is None and what != "look up":
            continue
        if what in ("row", "no row"):
            contents.process(Batch([number if what == "row" else None], keys=[own.hold_one(key)]))
            rows[Tagged().encode(key)] = number if what == "row" else None
            continue
        if what == "look up":
            row, expected = found(looked_up, key), None if key is None else rows.get(Tagged().encode(key))
        elif serde_of_messages == Tagged() or type(key) is str:
            keys = KeySerde(serde_of_messages)
            row, expected = found_by_key(looked_up, keys.hold_one(key)), rows.get(serde_of_messages.encode(key))
        else:
            continue
        assert row == expected
        missed += expected is None
        assert meetings.missed == missed
        assert len(contents.in_use) <= most_used


def test_a_row_that_changes_while_it_is_read_is_not_kept():
    contents = TableContents(MemoryStore(), KeySerde(Tagged()))
    version = contents.version
    contents.process(Batch(["new"], keys=["a"]))
    assert contents.use("a", "old", version) == "old"
    assert found(lookups(contents, Tagged(), KeySerde(Tagged()), Meetings()), "a") == "new"


@pytest.mark.parametrize("how", ["inner", "left"])
@given(NUMBERS, st.dictionaries(st.integers(0, 6), st.text(max_size=3)))
def test_a_broadcast_table_joins_on_any_function(how, numbers, rows):
    app = App("laws")
    words = app.table("words", key=int, value=str, broadcast=True)
    joined = app.input("numbers", value=int).join(words, lambda n, word: (n, word), on=lambda n: n, how=how)
    joined.send_to(app.output("out"))
    out = testing.run(app, {"numbers": numbers, "words": list(rows.items())})["out"]
    assert out == [(n, rows.get(n)) for n in numbers if how == "left" or n in rows]


@pytest.mark.parametrize("how", ["inner", "left"])
@given(NUMBERS, st.dictionaries(st.integers(0, 6), st.text(max_size=3)))
def test_a_partitioned_table_joins_on_the_key(how, numbers, rows):
    app = App("laws")
    words = app.table("words", key=int, value=str)
    keyed = app.input("numbers", value=int).partition_by(lambda n: n)
    keyed.join(words, lambda n, word: (n, word), how=how).send_to(app.output("out"))
    out = testing.run(app, {"numbers": numbers, "words": list(rows.items())})["out"]
    assert out == [(n, rows.get(n)) for n in numbers if how == "left" or n in rows]


class Heard(String):
    """Tells of what it decodes."""

    def __init__(self, heard):
        self.heard = heard

    def decode(self, data):
        self.heard.append(data)
        return super().decode(data)


@pytest.mark.parametrize("long", [0, 1])
def test_no_task_waits_for_the_tables_of_another(long):
    heard, environment = [], memory()
    rows = [[(b"k", b"row", 0)], [(b"k", b"row of the long one", 0)] * 500]
    values = [[(b"k", b"value", 0)], [(b"k", b"other value", 0)]]
    fill(environment, "rows", rows if long else rows[::-1])
    fill(environment, "in", values if long else values[::-1])
    app = App("app", Options(batch_records=10))
    table = app.table("rows", key=str, value=Heard(heard))
    joined = app.input("in", key=str, value=str).join(table, lambda value, row: f"{value} with {row}")
    joined.sink(heard.append)
    run_once(app, environment)
    assert 0 < heard.index("value with row") < 100
    assert heard[-1] == "other value with row of the long one"
    assert heard.count(b"row of the long one") == 500
