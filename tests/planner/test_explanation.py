"""A plan says of each operator whether it is compiled, called or taken row by row, and why."""

import pytest

from planner.codegen.explanation import OFF, WRAPPED, to_text, ways
from planner.passes import plan
from samza_dsl import App, Options, after_count, after_delay, by_clock, count, session, tumbling

LATE = 60


async def looked_up(flight):
    return [flight]


def total(message, context):
    context.put("total", message.value)


def pipeline(**options):
    app = App("flights", options=Options(**options))
    flights = app.input("flights", key=str, value=dict, timestamp=lambda flight: flight["at"])
    found = flights.filter(lambda flight: flight["km"] > 100, op_id="far").map(
        lambda flight: dict(flight), op_id="copied"
    )
    found.filter(lambda flight: flight["delay"] > LATE, op_id="late").async_flat_map(
        looked_up, max_in_flight=1, timeout_ms=1, op_id="asked"
    ).send_to(app.output("asked", value=dict))
    by_carrier = found.partition_by(lambda flight: flight["carrier"], op_id="by-carrier")
    by_carrier.window(tumbling(hours=1), count(), op_id="counted").send_to(app.output("counts"))
    by_carrier.window(session(seconds=1), count(), op_id="visits").send_to(app.output("visits"))
    by_carrier.process(total, op_id="summed").send_to(app.output("sums"))
    return app


def told(app, **how):
    return dict(ways(plan(app.graph(), app.options, **how), app.graph(), **how))


def test_each_operator_says_how_it_runs_and_why():
    found = told(pipeline())
    assert found["far"] == found["by-carrier"] == "compiled"
    assert found["copied"] == "called: dict(flight): it calls dict"
    assert found["late"] == 'called: flight["delay"] > LATE: it reads LATE, which is no parameter of it'
    assert found["asked"].startswith("called: it is awaited")
    assert found["counted"].startswith("compiled")
    assert found["summed"] == "called: total: it does more than return an expression"
    assert found["visits"].startswith("row by row: ")


def test_windows_that_the_loop_of_another_stage_groups_for_are_compiled_with_it():
    app = App("counts")
    flights = app.input("flights", key=str, value=dict, timestamp=lambda flight: flight["at"])
    flights.partition_by(lambda flight: flight["carrier"], op_id="by").window(
        tumbling(hours=1), count(), op_id="counted"
    ).send_to(app.output("counts"))
    assert told(app)["counted"] == "compiled: it groups values in the loop that reads them"


def windowed(*windows, **how):
    app = App("panes")
    readings = app.input("readings", key=str, value=dict, timestamp=lambda reading: reading["at"])
    readings.window(*windows, op_id="panes", **how).send_to(app.output("panes"))
    return told(app)["panes"]


def test_windows_with_triggers_say_whether_they_group_a_batch_and_why_not():
    five = {"early": after_count(5)}
    assert windowed(tumbling(hours=1), count(), **five) == (
        "compiled: it groups the values of a batch, and cuts them where a pane is due, after 5 values"
    )
    at_times = windowed(tumbling(hours=1), count(), early=after_delay(seconds=1))
    assert at_times.startswith("compiled: it groups the values of a batch, and looks at their times")
    late = windowed(tumbling(hours=1), count(), allowed_lateness_ms=9, late_trigger=after_count(2))
    assert late == "compiled: it groups the values of a batch"
    assert windowed(by_clock(tumbling(hours=1)), count(), **five).startswith("compiled: it groups")
    joins = windowed(session(hours=1), count(), **five)
    assert joins == "row by row: each message may join windows of its key, and panes go by that"


@pytest.mark.parametrize(("options", "how", "why"), [({"inline": False}, {}, OFF), ({}, {"wrapped": True}, WRAPPED)])
def test_what_forbids_all_inlining_is_the_reason(options, how, why):
    found = told(pipeline(**options), **how)
    assert found["far"].endswith(f": {why}") and found["late"].endswith(f": {why}")


def test_the_text_has_all_stages():
    app = pipeline()
    text = to_text(plan(app.graph(), app.options), app.graph())
    assert text.startswith("in one process\n  stage-1\n")
    assert "\n  stage-2\n    counted" in text
