"""A user's folder named as one of our packages is told of, however the program is started."""

import subprocess
import sys

import pytest


def test_a_script_beside_a_folder_named_operators_is_told_so(tmp_path):
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "__init__.py").write_text("")
    (tmp_path / "app.py").write_text("import samza_dsl\n")
    ended = subprocess.run([sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "needs its own package 'operators'" in ended.stderr and "rename that folder" in ended.stderr


STATEFUL = """
from msgspec import Struct

from samza_dsl import App


class Seen(Struct):
    times: int = 0


def count(word, context):
    context.state.times += 1
    return [f"{word} {context.state.times}"]


app = App("counting")
words = app.input("words", value=str, key=lambda word: word)
words.process(count, init=Seen).send_to(app.output("counts", value=str))
if __name__ == "__main__":
    print(app.run("data", until_now=True).received("counts"))
"""


@pytest.mark.ci
def test_state_is_the_same_as_a_script_and_by_the_command(tmp_path):
    (tmp_path / "app.py").write_text(STATEFUL)

    def call(*arguments, typed=None):
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True, input=typed
        ).stdout

    for _ in range(2):
        call("-m", "samza_dsl", "streams", "produce", "words", "--data", "data", typed='"ahoy"\n')
        call("-m", "samza_dsl", "run", "app.py", "--data", "data", "--until-now")
        call("-m", "samza_dsl", "streams", "produce", "words", "--data", "data", typed='"ahoy"\n')
        shown = call("app.py")
    assert shown.strip() == """['"ahoy" 1', '"ahoy" 2', '"ahoy" 3', '"ahoy" 4']"""
