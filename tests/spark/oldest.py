"""Runs the core of the suite on the oldest PySpark that is said to work, in an environment of its own, by command."""

# python -m tests.spark.oldest
# python -m tests.spark.oldest tests/spark/test_inputs_on_spark.py -k rows

import os
import subprocess
import sys

from runtime.spark.session import OLDEST
from tests.source import ROOT
from tests.spark.lake import environment

CORE = (
    *("tests/spark/test_on_spark.py", "tests/spark/test_inputs_on_spark.py", "tests/spark/test_outputs_on_spark.py"),
    *("tests/spark/test_landing_on_spark.py", "tests/spark/test_streaming_on_spark.py"),
    "tests/spark/test_output_types_on_spark.py",
    *(
        f"tests/spark/test_input_types_on_spark.py::test_{name}"
        for name in (
            "records_are_what_collect_returns",
            "a_single_column_feeds_a_plain_type",
            "a_frame_in_memory_has_the_records_that_a_local_run_has",
            "rows_of_an_rdd_are_the_records_that_a_list_of_them_has",
        )
    ),
)
"""Each operator, each kind of input and output, frames in memory, and runs that go on."""

QUIET = ("DeprecationWarning", "FutureWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
"""It uses what Python and pandas say will go, and leaves sockets to Python's collector."""


def main() -> None:
    """Run the core, or what is named, and exit as pytest does."""
    oldest = ".".join(map(str, OLDEST))
    python = environment(f"pyspark-{oldest}", f"pyspark=={oldest}.*")
    said = subprocess.run([python, "-c", "import pyspark; print(pyspark.__version__)"], capture_output=True, text=True)
    print(f"PySpark {said.stdout.strip()}", flush=True)
    assert said.stdout.startswith(f"{oldest}."), said.stderr
    own = {**os.environ, "PYSPARK_PYTHON": str(python), "SAMZA_TESTS_SCALE": "ci"}
    tests = sys.argv[1:] or [*CORE]
    quiet = [option for kind in QUIET for option in ("-W", f"ignore::{kind}")]
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *quiet, *tests]
    sys.exit(subprocess.run(command, cwd=ROOT, env=own).returncode)


if __name__ == "__main__":
    main()
