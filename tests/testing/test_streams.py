"""Where records go in a test: to the partition of their key, or to their own, and to the streams of a pattern."""

import pytest

from samza_dsl import App, count, dead_letter, testing, tumbling
from samza_dsl.testing import Record

LETTERS = "abcdefghijklmnop"


def add_one(value, context):
    context.state += 1
    return [context.state]


def test_a_pattern_reads_the_streams_that_are_there():
    app = App("patterns")
    app.input("orders-*", value=int).send_to(app.output("out", value=int))
    with testing.running(app, {"orders-eu": [1]}, partitions={"orders-us": 1}) as run:
        run.send("orders-us", 2)
        assert sorted(run.received("out")) == [1, 2]


def test_a_stream_may_come_to_match_a_pattern():
    app = App("patterns")
    app.input("orders-*", value=int).send_to(app.output("out", value=int))
    with testing.running(app) as run:
        run.send("orders-eu", 1)
        run.advance_time(seconds=1)
        assert run.read("out") == [1]
        run.send_bytes("orders-us", b"2")
        run.advance_watermark("orders-jp", 5)
        run.advance_time(seconds=1)
        assert (run.read("out"), run.watermark("orders-jp")) == ([2], 5)
        assert [*run.records("orders-eu"), *run.records("orders-us")] == [Record(1, None, 0), Record(2, None, 1_000)]
        run.end()
        assert run.ended


def test_what_an_application_writes_itself_is_none_of_its_inputs():
    app = App("orders")
    orders = app.input("orders-*", value=int).partition_by(lambda n: "all", op_id="all")
    panes = orders.window(tumbling(minutes=1), count())
    panes.map(lambda pane: 1 // (pane.value - 1), on_error=dead_letter("orders-bad")).send_to(app.output("orders-good"))
    with testing.running(app, {"orders-eu": [1]}) as run:
        run.end()
        assert run.ended
        [letter] = run.dead_letters("orders-bad")
        assert run.received("orders-bad") == [letter.value] != [None]


def test_a_stream_that_appears_has_as_many_partitions_as_the_others():
    app = App("patterns")
    said = {"partitioned_by_key": True, "key": lambda n: n}
    app.input("orders-*", value=int, **said).process(lambda n, context: [n], op_id="it").send_to(app.output("out"))
    with testing.running(app, partitions={"orders-eu": 3}) as run:
        run.send("orders-us", *range(10))
        run.advance_time(seconds=1)
        assert sorted(run.read("out")) == list(range(10))
        assert {record.partition for record in run.records("orders-us")} == {0, 1, 2}


@pytest.mark.parametrize(
    "said",
    [{"key": str}, {"key": lambda letter: letter, "partitioned_by_key": True}],
    ids=["a key that is stored", "a key that is computed"],
)
def test_a_record_goes_where_its_key_says(said):
    app = App("counting")
    letters = app.input("letters", value=str, partitions=3, **said)
    letters.process(add_one, init=int, op_id="count").send_to(app.output("counts"))
    with testing.running(app) as run:
        for _ in range(2):
            run.send("letters", *[Record(letter, letter) for letter in LETTERS])
        assert {record.partition for record in run.records("letters")} == {0, 1, 2}
        assert run.state("count") == dict.fromkeys(LETTERS, 2)


def test_a_value_of_which_no_key_can_be_made_goes_to_the_first_partition():
    app = App("counting")
    said = {"key": lambda text: int(text), "partitioned_by_key": True, "on_error": dead_letter("bad")}
    app.input("texts", value=str, partitions=3, **said).send_to(app.output("out"))
    with testing.running(app) as run:
        run.send("texts", "7", "seven")
        assert run.read("out") == ["7"]
        [letter] = run.dead_letters("bad")
        assert (letter.value, letter.partition) == (b"seven", 0)


def test_a_record_goes_to_the_partition_that_it_says():
    app = App("copying")
    app.input("numbers", value=int, key=str, partitions=3).send_to(app.output("out", value=int))
    with testing.running(app) as run:
        run.send("numbers", Record(1, "a", partition=1), Record(2, "a", partition=2), Record(3, "a"), partition=0)
        assert [(one.value, one.partition) for one in run.records("numbers")] == [(3, 0), (1, 1), (2, 2)]
        for partition in (3, -1):
            with pytest.raises(ValueError, match=f"'numbers' has no partition {partition}; it has 0 to 2"):
                run.send("numbers", Record(1, "a", partition=partition))


def test_what_one_application_wrote_another_one_reads_by_its_keys():
    first, second = App("first"), App("second")
    first.input("letters", value=str, key=str).send_to(first.output("copies", value=str))
    second.input("copies", value=str, key=str, partitions=3).send_to(second.output("out", value=str))
    with testing.running(first) as run, testing.running(second) as other:
        run.send("letters", *[Record(letter, letter) for letter in LETTERS])
        other.send("copies", *run.records("copies"))
        assert {record.partition for record in other.records("copies")} == {0, 1, 2}
