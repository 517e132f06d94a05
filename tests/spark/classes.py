"""Archives the classes that a session of Spark loads: each later session maps them, and takes half of what it took."""

import os
import sys
from pathlib import Path

SOON_UP = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of Java for what lives for seconds."""
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def class_path(home: Path) -> str:
    """Return where Java looks for Spark's classes, as Spark says it: an archive is of one class path."""
    (logging,) = (home / "jars").glob("slf4j-api-*.jar")
    return f"{home}/conf:{logging}:{home}/jars/*"


def options() -> str:
    """Return the options of Java for a session; one that finds the archive not to be its own goes on without it."""
    mapped = (f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off") if ARCHIVE.exists() else ()
    return " ".join((*SOON_UP, *mapped))


def main() -> None:
    """Write the archive, unless it is there: the classes of a session that has read, shuffled and written rows."""
    if ARCHIVE.exists():
        return
    from samza_dsl import Spark

    making = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join((*SOON_UP, f"-XX:ArchiveClassesAtExit={making}", "-Xlog:cds=off"))
    quiet = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
    session = Spark(master="local[2]", options=quiet).opened()
    session.range(100).selectExpr("id % 7 AS key").groupBy("key").count().collect()
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    if making.exists():  # a Java without an archive of its own classes makes none
        making.rename(ARCHIVE)


if __name__ == "__main__":
    main()
