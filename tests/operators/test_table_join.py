"""A table is the newest value of each key, and a join looks it up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.joins.table_join import TableContents
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String
from runtime.stores.memory import MemoryStore
from samza_dsl import App, Options, testing
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
