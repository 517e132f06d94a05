"""The exit codes of `samza-dsl run`: the table in the documentation has those of the code, and a run has them."""

import ast
import inspect
import re

import pytest

from samza_dsl.cli.errors import EXIT_CODES
from samza_dsl.cli.run import run
from tests.source import ROOT, python_files

TABLE = re.compile(r"\n## Exit codes\n\n\| code \|.*\n\|.*\n((?:\|.*\n)+)")
ENDING = """
    import sys
    from samza_dsl import App

    def last(word):
        {does}
        return word

    app = App("ending")
    app.input("words", value=str).map(last).send_to(app.output("out", value=str))
"""


def documented():
    """Return what the table says of each code."""
    (rows,) = TABLE.findall((ROOT / "docs/operations.md").read_text())
    cells = [[cell.strip() for cell in row.strip("|\n").split("|")] for row in rows.splitlines()]
    return {code: does for code, does, _ in cells}


def test_the_table_has_the_codes_of_the_code_in_its_words():
    told = documented()
    assert [*told] == [*EXIT_CODES]
    for code, words in EXIT_CODES.items():
        assert told[code].startswith(words), f"{code}: {told[code]} does not begin with {words!r}"


def test_the_help_of_run_names_each_code():
    (told,) = re.findall(r"Exit codes: (.*)", inspect.cleandoc(run.__doc__), re.S)
    named = " ".join(told.split())
    assert all(re.search(rf"(?:^|; | and ){re.escape(code)} (?:when|for) ", named) for code in EXIT_CODES), named


def test_no_command_ends_with_a_code_that_has_no_name():
    for file in (one for one in python_files("samza_dsl") if one.parent.name == "cli"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Exit", "sys.exit", "os._exit"):
                numbers = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
                assert not [one for one in numbers if one != 0], f"{file.name}:{node.lineno} {ast.unparse(node)}"


@pytest.mark.parametrize(
    ("does", "options", "code"),
    [
        ("pass", (), "0"),
        ("raise ValueError(word)", (), "1"),
        ("pass", ("--drain", "--from-start"), "2"),
        ("pass", ("--no-such-option",), "2"),
        ("sys.exit(3)", (), "3"),
        ("raise KeyboardInterrupt", (), "130"),
    ],
)
def test_a_run_ends_with_the_code_of_what_it_has_come_to(does, options, code, call, write):
    write("ending.py", ENDING.format(does=does))
    write("words.jsonl", '"ahoy"\n')
    ended = call("run", "ending.py", "--bind", "words=words.jsonl", *options)
    assert str(ended.exit_code) == code and (code in EXIT_CODES or "N" in EXIT_CODES)
