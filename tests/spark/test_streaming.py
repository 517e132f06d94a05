"""Micro-batches that go on from each other come to what a live run comes to, whatever dies between two steps."""

import json
import random
import shutil
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from planner.model.errors import PlanError
from runtime.model.errors import Damaged, EnvironmentFault, Owned
from runtime.ports.commits import Commit
from runtime.ports.stream_values import values_of
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.memory.lists import ListSink
from runtime.units import unit_state as state
from runtime.units.driver import micro_batch_application as streamed
from runtime.units.frames import FrameFile, frames
from runtime.units.growing import GrowingLines, Piece
from runtime.units.publication import manifest, publishing
from samza_dsl import App, SamzaError, count, every, total, tumbling
from tests.building import build
from tests.runtime.test_laws import worlds
from tests.scale import examples
from tests.simulation.crash import memory
from tests.spark.streaming import StandingClock, one_batch, opened, stream_here


class Died(Exception):
    """Stands for the death of the driver."""


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("checkpoint")


@given(world=worlds())
@settings(max_examples=examples(16, 4_000))
def test_inputs_that_are_cut_into_micro_batches_come_to_what_their_records_say(directories, world):
    stream_here(
        lambda: build(world.pipeline, world.options, world.seed), world.environment, directories(), seed=world.seed
    )
    world.outcome.check_results()


STEPS = (
    (streamed, "write_rows"),
    (manifest.Manifest, "write"),
    (publishing.Publisher, "publish"),
    (publishing, "remove_others"),
    (streamed, "remove_others"),
)


@given(world=worlds(), deaths=st.lists(st.tuples(st.sampled_from(STEPS), st.booleans(), st.integers(1, 6)), max_size=4))
@settings(max_examples=examples(16, 4_000))
def test_a_driver_that_dies_at_any_step_loses_and_doubles_nothing(directories, world, deaths):
    directory = directories()
    for (where, step), is_before, number in deaths:
        with suppress(Died), dying(where, step, is_before, number):
            stream_here(lambda: build(world.pipeline, world.options, world.seed), world.environment, directory)
    stream_here(lambda: build(world.pipeline, world.options, world.seed), world.environment, directory)
    world.outcome.check_results()


def dying(where, step, is_before, number):
    """Have a driver die before or behind a step, when that is done for the so-manyth time."""
    done, as_it_is = Counter(), getattr(where, step)

    def dies(*arguments, **named):
        done[step] += 1
        if done[step] == number and is_before:
            raise Died
        result = as_it_is(*arguments, **named)
        if done[step] == number:
            raise Died
        return result

    return patch.object(where, step, dies)


def counting(app=None):
    app = app or App("counting")
    ticks = app.input("ticks", value=list, timestamp=lambda tick: tick[1])
    counts = ticks.partition_by(lambda tick: tick[0], partitions=2).window(tumbling(milliseconds=10), count())
    counts.map(lambda pane: {"key": pane.key, "start": pane.start, "n": pane.value}).send_to(app.output("counts"))
    return app


def ran(streamed, seed=0):
    """Run micro-batches until there is nothing to do; return how many these were."""
    number = 0
    while (batch := streamed.next()) is not None:
        one_batch(streamed, batch, seed)
        number += 1
    return number


def lines(directory):
    """Return what all files of a directory hold, each as often as it is there."""
    return Counter(line for file in sorted(directory.glob("part-*")) for line in file.read_text().splitlines())


def told(*ticks):
    return "".join(json.dumps(tick) + "\n" for tick in ticks)


def counted(*found):
    return Counter(json.dumps({"key": key, "start": start, "n": n}, separators=(",", ":")) for key, start, n in found)


def test_files_grow_and_parts_of_outputs_come_at_once(tmp_path):
    ticks, out = tmp_path / "ticks.jsonl", tmp_path / "counts.jsonl"
    bind, first, second = {"ticks": ticks, "counts": out}, counted(("a", 0, 2)), counted(("a", 10, 1))
    ticks.write_text(told(["a", 1], ["a", 2]) + '["a", 1')
    running = opened(counting(), memory(), tmp_path / "checkpoint", bind)
    assert (ran(running), lines(out)) == (1, Counter())
    with ticks.open("a") as file:
        file.write("2]\n")
    assert (ran(running), lines(out)) == (1, first)
    assert ran(running) == 0
    running.close()
    with ticks.open("a") as file:
        file.write(told(["b", 25]))
    running = opened(counting(), memory(), tmp_path / "checkpoint", bind)
    assert (ran(running), lines(out)) == (1, first + second)
    running.close()
    running = opened(counting(), memory(), tmp_path / "checkpoint", bind, ends=True)
    assert (ran(running), lines(out)) == (1, first + second + counted(("b", 20, 1)))
    assert running.is_over and running.next() is None
    running.close()
    assert [path.name for path in sorted(out.iterdir()) if path.name[0] != "."] == [
        f"part-{number:09}.jsonl" for number in (2, 3, 4)
    ]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_parts_of_each_kind_are_read_as_files(tmp_path, suffix):
    numbers, out = tmp_path / "numbers", tmp_path / f"out.{suffix}"
    numbers.mkdir()
    for number in range(3):
        (numbers / f"{number}.jsonl").write_text(f"{number}\n{number + 10}\n")

    def copying():
        app = App("copying")
        read = app.input("numbers", value=int).map(lambda n: {"n": n})
        read.send_to(app.output("out", value=dict[str, int]))
        return app

    bind = {"numbers": numbers, "out": out}
    running = opened(copying(), memory(), tmp_path / "checkpoint", bind)
    assert ran(running) == 1
    (numbers / "3.jsonl").write_text("3\n13\n")  # comes behind what is there
    assert ran(running) == 1
    with (numbers / "0.jsonl").open("a") as file:
        file.write("20\n")
    with pytest.raises(SamzaError, match=r"0.jsonl has changed since .*3.jsonl came"):
        running.next()
    running.close()
    again = App("reading")
    again.input("out", value=dict[str, int]).map(lambda row: row["n"]).send_to(again.output("copy", value=int))
    assert sorted(again.run(tmp_path / "log", bind={"out": out}).received("copy")) == [0, 1, 2, 3, 10, 11, 12, 13]


@pytest.mark.parametrize("number", [2, *(pytest.param(number, marks=pytest.mark.ci) for number in (1, 3))])
@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize(("where", "step"), [*STEPS, (streamed.PartDirectory, "publish"), (Path, "replace")])
def test_files_and_lists_are_written_once_whatever_dies(tmp_path, where, step, is_before, number):
    ticks, out, sink = tmp_path / "ticks", tmp_path / "counts.jsonl", ListSink()
    ticks.mkdir()
    for name in "ab":
        (ticks / f"{name}.jsonl").write_text(told(*([name, at] for at in range(0, 60, 3))))

    def app():
        app = counting()
        app.input("more", value=int).send_to(app.output("copy", value=int))
        return app

    environment = memory()
    bind = {"ticks": ticks, "counts": out, "copy": sink, "more": [1, 2, 3]}
    for step_dies in (True, False):
        with suppress(Died), dying(where, step, is_before, number if step_dies else 1_000):
            running = opened(app(), environment, tmp_path / "checkpoint", bind, most_records=1, ends=True)
            try:
                with patch("runtime.units.driver.micro_batch_inputs.MOST_BYTES", 30):
                    ran(running)
            finally:
                running.close()
    assert lines(out) == counted(*((key, at, 3 if at % 30 != 0 else 4) for key in "ab" for at in range(0, 60, 10)))
    assert sorted(sink.values) == [1, 2, 3]


def test_a_checkpoint_has_one_run_and_one_application(tmp_path):
    (tmp_path / "ticks.jsonl").write_text(told(["a", 1]))
    bind = {"ticks": tmp_path / "ticks.jsonl", "counts": tmp_path / "out.jsonl"}
    running = opened(counting(), memory(), tmp_path / "checkpoint", bind)
    with pytest.raises(Owned, match="runs already from the checkpoint"):
        opened(counting(), memory(), tmp_path / "checkpoint", bind)
    ran(running)
    running.close()
    with pytest.raises(SamzaError, match="is the checkpoint of 'counting', not of 'another'"):
        opened(counting(App("another")), memory(), tmp_path / "checkpoint", bind)
    with pytest.raises(SamzaError, match="the app neither reads nor writes"):
        opened(counting(), memory(), tmp_path / "checkpoint", {**bind, "other": []})
    (tmp_path / "other.jsonl").mkdir()
    (tmp_path / "other.jsonl" / "part-1.jsonl").write_text("1")
    with pytest.raises(SamzaError, match="has something in it already"):
        opened(counting(), memory(), tmp_path / "new", {**bind, "counts": tmp_path / "other.jsonl"})

    def more_tasks():
        app = App("counting")
        ticks = app.input("ticks", value=list, timestamp=lambda tick: tick[1])
        counts = ticks.partition_by(lambda tick: tick[0], partitions=3).window(tumbling(milliseconds=10), count())
        counts.map(lambda pane: pane.value).send_to(app.output("counts"))
        return app

    with pytest.raises(SamzaError, match="has other stages than"):
        opened(more_tasks(), memory(), tmp_path / "checkpoint", bind)

    def other_windows():
        app = App("counting")
        ticks = app.input("ticks", value=list, timestamp=lambda tick: tick[1])
        by_key = ticks.partition_by(lambda tick: tick[0], partitions=2)
        counts = by_key.window(tumbling(milliseconds=20), total(lambda tick: tick[1]))
        counts.map(lambda pane: {"n": pane.value}).send_to(app.output("counts"))
        return app

    with pytest.raises(PlanError, match="its state was kept as"):
        opened(other_windows(), memory(), tmp_path / "checkpoint", bind)


def test_a_stream_that_was_given_more_partitions_stops_the_run_whose_tasks_are_by_the_former(tmp_path):
    environment = memory()
    environment.create_stream("ticks", StreamConfig())
    environment.append([Append("ticks", 0, Batch([b'["a",1]']))])
    with closing(opened(counting(), environment, tmp_path / "checkpoint")) as running:
        assert running.next() is not None
        environment.grow_stream("ticks", 2)
        with pytest.raises(
            EnvironmentFault, match=r"'ticks' has 2 partitions now, and had 1 .*from another checkpoint"
        ):
            running.next()


def test_until_now_reads_what_is_there_and_leaves_open_what_is_open(tmp_path):
    environment = memory()
    environment.create_stream("ticks", StreamConfig())
    environment.append([Append("ticks", 0, Batch([b'["a",1]', b'["a",12]']))])
    running = opened(counting(), environment, tmp_path, until_now=True, most_records=1)
    environment.append([Append("ticks", 0, Batch([b'["a",21]']))])
    assert ran(running) == 2
    assert values_of(environment, "counts", None) == [b'{"key":"a","start":0,"n":1}']
    running.close()
    running = opened(counting(), environment, tmp_path, ends=True)
    assert ran(running) == 2
    assert len(values_of(environment, "counts", None)) == 3 and running.is_over


def test_what_is_due_by_the_clock_has_a_micro_batch(tmp_path):
    environment, clock = memory(), StandingClock()

    def app():
        app = App("ringing")
        read = app.input("words", value=str, key=str)

        def on_message(word, context):
            context.set_alarm(clock.now_ms() + 1_000)
            return []

        rung = read.process(on_message, on_alarm=lambda at_ms, context: [context.key], init=int)
        rung.send_to(app.output("rung", value=str))
        return app

    environment.create_stream("words", StreamConfig())
    environment.append([Append("words", 0, Batch([b'"x"'], [b"k"]))])
    with patch("tests.spark.streaming.LoopClock", lambda start_ms: clock):
        running = opened(app(), environment, tmp_path, clock=clock)
        assert ran(running) == 1
        clock.ms += 900
        assert ran(running) == 0
        clock.ms += 100
        assert ran(running) == 1
        assert ran(running) == 0
    assert values_of(environment, "rung", None) == [b"k"]


def test_a_task_s_own_function_is_due_across_micro_batches(tmp_path):
    environment, clock = memory(), StandingClock()

    def app():
        app = App("telling")
        out = app.output("told", value=int)
        words = app.input("words", value=str, key=str)

        def count_up(message, context):
            context.put("all", context.get("all", 0) + 1)

        def tell(context):
            context.send(out, context.get("all", 0))

        app.task(words, count_up, outputs=[out], window=every(tell, seconds=5), op_id="telling")
        return app

    environment.create_stream("words", StreamConfig())
    with patch("tests.spark.streaming.LoopClock", lambda start_ms: clock):
        for passed_ms in (0, 3_000, 1_900, 100, 4_900):
            clock.ms += passed_ms
            environment.append([Append("words", 0, Batch([b'"x"'], [b"k"]))])
            running = opened(app(), environment, tmp_path, clock=clock)
            assert ran(running) == 1
            running.close()
        clock.ms += 100
        running = opened(app(), environment, tmp_path, clock=clock)
        assert (ran(running), ran(running)) == (1, 0)
    assert values_of(environment, "told", None) == [b"3", b"5"]


def test_a_task_that_asks_for_an_end_gets_all_of_its_micro_batch(tmp_path):
    environment = memory()

    def app():
        app = App("ending")
        out = app.output("seen", value=str)

        def see(message, context):
            context.send(out, message.value)
            context.shutdown()
            context.commit()

        words = app.input("words", value=str).partition_by(lambda word: word, partitions=1)
        app.task(words, see, outputs=[out], op_id="seeing")
        return app

    environment.create_stream("words", StreamConfig())
    environment.append([Append("words", 0, Batch([b"x", b"y", b"z"]))])
    assert ran(opened(app(), environment, tmp_path)) == 1
    assert sorted(values_of(environment, "seen", None)) == [b"x", b"y", b"z"]


def test_an_input_that_nothing_comes_of_holds_nobody_back(tmp_path):
    environment, clock = memory(), StandingClock()

    def app():
        app = App("counting")
        ticks = app.input("ticks", value=list, timestamp=lambda tick: tick[1], idle_after_ms=1_000)
        counts = ticks.partition_by(lambda tick: tick[0], partitions=2).window(tumbling(milliseconds=10), count())
        counts.map(lambda pane: pane.value).send_to(app.output("counts", value=int))
        return app

    environment.create_stream("ticks", StreamConfig(partitions=2))
    environment.append([Append("ticks", 0, Batch([b'["a",1]', b'["a",30]']))])
    with patch("tests.spark.streaming.LoopClock", lambda start_ms: clock):
        running = opened(app(), environment, tmp_path, clock=clock)
        assert ran(running) == 1
        clock.ms += 1_001
        assert ran(running) >= 1
        assert values_of(environment, "counts", None) == [b"1"]
        environment.append([Append("ticks", 1, Batch([b'["a",2]', b'["a",31]']))])
        assert ran(running) == 1
        environment.append([Append("ticks", 0, Batch([b'["a",41]'])), Append("ticks", 1, Batch([b'["a",42]']))])
        assert ran(running) == 1
    assert values_of(environment, "counts", None) == [b"1", b"2"]  # the first one of the other partition was late


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_late_pane_comes_when_nothing_comes_of_any_input(tmp_path, partitions):
    environment, clock = memory(), StandingClock()

    def app():
        app = App("counting")
        ticks = app.input("ticks", value=list, timestamp=lambda tick: tick[1], idle_after_ms=1_000)
        keyed = ticks.partition_by(lambda tick: tick[0], partitions=partitions)
        counts = keyed.window(tumbling(milliseconds=10), count(), allowed_lateness_ms=1_000)
        counts.map(lambda pane: pane.value).send_to(app.output("counts", value=int))
        return app

    environment.create_stream("ticks", StreamConfig())
    environment.append([Append("ticks", 0, Batch([b'["a",1]', b'["a",30]', b'["a",2]']))])
    with patch("tests.spark.streaming.LoopClock", lambda start_ms: clock):
        running = opened(app(), environment, tmp_path, clock=clock)
        assert ran(running) == 1
        assert values_of(environment, "counts", None) == [b"1"]
        clock.ms += 1_001
        assert ran(running) >= 1
        assert values_of(environment, "counts", None) == [b"1", b"2"]
        clock.ms += 10_000
        ran(running)
    assert values_of(environment, "counts", None) == [b"1", b"2"]


@pytest.mark.ci
def test_state_is_kept_in_few_files_and_comes_back_without_the_copy(tmp_path):
    (tmp_path / "numbers.jsonl").write_text("")

    def app():
        app = App("adding")
        numbers = app.input("numbers", value=list).partition_by(lambda pair: pair[0], partitions=1)
        sums = numbers.scan(lambda held, pair: held + pair[1], init=int)
        sums.send_to(app.output("sums", value=int))
        return app

    bind, expected = {"numbers": tmp_path / "numbers.jsonl", "sums": tmp_path / "sums.jsonl"}, []
    chance, sums = random.Random(0), Counter()
    with patch.multiple(state, MOST_FILES=3, LEAST_BYTES=2_000):
        for number in range(40):
            running = opened(app(), memory(), tmp_path / "checkpoint", bind)
            with (tmp_path / "numbers.jsonl").open("a") as file:
                for _ in range(chance.randint(1, 30)):
                    key, value = chance.randint(0, 20), chance.randint(0, 9)
                    sums[key] += value
                    expected.append(str(sums[key]))
                    file.write(f"[{key}, {value}]\n")
            assert ran(running, number) == 1
            files = [*(tmp_path / "checkpoint" / "state").iterdir()]
            assert len(files) <= 5
            if number % 3 == 0:
                shutil.rmtree(tmp_path / "checkpoint" / "scratch")
            running.close()
    assert lines(tmp_path / "sums.jsonl") == Counter(expected)


def test_a_run_tells_that_keys_are_made_otherwise_than_in_the_runs_before(tmp_path, caplog):
    """State under keys of another kind is not found again, in micro-batches as in a live run."""
    (tmp_path / "numbers.jsonl").write_text("")
    bind = {"numbers": tmp_path / "numbers.jsonl", "sums": tmp_path / "sums.jsonl"}

    def run(key, times):
        app = App("adding")
        numbers = app.input("numbers", value=int).partition_by(key, partitions=2, op_id="by")
        numbers.scan(lambda held, n: held + n, init=int, op_id="sum").send_to(app.output("sums", value=int))
        running, caplog_before = opened(app, memory(), tmp_path / "checkpoint", bind), len(caplog.records)
        for number in range(times):
            with (tmp_path / "numbers.jsonl").open("a") as file:
                file.write("1\n2\n")
            assert ran(running, number) == 1
        running.close()
        return [one.getMessage() for one in caplog.records[caplog_before:]]

    assert run(lambda n: n, 2) == run(lambda n: n, 1) == []
    told = run(str, 3)
    assert told
    assert all("'sum'" in one and "keys were int in the runs before, and one is str now" in one for one in told)
    assert run(str, 1) == []
    (back,) = {one.partition(" at ")[2].partition(": ")[2] for one in run(lambda n: float(n), 1)}
    assert back.startswith("its keys were int and str in the runs before, and one is float now")


def test_what_was_changed_from_outside_is_told(tmp_path):
    file = FrameFile(tmp_path / "frames")
    file.write(b"one")
    file.close()
    assert [*frames(tmp_path / "frames")] == [b"one"]
    (tmp_path / "frames").write_bytes((tmp_path / "frames").read_bytes()[:-1])
    with pytest.raises(Damaged, match="is not what was written"):
        [*frames(tmp_path / "frames")]
    with pytest.raises(Damaged, match="is gone"):
        [*frames(tmp_path / "none")]
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(Damaged, match="is no manifest"):
        manifest.Manifest.read(tmp_path)
    manifest.Manifest(id="one", app="a", version=2).write(tmp_path)
    with pytest.raises(SamzaError, match="is of version 2"):
        manifest.Manifest.read(tmp_path)


@given(
    st.lists(st.lists(st.sampled_from(["1", "22", "", " ", "333\r"]), max_size=5), min_size=1, max_size=4), st.data()
)
@settings(max_examples=examples(100, 5_000))
def test_lines_are_read_from_any_of_them_on(directories, files, data):
    directory, pieces, start = directories(), [], 0
    for number, rows in enumerate(files):
        path = directory / f"{number}.jsonl"
        path.write_bytes("".join(row + "\n" for row in rows).encode())
        pieces.append(Piece(str(path), start))
        start += path.stat().st_size
    source = GrowingLines([pieces])
    expected = [row.strip() for rows in files for row in rows if row.strip()]
    found, offset = [], 0
    while (read := source.read(0, offset, data.draw(st.integers(1, 3)))) is not None:
        found += zip(read.batch.offsets, read.batch.values, strict=True)
        assert read.next_offset > offset
        offset = read.next_offset
    assert [value.decode() for _, value in found] == expected
    for at, value in found:
        assert source.read(0, at, 1).batch.values == [value]


def test_an_output_at_a_path_has_nothing_to_do_with_the_stream_of_its_name(tmp_path):
    environment = memory()
    environment.create_stream("copies", StreamConfig(partitions=3))
    environment.commit(Commit("other", environment.own("other"), [Append("copies", 0, Batch([b"1"]))], [], {}))
    app = App("copying")
    app.input("numbers", value=int).send_to(app.output("copies", value=int, partitions=2))
    environment.create_stream("numbers", StreamConfig())
    opened(app, environment, tmp_path / "checkpoint", {"copies": tmp_path / "copies.jsonl"}).close()
