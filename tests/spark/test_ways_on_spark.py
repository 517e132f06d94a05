"""Each way in which Spark is run: Connect, `spark-submit`, workers without our code, quietly, and seen in its UI."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from runtime.spark.batch import sent_to, spark_hash
from runtime.spark.session import check_installed
from samza_dsl import SamzaError, Spark
from tests.source import ROOT
from tests.spark.cluster import bare_python
from tests.spark.ways import TICKS, app


class Told(NamedTuple):
    """The words of a command."""

    stdout: str
    stderr: str


SOONER = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS")
"""What has a session begin sooner, and changes nothing else."""
TOTALS = "[('K0', 10), ('K1', 10), ('K2', 10)]"


def ran(command, tmp_path, python=sys.executable, **said):
    """Run a command in a directory of its own, as a user whose workers have this Python."""
    said_here = ("SPARK", "PYSPARK", "JAVA_HOME")
    own = {name: value for name, value in os.environ.items() if name in SOONER or not name.startswith(said_here)}
    own |= {"PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT), **said}
    # Into files: what a server of Spark's has inherited of a pipe is open for as long as that lives.
    with (tmp_path / "stdout").open("w+") as stdout, (tmp_path / "stderr").open("w+") as stderr:
        done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=own, stdout=stdout, stderr=stderr)
    told = Told((tmp_path / "stdout").read_text(), (tmp_path / "stderr").read_text())
    assert done.returncode == 0, told.stderr
    return told


def test_a_session_of_spark_connect_runs_all_that_another_does_on_workers_that_lack_our_code(tmp_path):
    begins = ["import pathlib, sys", f"sys.path.insert(0, {str(ROOT)!r})", "from tests.spark import ways"]
    (tmp_path / "begins.py").write_text("\n".join([*begins, "ways.main('connect', pathlib.Path('data').absolute())"]))
    bare = bare_python(tmp_path)
    told = ran([sys.executable, tmp_path / "begins.py"], tmp_path, bare, PYTHONPATH="").stdout.splitlines()
    assert told[:3] == [TOTALS, TOTALS, str(len(TICKS))]
    assert told[3].startswith("map 'broken' at ") and "ZeroDivisionError" in told[3]


def test_it_starts_under_spark_submit_and_our_code_goes_to_workers_that_have_none(tmp_path):
    bare = bare_python(tmp_path)
    shutil.copy(ROOT / "tests" / "spark" / "ways.py", tmp_path / "ways.py")
    begins = ["import pathlib, sys", f"sys.path.insert(0, {str(ROOT)!r})", "import ways"]
    (tmp_path / "begins.py").write_text("\n".join([*begins, "ways.main('submit', pathlib.Path('data'))"]))
    submit = Path(sys.executable).with_name("spark-submit")
    own = {"PYTHONPATH": "", "PYSPARK_DRIVER_PYTHON": sys.executable}
    found = ran(
        [submit, "--master", "local[2]", "--conf", "spark.ui.enabled=false", tmp_path / "begins.py"],
        tmp_path,
        bare,
        **own,
    )
    assert found.stdout.startswith(f"{TOTALS} {bare}\n")


def test_the_ui_names_jobs_for_applications_and_stages_for_operators(session, tmp_path):
    session.sparkContext.setJobGroup("mine", "my own words")
    app().run(tmp_path, on=Spark(session), bind={"ticks": TICKS})
    assert session.sparkContext.getLocalProperty("spark.job.description") == "my own words"
    session.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    session.sparkContext.setLocalProperty("spark.job.description", None)
    store = session.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    told = [jobs.apply(number).description() for number in range(jobs.size())]
    assert "ways" in {one.get() for one in told if one.isDefined()}
    ids = session.sparkContext.statusTracker().getJobIdsForGroup("mine")
    stages = {
        session.sparkContext.statusTracker().getStageInfo(stage).name
        for job in ids
        for stage in session.sparkContext.statusTracker().getJobInfo(job).stageIds
        if session.sparkContext.statusTracker().getStageInfo(stage) is not None
    }
    assert any("by-key" in name for name in stages) and any("totalled" in name for name in stages)


def test_rows_are_sent_to_their_task_without_repartition_by_id(session):
    """PySpark 3.5 has none: an int is sent of which Spark's own hash is that task."""
    from pyspark.sql import functions

    hashed = session.range(200).select(functions.hash(functions.col("id").cast("int"))).collect()
    assert [spark_hash(number) for number in range(200)] == [row[0] for row in hashed]
    for tasks in (1, 2, 7, 64):
        frame = session.range(300).selectExpr("cast(id as int) target")
        sent = frame.repartition(tasks, functions.expr(sent_to(tasks, "target - 3"))).rdd.glom().collect()
        assert [sorted({(row.target - 3) % tasks for row in part}) for part in sent] == [
            [task] for task in range(tasks)
        ]


@pytest.mark.parametrize(
    ("way", "version", "wanted"),
    [("", "3.4.4", r"runs on PySpark 3\.5"), ("connect", "3.5.9", r"Connect on PySpark 4\.0")],
)
def test_a_pyspark_that_is_too_old_is_named(way, version, wanted):
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "createDataFrame": None})()
    with (
        pytest.raises(SamzaError, match=rf"{wanted} or newer, and {version} is installed"),
        patch("pyspark.__version__", version),
    ):
        Spark(session).opened() if way else check_installed()
