"""A dead letter of what is late at a window says where the record came from, whatever lies before the window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Json
from runtime.stage.outputs import Outputs, late_exit
from samza_dsl import App, count, dead_letter, testing, tumbling


@pytest.fixture
def app():
    return App("late")


def ending_in_a_window(stream):
    panes = stream.window(tumbling(milliseconds=10), count(), op_id="tens", late=dead_letter("late"))
    panes.map(lambda pane: pane.value).send_to(stream.app.output("counts", value=int))


def read(app, partitions=1):
    return app.input(
        "numbers",
        value=int,
        key=lambda n: n in (50, 4),
        timestamp=lambda n: n,
        partitions=partitions,
        partitioned_by_key=True,
    )


def places(app, *given):
    """Return where the late letters say that they are from."""
    with testing.running(app) as run:
        for partition, values in enumerate(given):
            run.send("numbers", *values, partition=partition)
        run.end()
        letters = run.dead_letters("late")
    assert {(letter.operator, letter.error) for letter in letters} == {("tens", "late")}
    return sorted((letter.stream, letter.partition, letter.offset) for letter in letters)


async def same(value):
    return [value]


SHAPES = {
    "nothing": lambda stream: stream,
    "filter": lambda stream: stream.filter(lambda n: n != 99),
    "flat_map": lambda stream: stream.flat_map(lambda n: [n]),
    "await": lambda stream: stream.async_flat_map(same),
    "await for some": lambda stream: stream.filter(lambda n: n < 90).merge(
        stream.filter(lambda n: n >= 90).async_flat_map(same)
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_it_says_stream_partition_and_offset(app, shape):
    ending_in_a_window(SHAPES[shape](read(app, partitions=2)))
    found = places(app, [1, 98, 2, 97, 3], [50, 4])
    assert found == [("numbers", 0, 2), ("numbers", 0, 4), ("numbers", 1, 1)]


def test_behind_a_repartitioning_it_says_the_stream_between_where_it_may_never_be_stored(app):
    ending_in_a_window(read(app).partition_by(lambda n: "all", partitions=1, op_id="again"))
    assert places(app, [1, 98, 2, 3]) == [("late-again", 0, None)] * 2


def test_of_what_a_process_returned_it_says_for_which_record(app):
    ending_in_a_window(read(app).process(lambda n, context: [n], op_id="passing"))
    assert places(app, [1, 98, 2]) == [("numbers", 0, 2)]


UNWRITTEN = object()
"""A value without bytes."""


@given(
    st.lists(st.tuples(st.sampled_from([7, "seven", None, UNWRITTEN]), st.text(max_size=2), st.sampled_from([1, -1])))
)
def test_the_letters_of_a_batch_are_those_of_its_messages_one_by_one(rows):
    values, keys, signs = ([row[part] for row in rows] for part in range(3))
    batch = Batch(values, keys=keys, signs=signs, offsets=range(len(rows)))

    def letters(batches):
        outputs, counts = Outputs(0), []
        on_late = late_exit("tens", "late", counts.append, outputs, KeySerde(Json()))
        for one in batches:
            on_late(one)
        found = outputs.pending.get(("late", 0), Batch([], keys=[], headers=[]))
        return sum(counts), found.values, found.keys, found.headers

    assert letters([batch]) == letters(batch.row(place) for place in range(len(rows)))
