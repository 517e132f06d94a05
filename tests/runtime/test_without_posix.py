"""Systems that are not POSIX, as MS Windows, are told apart at once."""

import subprocess
import sys

import pytest

WITHOUT_LOCKS = """
import sys
sys.modules["fcntl"] = None
from samza_dsl import App, testing
app = App("a")
app.input("names", value=str).send_to(app.output("greeted", value=str))
START
"""


@pytest.mark.parametrize("start", ['testing.run(app, {"names": ["Ann"]})', "app.run()"])
def test_a_run_says_which_systems_it_needs(start, tmp_path):
    program = WITHOUT_LOCKS.replace("START", start)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "runtime.model.errors.SamzaError: samza-dsl runs on POSIX systems such as Linux, and not on MS Windows: "
        "run the program in WSL"
    )
