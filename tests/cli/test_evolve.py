"""A program is compared with what has run: what each change means, and what is applied is what a run then needs."""

import pytest

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
        "evolve", "app.py", "--apply", "--yes", "--forget", "old", "--forget", "sums"
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
