"""The names of tables that Spark opens, as users write them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.errors import SamzaError
from runtime.systems.files.places.tables import FORMATS, TableName, table_of


@given(st.sampled_from(FORMATS), st.text(min_size=1).filter(str.strip))
def test_a_name_is_read_as_it_is_written(format, name):
    assert table_of(str(TableName(format, name))) == TableName(format, name)


@pytest.mark.parametrize(
    "what", ["flights.jsonl", "s3a://lake/flights", "stream:flights-2", "tables:x", Path("table"), 3, None, ["table:x"]]
)
def test_all_else_is_no_table(what):
    assert table_of(what) is None


@pytest.mark.parametrize("what", ["table:", "delta: ", "iceberg:"])
def test_a_name_that_is_empty_is_refused_with_what_to_write(what):
    with pytest.raises(SamzaError, match=f'names no table: write "{what.strip()}'):
        table_of(what)
