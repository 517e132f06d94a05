"""The entries of state by command: they are shown, exported, imported and converted."""

import json
import re
import shlex

import pytest

from runtime.opening.stored_state import CHANGING
from runtime.systems.log.environment import LogEnvironment

APP = """
    from datetime import datetime
    from msgspec import Struct
    from samza_dsl import App, total, tumbling

    class Seen(Struct):
        times: int
        last: datetime

    def see(r, context):
        seen = context.state or Seen(0, datetime(2026, 1, 1))
        context.state = Seen(seen.times + 1, datetime(2026, 1, 2))
        context.list("all").append(r["eur"])
        context.map("by")[r["eur"]] = (1, b"x", float("nan"))
        return []

    app = App("shop")
    sales = app.input("sales", value=dict, key=lambda r: r["shop"], timestamp=lambda r: r["at"])
    sales.process(see, op_id="seen").send_to(app.output("none"))
    sales.scan(lambda t, r: (t or 0) + r["eur"], op_id="euros").send_to(app.output("euros"))
    sales.window(tumbling(seconds=1), total(lambda r: r["eur"]), op_id="sums").send_to(app.output("sums"))
"""
CENTS = APP.replace(
    'lambda t, r: (t or 0) + r["eur"], op_id',
    'lambda t, r: t + r["eur"] * 100, init=int, op_id',
)
CONVERT = """
    def cents(entry):
        return entry.of(entry.value * 100) if entry.key != "b" else None

    def wrong(entry):
        return entry.value / 0

    def forgotten(entry):
        return 7
"""


@pytest.fixture
def shop(write, call):
    """Run an application with state of several kinds."""
    write("app.py", APP)
    write("conversions.py", CONVERT)
    sales = [{"shop": shop, "eur": 10, "at": at} for at, shop in enumerate("abab")]
    call("streams", "produce", "sales", stdin="".join(json.dumps(sale) + "\n" for sale in sales))
    ran = call("run", "app.py", "--until-now")
    assert ran.exit_code == 0, ran.stderr


def exported(call, *operators, to=None):
    said = call("state", "export", "app.py", *operators, *(["--to", to] if to else []))
    assert said.exit_code == 0, said.stderr
    return said.stdout


def rows(call, *operators):
    return [json.loads(line) for line in exported(call, *operators).splitlines()]


def advised(said):
    found = re.search(r"samza-dsl (state convert[^;,]*?)(?=[;,]|\s*$)", said.replace("\n", " "))
    assert found, said
    return shlex.split(found[1])


def test_every_kind_of_entry_is_shown_with_its_key(shop, call):
    found = rows(call)
    assert {(row["operator"], row["kind"]) for row in found} == {
        ("euros", "state"),
        ("seen", "state"),
        ("seen", "list"),
        ("seen", "map"),
        ("sums", "window"),
    }
    assert {row["key"] for row in found} == {"a", "b"}
    assert [row["value"] for row in found if row["operator"] == "euros"] == [20, 20]
    assert [(row["start_ms"], row["end_ms"]) for row in found if row["kind"] == "window"] == [(0, 1000)] * 2
    shown = call("state", "show", "app.py", "seen", "--limit", "2").stdout.splitlines()
    assert shown[0].split() == ["task", "kind", "key", "name", "index", "value"]
    assert shown[-1] == "... and more: --limit N shows them, and samza-dsl state export app.py seen has all"


def test_what_is_kept_of_a_key_is_printed(shop, call):
    found = [json.loads(line) for line in call("state", "get", "app.py", "seen", "a").stdout.splitlines()]
    assert [row["kind"] for row in found] == ["list", "list", "list", "map", "state"]
    assert found[-1]["value"]["of"]["times"] == 2
    none = call("state", "get", "app.py", "seen", "zz")
    assert (none.exit_code, "keeps nothing of the key 'zz'" in none.stderr) == (1, True)


@pytest.mark.parametrize("file", ["all.jsonl", "all.parquet"])
def test_state_comes_back_from_a_file_as_it_was(file, shop, call):
    before = exported(call)
    exported(call, to=file)
    assert call("state", "forget", "app.py", "seen", "sums", "--yes").exit_code == 0
    assert call("state", "convert", "app.py", "euros", "conversions:cents", "--yes").exit_code == 0
    assert exported(call) != before
    said = call("state", "import", "app.py", "--from", file, "--yes")
    assert said.stdout == "shop has 2 entries of 'euros', 10 entries of 'seen', 2 entries of 'sums'\n"
    assert exported(call) == before
    assert call("run", "app.py", "--until-now").exit_code == 0


def test_an_import_takes_the_operators_that_are_named(shop, call):
    lines = exported(call)
    said = call("state", "import", "app.py", "sums", "--yes", stdin=lines)
    assert said.stdout == "shop has 2 entries of 'sums'; left out: 2 entries of 'euros', 10 entries of 'seen'\n"
    assert exported(call) == lines


def test_a_line_that_is_wrong_is_named_and_nothing_is_changed(shop, call):
    before = exported(call)
    for line, wrong in (
        ('{"operator":"euros","kind":"state","key":"a"', "stdin:15 is no JSON object"),
        (
            '{"operator":"euros","kind":"state","key":"a","value":1}',
            "stdin:15: another entry of 'euros' has the same place",
        ),
        (
            '{"operator":"euro","kind":"state","key":"a","value":1}',
            "has no operator 'euro' that keeps state: it has euros",
        ),
    ):
        refused = call("state", "import", "app.py", "--yes", stdin=before + line + "\n")
        assert refused.exit_code == 1
        assert wrong in " ".join(refused.stderr.split())
        assert "nothing was changed" in refused.stderr
        assert exported(call) == before
    assert "say --yes" in call("state", "import", "app.py", stdin=before).stderr
    assert "no file of stored state" in call("state", "export", "app.py", "--to", "x.csv").stderr


def test_state_that_is_read_otherwise_is_converted_as_advised(shop, call, write):
    write("app.py", CENTS)
    refused = call("run", "app.py", "--until-now")
    assert refused.exit_code == 2
    command = [word.replace("MODULE:FUNCTION", "conversions:cents") for word in advised(refused.stderr)]
    said = call(*command, "--yes")
    assert said.stdout == "shop has converted 2 entries of 'euros', 1 of which are dropped\n"
    call("streams", "produce", "sales", stdin='{"shop":"a","eur":1,"at":9}\n{"shop":"b","eur":1,"at":9}\n')
    again = call("run", "app.py", "--until-now")
    assert again.exit_code == 0, again.stderr
    assert [row["value"] for row in rows(call, "euros")] == [2100, 100]


def test_a_conversion_that_fails_changes_nothing_and_shows_its_line(shop, call):
    before = exported(call)
    failed = call("state", "convert", "app.py", "euros", "conversions:wrong", "--yes")
    assert failed.exit_code == 1
    assert "return entry.value / 0" in failed.stderr
    assert "write return entry.of(value)" in call(
        "state", "convert", "app.py", "euros", "conversions:forgotten", "--yes"
    ).stderr.replace("\n", " ")
    assert "has no function 'none'" in call("state", "convert", "app.py", "euros", "conversions:none").stderr
    assert "nothing was changed" in call("state", "convert", "app.py", "euros", "conversions:cents", stdin="n\n").stderr
    assert exported(call) == before


def test_an_application_that_runs_is_looked_at_and_not_changed(shop, call, folder):
    before = exported(call)
    log = LogEnvironment(folder / ".samza-dsl")
    log.own("shop")
    assert exported(call) == before
    for command in (("import", "app.py", "--yes"), ("convert", "app.py", "euros", "conversions:cents", "--yes")):
        refused = call("state", *command, stdin="")
        assert refused.exit_code == 1
        assert "shop" in refused.stderr
    log.close()


def test_a_change_that_was_not_completed_is_told_and_completed_by_the_next(shop, call, folder, monkeypatch):
    before = exported(call)
    from runtime.opening import stored_state

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stored_state, "_copy", killed)
        call("state", "convert", "app.py", "euros", "conversions:cents", "--yes")
    refused = call("state", "export", "app.py")
    assert "has begun and is not at its end" in refused.stderr
    assert call("run", "app.py", "--until-now").exit_code == 0
    assert [row["value"] for row in rows(call, "euros")] == [2000]
    assert exported(call) != before
    log = LogEnvironment(folder / ".samza-dsl")
    assert not log.checkpoints("shop")[CHANGING].meanings
    log.close()


def test_state_of_an_operator_that_is_gone_is_shown_by_its_places(shop, call, write):
    write("app.py", APP.replace('op_id="euros"', 'op_id="other"'))
    found = rows(call, "euros")
    assert [row["value"] for row in found] == [20, 20]
    assert all(row["place"]["$"] == "bytes" for row in found)
    assert "nobody knows where its keys lie" in call("state", "get", "app.py", "euros", "a").stderr
