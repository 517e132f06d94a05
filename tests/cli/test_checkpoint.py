"""Moving an application in its inputs: what is kept, what is dropped, and what is refused."""

import json

import pytest

from runtime.systems.log.environment import LogEnvironment
from samza_dsl import produce

ORDERS = [{"customer": name, "amount": 1, "at_ms": at} for at, name in enumerate(["ann", "bob", "ann", "cy"])]
KEEPING = ("--state", "keep")


@pytest.fixture
def ran(call, spending):
    """The application has read a stream, and has a window open."""
    call("streams", "produce", "orders", stdin="".join(json.dumps(order) + "\n" for order in ORDERS))
    assert call("run", "spending.py", "--until-now").exit_code == 0


def positions(call, app="spending"):
    result = call("checkpoint", "show", app)
    assert result.exit_code == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[3:]]
    return {(row[2], int(row[3])): int(row[4]) for row in rows}


def streams(folder):
    log = LogEnvironment(folder / ".samza-dsl")
    found = set(log.streams())
    log.close()
    return found


def test_positions_are_shown(call, ran):
    shown = call("checkpoint", "show", "spending").stdout
    assert shown.startswith("spending, generation 1\n")
    assert positions(call)["orders", 0] == len(ORDERS)
    assert {stream for stream, _ in positions(call)} == {"orders", "spending-by-customer"}


def test_partitions_that_nobody_has_read_yet_are_behind(call, shouting):
    call("streams", "produce", "words", stdin="1\n2\n")
    call("run", "shouting.py", "--until-now")
    call("streams", "grow", "words", "--partitions", "3")
    call("streams", "produce", "words", stdin="3\n4\n5\n6\n7\n")
    rows = [line.split()[:6] for line in call("checkpoint", "show", "shouting").stdout.splitlines()[3:]]
    assert [row[0] for row in rows] == ["0", "-", "-"]
    assert sum(int(row[5]) for row in rows) == 5
    call("run", "shouting.py", "--until-now")
    after = [line.split()[:6] for line in call("checkpoint", "show", "shouting").stdout.splitlines()[3:]]
    assert [(row[0], row[5]) for row in after] == [("0", "0"), ("1", "0"), ("2", "0")]


def test_a_stream_that_is_named_as_a_bound_input_is_not_behind(call, shouting, write):
    call("streams", "produce", "words", "--partitions", "3", stdin="1\n2\n")
    write("words.jsonl", '"a"\n"b"\n')
    assert call("run", "shouting.py", "--bind", "words=words.jsonl", "--until-now").exit_code == 0
    assert len(call("checkpoint", "show", "shouting").stdout.splitlines()[3:]) == 1


def test_the_application_may_be_named_by_its_file(call, ran):
    assert positions(call, "spending.py") == positions(call)


def test_a_stateless_application_is_moved(call, shouting):
    call("streams", "produce", "words", stdin="1\n2\n3\n")
    call("run", "shouting.py", "--until-now")
    result = call("checkpoint", "set", "shouting", "words", "1")
    assert result.stdout == "shouting reads words, partition 0, from offset 1 on\n"
    call("run", "shouting.py", "--until-now")
    shouts = call("streams", "show", "shouts").stdout.splitlines()[1:]
    assert [line.split()[-1] for line in shouts] == ["1", "2", "3", "2", "3"]


@pytest.mark.parametrize(("said", "offset"), [("earliest", 0), ("latest", 4), ("3", 3)])
def test_keeping_state_moves_the_position_alone(call, ran, said, offset):
    before = positions(call)
    assert call("checkpoint", "set", "spending", "orders:0", said, "--state", "keep").exit_code == 0
    assert positions(call) == before | {("orders", 0): offset}


def test_resetting_state_drops_what_lies_between_stages(call, ran, folder):
    result = call("checkpoint", "set", "spending.py", "orders", "1", "--state", "reset")
    assert result.exit_code == 0, result.stderr
    assert positions(call) == {("orders", 0): 1}
    assert "spending-by-customer" not in streams(folder)
    call("streams", "end", "orders")
    assert call("run", "spending.py").exit_code == 0
    spent = call("streams", "show", "spent").stdout
    assert sorted(line.split()[-1] for line in spent.splitlines()[1:]) == [
        f'{{"key":"{name}","start":0,"end":10000,"value":1}}' for name in ("ann", "bob", "cy")
    ]


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("spending", "orders", "0"), "must say what becomes of it: --state reset, or --state keep"),
        (("spending", "orders", "0", "--state", "reset"), "needs the application's file"),
        (("spending", "orders", "9", "--state", "keep"), "'9' is no offset of 'orders', partition 0: it has 0 to 4"),
        (("spending", "orders", "first", "--state", "keep"), "or say earliest or latest"),
        (("spending", "orders:7", "0", "--state", "keep"), "'orders' has no partition '7': it has 0 to 0"),
        (("spending", "ordres", "0", "--state", "keep"), "has no position in 'ordres': it reads orders"),
        (("spending", "spending-by-customer", "0", "--state", "keep"), "it reads orders"),
        (("spendnig", "orders", "0"), "no application 'spendnig' has run on .samza-dsl"),
        (("spending", "orders"), "say what to set: STREAM[:PARTITION] OFFSET, or --watermark TIME"),
        (("spending", "orders", "0", "--watermark", "2025-06-15"), "leave OFFSET and --state out"),
        (("spending", "--watermark", "soon"), "--watermark 'soon' is no time: write 2025-06-15"),
        (("spending", "ordres", "--watermark", "2025-06-15"), "has no position in 'ordres': it reads orders"),
        (("nowhere.py", "orders", "0"), "nowhere.py does not exist"),
    ],
)
def test_what_can_not_be_set_changes_nothing(call, ran, arguments, wrong):
    before = positions(call)
    result = call("checkpoint", "set", *arguments)
    assert (result.exit_code, wrong in result.stderr) == (2, True), result.stderr
    assert positions(call) == before


def test_event_time_is_set_back_after_a_record_of_a_clock_that_was_ahead(call, ran):
    day = 86_400_000
    call("streams", "produce", "orders", stdin=json.dumps({"customer": "eve", "amount": 1, "at_ms": 3 * day}) + "\n")
    call("run", "spending.py", "--until-now")
    assert call("checkpoint", "show", "spending").stdout.count("1970-01-04 00:00:00") == 3
    result = call("checkpoint", "set", "spending", "orders:0", "--watermark", "1970-01-01 00:00:20")
    assert result.exit_code == 0, result.stderr
    told = "event time is set back from 1970-01-04 00:00:00 to 1970-01-01 00:00:20"
    assert result.stdout == f"orders, partition 0: {told}\n"
    more = [{"customer": name, "amount": 5, "at_ms": at} for name, at in (("dan", 21_000), ("eve", 31_000))]
    call("streams", "produce", "orders", stdin="".join(json.dumps(order) + "\n" for order in more))
    call("run", "spending.py", "--until-now")
    assert call("checkpoint", "show", "spending").stdout.count("1970-01-01 00:00:31") == 3
    spent = call("streams", "show", "spent").stdout
    assert '{"key":"dan","start":20000,"end":30000,"value":5}' in spent
    assert "eve" not in spent
    call("streams", "end", "orders")
    call("run", "spending.py")
    assert call("streams", "show", "spent").stdout.count('"eve"') == 2


def test_event_time_is_not_set_forward(call, ran):
    shown = call("checkpoint", "show", "spending").stdout
    result = call("checkpoint", "set", "spending.py", "--watermark", "2025-06-15")
    assert result.stdout == "event time of spending is nowhere beyond 2025-06-15 00:00:00: nothing was changed\n"
    after = call("checkpoint", "show", "spending").stdout
    assert after.splitlines()[1:] == shown.splitlines()[1:]


@pytest.mark.ci
def test_a_running_application_is_neither_moved_nor_reset(call, program, shouting):
    call("streams", "produce", "words", stdin="1\n")
    call("run", "shouting.py", "--until-now")
    process = program("run", "shouting.py")
    process.stdout.readline()
    for command in (
        ("checkpoint", "set", "shouting", "words", "0"),
        ("reset", "shouting", "--yes"),
        ("delete", "shouting", "--yes"),
    ):
        result = call(*command)
        assert (result.exit_code, f"Process {process.pid} runs application" in result.stderr) == (1, True)


def test_a_reset_begins_anew(call, ran, folder):
    result = call("reset", "spending", "--yes")
    assert result.stdout == "spending begins anew; dropped spending-by-customer\n"
    assert positions(call) == {}
    assert streams(folder) == {"orders", "spent"}


def test_a_reset_asks_first(call, ran):
    before = positions(call)
    for answer in ("n\n", ""):
        assert call("reset", "spending", stdin=answer).exit_code != 0
    assert positions(call) == before
    assert call("reset", "spending", stdin="y\n").exit_code == 0
    assert positions(call) == {}


def test_an_unknown_application_is_not_reset(call, ran):
    result = call("reset", "spendnig", "--yes")
    assert (result.exit_code, "check its name" in result.stderr) == (2, True)


def test_what_a_deleted_application_has_kept_is_collected(call, ran, folder):
    before = positions(call)
    assert call("gc").stdout == "there is nothing to remove\n"
    assert call("delete", "spending", "--yes").stdout.startswith("spending is deleted")
    assert positions(call) == before
    assert call("gc").stdout == "removed what spending had kept\n"
    assert call("gc").stdout == "there is nothing to remove\n"
    assert (positions(call), streams(folder)) == ({}, {"orders", "spent"})
    call("streams", "end", "orders")
    assert call("run", "spending.py").exit_code == 0
    assert len(call("streams", "show", "spent").stdout.splitlines()) == 4


def test_a_deleted_application_may_be_run_again_before_it_is_collected(call, ran):
    before = positions(call)
    for again in (("run", "spending.py", "--until-now"), ("checkpoint", "set", "spending", "orders", "4", *KEEPING)):
        call("delete", "spending", "--yes")
        assert call(*again).exit_code == 0
        assert call("gc").stdout == "there is nothing to remove\n"
        assert positions(call) == before


def test_a_deletion_asks_first(call, ran):
    assert call("delete", "spending", stdin="n\n").exit_code == 2
    assert call("gc").stdout == "there is nothing to remove\n"


def test_a_sound_directory_is_verified(call, ran):
    result = call("verify")
    assert (result.exit_code, result.stdout) == (0, ".samza-dsl is as it was written\n")


def test_a_damaged_directory_is_told_of(call, ran, folder):
    file = folder / ".samza-dsl" / "data.mdb"
    file.write_bytes(file.read_bytes().replace(b'"customer"', b'"custimer"'))
    result = call("verify")
    assert (result.exit_code, "error:" in result.stderr) == (1, True)


def test_without_a_directory_there_is_nothing_to_verify(call):
    result = call("verify", "--data", "nowhere")
    assert (result.exit_code, "no data directory at nowhere" in result.stderr) == (1, True)


COUNTING = """
from samza_dsl import App

app = App("counting")
words = app.input("words", value=str, key=str)
words{between}.scan(lambda total, word: (total or 0) + 1, op_id="count").send_to(app.output("counts", value=int))
"""


@pytest.mark.parametrize("how", [KEEPING, ("--state", "reset")], ids="-".join)
@pytest.mark.parametrize("between", ["", '.partition_by(lambda word: word, partitions=2, key_type=str, op_id="by")'])
def test_a_place_before_more_partitions_were_added_is_refused_where_state_lies_by_its_keys(call, between, how):
    with open("counting.py", "w") as file:
        file.write(COUNTING.format(between=between))
    produce("words", ["a", "b", "c"], key=str)
    assert call("run", "counting.py", "--until-now").exit_code == 0
    assert call("streams", "grow", "words", "--partitions", "3").exit_code == 0
    assert call("run", "counting.py", "--until-now").exit_code == 0
    before = positions(call, "counting")
    result = call("checkpoint", "set", "counting.py", "words:0", "1", *how)
    assert (result.exit_code == 0) is bool(between), result.stderr
    if not between:
        assert "ended at offset 3 when the stream was given more partitions" in " ".join(result.stderr.split())
        assert "samza-dsl reset counting" in " ".join(result.stderr.split())
        assert positions(call, "counting") == before
    if how == KEEPING:
        by_name = call("checkpoint", "set", "counting", "words:0", "2", *KEEPING)
        assert by_name.exit_code != 0
        assert "or name the file of 'counting'" in " ".join(by_name.stderr.split())
    assert call("checkpoint", "set", "counting.py", "words:0", "3", *how).exit_code == 0
    assert call("checkpoint", "set", "counting.py", "words:2", "earliest", *how).exit_code == 0
