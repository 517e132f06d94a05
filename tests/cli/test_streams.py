"""The commands on streams: what is written is listed, shown and followed, and mistakes teach."""

import json
import re
import signal
from datetime import datetime, timedelta

import pytest

from operators.core.base import Batch
from operators.partition_by import murmur2
from runtime.encoding.serdes import Evolving, Tagged
from runtime.ports.streams import END, Append, Control, Offsets, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl.cli.streams import _list_ranges as list_ranges
from samza_dsl.data.records import records_from
from samza_dsl.view.readable import text_of


@pytest.fixture
def log(folder):
    environment = LogEnvironment(folder / ".samza-dsl")
    yield environment
    environment.close()


def rows(result):
    """Return the lines below the heading, as words."""
    assert result.exit_code == 0, result.stderr
    return [line.split() for line in result.stdout.splitlines()[1:]]


def test_what_is_produced_is_listed(call):
    result = call("streams", "produce", "numbers", "--partitions", "2", stdin="1\n2\n3\n")
    assert result.stdout == "wrote 3 records to numbers\n"
    assert [row[:3] for row in rows(call("streams", "list"))] == [["numbers", "2", "3"]]


def test_the_end_of_a_stream_is_no_record(call):
    call("streams", "produce", "numbers", stdin="1\n2\n")
    assert call("streams", "end", "numbers").exit_code == 0
    assert call("streams", "end", "numbers").exit_code == 0
    name, partitions, records, size_bytes, ended = rows(call("streams", "list"))[0]
    assert [name, partitions, records, ended] == ["numbers", "1", "2", "ended"]
    assert int(size_bytes) > 0


def test_records_are_counted_whatever_lies_beside_them(call, log):
    log.create_stream("numbers", StreamConfig(partitions=2, compacted=True))
    for number in range(3):
        log.append([Append("numbers", 0, Batch([b"1"], keys=[b"a"]), Control("p", number))])
    log.append([Append("numbers", 1, Batch([b"1", b"2"], keys=[b"a", b"b"]), END)])
    log.append([Append("numbers", 0, Batch([]), Control("p", 3))])
    assert rows(call("streams", "list"))[0][2] == "5"
    log.compact("numbers")
    assert rows(call("streams", "list"))[0][2] == "3"
    log.end_stream("numbers")
    assert rows(call("streams", "list"))[0][2] == "3"


def test_an_ended_stream_takes_nothing_more(call):
    call("streams", "produce", "numbers", stdin="1\n")
    call("streams", "end", "numbers")
    result = call("streams", "produce", "numbers", stdin="2\n")
    assert (result.exit_code, "has ended" in result.stderr) == (1, True)


def test_keys_are_routed_as_the_runtime_routes_them(call, log):
    values = [{"name": f"n{number}", "at": number} for number in range(20)]
    stdin = "".join(json.dumps(value) + "\n" for value in values)
    call("streams", "produce", "people", "--partitions", "4", "--key", "name", stdin=stdin)
    for partition in range(4):
        keys = [f"n{n}".encode() for n in range(20) if murmur2(f"n{n}".encode()) % 4 == partition]
        assert log.read("people", partition, 0).batch.keys == keys


def test_keys_that_are_no_text_are_json_and_null_is_none(call, log):
    call("streams", "produce", "people", "--key", "id", stdin='{"id": 7}\n{"id": null}\n{"id": [1, 2]}\n')
    assert log.read("people", 0, 0).batch.keys == [b"7", None, b"[1,2]"]


def test_values_are_stored_as_they_were_written(call, log):
    call("streams", "produce", "values", stdin='{"a":  1.0}\r\n\n[ ]')
    assert [record.value for record in records_from(log, "values", 0, 0)] == [b'{"a":  1.0}', b"[ ]"]


def test_a_file_is_produced_in_batches(call, write, log):
    write("many.jsonl", "".join(f'{{"number": {n}, "more": "{"x" * 100}"}}\n' for n in range(20_000)))
    assert "20,000 records" in call("streams", "produce", "many", "--file", "many.jsonl").stdout
    read = log.read("many", 0, 0, max_records=100_000)
    assert 5_000 < len(read.batch) < 20_000


@pytest.mark.parametrize(
    ("line", "key", "wrong"),
    [
        (b"{", None, "record 2 can't be written: Input data was truncated"),
        (b"\xff", None, "record 2 can't be written"),
        (b'{"b": 1}', "a", "there is no field 'a' for the key: it has 'b'"),
        (b"[1]", "a", "there is no field 'a' for the key: it is no object"),
    ],
)
def test_a_line_that_can_not_be_written_is_named_and_nothing_of_its_batch_is_written(call, line, key, wrong):
    arguments = ["--key", key] if key else []
    result = call("streams", "produce", "numbers", *arguments, stdin=b'{"a": 1}\n' + line + b"\n")
    assert (result.exit_code, wrong in result.stderr) == (1, True), result.stderr
    assert rows(call("streams", "list")) == []


def test_another_number_of_partitions_is_a_mistake(call):
    call("streams", "produce", "numbers", stdin="1\n")
    result = call("streams", "produce", "numbers", "--partitions", "2", stdin="1\n")
    assert (result.exit_code, "exists and has 1 partitions" in result.stderr) == (2, True)


def test_records_are_shown_with_their_place_and_time(call, log):
    log.create_stream("mixed", StreamConfig(partitions=2))
    log.append([Append("mixed", 1, Batch([b'{"a": 1}', b"text", b"\xc1"], keys=[b"k", None, b"\x00\x01"]))])
    log.append([Append("mixed", 0, Batch([None], timestamps=[1_500]))])
    result = call("streams", "show", "mixed")
    assert result.stdout.splitlines()[1].split() == ["0", "0", "1970-01-01", "00:00:01.500", "-", "-"]
    assert [(row[0], row[1], row[4:]) for row in rows(result)[1:]] == [
        ("1", "0", ["k", '{"a":1}']),
        ("1", "1", ["-", "text"]),
        ("1", "2", ["1", "hex", "c1"]),
    ]


def test_shown_records_can_be_limited(call, log):
    log.create_stream("numbers", StreamConfig(partitions=2))
    for partition in range(2):
        log.append([Append("numbers", partition, Batch([str(n).encode() for n in range(10)]))])
    assert [row[:2] for row in rows(call("streams", "show", "numbers", "--limit", "2"))] == [["0", "0"], ["0", "1"]]
    from_8 = rows(call("streams", "show", "numbers", "--from", "8"))
    assert [row[:2] for row in from_8] == [["0", "8"], ["0", "9"], ["1", "8"], ["1", "9"]]
    assert [row[:2] for row in rows(call("streams", "show", "numbers", "--from", "99"))] == []
    one = rows(call("streams", "show", "numbers", "--partition", "1", "--limit", "1"))
    assert [row[:2] for row in one] == [["1", "0"]]


def test_the_headers_of_a_dead_letter_are_shown(call, log):
    log.create_stream("dead", StreamConfig())
    log.append([Append("dead", 0, Batch([b"{"], headers=[{"operator": b"parse", "error": b"truncated"}]))])
    assert "{ [operator: parse] [error: truncated]" in call("streams", "show", "dead").stdout


def test_values_can_not_steer_the_terminal(call, log):
    log.create_stream("steering", StreamConfig())
    log.append([Append("steering", 0, Batch([b'"\x1b[31m"', "\x9b31m".encode(), b"[bold]no markup[/bold]"]))])
    output = call("streams", "show", "steering").stdout
    assert output.replace("\n", "").isprintable()
    assert "[bold]no markup[/bold]" in output


def test_the_tail_is_the_last_of_all_partitions(call, log):
    log.create_stream("numbers", StreamConfig(partitions=2))
    log.append([Append("numbers", 0, Batch([b"1", b"3", b"5"], timestamps=[1, 3, 5]))])
    log.append([Append("numbers", 1, Batch([b"2", b"4"], timestamps=[2, 4]))])
    assert [row[-1] for row in rows(call("streams", "tail", "numbers", "-n", "3"))] == ["3", "4", "5"]
    assert rows(call("streams", "tail", "numbers", "-n", "0")) == []


def test_following_shows_what_comes_until_the_stream_ends(program, log):
    log.create_stream("numbers", StreamConfig())
    log.append([Append("numbers", 0, Batch([b"1", b"2"]))])
    process = program("streams", "tail", "numbers", "--follow", "-n", "1")
    assert process.stdout.readline().split()[-1] == "2"
    log.append([Append("numbers", 0, Batch([b"3"]))])
    assert process.stdout.readline().split()[-1] == "3"
    log.append([Append("numbers", 0, Batch([b"4"]))])
    log.end_stream("numbers")
    assert process.communicate()[0].split()[-1] == "4"
    assert process.returncode == 0


def test_following_goes_on_in_partitions_that_a_stream_is_given(program, log):
    log.create_stream("numbers", StreamConfig())
    log.append([Append("numbers", 0, Batch([b"1"]))])
    process = program("streams", "tail", "numbers", "--follow")
    assert process.stdout.readline().split()[-1] == "1"
    log.grow_stream("numbers", 3)
    log.append([Append("numbers", 2, Batch([b"2"]))])
    assert process.stdout.readline().split()[-1] == "2"
    log.end_stream("numbers")
    assert process.wait() == 0


@pytest.mark.ci
def test_following_ends_with_an_interrupt(program, log):
    log.create_stream("numbers", StreamConfig())
    log.append([Append("numbers", 0, Batch([b"1"]))])
    process = program("streams", "tail", "numbers", "--follow")
    process.stdout.readline()
    log.append([Append("numbers", 0, Batch([b"2"]))])
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_a_stream_is_described(call, log):
    log.create_stream("table", StreamConfig(partitions=2, compacted=True, retention_ms=60_000))
    output = call("streams", "describe", "table").stdout
    assert "compacted    yes" in output
    assert "retention    60,000 ms" in output
    assert [line.split() for line in output.splitlines()[-2:]] == [["0", "0", "0", "open"], ["1", "0", "0", "open"]]


@pytest.mark.parametrize("command", ["show", "tail", "describe", "end"])
def test_an_unknown_stream_lists_those_that_there_are(call, command):
    call("streams", "produce", "numbers", stdin="1\n")
    result = call("streams", command, "nmubers")
    assert (result.exit_code, "there is no stream 'nmubers' in .samza-dsl; its streams: numbers" in result.stderr) == (
        2,
        True,
    )


def test_an_unknown_partition_is_a_mistake(call):
    call("streams", "produce", "numbers", stdin="1\n")
    result = call("streams", "show", "numbers", "--partition", "3")
    assert (result.exit_code, "no partition 3: it has 0 to 0" in result.stderr) == (2, True)


@pytest.mark.parametrize("arguments", [("list",), ("show", "a"), ("tail", "a"), ("describe", "a"), ("end", "a")])
def test_without_a_data_directory_nothing_is_made(call, folder, arguments):
    result = call("streams", *arguments, "--data", "nowhere")
    assert (result.exit_code, "no data directory at nowhere" in result.stderr) == (2, True)
    assert list(folder.iterdir()) == []


def test_a_name_that_can_name_no_stream_is_refused(call):
    result = call("streams", "produce", "../escape", stdin="1\n")
    assert (result.exit_code, "is no stream name" in result.stderr) == (1, True)


def test_a_stream_is_made_as_it_was_said(call):
    kept = ["--retention-ms", "60000", "--retention-bytes", "1000000", "--compression", "zlib"]
    assert call("streams", "produce", "numbers", *kept, stdin="1\n").exit_code == 0
    described = call("streams", "describe", "numbers").stdout
    assert "compression  zlib" in described
    assert "retention    60,000 ms, 1,000,000 bytes" in described
    assert call("streams", "produce", "numbers", *kept, stdin="2\n").exit_code == 0


def test_a_stream_that_is_kept_otherwise_is_refused(call):
    call("streams", "produce", "numbers", stdin="1\n")
    result = call("streams", "produce", "numbers", "--retention-ms", "5", stdin="2\n")
    assert result.exit_code == 2
    assert "'numbers' exists and has no retention ms: leave --retention-ms out, or write to another" in result.stderr


def test_no_stream_is_made_of_what_can_not_be_read(call):
    assert call("streams", "produce", "numbers", stdin="{\n").exit_code == 1
    result = call("streams", "produce", "numbers", "--partitions", "2", stdin="1\n2\n")
    assert (result.exit_code, result.stdout) == (0, "wrote 2 records to numbers\n")


def test_a_stream_is_made_of_nothing(call):
    assert call("streams", "produce", "numbers", "--partitions", "2", stdin="").exit_code == 0
    assert [row[:3] for row in rows(call("streams", "list"))] == [["numbers", "2", "0"]]


def test_a_deleted_stream_is_gone(call):
    call("streams", "produce", "numbers", "--partitions", "2", stdin="1\n2\n3\n")
    call("streams", "produce", "others", stdin="1\n")
    call("streams", "end", "numbers")
    assert call("streams", "delete", "numbers").stdout == "deleted numbers: 2 partitions, 3 records\n"
    assert [row[0] for row in rows(call("streams", "list"))] == ["others"]
    assert call("streams", "produce", "numbers", stdin="4\n").exit_code == 0


@pytest.mark.parametrize("command", [["produce", "between"], ["end", "between"]], ids=lambda command: command[0])
def test_nothing_is_written_between_the_stages_of_an_app(call, log, command):
    log.create_stream("between", StreamConfig(intermediate=True))
    result = call("streams", *command, stdin="1\n")
    told = "error: 'between' lies between the stages of an app; write instead: another stream\n"
    assert (result.exit_code, result.stderr) == (2, told)
    assert log.offsets("between", 0) == (0, 0, False)


def test_what_can_not_be_deleted_is_refused(call, log):
    log.create_stream("between", StreamConfig(intermediate=True))
    result = call("streams", "delete", "nothing")
    assert (result.exit_code, "there is no stream 'nothing'" in result.stderr) == (2, True)
    assert "its streams: between" in result.stderr
    result = call("streams", "delete", "between")
    assert (result.exit_code, "samza-dsl reset APP.py drops it" in result.stderr) == (2, True)
    assert "between" in log.streams()


def test_a_topic_that_others_make_while_topics_are_listed_is_left_to_the_next_list(capsys):
    class Growing:
        def streams(self):
            return {"old": StreamConfig()}

        def ranges(self):
            return {"old": [Offsets(0, 3, ended=False)], "new": [Offsets(0, 1, ended=False)]}

    list_ranges(Growing())
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [["old", "1", "3"]]


def test_a_stream_is_given_more_partitions(call):
    call("streams", "produce", "ticks", "--partitions", "2", stdin='{"n":1}\n')
    grown = call("streams", "grow", "ticks", "--partitions", "4")
    assert (grown.exit_code, grown.stdout.strip()) == (0, "ticks has 4 partitions, and had 2"), grown.stderr
    fewer = call("streams", "grow", "ticks", "--partitions", "3")
    assert (fewer.exit_code, "has 4 partitions, and can't have 3" in fewer.stderr) == (1, True), fewer.stderr
    absent = call("streams", "grow", "tocks", "--partitions", "3")
    assert absent.exit_code != 0


@pytest.mark.parametrize("serde", [Tagged(), Evolving()])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([1, (2, 3)], re.escape("[1,[2,3]]")),
        ((1, ("a", None)), r'\[1,\["?a"?,null\]\]'),
        ([datetime(2025, 6, 15, 12)], r"\[datetime \[\"?2025-06-15T12:00:00\"?,0,null\]\]"),
        ({"a": (1, 2)}, r"\{a:\[1,2\]\}"),
        ([timedelta(days=1)], r"\[timedelta \[1,0,0\]\]"),
    ],
)
def test_what_lies_between_stages_is_shown_as_what_it_is(serde, value, shown):
    assert re.fullmatch(shown, text_of(serde.encode(value)))
