"""Commands that errors advise say which environment they are about, whoever finds the mistake."""

import ast
import re

import pytest

from runtime.loop.threads import Workers
from runtime.model.errors import PLACE, SamzaError, command, threads_here
from samza_dsl import App, Options, produce
from tests.source import ROOT

ABOUT_A_PLACE = re.compile(
    r"samza-dsl (reset|checkpoint|state|streams|scale|delete|run|evolve|drain|backup|resize)\b(?! has| shows)"
)
"""Commands that are about an environment, and take its options."""
ELSEWHERE = {"samza-dsl backup APP", "samza-dsl run app.py --containers N", "samza-dsl run`"}
"""Of a directory of backups, and of a program that nobody runs yet."""


def literals(tree):
    """Yield the texts of a module that are no docstrings, with a place for each value in them, and their lines."""
    documented = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            texts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(texts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (documented | parts):
            yield node.lineno, node.value


def test_every_command_that_is_advised_says_where():
    """By `command`, or with an environment at hand by `typed`; a number of a run says it by what it carries."""
    found = []
    for package in ("runtime", "planner", "operators", "samza_dsl"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "cli" in path.parts or path.name == "progress.py":  # of a command the flags that were typed are told
                continue
            for line, text in literals(ast.parse(path.read_text())):
                for match in ABOUT_A_PLACE.finditer(text):
                    if not text[match.start() :].startswith(tuple(ELSEWHERE)):
                        found.append(f"{path.relative_to(ROOT)}:{line}: {text[match.start() :][:60]}")
    assert not found, "\n".join(found)


def test_a_command_is_about_the_environment_that_was_opened_last(tmp_path):
    produce("numbers", [1], data=tmp_path)
    assert command("reset a") == f"samza-dsl reset a --data {tmp_path}"
    token = PLACE.set(" --environment kafka://one:9092")
    try:
        assert command("reset a") == "samza-dsl reset a --environment kafka://one:9092"
        pools = threads_here(1, "here"), Workers(1)
    finally:
        PLACE.reset(token)
    # Threads that began there tell of it still.
    for pool in pools:
        assert pool.submit(command, "reset a").result() == "samza-dsl reset a --environment kafka://one:9092"
        pool.shutdown()


def numbers(name, threads=0):
    app = App(name, Options(threads=threads))
    app.input("numbers", value=int).map(lambda n: n).send_to(app.output("out", value=int))
    return app


@pytest.mark.parametrize("threads", [0, 1])
def test_errors_of_a_run_name_its_directory(threads, tmp_path):
    data = tmp_path / "data"
    rows = tmp_path / "rows.jsonl"
    rows.write_text("1\n2\n3\n4\n")
    numbers("b", threads).run(data, bind={"numbers": rows})
    rows.write_text("9\n")
    with pytest.raises(SamzaError, match=rf"samza-dsl [^,;]* --data {data}"):
        numbers("b", threads).run(data, bind={"numbers": rows})
