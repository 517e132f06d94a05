"""The view of a run: rates, totals over tasks, and a picture that fits its terminal."""

import msgspec
from msgspec.structs import replace
from rich.console import Console

from operators.core.base import MAX_TIMESTAMP
from planner.model.plan import OperatorPlan, Plan, StagePlan, StreamPlan
from runtime.model.metrics import InputMetrics, OperatorMetrics, RunMetrics, TaskMetrics
from samza_dsl.view.live import LineView, line_of, picture_of, summary_of
from samza_dsl.view.progress import Progress

PLAN = Plan(
    app="orders",
    operators=(
        OperatorPlan(id="orders", kind="input", label="orders", stage="stage-1"),
        OperatorPlan(id="keep", kind="filter", stage="stage-1"),
        OperatorPlan(id="write", kind="send_to", stage="stage-1", terminal=True),
    ),
    stages=(StagePlan(id="stage-1", inputs=("orders",), operators=("orders", "keep", "write"), partitions=2),),
    streams=(
        StreamPlan(name="orders", role="input"),
        StreamPlan(name="between", role="intermediate"),
    ),
)


def reading(stream, partition, offset, end, watermark=60_000, ended=False):
    return InputMetrics(
        stream=stream,
        partition=partition,
        task=partition,
        offset=offset,
        end=end,
        lag=end - offset,
        watermark=watermark,
        ended=ended,
    )


def metrics(elapsed_ms, read, ended=False, **counts):
    return RunMetrics(
        operators=tuple(
            one
            for task in (0, 1)
            for one in (
                OperatorMetrics(operator="orders", task=task, received=read, emitted=read, **counts),
                OperatorMetrics(operator="keep", task=task, received=read, emitted=read // 2),
                OperatorMetrics(operator="write", task=task, received=read // 2),
            )
        ),
        tasks=(TaskMetrics(task=0, in_flight=3), TaskMetrics(task=1, in_flight=4)),
        inputs=(
            reading("orders", 0, read, 4_000, ended=ended),
            reading("orders", 1, read, 4_000, 120_000, ended=ended),
            reading("between", 0, 0, 50, MAX_TIMESTAMP),
        ),
        commits=2,
        since_commit_ms=400.0,
        elapsed_ms=elapsed_ms,
    )


def progress_of(*seen, ended=False):
    progress = Progress(PLAN)
    for each in seen:
        progress.take(each)
    progress.take(seen[-1], ended=ended)
    return progress


def drawn(progress, state, width=110, height=40):
    console = Console(width=width, height=height, force_terminal=False)
    with console.capture() as capture:
        console.print(picture_of(progress, state, (width, height)))
    return capture.get()


def test_numbers_are_of_all_tasks():
    progress = progress_of(metrics(1_000, 500))
    assert progress.passed("keep")[:2] == (1_000, 500)
    assert (progress.read, progress.written, progress.in_flight) == (1_000, 500, 7)


def test_lag_and_watermark_are_of_the_inputs_from_outside():
    progress = progress_of(metrics(1_000, 500))
    assert (progress.lag, progress.watermark) == (7_000, 60_000)


def test_a_rate_is_of_the_last_seconds_and_in_the_end_of_all():
    seen = [metrics(0, 0), metrics(10_000, 500), metrics(12_000, 1_500), metrics(14_000, 2_500)]
    assert progress_of(*seen).read_per_second == 1_000
    assert progress_of(*seen, ended=True).read_per_second == 5_000 * 1_000 / 14_000


def test_what_can_not_be_decoded_is_read_too():
    progress = progress_of(metrics(1_000, 500, dead_lettered=3))
    assert progress.read == 1_006
    assert progress.passed("orders").counted == {"to dead letters": 6}


def test_a_line_says_how_it_goes():
    assert line_of(progress_of(metrics(2_000, 500, late=1))) == (
        "orders: 2.0 s: 1,000 read (500/s), 500 written, lag 7,000, 7 in flight, 2 commits, last 0.4 s ago, "
        "watermark 1970-01-01 00:01:00, 2 late"
    )


def test_what_an_open_transaction_holds_back_for_long_is_told_everywhere():
    found = metrics(2_000, 500)
    first, second, *others = found.inputs
    for for_ms, is_told in ((5_000.0, False), (15_000.0, True)):
        # Of a task that is split both parts read the partition.
        part = replace(first, held=100, held_ms=for_ms)
        held = replace(found, inputs=(part, replace(part, task=90), second, *others))
        progress = progress_of(held)
        told = [line_of(progress), summary_of(progress, "stopped"), drawn(progress, "running")]
        assert ["100 held back by an open transaction" in one for one in told] == [is_told] * 3


def test_so_are_containers_that_died_and_tasks_that_nobody_has():
    found = metrics(2_000, 500)
    alone = tuple(replace(one, owned=False) for one in found.inputs[1:2])
    progress = progress_of(replace(found, inputs=(found.inputs[0], *alone), deaths=1, restarts=1, take_overs=2))
    for one in (line_of(progress), drawn(progress, "running", width=160)):
        assert "1 task in no container" in one
        assert "1 container died" in one and "2 tasks taken over" in one
    assert summary_of(progress, "done").endswith("1 container died, 2 tasks taken over")


def test_a_summary_says_how_it_went():
    assert summary_of(progress_of(metrics(2_000, 500), ended=True), "done") == (
        "orders: done in 2.0 s: 1,000 read (500/s), 500 written, 2 commits"
    )
    assert summary_of(progress_of(metrics(2_000, 500)), "failed").startswith("orders: failed after 2.0 s")


def test_the_picture_shows_every_operator_and_input():
    picture = drawn(progress_of(metrics(2_000, 500, skipped=1)), "running")
    assert picture.splitlines()[0].rstrip() == "● orders  running  2.0 s"
    assert "exactly once · 2 commits, last 0.4 s ago · 7 in flight" in picture
    assert "stage-1 · 2 partitions" in picture
    assert [line.split() for line in picture.splitlines() if "▍" in line] == [
        ["▍orders", "1,002", "1,000", "501", "2", "skipped"],
        ["▍keep", "1,000", "500", "500"],
        ["▍write", "500", "250"],
    ]
    assert "12%" in picture
    assert "1970-01-01 00:01:00" in picture


def test_an_input_that_ended_says_so():
    assert "ended" in drawn(progress_of(metrics(2_000, 4_000, ended=True), ended=True), "done")


def test_a_small_terminal_leaves_stateless_operators_out():
    picture = drawn(progress_of(metrics(2_000, 500)), "running", height=9)
    assert "▍keep" not in picture
    assert "▍write" in picture


def test_no_line_is_wider_than_the_terminal():
    for width in (60, 80, 100):
        picture = drawn(progress_of(metrics(2_000, 1_234_567, late=99_999)), "running", width=width)
        assert max(map(len, picture.splitlines())) <= width


def test_before_anything_has_happened_there_is_a_picture():
    assert "0.0 s" in drawn(Progress(PLAN), "running")


def test_a_jump_of_event_time_is_told_once_on_lines_and_stays_in_the_picture():
    one = msgspec.structs.replace(reading("orders", 0, 10, 20), jumps=2, warning="one record moved event time")
    seen = msgspec.structs.replace(metrics(1_000, 10), inputs=(one, reading("orders", 1, 10, 20)))
    progress = progress_of(seen, seen)
    assert "⚠ one record moved event time" in drawn(progress, "running")
    assert "event time jumped 2 times" in line_of(progress)
    console = Console(width=110, force_terminal=False)
    lines = LineView(console)
    with console.capture() as capture:
        lines.warn(progress)
        lines.warn(progress)
    assert capture.get() == "orders: warning: one record moved event time\n"
