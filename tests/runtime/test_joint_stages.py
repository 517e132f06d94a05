"""A stage that is run once for all tasks comes to what it comes to task by task, and leaves the same behind."""

import json
import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.levers import ALL
from runtime.loop.chooser import HandedOn
from runtime.model.errors import SamzaError
from samza_dsl import App, Options, count, dead_letter, tumbling
from samza_dsl.testing.environment import CrashPoint
from tests.runtime.test_groups_between_stages import outcome, pipelines, told
from tests.scale import examples
from tests.simulation.crash import Crash, Watched, fill, memory, rows_of, run_once

APART = replace(ALL, joint=False)
points = st.builds(CrashPoint, st.sampled_from(["before_commit", "after_commit"]), st.integers(1, 4))


@given(pipelines(), st.integers(1, 30), st.integers(1, 30), st.booleans())
@settings(max_examples=examples(100, 5_000), deadline=None)
def test_a_stage_that_is_run_for_all_tasks_comes_to_what_each_comes_to(pipeline, batch_records, most, trust):
    make, parts = pipeline
    options = Options(batch_records=batch_records, max_uncommitted=most)
    found = [outcome(make(options), parts, replace(levers, trust=trust)) for levers in (ALL, APART)]
    if not any(isinstance(one, str) for one in found):  # whose first failure may be another one
        assert found[0] == found[1]


@given(
    pipelines(),
    st.integers(1, 10),
    st.lists(points, max_size=3),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(0, 99),
)
@settings(max_examples=examples(100, 5_000), deadline=None)
def test_each_way_goes_on_with_what_the_other_has_left(pipeline, batch_records, crashes, joint, seed):
    """What is handed on is often left for a commit, which stores it for the partition of its key."""
    make, parts = pipeline
    options = Options(batch_records=batch_records, max_uncommitted=5, commit_interval_ms=5)
    stored = [[(None, json.dumps(list(r)).encode(), 0) for r in rows if not isinstance(r[0], tuple)] for rows in parts]
    outcomes, turns = [], HandedOn.turns
    for ways, dies in (([False], []), (joint, crashes)):
        environment, chance = memory(), random.Random(seed)
        fill(environment, "in", stored)
        with patch.object(HandedOn, "turns", lambda all: turns(all) if chance.random() < 0.7 else ()):  # noqa: B023
            try:
                for way, crash in zip(ways, [*dies, None], strict=False):
                    try:
                        run_once(make(options), Watched(environment, crash, None), levers=replace(ALL, joint=way))
                        break
                    except Crash:
                        pass
            except SamzaError as failure:
                outcomes.append(told(failure))
                continue
        outcomes.append(sorted(value for rows in rows_of(environment, "out") for _, value, _ in rows))
    assert outcomes[0] == outcomes[1]


def lettering(options):
    """Send what can't be shown to dead letters, behind a repartitioning."""
    app = App("lettering", options)
    keyed = app.input("in", timestamp=lambda r: r[1], value=tuple).partition_by(
        lambda r: r[0], partitions=4, op_id="by"
    )
    kept = keyed.filter(lambda r: 10 // (r[2] - 3) != 7, on_error=dead_letter("bad"), op_id="kept")
    kept.window(tumbling(milliseconds=5), count(), late=dead_letter("late"), op_id="counts").map(str).send_to(
        app.output("out")
    )
    return app


def letters(environment, stream):
    """Return the letters of a stream with what they say of where they are from."""
    found, offset = [], 0
    while (read := environment.read(stream, 0, offset)) is not None:
        found += zip(read.batch.keys, read.batch.values, map(repr, read.batch.headers), strict=True)
        offset = read.next_offset
    return sorted(found)


@pytest.mark.parametrize("batch_records", [1, 100])
def test_letters_say_the_partition_that_a_message_went_to(batch_records):
    found = []
    for levers in (ALL, APART):
        environment = memory()
        rows = [[key, at, key] for at in (1, 2, 40, 3) for key in range(8)]
        fill(environment, "in", [[(None, json.dumps(row).encode(), 0) for row in rows]])
        run_once(lettering(Options(batch_records=batch_records)), environment, levers=levers)
        found.append([letters(environment, name) for name in ("bad", "late")])
    assert found[0] == found[1]
    assert [len(one) for one in found[0]] == [4, 7]
