"""What joins have met is counted, with the types of the keys on their sides; an answer for other keys is an error."""

from collections import Counter
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.joins.match_counts import LOOKED_AT, MET, MISSED, SAMPLED, Meetings, apart, kind_of
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, SamzaError, dead_letter, produce, remote_table, skip, testing, tumbling
from samza_dsl.view.progress import Progress


def both(value, other):
    return [value, other]


def key(value):
    return value["id"]


def sales(app, id):
    return app.input("sales", value=dict, key=key, timestamp=lambda value: 1)


def table(how, **more):
    def build(app):
        rows = app.table("products", value=dict, key=key, **more)
        return sales(app, key).join(rows, both, how=how, op_id="joined")

    return build


def looked_up(app):
    rows = app.table("products", value=dict, key=key, broadcast=True)
    return sales(app, key).join(rows, both, on=key, how="left", op_id="joined")


def interval(how, keep="all"):
    def build(app):
        others = app.input("products", value=dict, key=key, timestamp=lambda value: 1)
        return sales(app, key).join(others, both, within=(-9, 9), how=how, keep=keep, op_id="joined")

    return build


def nearest(direction):
    def build(app):
        others = app.input("products", value=dict, key=key, timestamp=lambda value: 1)
        return sales(app, key).join_asof(others, both, direction=direction, tolerance=9, how="left", op_id="joined")

    return build


def tables(app):
    one, other = (app.table(name, value=dict, key=key) for name in ("sales", "products"))
    return one.join(other, both, op_id="joined").changes()


def foreign(app):
    one, other = (app.table(name, value=dict, key=key) for name in ("sales", "products"))
    return one.join(other, both, on=key, op_id="joined").changes()


def windows(how):
    def build(app):
        others = app.input("products", value=dict, key=key, timestamp=lambda value: 1)
        return sales(app, key).join_windows(others, tumbling(seconds=1), both, how=how, op_id="joined")

    return build


JOINS = {
    "of tables by foreign key": foreign,
    "in windows": windows("inner"),
    "in windows, outer": windows("outer"),
    "left with a table": table("left"),
    "inner with a table": table("inner"),
    "of keys looked up": looked_up,
    "with versions": table("left", timestamp=lambda value: 0, retention_ms=0),
    "interval": interval("inner"),
    "outer interval": interval("outer"),
    "latest": interval("inner", "latest"),
    "nearest before": nearest("backward"),
    "nearest after": nearest("forward"),
    "of tables": tables,
}


def ran(build, ids, others):
    app = App("meeting")
    build(app).send_to(app.output("out"))
    given = {"sales": [{"id": id} for id in ids], "products": [{"id": id} for id in others]}
    return outcome(app.run(MemoryEnvironment(), bind=given))


def outcome(run):
    """Return what the join has counted, and what the end of the run says."""
    counted = Counter()
    for one in run.metrics().operators:
        if one.operator == "joined":
            counted.update({name: one.counters.get(name, 0) for name in (MET, MISSED)})
    progress = Progress(run.plan)
    progress.take(run.metrics(), ended=True)
    return counted, [*progress.strangers()]


@pytest.mark.parametrize("join", JOINS)
def test_keys_that_never_meet_are_told_with_their_types(join):
    counted, told = ran(JOINS[join], [7, 8], ["7", "8"])
    assert (counted[MET], counted[MISSED] >= 2) == (0, True)
    (line,) = told
    assert "'joined' at " in line
    assert "test_meetings.py:" in line
    assert "of sales int" in line
    assert "of products str" in line


@pytest.mark.parametrize("join", JOINS)
def test_keys_of_one_type_that_never_meet_are_told_otherwise(join):
    _, (line,) = ran(JOINS[join], ["7", "8"], ["007", "008"])
    assert "These are of one type" in line
    assert "str(...)" not in line


@pytest.mark.parametrize("join", JOINS)
def test_keys_that_meet_are_counted_and_nothing_is_told(join):
    counted, told = ran(JOINS[join], [7, 8], [7, 8])
    assert counted[MET] >= 2
    assert told == []


MANY = [*range(98)]


@pytest.mark.parametrize(
    ("ids", "others", "told_of"),
    [
        ([*MANY, "7", "8"], MANY, "2 keys of sales are str, and none of products"),
        (MANY, [*MANY, "7", "8"], "2 keys of products are str, and none of sales"),
        ([*MANY, 7.0], MANY, "1 key of sales is float, and none of products"),
        ([[7, "a"], [7, 7]], [[7, 7], [8, 7]], "1 key of sales is [int, str], and none of products"),
    ],
    ids=["text on the left", "text on the right", "a float", "parts"],
)
@pytest.mark.parametrize("join", JOINS)
def test_some_keys_of_a_type_that_the_other_side_never_has_are_told_however_many_others_meet(
    join, ids, others, told_of
):
    counted, told = ran(JOINS[join], ids, others)
    assert counted[MET] > 0
    (line,) = told
    assert told_of in line


@pytest.mark.parametrize("join", JOINS)
def test_several_types_that_both_sides_have_are_no_reason_for_a_word(join):
    _, told = ran(JOINS[join], [*MANY, "7"], [*MANY, "7", "8"])
    assert told == []


@pytest.mark.parametrize(
    "join",
    [
        "left with a table",
        "inner with a table",
        "of keys looked up",
        "with versions",
        "of tables",
        "of tables by foreign key",
    ],
)
def test_a_row_that_an_earlier_run_has_read_is_met_without_a_word(join, tmp_path):
    for others in ([7, "8"], [7]):
        for stream, ids in {"sales": [7, "8"], "products": others}.items():
            produce(stream, [{"id": id} for id in ids], data=tmp_path)
        app = App("meeting")
        JOINS[join](app).send_to(app.output("out"))
        assert outcome(app.run(tmp_path, until_now=True))[1] == []


def test_keys_that_a_service_has_no_row_of_their_type_for_are_told():
    async def numbers(ids):
        return {id: "row" for id in ids if type(id) is int}

    app = App("meeting")
    sales(app, key).join(remote_table(numbers), both, on=key, how="left", op_id="joined").send_to(app.output("out"))
    counted, (line,) = outcome(app.run(MemoryEnvironment(), bind={"sales": [{"id": id} for id in [*MANY, "7", "8"]]}))
    assert (counted[MET], counted[MISSED]) == (98, 2)
    assert "2 keys of sales are str, and none of the remote table" in line


@pytest.mark.parametrize("join", JOINS)
def test_a_side_of_which_nothing_came_is_told(join):
    _, (line,) = ran(JOINS[join], [7, 8], [])
    assert "of products none came" in line


def asked(answer, policy=None):
    app = App("asking")
    rows = remote_table(answer)
    policies = {} if policy is None else {"on_error": policy}
    app.input("ids", value=int).join(rows, lambda id, row: [id, row], on=abs, how="left", **policies).send_to(
        app.output("out")
    )
    return testing.run(app, {"ids": [7, 8]})


async def as_json(ids):
    return {str(id): "row" for id in ids}


async def more(ids):
    return {**dict.fromkeys(ids, "row"), 99: "row"}


async def some(ids):
    return {id: "row" for id in ids if id == 7}


def test_an_answer_for_keys_that_nobody_asked_for_ends_the_run():
    with pytest.raises(SamzaError) as ended:
        asked(as_json)
    text = str(ended.value)
    assert "remote_join" in text
    assert "test_meetings.py:" in text
    assert "returned a row for '7' (str), and was asked for 7 (int)" in text
    assert "{int(key): row}" in text


@pytest.mark.parametrize("key", [date(2025, 6, 15), (1, "a"), b"a"], ids=repr)
def test_of_keys_that_no_type_makes_of_text_no_type_is_advised(key):
    async def texts(keys):
        return {str(one): "row" for one in keys}

    app = App("asking")
    joined = app.input("ids", value=int).join(remote_table(texts), both, on=lambda id: key)
    joined.send_to(app.output("out"))
    with pytest.raises(SamzaError, match=r"as \{key: row for key in keys\}, one by one of these, on ids/0"):
        testing.run(app, {"ids": [7]})


@pytest.mark.parametrize("key", [[7], {"id": 7}], ids=repr)
def test_a_key_that_has_no_hash_is_told_with_what_asks_for_it(key):
    app = App("asking")
    app.input("ids", value=int).join(remote_table(some), both, on=lambda id: key).send_to(app.output("out"))
    with pytest.raises(SamzaError, match=r"on= returned .*7.*, which can't be the key of an answer.*a tuple in the"):
        testing.run(app, {"ids": [7]})


@pytest.mark.parametrize("answer", [as_json, more])
def test_it_meets_the_policy_of_the_operator(answer):
    assert asked(answer, skip)["out"] == []
    assert len(asked(answer, dead_letter("lost"))["lost"]) == 2


def test_a_key_without_a_row_is_no_mistake():
    assert sorted(asked(some)["out"], key=str) == [[7, "row"], [8, None]]


def test_of_a_side_with_more_types_than_are_told_apart_nothing_is_said():
    tuples = [(0,) * length for length in range(150)]
    meetings = Meetings(met=0)
    meetings.note(0, tuples)
    meetings.note(1, tuples[::-1])
    assert [*apart(meetings.kinds(["left", "right"]))] == []


@given(st.integers(1, 2_000), st.integers(0, 2_000), st.sampled_from([0, LOOKED_AT]))
def test_keys_of_types_that_are_sampled_come_to_their_number(tuples, texts, before):
    meetings, looked = Meetings(met=0, kind=lambda key: looked.append(key) or kind_of(key)), []
    meetings.note(0, [1] * before)
    meetings.note(0, [("a", 1)] * tuples + ["a"] * texts)
    wanted = {"(str, int)": tuples, "str": texts, "int": before}
    assert meetings.kinds(["left"])["left"] == {kind: number for kind, number in wanted.items() if number}
    assert len(looked) < 2 * SAMPLED if before else len(looked) == tuples


@pytest.mark.parametrize("join", JOINS)
def test_a_test_warns_of_keys_of_types_that_never_meet(join):
    app = App("meeting")
    JOINS[join](app).send_to(app.output("out"))
    given = {"sales": [{"id": 7}], "products": [{"id": "7"}]}
    with pytest.warns(
        UserWarning, match=r"meeting: .*'joined' at .*test_meetings.py:.* of sales (is|are) int, "
    ) as told:
        testing.run(app, given)
    assert [warning.filename for warning in told] == [__file__]
    with pytest.warns(UserWarning, match="none of sales") as told, testing.running(app, given) as run:
        run.end()
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.parametrize("join", JOINS)
def test_it_does_not_where_few_keys_of_one_type_meet(join):
    app = App("meeting")
    JOINS[join](app).send_to(app.output("out"))
    testing.run(app, {"sales": [{"id": 7}], "products": [{"id": 8}]})
