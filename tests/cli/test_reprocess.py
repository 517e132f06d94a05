"""Reprocessing from the command line: history is computed anew beside the live run, and handed over to it."""

import json
import re
from contextlib import closing

import pytest

from runtime.systems.log.environment import LogEnvironment
from tests.cli.test_run import ORDERS, lines


def spent(found):
    """Return what customers have spent in the windows from 0 on."""
    panes = [json.loads(line) for line in found.splitlines()]
    return {pane["key"]: pane["value"] for pane in panes if pane["start"] == 0}


def test_files_are_recomputed_into_a_file_and_the_live_run_goes_on_untouched(call, write, spending):
    write("orders.jsonl", lines(ORDERS))
    call("streams", "produce", "orders", stdin=lines(ORDERS[:2]))
    call("run", "spending.py", "--until-now")
    before = call("checkpoint", "show", "spending").stdout
    result = call("reprocess", "spending.py", "--from", "jsonl:orders.jsonl", "--to", "spent=again.jsonl")
    assert (result.exit_code, result.stderr) == (0, "")
    assert spent(spending.with_name("again.jsonl").read_text()) == {"ann": 7, "bob": 5}
    assert call("checkpoint", "show", "spending").stdout == before


def test_history_does_not_go_where_the_settings_of_the_run_bind_its_outputs(call, write, spending):
    write("samza-dsl.toml", 'bind = { spent = "live.jsonl", orders = "orders.jsonl" }\n')
    write("orders.jsonl", lines(ORDERS))
    call("run", "spending.py")
    live = spending.with_name("live.jsonl").read_text()
    assert call("plan", "spending.py").exit_code == 0
    result = call("reprocess", "spending.py", "--from", "orders=orders.jsonl", "--to", "spent=again.jsonl")
    assert (result.exit_code, result.stderr) == (0, "")
    assert spending.with_name("live.jsonl").read_text() == live
    assert spent(spending.with_name("again.jsonl").read_text()) == {"ann": 7, "bob": 5}


def test_the_log_is_recomputed_between_two_points_into_another_stream(call, spending):
    call("streams", "produce", "orders", stdin=lines(ORDERS))
    how = ["--start", "1970-01-01T00:00:02", "--until", "orders=3", "--to", "stream:spent-again", "--throttle", "90/s"]
    result = call("reprocess", "spending.py", *how)
    assert (result.exit_code, result.stderr) == (0, "")
    shown = call("streams", "show", "spent-again").stdout
    assert sorted(re.findall(r'"key":"(\w+)".*"value":(\d+)', shown)) == [("ann", "4"), ("bob", "5")]


def test_what_was_handed_over_is_taken_over_and_gone_on_from(call, spending, tmp_path):
    call("streams", "produce", "orders", stdin=lines(ORDERS))
    result = call("reprocess", "spending.py", "--until", "2", "--handover", "history")
    assert "handed over to history: stop spending, then samza-dsl take-over spending.py history" in result.stdout
    assert call("take-over", "spending.py", "history", "--yes").exit_code == 0
    assert call("run", "spending.py", "--until-now").exit_code == 0
    shown = call("streams", "show", "spent").stdout
    assert sorted(re.findall(r'"key":"(\w+)","start":0,.*"value":(\d+)', shown)) == [("ann", "7"), ("bob", "5")]


def test_an_output_that_holds_something_is_not_added_to(call, spending):
    call("streams", "produce", "orders", stdin=lines(ORDERS))
    call("run", "spending.py", "--until-now")
    result = call("reprocess", "spending.py")
    assert result.exit_code == 1
    assert "the stream 'spent' holds records already" in result.stderr
    assert "spent=stream:spent-recomputed" in result.stderr


def test_mistakes_are_told(call, spending):
    def refused(*how):
        result = call("reprocess", "spending.py", *how)
        assert result.exit_code == 2, result.stdout
        return result.stderr

    assert "--throttle fast is no rate: write --throttle 10_000/s" in refused("--throttle", "fast")
    assert "--start never is no place in a stream" in refused("--start", "never")
    assert "--from flights=f.jsonl: there is no stream 'flights' here, but orders" in refused(
        "--from", "flights=f.jsonl"
    )
    assert "--master is about Spark" in refused("--master", "local[2]")
    result = call("take-over", "spending.py", "nowhere", "--yes")
    assert (result.exit_code, "nowhere holds no handover" in result.stderr) == (1, True)


@pytest.mark.ci
def test_containers_share_history(program, write, spending):
    write("orders.jsonl", lines(ORDERS))
    assert program("streams", "produce", "orders", "--file", "orders.jsonl").wait() == 0
    assert program("reprocess", "spending.py", "--containers", "2", "--to", "stream:spent-again").wait() == 0
    with closing(LogEnvironment(spending.with_name(".samza-dsl"))) as environment:
        read = environment.read("spent-again", 0, 0)
        assert environment.state_stats("spending.recomputing") == {}
    assert read is not None
    assert spent(b"\n".join(read.batch.values).decode()) == {"ann": 7, "bob": 5}


def test_a_stream_is_archived_and_history_read_from_there(call, spending):
    call("streams", "produce", "orders", stdin=lines(ORDERS[:3]))
    said = "archived 3 records of orders to old, which has 3"
    assert call("streams", "archive", "orders", "old", "--as", "jsonl").stdout.strip() == said
    call("streams", "produce", "orders", stdin=lines(ORDERS[3:]))
    said = "archived 1 record of orders to old, which has 4"
    assert call("streams", "archive", "orders", "old", "--as", "jsonl").stdout.strip() == said
    result = call("reprocess", "spending.py", "--from", "old", "--to", "again.jsonl", "--start", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert spent(spending.with_name("again.jsonl").read_text()) == {"ann": 4, "bob": 5}
