"""Deduplication against a list of all that went on."""

from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import App, Options, testing
from tests.runtime.test_event_time import crashes
from tests.runtime.test_state_in_time import run, stamped
from tests.scale import examples
from tests.strategies import Event, records


@given(records(2, most=40), crashes, st.integers(0, 60), st.integers(1, 200), st.sampled_from((1, 3, 2_000)))
@settings(max_examples=examples(60, 10_000))
def test_of_messages_with_one_id_that_lie_close_together_the_first_goes_on(
    parts, crashes, disorder, within, batch_records
):
    def app():
        app = App("once", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder}
        stream = app.input("in", value=Event, **how)
        kept = stream.deduplicate(lambda e: [e.key, e.number % 2], within_ms=within)
        kept.map(lambda e: e.number).send_to(app.output("out", value=int))
        return app

    expected = []
    for part in parts:
        let_through = []
        for event, stamp in stamped(part, disorder):
            same = [at for id, at in let_through if id == (event.key, event.number % 2)]
            alive = [at for at in same if stamp is None or at + within > stamp]
            if not any(abs(at - event.at) < within for at in alive):
                let_through.append(((event.key, event.number % 2), event.at))
                expected.append(event.number)
    assert sorted(run(app, parts, crashes)) == sorted(expected)


def test_what_was_let_through_is_forgotten():
    app = App("once")
    numbers = app.input("in", value=int, timestamp=lambda n: n)
    numbers.deduplicate(lambda n: n, within_ms=10, op_id="once").send_to(app.output("out", value=int))
    with testing.running(app) as run:
        for start in range(0, 1_000, 100):
            run.send("in", *range(start, start + 100))
        assert run.read("out") == [*range(1_000)]
        (once,) = (one for one in run.metrics().stores if one.store == "once")
        assert 0 < once.entries <= 24
