"""What a task has pending: counted, and taken back to a savepoint."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Json
from runtime.stage.exits import SendToExit
from runtime.stage.outputs import Destination, Outputs

ROWS = st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=5)


def take(outputs, rows):
    """Have an output take rows, one by one or as columns; return how many these are."""
    sent = SendToExit(outputs, Destination("out", 1, Json()), KeySerde(Json()))
    for in_columns, number in rows:
        if in_columns:
            sent.fold(pa.record_batch({"n": range(number)}), Batch([]))
        else:
            sent.take(Batch([b"1"] * number))
    return sum(number for _, number in rows)


@given(ROWS, ROWS, st.booleans())
def test_what_is_pending_is_counted_and_what_is_taken_back_is_not(before, behind, stays):
    outputs = Outputs(0)
    expected = take(outputs, before)
    outputs.savepoint()
    added = take(outputs, behind)
    if stays:
        outputs.release()
    else:
        outputs.rollback()
    assert outputs.count == expected + added * stays
    outputs.clear()
    assert outputs.count == 0
