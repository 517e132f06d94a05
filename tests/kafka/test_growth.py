"""Topics that get more partitions: who keeps no state by them takes them up, and who does stops and says why."""

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
words = app.input("words", value=String(), {key})
{pipeline}.send_to(app.output("{name}-out", value=Json()))
"""
call, folder = command_line.call, command_line.folder
STORED, BY_VALUE = "key=str", "key=lambda word: word[0], partitioned_by_key=True"
COPYING, COUNTING = "words.map(str.upper)", 'words.scan(lambda total, word: (total or 0) + 1, op_id="count")'


@pytest.fixture
def command(broker, topics, folder):
    """Write an application on a topic of one partition, with its environment here or there; return what runs it."""
    create(broker, f"{topics}-words", 1)

    def command(pipeline: str, where: str, *how: str, key: str = STORED) -> list[str]:
        name = f"{topics}-words" if where == "cluster" else "words"
        program = PROGRAM.format(name=topics, pipeline=pipeline, key=key).replace('"words"', f'"{name}"')
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

    def run(*what: str, **said: str) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen([command_line.PROGRAM, *command(*what, **said)], cwd=folder, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def ran(command, call):
    """Run an application to its end in this process; return its exit status and what it tells."""

    def ran(*what: str, **said: str) -> tuple[int, str]:
        done = call(*command(*what, **said))
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


@pytest.mark.parametrize(
    ("where", "key", "how"),
    [
        ("cluster", STORED, ()),
        ("log", STORED, ()),
        ("cluster", STORED, ("--containers", "2")),
        ("cluster", BY_VALUE, ()),
        ("cluster", BY_VALUE, ("--containers", "2")),
    ],
    ids=["alone", "bound", "containers", "by value", "by value, containers"],
)
def test_state_by_a_topics_keys_follows_them_as_a_run_goes(where, key, how, run, ran, broker, topics):
    produce(broker, f"{topics}-words", (0, b"k", b"ka"), (0, b"l", b"la"))
    process = run(COUNTING, where, *how, key=key)
    wait_until(lambda: written(broker, topics) == [b"1", b"1"])
    grow(broker, f"{topics}-words", 3)
    # A writer that has not heard of the new partitions goes on as before, and another one knows them.
    produce(broker, f"{topics}-words", (0, b"k", b"kb"), (1, b"k", b"kc"), (2, b"k", b"kd"), (1, b"l", b"le"))
    wait_until(lambda: written(broker, topics) == [b"1", b"1", b"2", b"2", b"3", b"4"], 60)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "has 3 partitions now, and had 1" in said
    assert f"'{topics}-" in said and "-by-key'" in said
    produce(broker, f"{topics}-words", (0, b"l", b"lf"))
    status, said = ran(COUNTING, where, *how, "--until-now", key=key)
    assert (status, written(broker, topics)[-3:]) == (0, [b"3", b"3", b"4"]), said


def test_a_topic_that_has_grown_is_read_as_it_is_where_the_application_begins_anew(ran, call, broker, topics):
    produce(broker, f"{topics}-words", (0, b"k", b"a"))
    assert ran(COUNTING, "cluster", "--until-now")[0] == 0
    grow(broker, f"{topics}-words", 2)
    status, said = ran(COUNTING, "cluster", "--until-now")
    assert (status, "-by-key" in said) == (0, True), said
    reset = call("reset", topics, "--environment", f"kafka://{broker.bootstrap}", "--yes")
    assert reset.exit_code == 0, reset.output
    assert f"{topics}-{topics}-words-by-key" not in names(broker)
    status, said = ran(COUNTING, "cluster", "--until-now")
    assert (status, "-by-key" in said, written(broker, topics)) == (0, False, [b"1", b"1"]), said
    assert f"{topics}-{topics}-words-by-key" not in names(broker)


def test_commands_see_an_application_as_it_is_run_then(ran, call, broker, topics):
    where = "--environment", f"kafka://{broker.bootstrap}"
    produce(broker, f"{topics}-words", (0, b"k", b"a"), (0, b"l", b"a"))
    assert ran(COUNTING, "cluster", "--until-now")[0] == 0
    grow(broker, f"{topics}-words", 3)
    produce(broker, f"{topics}-words", (0, b"k", b"b"), (2, b"k", b"c"))
    assert ran(COUNTING, "cluster", "--until-now")[0] == 0

    def said(*words: str) -> str:
        done = call(*words, *where)
        assert done.exit_code == 0, done.output
        return done.output

    between = f"{topics}-{topics}-words-by-key"
    assert between in said("plan", "app.py")
    assert "by the keys that they have" in said("plan", "app.py", "--on", "live")
    assert '"value":3' in said("state", "get", "app.py", "count", "k")
    assert '"value":1' in said("state", "get", "app.py", "count", "l")
    said("state", "export", "app.py", "count", "--to", "count.jsonl")
    assert "forget" not in said("evolve", "app.py")
    # State that is laid anew lies where the run looks for it.
    said("state", "forget", topics, "count", "--yes")
    said("state", "import", "app.py", "--from", "count.jsonl", "--yes")
    produce(broker, f"{topics}-words", (1, b"k", b"d"), (1, b"l", b"d"))
    assert ran(COUNTING, "cluster", "--until-now")[0] == 0
    assert written(broker, topics) == [b"1", b"1", b"2", b"2", b"3", b"4"]
    assert f"{topics}-words" in said("job", "show", topics)


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
def test_state_by_a_topics_keys_moves_behind_a_repartitioning_that_is_written_there(
    where, kept, how, ran, broker, topics
):
    letters = [letter.encode() for letter in "abcdefgh"]
    for turn, partitions in enumerate((2, 5), start=1):
        grow(broker, f"{topics}-words", partitions)
        produce(broker, f"{topics}-words", *((None, letter, letter) for letter in letters))
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
