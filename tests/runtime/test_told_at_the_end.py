"""What is worth a word when a run is over comes to the log where no view shows it, and once."""

import asyncio
import re
import sys
from types import SimpleNamespace

import pytest

from planner.passes import plan
from runtime.model.errors import OperatorFailure
from runtime.model.metrics import RunMetrics
from samza_dsl import App, Options, count, produce, skip, tumbling
from samza_dsl.view.live import InNotebook
from samza_dsl.view.progress import log_the_end

UNREAD = r"silent: nothing was read of 'numbers', which is empty, or was never written"


def silent():
    app = App("silent")
    app.input("numbers", value=int).send_to(app.output("out"))
    return app


def run_plainly(app, data, **how):
    app.run(data, until_now=True, **how)


def run_in_a_loop(app, data, **how):
    asyncio.run(app.run_async(data, until_now=True, **how))


def run_beside(app, data, **how):
    async def main():
        async with app.running(data, until_now=True, **how) as run:
            await run.ended()

    asyncio.run(main())


def run_watched(app, data, **how):
    async def look(run):
        await asyncio.Event().wait()

    app.run(data, until_now=True, watch=look, **how)


def run_over_history(app, data, **how):
    app.reprocess(data, **how)


@pytest.mark.parametrize("run", [run_plainly, run_in_a_loop, run_beside, run_watched, run_over_history])
def test_what_is_told_at_the_end_comes_to_the_log(run, tmp_path, caplog):
    run(silent(), tmp_path, bind={"numbers": [], "out": tmp_path / "out.jsonl"})
    told = [message for message in caplog.messages if "nothing was read of 'numbers'" in message]
    assert len(told) == 1
    assert {one.name for one in caplog.records} == {"samza_dsl"}


@pytest.mark.parametrize("factor", [1, 4])
def test_what_split_tasks_have_read_before_counts_once(factor, tmp_path, caplog):
    app = silent()
    app.options = Options(elasticity=factor)
    produce("numbers", range(6), data=tmp_path, partitions=2)
    app.run(tmp_path, until_now=True)
    app.run(tmp_path, until_now=True)
    assert "'silent' has read all of it before, up to offset 6." in caplog.text


def test_a_view_that_shows_it_has_the_log_not_tell_it_again(tmp_path, caplog, capsys):
    silent().run(tmp_path, until_now=True, live=True)
    assert re.search(UNREAD, capsys.readouterr().out)
    assert not caplog.messages


def test_of_an_input_whose_numbers_nobody_has_nothing_is_told(caplog):
    """As of a run on Spark that another one has computed, and that comes to its places alone."""
    log_the_end(SimpleNamespace(plan=plan(silent().graph()), metrics=RunMetrics))
    assert not caplog.messages


def test_what_went_no_further_is_counted_in_the_log_with_operator_and_line(tmp_path, caplog):
    app = App("dropping")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n, key=lambda n: 1)
    kept = numbers.map(lambda n: n // (n - 7), on_error=skip, op_id="divided")
    kept.window(tumbling(milliseconds=10), count(), op_id="counted").send_to(app.output("out"))
    app.run(tmp_path, bind={"numbers": [50, 7, 3, 4]})
    told = "\n".join(caplog.messages)
    assert re.search(r"dropping: map 'divided' at .*test_told_at_the_end.py:\d+: 1 skipped", told)
    assert re.search(r"dropping: window 'counted' at .*test_told_at_the_end.py:\d+: 2 late", told)


def test_of_a_run_that_has_failed_the_error_alone_is_told(tmp_path, caplog):
    app = App("failing")
    app.input("numbers", value=int).map(lambda n: 1 / n).send_to(app.output("out"))
    app.input("others", value=int).send_to(app.output("out-2"))
    with pytest.raises(OperatorFailure):
        app.run(tmp_path, bind={"numbers": [0], "others": []})
    assert not caplog.messages


def test_of_a_run_that_is_well_nothing_is_told(tmp_path, caplog):
    silent().run(tmp_path, bind={"numbers": [1, 2]})
    assert not caplog.messages


def test_a_notebook_shows_it_below_the_picture(tmp_path, monkeypatch):
    shown = []
    handle = SimpleNamespace(update=shown.append)
    display = SimpleNamespace(display=lambda first, display_id: shown.append(first) or handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    silent().run(tmp_path, until_now=True, watch=InNotebook().watch)
    last = shown[-1]._repr_mimebundle_()
    assert re.search(UNREAD, last["text/plain"].replace("\n", " "))
    assert "was never written" in last["text/html"]
    assert "nothing was read" not in shown[0]._repr_mimebundle_()["text/plain"]
