"""A program is compared with what has run: what each change means, and what is applied is what a run then needs."""

import json
import signal
from collections import Counter
from contextlib import closing
from runpy import run_path
from textwrap import dedent
from xml.etree import ElementTree

import pytest

from runtime.systems.log.environment import LogEnvironment
from tests.simulation.crash import Crash, Watched, run_once

HEAD = """
    from samza_dsl import App, count, tumbling
    app = App("shop")
    sales = app.input("sales", value=dict, key=lambda r: r["shop"], timestamp=lambda r: r["at"])
"""


def scan(op_id, more=""):
    return f'    sales.scan(lambda n, r: (n or 0) + 1, op_id="{op_id}"{more}).send_to(app.output("{op_id}"))\n'


WINDOW = '    sales.window(tumbling(seconds={}), count(), op_id="sums").send_to(app.output("sums"))\n'
V1 = HEAD + scan("euros") + scan("old") + WINDOW.format(1)


@pytest.fixture
def ran(write, call):
    """Run the first version, and return what writes another one and compares it."""
    write("app.py", V1)
    write("conversions.py", "def same(entry):\n    return entry\n")
    sales = "".join(f'{{"shop":"{shop}","at":{at}}}\n' for at, shop in enumerate("abab"))
    call("streams", "produce", "sales", stdin=sales)
    assert call("run", "app.py", "--until-now").exit_code == 0

    def evolve(text, *more):
        write("app.py", text)
        return call("evolve", "app.py", *more)

    return evolve


def table(said):
    return {line.split()[0]: line.split()[1:3] for line in said.stdout.splitlines()[1:] if "  " in line}


def test_a_program_that_is_as_it_was_keeps_all(ran):
    said = ran(V1)
    assert said.exit_code == 0
    assert table(said) == {"sales": ["kept", "0"], "euros": ["kept", "2"], "old": ["kept", "2"], "sums": ["kept", "2"]}


def test_what_is_renamed_is_moved_and_what_is_new_begins(ran, call):
    after = HEAD + scan("euros") + scan("new") + WINDOW.format(1)
    said = ran(after)
    assert said.exit_code == 1
    assert table(said)["old"] == ["dropped", "2"]
    assert table(said)["new"] == ["added", "0"]
    assert "old: move it to 'new': --apply" in said.stdout
    assert call("run", "app.py", "--until-now").exit_code == 1
    applied = call("evolve", "app.py", "--apply", "--yes")
    assert applied.exit_code == 0, applied.stderr
    assert "shop: moves the state of 'old' to 'new'" in applied.stdout
    assert table(applied)["new"] == ["kept", "2"]
    assert call("run", "app.py", "--until-now").exit_code == 0
    assert "nothing is to be done" in call("evolve", "app.py", "--apply").stdout


def test_what_nobody_says_is_not_done(ran, call):
    after = HEAD + scan("euros", ", init=int") + WINDOW.format(2)
    said = ran(after)
    assert said.exit_code == 1
    assert {id: what for id, (what, _) in table(said).items()} == {
        "sales": "kept",
        "euros": "changed",
        "sums": "changed",
        "old": "dropped",
    }
    refused = call("evolve", "app.py", "--apply", "--yes")
    assert refused.exit_code == 2
    assert "say --forget" in refused.stderr and "nothing was changed" in refused.stderr
    assert "or --convert euros=MODULE:FUNCTION" in call(
        "evolve", "app.py", "--apply", "--yes", "--forget", "old", "--forget", "sums", "--keep", "euros"
    ).stderr.replace("\n", " ")
    assert call("evolve", "app.py", "--forget", "old").exit_code == 2
    command = ["--forget", "old", "--forget", "sums", "--convert", "euros=conversions:same"]
    assert call("evolve", "app.py", "--apply", *command, stdin="n\n").exit_code == 2
    applied = call("evolve", "app.py", "--apply", "--yes", *command)
    assert applied.exit_code == 0, applied.stderr
    assert call("run", "app.py", "--until-now").exit_code == 0


def test_a_change_that_a_run_takes_is_told(ran):
    bounded = '    sales.deduplicate(lambda r: r["at"], within_ms={}, op_id="once").send_to(app.output("once"))\n'
    assert ran(V1 + bounded.format(5)).exit_code == 0
    said = ran(V1.replace('r: r["at"])', 'r: r["at"], max_disorder_ms=7)'))
    assert said.exit_code == 0
    assert table(said)["sales"] == ["changed", "0"]
    assert "max_disorder_ms was 0, and is 7" in said.stdout


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--apply", "--forget", "nosuch"], "'nosuch' has no state"),
        (["--apply", "--convert", "euros"], "write --convert OP=module:function"),
        (["--apply", "--convert", "euros=conversions:none"], "has no function 'none'"),
    ],
)
def test_what_can_not_be_done_is_refused(options, wrong, ran):
    said = ran(V1, *options)
    assert (said.exit_code, wrong in said.stderr) == (2, True)


SPENT = """
    from samza_dsl import App, count, total, tumbling
    app = App("shop")
    sales = app.input("sales", value=dict, timestamp=lambda r: r["at"])
    by_shop = sales.filter(lambda r: r["at"] >= 0).partition_by(lambda r: r["shop"], partitions=2, op_id="by-shop")
    by_shop.scan(lambda n, r: n + r.get("euros", 1), init=int, op_id="kept").send_to(app.output("kept"))
    by_shop.window(tumbling(seconds={}), {}, op_id="sums").send_to(app.output("sums"))
"""
EUROS = 'total(lambda r: r["euros"])'
LATER = SPENT.format(5, EUROS) + (
    '    by_shop.window(tumbling(seconds=3), count(), op_id="new").send_to(app.output("new"))\n'
)


def sold(*times):
    return "".join(f'{{"shop":"{"abc"[at % 3]}","at":{at * 500},"euros":{at}}}\n' for at in times)


@pytest.fixture
def spent(write, call):
    """Run a program with a stage behind a partition_by over some sales."""
    write("app.py", SPENT.format(2, "count()"))
    call("streams", "produce", "sales", stdin=sold(*range(21)))
    assert call("run", "app.py", "--until-now").exit_code == 0


def finished(call, *data):
    """Let more sales come, and return what all outputs hold when all was read."""
    call("streams", "produce", "sales", *data, stdin=sold(*range(21, 60)))
    assert call("run", "app.py", "--until-now", *data).exit_code == 0
    return {one: lines(call, one, *data) for one in ("kept", "sums", "new")}


def lines(call, stream, *data):
    """Return the keys and values of a stream's records."""
    found = call("streams", "tail", stream, "-n", "1000", *data).stdout.splitlines()[1:]
    return [line.split(maxsplit=2)[2] for line in found]


def test_what_changed_is_computed_from_history_and_the_rest_goes_on(spent, write, call):
    write("app.py", LATER)
    said = call("evolve", "app.py")
    assert said.exit_code == 1
    assert "sums: compute it anew from history: --apply" in said.stdout
    assert "--apply computes 'sums', 'new' anew from history" in said.stdout
    assert call("evolve", "app.py", "--apply", stdin="n\n").exit_code == 2
    before = len(lines(call, "sums"))
    applied = call("evolve", "app.py", "--apply", "--yes")
    assert applied.exit_code == 0, applied.stderr
    assert "computes 'sums', 'new' from history (21 offsets of 'sales')" in applied.stdout
    kept = {id: what for id, (what, _) in table(applied).items() if id != "operator"}
    assert kept == dict.fromkeys(("sales", "kept", "sums", "new"), "kept")
    assert "nothing is to be done" in call("evolve", "app.py", "--apply").stdout
    assert not [one for one in call("streams", "list").stdout.splitlines() if "backfilling" in one]
    found = finished(call)
    # The same program over all of it, from the start.
    data = ("--data", "always")
    call("streams", "produce", "sales", *data, stdin=sold(*range(21)))
    assert call("run", "app.py", "--until-now", *data).exit_code == 0
    until = {one: len(lines(call, one, *data)) for one in ("sums", "new")}
    always = finished(call, *data)
    assert found["kept"] == always["kept"]
    assert sorted(found["new"]) == sorted(always["new"][until["new"] :])
    assert sorted(found["sums"][before:]) == sorted(always["sums"][until["sums"] :])


@pytest.mark.parametrize("where", [(), pytest.param(("--on", "spark", "--master", "local[1]"), marks=pytest.mark.ci)])
def test_history_is_computed_beside_the_run_that_goes_on(spent, write, call, program, where):
    running = program("run", "app.py")
    while "running" not in running.stdout.readline():
        pass
    write("later.py", LATER)
    evolving = program("evolve", "later.py", "--apply", "--yes", *where)
    while "it joins where the run ends" not in evolving.stdout.readline():
        pass
    call("streams", "produce", "sales", stdin=sold(*range(21, 40)))
    # All that it writes of these: three panes for each of the nine windows that are over.
    until = 27
    while len(lines(call, "sums")) < until or len(lines(call, "kept")) < 40:
        pass
    running.send_signal(signal.SIGINT)
    assert running.wait() == 0 and evolving.wait() == 0
    assert not [one for one in call("streams", "list").stdout.splitlines() if "backfilling" in one]

    def outputs(*data):
        call("streams", "produce", "sales", *data, stdin=sold(*range(40, 60)))
        assert call("run", "later.py", "--until-now", *data).exit_code == 0
        return {one: lines(call, one, *data) for one in ("kept", "sums", "new")}

    found = outputs()
    # The same program over all of it, from the start.
    data = ("--data", "always")
    call("streams", "produce", "sales", *data, stdin=sold(*range(40)))
    assert call("run", "later.py", "--until-now", *data).exit_code == 0
    cut = {one: len(lines(call, one, *data)) for one in ("sums", "new")}
    always = outputs(*data)
    assert found["kept"] == always["kept"]
    assert sorted(found["new"]) == sorted(always["new"][cut["new"] :])
    assert sorted(found["sums"][until:]) == sorted(always["sums"][cut["sums"] :])


def test_what_fails_on_history_changes_nothing(spent, write, call):
    write("app.py", SPENT.format(5, 'total(lambda r: r["dollars"])'))
    failed = call("evolve", "app.py", "--apply", "--yes")
    assert failed.exit_code != 0 and "dollars" in failed.stderr
    write("app.py", SPENT.format(2, "count()"))
    assert {what for what, _ in table(call("evolve", "app.py")).values()} == {"kept"}
    assert call("run", "app.py", "--until-now").exit_code == 0


def test_a_changed_function_is_said_and_what_is_kept_is_left(spent, call):
    applied = call("evolve", "app.py", "--apply", "--yes", "--again", "by-shop", "--keep", "kept")
    assert "computes 'sums' from history" in applied.stdout, applied.stderr
    assert call("evolve", "app.py", "--again", "nosuch").exit_code == 2


def test_history_that_is_gone_is_told_and_read_from_an_archive(write, call):
    bounded = SPENT.replace('"sales", value=dict', '"sold", value=dict')
    write("app.py", bounded.format(2, "count()"))
    write(
        "making.py",
        """
        from samza_dsl import App
        app = App("making")
        made = app.input("sales", value=dict, timestamp=lambda r: r["at"])
        made.send_to(app.output("sold", value=dict, retention_bytes=300))
    """,
    )
    call("streams", "produce", "sales", stdin=sold(*range(21)))
    assert call("run", "making.py", "--until-now").exit_code == 0
    assert call("run", "app.py", "--until-now").exit_code == 0
    assert call("streams", "archive", "sold", "archive").exit_code == 0
    for start in range(21, 60, 3):
        call("streams", "produce", "sales", stdin=sold(*range(start, start + 3)))
        assert call("run", "making.py", "--until-now").exit_code == 0
        assert call("run", "app.py", "--until-now").exit_code == 0
        assert call("streams", "archive", "sold", "archive").exit_code == 0
    write("app.py", bounded.format(5, EUROS))
    told = call("evolve", "app.py", "--apply", stdin="n\n")
    assert "are gone)" in told.stdout, told.stderr
    applied = call("evolve", "app.py", "--apply", "--yes", "--from", "sold=archive")
    assert "from history (60 offsets of 'sold')" in applied.stdout, applied.stderr


def test_the_plan_is_drawn_with_what_becomes_of_each_operator(ran, call, folder):
    after = HEAD + scan("euros") + scan("new") + scan("more") + WINDOW.format(2)
    said = ran(after, "--svg", "plan.svg", "--html", "plan.html")
    assert "wrote plan.svg" in said.stderr
    for name in ("plan.svg", "plan.html"):
        drawn = (folder / name).read_text()
        for words in (
            "kept · 2 keys",
            "changed · 2 keys · computed anew",
            "added · computed anew",
            "old: dropped · 2 keys",
        ):
            assert f">{words}</text>" in drawn
        assert "mark-dropped" in drawn and "mark-added" in drawn
    (folder / "before.py").write_text(dedent(V1))
    said = call("evolve", "app.py", "--was", "before.py", "--svg", "both.svg", "--html", "both.html")
    assert said.exit_code == 1, said.stderr
    for name in ("both.svg", "both.html"):
        before, after = (folder / name).read_text().split('class="after"')
        assert ">dropped · 2 keys</text>" in before and ">added" not in before
        assert ">added · computed anew</text>" in after and ">changed · 2 keys · computed anew</text>" in after
        assert "old: dropped" not in after
    ElementTree.parse(folder / "both.svg")
    assert call("evolve", "app.py", "--was", "before.py").exit_code == 2
    assert "mark-" not in call("plan", "app.py", "--svg", "bare.svg").stdout + (folder / "bare.svg").read_text()


def test_what_a_run_binds_is_history_as_well(write, call):
    bound = ("--bind", "sales=sales.jsonl", "--data")

    def outputs(data):
        assert call("run", "app.py", "--until-now", *bound, data).exit_code == 0
        return {name: Counter(lines(call, name, "--data", data)) for name in ("kept", "sums", "new")}

    write("sales.jsonl", sold(*range(21)))
    write("app.py", SPENT.format(2, "count()") + '    by_shop.send_to(app.output("new"))\n')
    before = outputs("evolved")
    write("app.py", LATER)
    from_start = outputs("fresh")
    refused = call("evolve", "app.py", "--apply", "--yes", "--data", "evolved")
    assert refused.exit_code == 1
    assert "say where it is, --bind sales=PATH" in refused.stderr.replace("\n", " ")
    assert table(call("evolve", "app.py", *bound, "evolved"))["new"] == ["added", "0"]
    applied = call("evolve", "app.py", "--apply", "--yes", *bound, "evolved")
    assert "computes 'sums', 'new' from history (21 offsets of 'sales')" in applied.stdout, applied.stderr
    write("sales.jsonl", sold(*range(60)))
    after, whole = outputs("evolved"), outputs("fresh")
    for name in after:
        # The end of the file has closed windows in both.
        assert after[name] - before[name] == whole[name] - from_start[name], name
        assert after[name] > before[name]


def test_history_is_not_read_where_offsets_count_something_else(spent, write, call):
    write("app.py", LATER)
    write("sales.jsonl", sold(*range(21)))
    refused = call("evolve", "app.py", "--apply", "--yes", "--from", "sales=sales.jsonl")
    assert refused.exit_code == 1
    assert "archive the stream (samza-dsl streams archive sales DIR)" in refused.stderr.replace("\n", " ")
    write("app.py", SPENT.format(2, "count()"))
    assert call("run", "app.py", "--bind", "sales=sales.jsonl", "--until-now", "--data", "elsewhere").exit_code == 0
    write("app.py", LATER)
    assert call("streams", "archive", "sales", "archive").exit_code == 0
    refused = call("evolve", "app.py", "--apply", "--yes", "--from", "sales=archive", "--data", "elsewhere")
    assert refused.exit_code == 1
    assert "say what the live run reads, --bind sales=PATH" in refused.stderr.replace("\n", " ")


def test_an_input_that_nobody_has_made_yet_has_no_history(ran, call):
    more = (
        '    app.input("refunds", value=dict, key=lambda r: r["shop"]).scan(lambda n, r: n + 1, init=int, op_id="back")'
    )
    applied = ran(V1 + more + '.send_to(app.output("back"))\n', "--apply", "--yes", "--again", "euros")
    assert applied.exit_code == 0, applied.stderr
    assert "computes 'euros', 'back' from history (4 offsets of 'sales')" in applied.stdout
    assert call("run", "app.py", "--until-now").exit_code == 0


TORN = """
    from samza_dsl import App, Options, count, tumbling

    app = App("shop", Options(max_uncommitted=1))
    sales = app.input(
        "sales", value=dict, key=lambda r: r["shop"], partitioned_by_key=True, timestamp=lambda r: r["at"]
    )
    sales.window(tumbling(seconds={}), count(), op_id="sums").send_to(app.output("sums"))
"""


def test_what_a_killed_run_has_left_is_written_by_the_program_that_has_run(write, call, folder):
    shops = [f"shop-{number:02d}" for number in range(40)]

    def sell(*sales):
        call("streams", "produce", "sales", stdin="".join(json.dumps({"shop": s, "at": at}) + "\n" for s, at in sales))

    def die(commit):
        if any(due.is_begun for one in commit.checkpoints.values() for due in one.due.values()):
            raise Crash

    sell(*((shop, 500) for shop in shops), ("last", 2_500))
    write("before.py", TORN.format(2))
    with closing(LogEnvironment(folder / ".samza-dsl")) as log, pytest.raises(Crash):
        run_once(run_path(str(folder / "before.py"))["app"], Watched(log, on_commit=die), until_now=True)
    assert 0 < len(lines(call, "sums")) < 40
    write("app.py", TORN.format(3))
    refused = call("evolve", "app.py", "--apply", "--yes").stderr.replace("\n", " ")
    assert "was killed as 'sums' wrote results of one time" in refused
    assert "or evolve with --was and its file" in refused
    before = lines(call, "sums")
    assert call("evolve", "app.py", "--apply", "--was", "before.py", stdin="n\n").exit_code == 2
    assert lines(call, "sums") == before
    applied = call("evolve", "app.py", "--apply", "--yes", "--was", "before.py")
    assert "the program that has run has read and written what was left" in applied.stdout, applied.stderr
    assert "computes 'sums' from history (41 offsets of 'sales')" in applied.stdout
    assert len(lines(call, "sums")) == 40, "each pane of two seconds once"
    sell(("last", 3_500))
    assert call("run", "app.py", "--until-now").exit_code == 0
    panes = [json.loads(line.split()[-1]) for line in lines(call, "sums")[40:]]
    assert sorted((pane["start"], pane["key"]) for pane in panes) == [(0, name) for name in sorted([*shops, "last"])]
