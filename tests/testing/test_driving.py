"""One operator alone: what it emits of events, tables and time, and what can't be driven."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.errors import OperatorFailure
from samza_dsl import App, Pane, PlanError, count, dead_letter, every, skip, testing, tumbling
from samza_dsl.testing import AdvanceTime, Record, Watermark, drive
from tests.simulation.loop import rest


def counted(stream):
    return stream.window(tumbling(seconds=1), count())


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5_000)), max_size=30))
def test_driving_an_operator_is_running_an_application_of_it(numbers):
    events = [Record(n, key, n) for key, n in numbers]
    app = App("driven")
    counted(app.input("numbers", value=int, key=str)).send_to(app.output("panes", value=Pane[str, int]))
    assert drive(counted, [*events, Watermark(10**9)]) == testing.run(app, {"numbers": events})["panes"]


def test_what_is_driven_sees_one_event_after_the_other():
    events = [500, Watermark(1_000), 900, 1_500, Watermark(2_000)]
    panes = drive(counted, events, key=lambda n: "k", timestamp=lambda n: n)
    assert panes == [Pane("k", 0, 1_000, 1), Pane("k", 1_000, 2_000, 1)], "900 is late"
    unfinished = drive(counted, [500], key=lambda n: "k", timestamp=lambda n: n)
    assert unfinished == []


def test_driving_waits_for_what_awaits():
    async def slowly(n):
        await rest(1_000)
        return [n, n]

    assert drive(lambda stream: stream.async_flat_map(slowly), [1, 2]) == [1, 1, 2, 2]


async def slowly_itself(n):
    await rest(n)
    return [n]


def test_what_waits_behind_a_commit_is_emitted_too():
    def piece(stream):
        return stream.async_flat_map(slowly_itself, timeout_ms=1_500, on_error=skip, order="none")

    assert drive(piece, [2_000, AdvanceTime(1_000), 1_000]) == [1_000], "the first one has timed out"


def test_time_goes_on_where_an_event_says_so():
    def piece(stream):
        return stream.async_flat_map(slowly_itself, order="none")

    assert drive(piece, [30, 10, 20]) == [10, 20, 30]
    assert drive(piece, [30, AdvanceTime(30), 10, 20]) == [30, 10, 20]


def parity(n):
    return "even" if n % 2 == 0 else "odd"


@given(st.lists(st.integers()))
def test_branches_are_lists_by_name(numbers):
    emitted = drive(lambda stream: stream.branch(parity, into=("even", "odd")), numbers)
    assert emitted == {"even": [n for n in numbers if n % 2 == 0], "odd": [n for n in numbers if n % 2]}


@pytest.mark.parametrize("name", ["with a space", "", "emitted", "events"])
def test_a_result_may_have_any_name(name):
    assert drive(lambda stream: {name: stream}, [1]) == {name: [1]}


def test_a_sink_is_driven_for_what_it_does():
    sunk = []
    assert drive(lambda stream: stream.sink(sunk.append), [1, 2]) == {}
    assert sunk == [1, 2]


def adding_up(numbers):
    totals = numbers.app.output("totals", value=int)

    def add_up(message, context):
        context.put("total", context.get("total", 0) + message.value)
        context.send(totals, context.get("total"))

    tick = every(lambda context: context.send(totals, -1), seconds=1)
    numbers.app.task(numbers, add_up, op_id="adding-up", outputs=[totals], window=tick)


def test_a_task_is_driven_and_its_outputs_are_seen():
    assert drive(adding_up, [1, 2, AdvanceTime(2_500), 3]) == {"totals": [1, 3, -1, -1, 6]}


def test_rows_are_given_to_a_join_by_key():
    def named(numbers, names):
        return numbers.join(names, lambda n, name: (n, name), how="left")

    events = [Record(1, "a"), Record(2, "b"), Record(3, "a")]
    assert drive(named, events, tables={"names": {"a": "Ann"}}) == [(1, "Ann"), (2, None), (3, "Ann")]
    assert drive(named, [1, 2], key=lambda n: n, tables={"names": {2: "two"}}) == [(1, None), (2, "two")]


def test_rows_are_given_to_a_join_by_a_function_and_to_both():
    def piece(numbers, names, shouts):
        named = numbers.join(names, lambda n, name: name)
        return named.join(shouts, lambda name, shout: shout, on=lambda name: name[0])

    tables = {"names": {1: "one", 2: "two"}, "shouts": {"o": "ONE!", "t": "TWO!"}}
    assert drive(piece, [2, 3, 1], key=lambda n: n, tables=tables) == ["TWO!", "ONE!"]


@given(st.dictionaries(st.integers(0, 9), st.text(), max_size=5), st.lists(st.integers(0, 9)))
def test_driving_a_join_is_running_an_application_of_it(rows, numbers):
    def named(numbers, names):
        return numbers.join(names, lambda n, name: (n, name), how="left")

    app = App("joined")
    table, stream = app.table("names", key=int, value=str), app.input("numbers", value=int, key=int)
    named(stream, table).send_to(app.output("out", value=tuple[int, str | None]))
    events = [Record(n, n) for n in numbers]
    run = testing.run(app, {"names": list(rows.items()), "numbers": events})
    assert drive(named, events, tables={"names": rows}) == run["out"]


def tenth(n):
    return 10 // n


def test_dead_letters_are_the_values_that_could_not_be_taken():
    def piece(numbers):
        return {"tenths": numbers.map(tenth, on_error=dead_letter("bad"))}

    assert drive(piece, [0, 5, 0, 2]) == {"tenths": [2, 5], "bad": [0, 0]}
    assert drive(lambda numbers: piece(numbers)["tenths"], [0, 5]) == [2]


def test_late_records_and_panes_that_could_not_be_taken_are_seen():
    def piece(numbers):
        panes = numbers.window(tumbling(seconds=1), count(), late=dead_letter("late"))
        return {"hundreds": panes.map(lambda pane: 100 // (pane.value - 1), on_error=dead_letter("bad"))}

    events = [Record(n, "k", n) for n in (1, 2, 1_500)]
    emitted = drive(piece, [*events, Watermark(2_000), Record(9, "k", 9)])
    assert emitted == {"hundreds": [100], "late": [9], "bad": [Pane("k", 1_000, 2_000, 1)]}


def test_dead_letters_behind_a_repartitioning_are_values_too():
    def piece(numbers):
        parts = numbers.partition_by(parity, partitions=2, op_id="parts")
        return {"tenths": parts.map(tenth, on_error=dead_letter("bad"))}

    assert drive(piece, [0, 5]) == {"tenths": [2], "bad": [0]}


def test_what_fails_is_raised():
    with pytest.raises(OperatorFailure, match="ZeroDivisionError"):
        drive(lambda numbers: numbers.map(tenth), [0])


def of_another_app(stream):
    app = App("another")
    return stream.join(app.table("names", value=str, key=str), lambda n, name: name)


REFUSED = {
    "nothing": (lambda stream: None, "that drive.* returned None; write instead: .* a stream, streams by name, or"),
    "a number": (lambda stream: 3, "returned 3"),
    "a list": (lambda stream: [stream], r"returned \[<"),
    "a dict of others": (lambda stream: {"out": 3}, "returned {'out': 3}"),
    "no function of one stream": (lambda: None, "does not take stream; write instead: lambda stream: "),
    "a table of its own": (
        lambda stream: stream.join(stream.app.table("names", value=str, key=str), lambda n, name: name),
        "reads 'names', and drive.* has nothing for it; write instead: .*tables=.* for other inputs .*testing.running",
    ),
    "a second input": (
        lambda stream: stream.merge(stream.app.input("others", value=int)),
        "reads 'others', and drive.* has nothing for it; write instead: .*tables=.* for other inputs .*testing.running",
    ),
    "a dead letter of a result's name": (
        lambda stream: {"out": stream.map(tenth, on_error=dead_letter("out"))},
        "out names a result of drive.* and a stream that the operator writes; write instead: another name",
    ),
}


@pytest.mark.parametrize(("piece", "told"), REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_driven_is_told(piece, told):
    with pytest.raises(ValueError, match=f"test_driving.py:.*{told}"):
        drive(piece, [1])


def test_a_table_has_to_be_taken_by_its_name():
    with pytest.raises(ValueError, match="does not take stream, names; write instead: lambda stream, names: "):
        drive(lambda stream: stream, [1], tables={"names": {}})


def test_a_table_of_another_application_is_told():
    with pytest.raises(PlanError, match="something of the app 'another'") as caught:
        drive(of_another_app, [1])
    assert "tables=" in caught.value.__notes__[0]


@pytest.mark.parametrize("make", [lambda: AdvanceTime(0), lambda: AdvanceTime(-5), lambda: AdvanceTime(1.5)])
def test_time_goes_on_by_whole_ms(make):
    with pytest.raises(ValueError, match=r"ms=.* is not a whole number of at least 1"):
        make()


def test_a_watermark_is_a_whole_number():
    with pytest.raises(ValueError, match=r"Watermark\(ms=1000.5\) is no time in whole ms"):
        Watermark(1_000.5)
