"""Topics that get more partitions: who keeps no state by them takes them up, and who does stops and says why."""

import shlex
import signal
import subprocess

import pytest

from samza_dsl import App, SamzaError, String
from tests.cli import conftest as command_line
from tests.faults.processes import wait_until
from tests.kafka.topics import consume, create, grow, names, produce

PROGRAM = """
from samza_dsl import App, Json, Options, String, count, after_count, tumbling

app = App("{name}", Options(commit_interval_ms=100))
words = app.input("words", value=String(), key=str)
{pipeline}.send_to(app.output("{name}-out", value=Json()))
"""
call, folder = command_line.call, command_line.folder
COPYING, COUNTING = "words.map(str.upper)", 'words.scan(lambda total, word: (total or 0) + 1, op_id="count")'


@pytest.fixture
def command(broker, topics, folder):
    """Write an application on a topic of one partition, with its environment here or there; return what runs it."""
    create(broker, f"{topics}-words", 1)

    def command(pipeline: str, where: str, *how: str) -> list[str]:
        name = f"{topics}-words" if where == "cluster" else "words"
        program = PROGRAM.format(name=topics, pipeline=pipeline).replace('"words"', f'"{name}"')
        (folder / "app.py").write_text(program)
        if where == "cluster":
            said = ["--environment", f"kafka://{broker.bootstrap}"]
        else:
            address = f"kafka://{broker.bootstrap}/{topics}"
            said = ["--bind", f"words={address}-words", "--bind", f"{topics}-out={address}-out"]
        return ["run", "app.py", *said, *how]

    return command


@pytest.fixture
def run(command, folder):
    """Start an application in a process of its own; all end with the test."""
    started = []

    def run(*what: str) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen([command_line.PROGRAM, *command(*what)], cwd=folder, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def ran(command, call):
    """Run an application to its end in this process; return its exit status and what it tells."""

    def ran(*what: str) -> tuple[int, str]:
        done = call(*command(*what))
        return done.exit_code, done.output

    return ran


def written(broker, topics) -> list[bytes]:
    if f"{topics}-out" not in names(broker):
        return []
    found = consume(broker, f"{topics}-out")
    return sorted(record.value for records in found.values() for record in records)


@pytest.mark.parametrize("where", ["cluster", "log"])
def test_a_run_without_state_takes_new_partitions_up_when_it_begins(where, ran, broker, topics):
    for partitions, word in ((1, b"a"), (3, b"b")):
        if partitions > 1:
            grow(broker, f"{topics}-words", partitions)
        produce(broker, f"{topics}-words", (partitions - 1, b"k", word))
        status, said = ran(COPYING, where, "--until-now")
        assert status == 0, said
    assert written(broker, topics) == [b'"A"', b'"B"']


@pytest.mark.parametrize(
    ("where", "how"),
    [("cluster", ()), ("log", ()), ("cluster", ("--containers", "2"))],
    ids=["alone", "bound", "containers"],
)
def test_a_run_without_state_takes_new_partitions_up_as_it_goes(where, how, run, broker, topics):
    produce(broker, f"{topics}-words", (0, b"k", b"a"))
    process = run(COPYING, where, *how)
    wait_until(lambda: written(broker, topics) == [b'"A"'])
    grow(broker, f"{topics}-words", 3)
    produce(broker, f"{topics}-words", (2, b"k", b"b"), (0, b"k", b"c"))
    wait_until(lambda: written(broker, topics) == [b'"A"', b'"B"', b'"C"'], 60)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "has 3 partitions now, and had 1" in said


@pytest.mark.parametrize("where", ["cluster", "log"])
def test_a_run_whose_state_lies_by_a_topics_keys_stops_and_says_why(where, run, ran, call, broker, topics):
    produce(broker, f"{topics}-words", (0, b"k", b"a"))
    process = run(COUNTING, where)
    wait_until(lambda: written(broker, topics) == [b"1"])
    grow(broker, f"{topics}-words", 3)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 2, said
    assert "its state lies where" in said
    assert "had 1 partitions, and that has 3 now" in said
    status, said = ran(COUNTING, where)
    assert (status, f"state forget {topics} count" in said) == (2, True), said
    assert written(broker, topics) == [b"1"]
    assert call(*shlex.split(said.partition("samza-dsl ")[2].strip()), "--yes").exit_code == 0
    produce(broker, f"{topics}-words", (0, b"k", b"b"))
    status, said = ran(COUNTING, where, "--until-now")
    assert (status, written(broker, topics)) == (0, [b"1", b"1"]), said


KEPT = {
    "scan": 'words{by}.scan(lambda n, word: (n or 0) + 1, emit=lambda word, n: f"{{word}} {{n}}", op_id="kept")',
    "window": (
        "words{by}.window(tumbling(days=20_000), count(), early=after_count(1), op_id='kept')"
        '.map(lambda pane: f"{{pane.key}} {{pane.value}}")'
    ),
}


@pytest.mark.parametrize(
    ("where", "kept", "how"),
    [("cluster", "window", ()), ("cluster", "scan", ("--containers", "2")), ("log", "scan", ())],
    ids=["alone", "containers", "bound"],
)
def test_state_by_a_topics_keys_moves_behind_the_repartitioning_that_the_error_names(
    where, kept, how, ran, broker, topics
):
    letters = [letter.encode() for letter in "abcdefgh"]
    for turn, partitions in enumerate((2, 5), start=1):
        grow(broker, f"{topics}-words", partitions)
        produce(broker, f"{topics}-words", *((None, letter, letter) for letter in letters))
        if turn == 2:
            status, said = ran(KEPT[kept].format(by=""), where, "--until-now", *how)
            assert (status, ".partition_by(KEY, key_type=...)" in said) == (2, True), said
        by = "" if turn == 1 else ".partition_by(lambda word: word, key_type=str)"
        status, said = ran(KEPT[kept].format(by=by), where, "--until-now", *how)
        assert (status, "failed" in said, "Traceback" in said) == (0, False, False), said
    assert written(broker, topics) == sorted(b'"%s %d"' % (letter, n) for letter in letters for n in (1, 2))


def test_state_behind_a_repartitioning_does_not_mind(broker, topics, tmp_path):
    create(broker, f"{topics}-words", 1)

    def count(words: int) -> None:
        app = App(topics)
        keyed = app.input(f"{topics}-words", value=String()).partition_by(str.lower, partitions=2, op_id="by-word")
        counts = keyed.scan(lambda total, word: (total or 0) + 1, op_id="count")
        counts.send_to(app.output(f"{topics}-out", value=int))
        app.run(tmp_path / "data", environment=f"kafka://{broker.bootstrap}", until_now=True)
        assert len(written(broker, topics)) == words

    produce(broker, f"{topics}-words", (0, None, b"a"))
    count(1)
    grow(broker, f"{topics}-words", 4)
    produce(broker, f"{topics}-words", (3, None, b"a"))
    count(2)
    assert written(broker, topics) == [b"1", b"2"]


def test_a_stream_of_the_embedded_log_that_was_made_anew_otherwise_is_refused(tmp_path):
    from runtime.systems.log.environment import LogEnvironment
    from samza_dsl import produce as write

    app = App("counting")
    words = app.input("words", value=str, key=str)
    words.scan(lambda total, word: (total or 0) + 1, op_id="count").send_to(app.output("counts", value=int))
    write("words", ["a"], key=str, data=tmp_path)
    app.run(tmp_path, until_now=True)
    log = LogEnvironment(tmp_path)
    log.delete_stream("words")
    log.close()
    write("words", ["a"], key=str, data=tmp_path, partitions=2)
    with pytest.raises(SamzaError, match="'words', partition 0, was made anew since it was read up to offset 1"):
        app.run(tmp_path, until_now=True)


@pytest.mark.parametrize("how", [(), ("--containers", "2")], ids=["alone", "containers"])
def test_a_repartitioning_into_other_partitions_takes_its_state_along(how, ran, broker, topics):
    keyed = 'words.partition_by(str.lower, partitions={}, op_id="by-word")'
    counts = (
        keyed + '.scan(lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count")'
    )
    letters = "abcdefgh"
    for turn, partitions in enumerate((2, 4, 3)):
        produce(broker, f"{topics}-words", *((0, None, letter.encode()) for letter in letters))
        status, said = ran(counts.format(partitions), "cluster", "--until-now", *how)
        assert status == 0, said
        assert "Traceback" not in said
        assert written(broker, topics) == sorted(
            b'["%s",%d]' % (letter.encode(), total) for letter in letters for total in range(1, turn + 2)
        )
