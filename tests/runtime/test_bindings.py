"""Files bound in the place of streams: exactly once, and never over what is not ours."""

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest
from msgspec import Struct

from planner.model.errors import PlanError
from runtime.assembly.bindings import Bindings
from runtime.model.errors import Damaged, SamzaError
from runtime.ports.streams import StreamConfig
from runtime.systems.files import record_files
from runtime.systems.files.record_files import RecordFile
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSource
from samza_dsl import App, Options, count, daily, dead_letter, testing


@pytest.fixture
def app():
    app = App("doubling")
    app.input("numbers", value=int).map(lambda n: n * 2).send_to(app.output("doubles", value=int))
    return app


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "numbers.jsonl"
    path.write_text("1\n2\n3\n")
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_input_and_an_output_are_files(app, numbers, tmp_path):
    out = tmp_path / "doubles.jsonl"
    app.run(tmp_path / "data", bind={"numbers": numbers, "doubles": out})
    assert read(out) == [2, 4, 6]


def test_a_second_run_goes_on_where_the_first_stopped(app, numbers, tmp_path):
    out = tmp_path / "doubles.jsonl"
    app.run(tmp_path / "data", bind={"numbers": numbers, "doubles": out})
    numbers.write_text("1\n2\n3\n4\n")
    app.run(tmp_path / "data", bind={"numbers": numbers, "doubles": out})
    assert read(out) == [2, 4, 6, 8]


def test_a_file_is_read_once_from_its_beginning_on(numbers, monkeypatch):
    monkeypatch.setattr(record_files, "BLOCK", 1_000)
    monkeypatch.setattr(record_files, "MANY", 1)
    numbers.write_text("".join(f"{n}\n" for n in range(10_000)))
    read_bytes, seen = [], []
    read_as_ever = RecordFile._bytes

    def noted(file, position, length):
        read_bytes.append(length)
        return read_as_ever(file, position, length)

    monkeypatch.setattr(RecordFile, "_bytes", noted)
    app = App("once")
    app.input("numbers", value=int).sink(lambda n: seen.append((n, sum(read_bytes))))
    app.run(MemoryEnvironment(), bind={"numbers": numbers})
    assert [n for n, _ in seen] == [*range(10_000)]
    assert seen[0][1] == 1_000
    assert sum(read_bytes) <= 1.01 * numbers.stat().st_size  # what is left of a record at a block's end is read again


def test_what_is_still_to_be_read_of_a_file_is_told_about(app, numbers):
    many = 300_000
    numbers.write_text("7\n" * many)

    async def main():
        async with app.running(MemoryEnvironment(), bind={"numbers": numbers}) as run:
            soon = run.metrics()
            await run.ended()
            return soon, run.metrics()

    (soon,), (last,) = (metrics.inputs for metrics in asyncio.run(main()))
    assert not soon.ended
    assert (soon.end, soon.lag) == (many, many - soon.offset)
    assert (last.end, last.lag, last.ended) == (many, 0, True)


def test_rows_beyond_the_commit_are_cut_off(app, numbers, tmp_path):
    out = tmp_path / "doubles.jsonl"
    app.run(tmp_path / "data", bind={"numbers": numbers, "doubles": out})
    with out.open("a") as file:
        file.write("999\n")  # as a crash between the file's write and the commit leaves it
    app.run(tmp_path / "data", bind={"numbers": numbers, "doubles": out})
    assert read(out) == [2, 4, 6]


def test_a_file_of_someone_else_is_left_alone(app, numbers, tmp_path):
    out = tmp_path / "thesis.jsonl"
    out.write_text('"my only copy"\n')
    with pytest.raises(SamzaError, match="this app did not write"):
        app.run(tmp_path / "data", bind={"numbers": numbers, "doubles": out})
    with pytest.raises(SamzaError, match="this app did not write"):
        app.run(tmp_path / "data", bind={"numbers": numbers, "doubles": out}, from_start=True, state="reset")
    assert read(out) == ["my only copy"]


def test_a_rewind_begins_the_output_anew(app, numbers, tmp_path):
    out = tmp_path / "doubles.jsonl"
    for _ in range(2):
        app.run(tmp_path / "data", bind={"numbers": numbers, "doubles": out}, from_start=True, state="reset")
        assert read(out) == [2, 4, 6]


def test_another_file_has_a_position_of_its_own(app, numbers, tmp_path):
    app.run(tmp_path / "data", bind={"numbers": numbers, "doubles": tmp_path / "one.jsonl"})
    numbers.write_text("1\n2\n3\n4\n")
    app.run(tmp_path / "data", bind={"numbers": numbers, "doubles": tmp_path / "two.jsonl"})
    assert read(tmp_path / "two.jsonl") == [8]


def test_what_the_app_does_not_have_can_not_be_bound(app, tmp_path):
    with pytest.raises(SamzaError, match=r"neither reads nor writes; it has doubles, numbers"):
        app.run(tmp_path / "data", bind={"nubmers": tmp_path / "numbers.jsonl"})


@pytest.mark.parametrize("what", [5, None, {}, MemoryEnvironment, object()])
def test_what_is_no_input_can_not_be_bound_to_one(app, what):
    told = r"bind={'numbers': .*}: an input can't be bound to that; write instead: a path such as \"numbers.jsonl\", a "
    with pytest.raises(SamzaError, match=told + "list of values, a source, or connectors.generator"):
        app.run(MemoryEnvironment(), bind={"numbers": what})


def test_an_input_is_bound_to_no_other_stream(app):
    told = r"an input can't be bound to that; write instead: app.input\(\"others\"\), and no binding"
    with pytest.raises(SamzaError, match=told):
        app.run(MemoryEnvironment(), bind={"numbers": "stream:others"})


@pytest.mark.parametrize("what", [5, None, [1, 2], ListSource([1])])
def test_what_is_no_output_can_not_be_bound_to_one(app, what):
    told = (
        r"bind={'doubles': .*}: an output can't be bound to that; write instead: a path such as \"doubles.jsonl\", or"
    )
    with pytest.raises(SamzaError, match=told + " a sink"):
        app.run(MemoryEnvironment(), bind={"doubles": what})


def test_dead_letters_can_not_be_bound_to_a_file():
    app = App("checking")
    numbers = app.input("numbers", value=int, on_error=dead_letter("bad"))
    numbers.send_to(app.output("out"))
    told = r"dead letters can't be bound to that; write instead: another stream, as \"stream:bad-2\""
    with pytest.raises(SamzaError, match=told):
        app.run(MemoryEnvironment(), bind={"bad": "bad.jsonl"})


def test_a_bind_that_names_no_streams(app):
    with pytest.raises(SamzaError, match=r"bind=\['numbers.jsonl'\] names no streams; write instead: bind={"):
        app.run(MemoryEnvironment(), bind=["numbers.jsonl"])


@pytest.mark.parametrize("method", ["run", "running"])
def test_an_argument_that_a_run_does_not_take(app, method):
    with pytest.raises(TypeError, match=rf"App.{method}\(\) got an unexpected keyword argument 'foo'"):
        getattr(app, method)(MemoryEnvironment(), foo=1)


@pytest.mark.parametrize("hostile", [10**30, 2**63 - 1, -(2**63), 2**62 + 1, 253_402_300_800_000])
def test_a_time_that_no_calendar_knows_meets_the_inputs_policy(hostile, tmp_path):
    app = App("times")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n, key=lambda n: "k", on_error=dead_letter("bad"))
    numbers.window(daily("America/New_York"), count()).map(lambda pane: pane.value).send_to(
        app.output("out", value=int)
    )
    results = testing.run(app, {"numbers": [0, hostile, 1]})
    assert results == {"out": [2], "bad": [b"%d" % hostile]}


def test_an_object_learns_where_the_data_lies(tmp_path):
    class Where:
        def open(self, context):
            self.data = context.data

        def __call__(self, number):
            return str(self.data)

    app = App("where")
    app.input("numbers", value=int).map(Where()).send_to(app.output("out", value=str))
    run = app.run(tmp_path / "data", bind={"numbers": [1]})
    assert run.received("out") == [str(tmp_path / "data")]


@pytest.mark.parametrize("said", ["input", "table", "output", "pattern", "task"])
def test_a_stream_that_contradicts_its_partitions_is_refused(said):
    environment = MemoryEnvironment()
    environment.create_stream("there", StreamConfig(partitions=4))
    app = App("contradicting")
    numbers = app.input(
        "the*" if said == "pattern" else "there" if said == "input" else "numbers", value=int, partitions=2
    )
    name = "there" if said in ("output", "task") else "elsewhere"
    output = app.output(name, value=int, partitions=2)
    if said == "table":
        numbers = numbers.join(app.table("there", value=int, key=int, partitions=2, broadcast=True), max, on=abs)
    if said == "task":
        app.task(numbers, lambda message, context: None, outputs=[output], op_id="task")
    else:
        numbers.send_to(output)
    wrong = r"test_bindings.py:\d+: partitions=2, and the stream 'there' exists and has 4; write instead: partitions=4"
    with pytest.raises(PlanError, match=wrong):
        app.run(environment)
    assert "elsewhere" not in environment.streams()


def test_a_stream_that_has_its_partitions_is_used(numbers):
    environment = MemoryEnvironment()
    environment.create_stream("there", StreamConfig(partitions=4))
    app = App("agreeing")
    numbers_in = app.input("numbers", value=int, partitions=3)  # a file's count is its own
    numbers_in.send_to(app.output("there", value=int, partitions=4))
    app.run(environment, bind={"numbers": numbers})
    assert sum(environment.offsets("there", partition).end for partition in range(4)) == 3


def test_an_output_is_made_as_it_was_said():
    environment = MemoryEnvironment()
    app = App("keeping")
    kept = app.output("kept", value=int, partitions=2, retention_ms=60_000, retention_bytes=1_000, compression="zlib")
    app.input("numbers", value=int).send_to(kept)
    planned = app.plan().stream("kept")
    assert (planned.retention_ms, planned.retention_bytes, planned.compression) == (60_000, 1_000, "zlib")
    app.run(environment, bind={"numbers": [1]})
    wanted = StreamConfig(partitions=2, retention_ms=60_000, retention_bytes=1_000, compression="zlib")
    assert environment.streams()["kept"] == wanted
    app.run(environment, bind={"numbers": [1, 2]})


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (
            {"retention_ms": 5},
            "retention_ms=5, and the stream 'there' exists and has 60000; write .* retention_ms=60000",
        ),
        ({"retention_bytes": 5}, "retention_bytes=5, and the stream 'there' exists and has none; write .*: leave ret"),
        ({"compression": "zlib"}, "compression='zlib', and .* exists and has zstd; write .* compression='zstd', or"),
    ],
)
def test_a_stream_that_is_kept_otherwise_is_refused(said, wrong):
    environment = MemoryEnvironment()
    environment.create_stream("there", StreamConfig(retention_ms=60_000, compression="zstd"))
    app = App("contradicting")
    app.input("numbers", value=int).send_to(app.output("there", value=int, **said))
    with pytest.raises(PlanError, match=rf"test_bindings.py:\d+: {wrong}"):
        app.run(environment)


@pytest.mark.parametrize(
    ("data", "write"),
    [("kafka://broker:9092", r"environment='kafka://broker:9092'"), ("s3://lake/data", r'data=".samza-dsl"')],
)
def test_a_url_is_no_data_directory(data: str, write: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made on this machine, as a directory of that name, where the run went on as if it were the cluster."""
    monkeypatch.chdir(tmp_path)
    app = App("placed")
    app.input("rows", value=int).send_to(app.output("out", value=int))
    with pytest.raises(PlanError, match=rf"is a URL.*write instead: {write}"):
        app.run(data, bind={"rows": [1]})
    assert not [*tmp_path.iterdir()]


def test_a_stream_that_was_deleted_since_is_told_by_its_name(app):
    bindings = Bindings(MemoryEnvironment(), app.graph(), {})
    with pytest.raises(Damaged, match=r"stream 'numbers' is gone.*samza-dsl reset doubling"):
        bindings.partitions("numbers")


KINDS = ["o.jsonl", "o.csv", "o.avro", "o.jsonl.gz", "o.parquet", "o.arrow"]


class Row(Struct):
    n: int


def writes(name, seen=lambda n: None):
    """Return an application that writes rows in commits of few, and what else is done at each of them."""
    app = App(name, Options(batch_records=10, commit_interval_ms=1))
    app.input("numbers", value=int).map(lambda n: (seen(n), Row(n))[1]).send_to(app.output("rows", value=Row))
    return app


@pytest.mark.parametrize("other", ["data", "elsewhere"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_applications_do_not_begin_on_one_output(kind, other, tmp_path):
    out = tmp_path / kind
    writes("first").run(tmp_path / "data", bind={"numbers": [], "rows": out})
    with pytest.raises(SamzaError, match=f"{kind} is what the app 'first' writes.*bind 'rows' to another path"):
        writes("second").run(tmp_path / other, bind={"numbers": [1], "rows": out})
    writes("first").run(tmp_path / "data", bind={"numbers": [2], "rows": out})
    read_again = App("reader")
    read_again.input("rows", value=Row).sink(lambda row: seen.append(row.n))
    seen = []
    read_again.run(MemoryEnvironment(), bind={"rows": out})
    assert seen == [2]


def test_what_is_removed_is_no_output_of_another_application_any_more(tmp_path):
    out = tmp_path / "o.jsonl"
    writes("first").run(tmp_path / "data", bind={"numbers": [], "rows": out})
    out.unlink()
    writes("second").run(tmp_path / "data", bind={"numbers": [1], "rows": out})
    assert read(out) == [{"n": 1}]


def test_where_a_file_system_keeps_no_marks_outputs_are_written_all_the_same(tmp_path, monkeypatch):
    def unsupported(*said):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", unsupported)
    monkeypatch.setattr(os, "getxattr", unsupported)
    out = tmp_path / "o.jsonl"
    writes("first").run(tmp_path / "data", bind={"numbers": [1], "rows": out})
    assert read(out) == [{"n": 1}]


def adds(out):
    with out.open("ab") as file:
        file.write(b'"theirs"\n')


@pytest.mark.parametrize("done", [adds, Path.unlink, lambda out: os.truncate(out, 3)], ids=["adds", "removes", "cuts"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("o.parquet", "o.arrow")])
def test_what_another_program_does_to_an_output_meanwhile_ends_the_run(kind, done, tmp_path):
    out, after = tmp_path / kind, []

    def seen(n):
        if n == 500:
            done(out)
            after.append(out.read_bytes() if out.exists() else None)

    with pytest.raises(Damaged, match=f"{kind} (is gone|has .* bytes).*another program writes to it"):
        writes("first", seen).run(tmp_path / "data", bind={"numbers": [*range(1_000)], "rows": out})
    assert [out.read_bytes() if out.exists() else None] == after


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_part_of_another_program_ends_the_run(kind, tmp_path):
    out = tmp_path / f"o.{kind}"

    def seen(n):
        if n == 500:
            last = max(out.iterdir())
            number = int(last.stem.removeprefix("part-"))
            for ahead in range(1, 4):
                (out / f"part-{number + ahead:06}.{kind}").write_bytes(b"theirs")

    with pytest.raises(Damaged, match="is there, and this run has not written it: another program writes to"):
        writes("first", seen).run(tmp_path / "data", bind={"numbers": [*range(1_000)], "rows": out})
    assert [one for one in out.iterdir() if one.read_bytes() == b"theirs"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cut_off_behind_the_last_commit_is_told(kind, tmp_path, caplog):
    out = tmp_path / kind
    writes("first").run(tmp_path / "data", bind={"numbers": [1], "rows": out})
    writes("first").run(tmp_path / "data", bind={"numbers": [1, 2], "rows": out})
    assert "more than its last commit" not in caplog.text
    if out.is_dir():
        (out / f"part-000007{out.suffix}").write_bytes(b"theirs")
    else:
        adds(out)
    writes("first").run(tmp_path / "data", bind={"numbers": [1, 2, 3], "rows": out})
    assert f"{out} has " in caplog.text
    assert "more than its last commit had written" in caplog.text


ODD = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize("what", ["rows.jsonl", "rows.csv", "rolling:rows", "sqlite:///rows.db?table=rows"])
def test_an_output_whose_name_is_no_text_is_refused(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SamzaError, match=r"'.*caf\\udce9.*' is no UTF-8, in which its name would be noted: rename it"):
        writes("first").run(tmp_path / "data", bind={"numbers": [1], "rows": what.replace("rows", ODD, 1)})


def test_an_input_that_is_followed_and_a_data_directory_have_names_that_are_text(tmp_path):
    with pytest.raises(SamzaError, match="is no UTF-8"):
        writes("first").run(tmp_path / "data", bind={"numbers": f"growing:{tmp_path / ODD}/*.jsonl"})
    with pytest.raises(SamzaError, match="is no UTF-8"):
        writes("first").run(tmp_path / ODD, bind={"numbers": [1]})


def test_a_file_that_is_read_may_have_any_name(tmp_path):
    (tmp_path / ODD).with_suffix(".jsonl").write_text("1\n")
    out = tmp_path / "rows.jsonl"
    writes("first").run(tmp_path / "data", bind={"numbers": (tmp_path / ODD).with_suffix(".jsonl"), "rows": out})
    assert read(out) == [{"n": 1}]
