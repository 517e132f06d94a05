"""What reprocessing promises about outputs, points and takeovers, where each ends and is refused."""

import json
from contextlib import closing
from datetime import UTC, datetime

import pytest

from operators.core.base import Batch
from planner.model.errors import PlanError
from runtime.model.errors import Damaged, SamzaError
from runtime.ports.stream_values import values_of
from runtime.ports.streams import Append
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, archive, produce, total, tumbling


def summing(of="total", partitions=2, **how):
    app = App("summing")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n, **how).partition_by(
        lambda n: n % 3, partitions=partitions, op_id="by-rest"
    )
    sums = numbers.window(tumbling(milliseconds=10), total(lambda n: n), op_id=of)
    sums.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("sums", value=list))
    return app


NUMBERS = [1, 2, 4, 12, 3, 15, 31]
SUMS = [[0, 0, 3], [0, 10, 27], [1, 0, 5], [1, 30, 31], [2, 0, 2]]
IN_TIME = [one for one in SUMS if one != [0, 0, 3]]
"""3 is late."""


def written(data, stream="sums"):
    with closing(LogEnvironment(data)) as environment:
        return sorted(map(json.loads, values_of(environment, stream, None)))


def test_a_file_is_gone_on_with_by_the_run_that_takes_over(tmp_path):
    app, data, out = summing(), tmp_path / "data", tmp_path / "sums.jsonl"
    produce("numbers", NUMBERS, data=data, end=True)
    app.reprocess(data, bind={"sums": out}, until=4, handover=tmp_path / "handover")
    history = out.read_text().splitlines()
    app.take_over(tmp_path / "handover", data)
    app.run(data, bind={"sums": out})
    whole = out.read_text().splitlines()
    assert whole[: len(history)] == history
    assert sorted(map(json.loads, whole)) == IN_TIME


def test_history_begins_and_ends_at_times(tmp_path):
    produce("numbers", NUMBERS, data=tmp_path)
    how = {"start": datetime.fromtimestamp(0.003, UTC), "until": {"numbers": datetime.fromtimestamp(0.02, UTC)}}
    summing().reprocess(tmp_path, **how)
    assert written(tmp_path) == [[0, 10, 27], [1, 0, 4]]


def test_a_stopped_run_goes_on_to_where_it_would_have_ended(tmp_path):
    broken = True

    def careful(n):
        if n == 31 and broken:
            raise ValueError("stop here")
        return n

    app = App("passing")
    app.input("numbers", value=int).map(careful).send_to(app.output("out", value=int))
    produce("numbers", NUMBERS, data=tmp_path)
    with pytest.raises(SamzaError, match="stop here"):
        app.reprocess(tmp_path)
    produce("numbers", [99], data=tmp_path)
    broken = False
    app.reprocess(tmp_path)
    assert written(tmp_path, "out") == sorted(NUMBERS)
    with pytest.raises(SamzaError, match="the stream 'out' holds records already"):
        app.reprocess(tmp_path)


def test_points_that_are_not_there_are_told(tmp_path):
    produce("numbers", NUMBERS, data=tmp_path)
    with pytest.raises(SamzaError, match="8 is no offset of 'numbers', partition 0: it has 0 to 7; or say a time"):
        summing().reprocess(tmp_path, start=8)
    with pytest.raises(SamzaError, match="the app reads no 'numbers:1'; what it reads: numbers, numbers:0"):
        summing().reprocess(tmp_path, start={"numbers:1": 0})
    with pytest.raises(PlanError, match="per_second=0 is no rate"):
        summing().reprocess(tmp_path, per_second=0)


def handed_over(tmp_path, app=None, **how):
    data, directory = tmp_path / "data", tmp_path / "handover"
    produce("numbers", NUMBERS, data=data)
    (app or summing()).reprocess(data, until=4, handover=directory, **how)
    return data, directory


def test_another_application_takes_nothing_over(tmp_path):
    data, directory = handed_over(tmp_path)
    with pytest.raises(SamzaError, match="has state of 'total', and the application has no operator of that id"):
        summing(of="sum").take_over(directory, data)
    with pytest.raises(SamzaError, match="history was reprocessed in other tasks than the application has"):
        summing(partitions=3).take_over(directory, data)
    with pytest.raises(SamzaError, match="is of the application 'summing', and this is 'other'"):
        App("other").take_over(directory, data)
    with closing(LogEnvironment(data)) as environment:
        assert not environment.checkpoints("summing"), "nothing was changed"


def test_a_gap_is_refused(tmp_path):
    data, directory = handed_over(tmp_path)
    with closing(LogEnvironment(data)) as environment:
        environment.delete_stream("numbers")
    produce("numbers", [1], data=data)
    with pytest.raises(
        SamzaError, match="history ends at offset 4 of 'numbers', partition 0, and the stream has 0 to 1"
    ):
        summing().take_over(directory, data)
    summing().take_over(directory, data, at={"numbers": "earliest"})


def test_files_do_not_say_where_the_stream_goes_on(tmp_path):
    data, file = tmp_path / "data", tmp_path / "numbers.jsonl"
    file.write_text("".join(f"{number}\n" for number in NUMBERS[:4]))
    app = summing()
    app.reprocess(data, bind={"numbers": file}, handover=tmp_path / "handover")
    produce("numbers", NUMBERS[4:], data=data, end=True)
    with pytest.raises(SamzaError, match="--at numbers=earliest, latest or an offset"):
        app.take_over(tmp_path / "handover", data)
    app.take_over(tmp_path / "handover", data, at={"numbers": "earliest"})
    app.run(data)
    assert written(data) == IN_TIME


def test_a_half_taken_over_application_does_not_run(tmp_path):
    data, directory = handed_over(tmp_path)
    (state,) = [file for file in directory.glob("*.state") if file.stat().st_size][:1]
    whole = state.read_bytes()
    state.write_bytes(whole[:-1])
    with pytest.raises(Damaged, match="is not what was written, from byte"):
        summing().take_over(directory, data)
    with pytest.raises(SamzaError, match=r"has only a part of what .*handover hands over: take it over again"):
        summing().run(data, until_now=True)
    state.write_bytes(whole)
    summing().take_over(directory, data)
    with closing(LogEnvironment(data)) as environment:
        environment.end_stream("numbers")
    summing().run(data)
    assert written(data) == IN_TIME


def test_state_in_memory_is_not_handed_over(tmp_path):
    app = App("counting")
    numbers = app.input("numbers", value=int, key=lambda n: n)
    numbers.process(lambda n, context: [n], op_id="count", store="memory").send_to(app.output("out", value=int))
    with pytest.raises(SamzaError, match="the state of 'count' is in memory alone"):
        app.reprocess(tmp_path, bind={"numbers": [1]}, handover=tmp_path / "handover")


def test_an_archive_and_its_stream_are_one_history(tmp_path):
    app, data = summing(), tmp_path / "data"
    produce("numbers", NUMBERS[:4], data=data)
    archive("numbers", tmp_path / "numbers", data=data, kind="jsonl")
    with closing(LogEnvironment(data)) as environment:
        environment.append([Append("numbers", 0, Batch([str(number).encode() for number in NUMBERS[4:]]))])
        environment.end_stream("numbers")
    app.reprocess(data, bind={"numbers": tmp_path / "numbers"}, handover=tmp_path / "handover")
    app.take_over(tmp_path / "handover", data)
    app.run(data)
    assert written(data) == IN_TIME
