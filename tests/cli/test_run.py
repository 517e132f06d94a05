"""Running an application from the command line: what it prints, what it refuses, and its exit codes."""

import gzip
import json
import os
import pty
import re
import signal
import socket
import urllib.error
import urllib.parse
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.systems.log.environment import LogEnvironment
from tests.faults.processes import wait_until

ORDERS = [
    {"customer": "ann", "amount": 3, "at_ms": 1_000},
    {"customer": "bob", "amount": 5, "at_ms": 2_000},
    {"customer": "ann", "amount": 4, "at_ms": 3_000},
    {"customer": "ann", "amount": 1, "at_ms": 60_000},
]


def lines(values):
    return "".join(json.dumps(value) + "\n" for value in values)


def amounts(output):
    return {match[1]: int(match[2]) for match in re.finditer(r'"key":"(\w+)","start":0,.*"value":(\d+)', output)}


def test_a_bound_file_is_read_and_another_written(call, write, shouting):
    write("in.jsonl", '"ahoy"\n"all"\n')
    result = call("run", "shouting.py", "--bind", "words=in.jsonl", "--bind", "shouts=out.jsonl")
    assert (result.exit_code, result.stderr) == (0, "")
    assert shouting.with_name("out.jsonl").read_text() == '"AHOY"\n"ALL"\n'


COPYING = """
import datetime as dt
import msgspec
from samza_dsl import App

class Leg(msgspec.Struct):
    day: dt.date
    km: int

app = App("copying")
app.input("legs", value=Leg).send_to(app.output("copies", value=Leg))
"""


def test_a_folder_parted_by_columns_is_written_and_read(call, write, folder):
    """Nested and compressed, as Hive and Spark lay them out, by runs of this machine alone."""
    write("copying.py", COPYING)
    for day, km in (("2026-01-01", 7), ("2026-01-02", 9)):
        (folder / "legs" / f"day={day}" / "hour=3").mkdir(parents=True)
        (folder / "legs" / f"day={day}" / "hour=3" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"km": %d}\n' % km))
    result = call("run", "copying.py", "--bind", "legs=legs/", "--bind", "copies=copies/?partition_by=day")
    assert (result.exit_code, result.stderr) == (0, "")
    names = sorted(path.relative_to(folder / "copies").as_posix() for path in (folder / "copies").rglob("*.parquet"))
    assert names == [f"day=2026-01-0{day}/part-000001.parquet" for day in (1, 2)]
    result = call("run", "copying.py", "--bind", "legs=copies/", "--bind", "copies=again.jsonl", "--data", "other")
    assert (result.exit_code, result.stderr) == (0, "")
    assert sorted(map(json.loads, (folder / "again.jsonl").read_text().splitlines()), key=str) == [
        {"day": "2026-01-01", "km": 7},
        {"day": "2026-01-02", "km": 9},
    ]
    refused = call(
        "run", "copying.py", "--bind", "legs=copies/", "--bind", "copies=y/?partition_by=mile", "--data", "e"
    )
    assert refused.exit_code != 0 and "mile is no declared text" in refused.stderr


def test_where_there_is_no_terminal_lines_are_printed_and_the_last_one_sums_up(call, write, shouting):
    write("in.jsonl", '"ahoy"\n')
    output = call("run", "shouting.py", "--bind", "words=in.jsonl").stdout
    first, last = output.splitlines()
    assert first == "shouting: running, 1 stage, 3 operators"
    assert re.fullmatch(r"shouting: done in [\d.]+ s: 1 read \(.*/s\), 1 written, 1 commit", last)
    assert output.replace("\n", "").isprintable()


@pytest.mark.ci
def test_a_second_run_goes_on_where_the_first_stopped(program, write, spending):
    write("first.jsonl", lines(ORDERS[:2]))
    write("second.jsonl", lines(ORDERS[2:]))
    for file in ("first.jsonl", "second.jsonl"):
        assert program("streams", "produce", "orders", "--file", file).wait() == 0
        assert program("run", "spending.py", "--until-now").wait() == 0
    shown, _ = program("streams", "show", "spent").communicate()
    assert amounts(shown) == {"ann": 7, "bob": 5}


def test_a_rewind_with_state_must_say_what_becomes_of_it(call, spending):
    call("streams", "produce", "orders", stdin=lines(ORDERS))
    call("streams", "end", "orders")
    assert call("run", "spending.py").exit_code == 0
    refused = call("run", "spending.py", "--from-start")
    assert refused.exit_code != 0
    assert "--state reset" in refused.stderr
    assert call("run", "spending.py", "--from-start", "--state", "reset").exit_code == 0
    assert call("streams", "show", "spent").stdout.count('"key":"ann","start":0') == 2


def test_state_without_a_rewind_is_a_mistake(call, shouting):
    result = call("run", "shouting.py", "--state", "keep")
    assert (result.exit_code, "add --from-start" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--on", "spark", "--containers", "2"), "shares tasks by itself: leave --from-start"),
        (("--on", "spark", "--until-now"), "shares tasks by itself: leave --from-start"),
        (("--master", "local[2]"), "add --on spark"),
        (("--checkpoint", "kept"), "--checkpoint is about Spark: add --on spark"),
        (("--on", "spark", "--end"), "add --checkpoint DIR"),
    ],
)
def test_what_has_no_meaning_on_spark_is_a_mistake(call, shouting, arguments, said):
    result = call("run", "shouting.py", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_binding_an_unknown_stream_lists_those_that_there_are(call, shouting):
    result = call("run", "shouting.py", "--bind", "wrods=in.jsonl")
    assert result.exit_code == 2
    assert "no stream 'wrods'; it reads words and writes shouts" in result.stderr


def test_a_binding_without_a_file_or_to_none_is_a_mistake(call, shouting):
    for binding, wrong in {
        "words": "names no file: write --bind",
        "words=": "names no file: write --bind",
        "words=missing.jsonl": "there is no file or directory missing.jsonl",
        "shouts=out.xls": "can't tell what out.xls holds",
    }.items():
        result = call("run", "shouting.py", "--bind", binding)
        assert (result.exit_code, wrong in result.stderr) == (2, True), result.stderr


def test_a_stream_is_bound_once(call, write, shouting):
    write("in.jsonl", "")
    result = call("run", "shouting.py", "--bind", "words=in.jsonl", "--bind", "words=in.jsonl")
    assert (result.exit_code, "given twice" in result.stderr) == (2, True)


def test_a_failing_function_shows_the_users_lines_and_none_of_ours(call, write):
    write(
        "dividing.py",
        """
        from samza_dsl import App

        def share(total):
            return 100 / total

        app = App("dividing")
        app.input("totals", value=int).map(share).sink(print)
        """,
    )
    write("in.jsonl", "0\n")
    result = call("run", "dividing.py", "--bind", "totals=in.jsonl")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr
    assert 'dividing.py", line 4, in share\n    return 100 / total' in result.stderr
    assert "runtime/" not in result.stderr
    assert "failed after" in result.stdout


@pytest.mark.ci
def test_with_traceback_everything_is_shown(program, write):
    write("broken.py", "raise ValueError('not today')")
    process = program("run", "broken.py", "--traceback")
    assert "loading.py" in process.communicate()[1]
    assert process.returncode == 1


def test_an_application_that_does_not_load_is_a_mistake_shown_in_the_users_lines(call, write):
    write("unloadable.py", "def make():\n    raise ValueError('not today')\nmake()\n")
    result = call("run", "unloadable.py")
    assert result.exit_code == 2
    assert "error: ValueError: not today" in result.stderr
    assert 'unloadable.py", line 3, in <module>' in result.stderr
    assert "samza_dsl/" not in result.stderr


def test_a_syntax_error_shows_its_line(call, write):
    write("unreadable.py", "app = App(\n")
    result = call("run", "unreadable.py")
    assert result.exit_code == 2
    assert 'unreadable.py", line 1' in result.stderr


def test_a_mistake_in_the_pipeline_names_its_line(call, write):
    write("dangling.py", "from samza_dsl import App\napp = App('dangling')\napp.input('words').filter(len)\n")
    result = call("run", "dangling.py")
    assert result.exit_code == 2
    assert re.search(r"dangling.py:3: .*write instead", result.stderr)


def test_what_the_user_named_can_not_steer_the_terminal(call, write):
    write("steering.py", "raise ValueError('[red]\\x1b[31m no')")
    assert "\x1b" not in call("run", "steering.py").stderr
    assert "[red]" in call("run", "steering.py").stderr


def test_an_interrupt_completes_what_was_begun_and_ends_well(program, shouting):
    process = program("run", "shouting.py")
    assert process.stdout.readline().startswith("shouting: running")
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert rest.startswith("shouting: stopped in")


@pytest.mark.ci
def test_a_second_run_of_the_same_application_is_refused(program, call, shouting):
    process = program("run", "shouting.py")
    process.stdout.readline()
    result = call("run", "shouting.py")
    assert result.exit_code == 1
    assert f"Process {process.pid} runs application 'shouting'" in result.stderr


@pytest.mark.ci
def test_folders_named_like_ours_do_not_shadow_ours(program, write, shouting):
    for name in ("samza_dsl", "runtime", "planner", "operators", "lmdb"):
        write(f"{name}/readme.txt", "")
    for name in ("runtime", "planner", "operators"):
        write(f"{name}/__init__.py", "raise AssertionError('shadows ours')")
    write("in.jsonl", '"ahoy"\n')
    process = program("run", "shouting.py", "--bind", "words=in.jsonl")
    assert "1 written" in process.communicate()[0]
    assert process.returncode == 0


@pytest.mark.ci
def test_on_a_terminal_the_picture_stays_in_place(program, write, shouting):
    write("in.jsonl", '"ahoy"\n' * 1_000)
    ours, theirs = pty.openpty()
    process = program("run", "shouting.py", "--bind", "words=in.jsonl", stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    shown = read_all(ours)
    assert process.wait() == 0
    assert "\x1b[" in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "● shouting  running" in plain
    assert re.search(r"✔ shouting  done .*stage-1 · 1 partition .*▍loud +1,000 +1,000", plain, re.DOTALL)


def read_all(terminal):
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # how Linux says that nobody has the other side open any more
            part = b""
        if not part:
            os.close(terminal)
            return shown.decode()
        shown += part


def test_the_data_directory_is_the_named_one(call, write, folder, shouting):
    write("in.jsonl", '"ahoy"\n')
    assert call("run", "shouting.py", "--bind", "words=in.jsonl", "--data", "elsewhere").exit_code == 0
    environment = LogEnvironment(folder / "elsewhere")
    assert "shouts" in environment.streams()
    environment.close()
    assert not (folder / ".samza-dsl").exists()


def test_a_run_that_reads_nothing_says_why_and_what_to_type(call, spending):
    result = call("run", "spending.py", "--until-now")
    assert "nothing was read of 'orders', which is empty, or was never written" in result.stdout
    assert "samza-dsl streams produce orders" in result.stdout
    call("streams", "produce", "orders", stdin=lines(ORDERS))
    assert "nothing was read" not in call("run", "spending.py", "--until-now").stdout
    result = call("run", "spending.py", "--until-now")
    assert f"'spending' has read all of it before, up to offset {len(ORDERS)}" in result.stdout
    assert "samza-dsl reset spending" in result.stdout
    again = call("run", "spending.py", "--until-now", "--from-start", "--state", "reset")
    assert "nothing was read" not in again.stdout


def test_a_run_that_reads_nothing_says_which_window_was_changed_since(call, write, spending):
    call("streams", "produce", "orders", stdin=lines(ORDERS))
    call("streams", "end", "orders")
    call("run", "spending.py")
    changed = spending.read_text().replace("seconds=10", "seconds=60")
    write("spending.py", changed)
    for _ in range(2):
        told = call("run", "spending.py", "--until-now").stdout
        assert re.search(
            r"nothing was read of 'orders': .*Since then window '[\w-]+' at spending.py:\d+ was changed: windows was "
            r"Tumbling\(size_ms=10000.*, and is Tumbling\(size_ms=60000.*What was written before stays.*-dsl reset",
            told,
        )
    before = call("streams", "show", "spent").stdout
    call("reset", "spending", "--yes")
    again = call("run", "spending.py", "--until-now")
    assert "nothing was read" not in again.stdout
    assert call("streams", "show", "spent").stdout != before
    assert "Since then" not in call("run", "spending.py", "--until-now").stdout


def test_a_map_that_returns_nothing_is_told_with_its_line(call, tmp_path):
    call("streams", "produce", "numbers", stdin="1\n2\n3\n")
    app = """
from samza_dsl import App

def double(number):
    number * 2

app = App("doubling")
app.input("numbers", value=int).map(double).send_to(app.output("doubled"))
"""
    (tmp_path / "doubling.py").write_text(app)
    told = call("run", "doubling.py", "--until-now").stdout
    assert "send_to 'send_to-doubled' at" in told
    assert "doubling.py:8: all of its first 3 values are None" in told
    assert ".filter(...)" in told
    some = app.replace("number * 2", "return number * 2 if number > 1 else None")
    again = "run", "doubling.py", "--until-now", "--from-start", "--state", "reset"
    (tmp_path / "doubling.py").write_text(some)
    assert "1 of its first 3 values has no key and is None" in call(*again).stdout
    # With a key each may be meant to delete the row of that.
    (tmp_path / "doubling.py").write_text(some.replace("value=int", "value=int, key=abs"))
    assert "None" not in call(*again).stdout


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--metrics", "9464x"], "--metrics: '9464x' is no address: write --metrics :9464"),
        (["--ready-lag", "5"], "--ready-lag is about what is served: add --metrics :9464"),
        (["--metrics-token-file", "token"], "--metrics-token-file is about what is served: add --metrics :9464"),
        (["--advertise", "gate.example"], "--advertise is where other machines of a cluster ask for state"),
        (["--host-id", "a"], "--host-id tells machines apart that share a cluster: add --environment"),
    ],
)
def test_what_can_not_be_served_is_told(call, shouting, options, wrong):
    result = call("run", "shouting.py", *options)
    assert result.exit_code == 2 and wrong in result.stderr


def test_what_a_file_or_a_variable_says_of_clusters_and_of_logs_hinders_neither(call, shouting, monkeypatch):
    """One set of manifests or of variables is for applications on brokers and on the log."""
    monkeypatch.setenv("SAMZA_DSL_HOST_ID", "delays-0")
    monkeypatch.setenv("SAMZA_DSL_ADVERTISE", "gate.example")
    ran = call("run", "shouting.py", "--until-now")
    assert ran.exit_code == 0, ran.stderr


def test_an_address_that_is_taken_is_told_before_anything_runs(call, shouting, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = call("run", "shouting.py", "--metrics", f":{taken.getsockname()[1]}")
    assert result.exit_code == 1 and "can't be listened at" in result.stderr
    assert not (folder / ".samza-dsl").exists()


@pytest.mark.ci
@pytest.mark.parametrize("containers", [1, 2])
def test_a_run_serves_its_metrics_and_its_health_until_it_is_stopped(program, write, spending, containers):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    write("orders.jsonl", lines(ORDERS))
    assert program("streams", "produce", "orders", "--file", "orders.jsonl").wait() == 0
    running = program("run", "spending.py", "--ui", "--metrics", f":{port}", "--containers", str(containers))

    def page(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def values(name):
        families = text_string_to_metric_families(page("/metrics")[1])
        return {
            tuple(sorted(one.labels.items())): one.value
            for family in families
            for one in family.samples
            if one.name == name
        }

    wait_until(lambda: page("/readyz") == (200, "ready\n"))
    wait_until(lambda: values("samza_operator_received_total").get((("app", "spending"), ("operator", "orders"))) == 4)
    assert page("/livez") == (200, "alive\n") and page("/")[0] == 200
    (known,) = json.loads(page("/api/runs")[1])
    wait_until(lambda: "by-customer" in page(f"/api/picture?run={urllib.parse.quote(known['id'])}")[1])
    tasks = {(dict(labels)["container"], dict(labels)["task"]) for labels in values("samza_task_assigned")}
    assert {task for _, task in tasks} == {"0", "1"} and len({container for container, _ in tasks}) == containers
    running.send_signal(signal.SIGTERM)
    assert running.wait() == 0 and page("/livez")[0] == 0
