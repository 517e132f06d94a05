"""The laws that users get, on Spark: they hold for what does not depend on where it runs, and tell what does."""

import os

import pytest
from hypothesis import strategies as st

from samza_dsl import App, Spark, laws, testing, total, tumbling


def summing(of=lambda n: n):
    app = App("summing")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n, partitions=2).map(of, op_id="of")
    by_rest = numbers.partition_by(lambda n: n % 3, partitions=2, op_id="by-rest")
    panes = by_rest.window(tumbling(milliseconds=10), total(lambda n: n), op_id="sums")
    panes.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("sums", value=list))
    return app


NUMBERS = {"numbers": st.lists(st.integers(0, 60), min_size=1, max_size=8)}


def test_lists_are_run_on_spark(session):
    given = {"numbers": [[1, 12], [4]]}
    app = summing()
    assert testing.unordered(testing.run(app, given, on=Spark(session))) == testing.unordered(testing.run(app, given))


def test_a_law_that_holds_here_holds_on_spark(session):
    laws.check_laws(summing(), NUMBERS, examples=3, seed=1, on=Spark(session))


def test_what_depends_on_the_process_is_told(session):
    here = os.getpid()
    with pytest.raises(laws.LawBroken, match=r"depend on where the app runs: 'sums' has .* on Spark, and .* live"):
        laws.check_laws(summing(lambda n: n + (os.getpid() != here)), NUMBERS, examples=3, seed=1, on=Spark(session))
