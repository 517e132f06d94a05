"""A run on Spark that writes to a table, and says when it begins to write there."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from runtime.spark.table_writer import TableWriter
from runtime.units.driver import micro_batch_inputs
from samza_dsl import App, IntoTable, Spark

ROWS = 20_000
BATCHES = 5
"""The micro-batches that it is cut into, where it goes on."""


class Row(Struct, frozen=True):
    """A row of the table."""

    key: str
    number: int


def pipeline():
    """Return an application that writes so many rows."""
    app = App("lake")
    numbers = app.input("numbers", value=int)
    numbers.map(lambda number: Row(f"K{number % 7}", number)).send_to(app.output("rows", value=Row))
    return app


def main(directory, how, table, mode, *jars):
    """Write all rows to a table of a format whose jars are given, or count those of one."""
    write = TableWriter.write

    def telling(writer, files, replaces=True):
        print("writing", flush=True)
        write(writer, files, replaces)
        print("written", flush=True)

    TableWriter.write = telling
    options = {
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": f"{directory}/iceberg",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.sql.shuffle.partitions": "2",
    }
    connects = how == "connect"
    spark = through_connect(options) if connects else Spark(master="local[2]", options=options)
    form, _, name = table.partition(":")
    if how == "count":
        count(spark.opened(), form, name)
        return
    if mode != "append":
        begin(spark.opened(), form, name)
    into = IntoTable(table, mode, key="number" if mode == "merge" else ())
    bind = {"rows": into}
    if how != "streaming":
        pipeline().run(Path(directory, "data"), on=spark, bind={**bind, "numbers": [*range(ROWS)]})
        if connects:
            os._exit(0)  # to stop a session whose server lives in this process asks that server again and again
        return
    lines = Path(directory, "numbers.jsonl")
    lines.write_text("".join(f"{number}\n" for number in range(ROWS)))
    micro_batch_inputs.MOST_BYTES = lines.stat().st_size // BATCHES + 100  # as it ends behind a line
    spark = replace(spark, checkpoint=Path(directory, "checkpoint"), end=True)
    pipeline().run(Path(directory, "data"), on=spark, bind={**bind, "numbers": lines})


def through_connect(options):
    """Return what runs through Spark Connect, on a server that lives and dies with this process."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]")
    for name, value in options.items():
        builder = builder.config(name, value)
    return Spark(builder.getOrCreate())


def begin(session, form, name):
    """Make the table with a row that is to go, where it is not there."""
    target = f"delta.`{name}`" if form == "delta" else name
    rows = session.createDataFrame([("old", 0)], "key STRING, number BIGINT")
    there = Path(name).exists() if form == "delta" else session.catalog.tableExists(name)
    if not there and form == "delta":
        rows.write.format(form).save(name)
    elif not there:
        rows.writeTo(target).using(form).create()


def count(session, form, name):
    """Print how many rows a table has, how many different ones, and in how many commits rows came."""
    if form == "delta":
        found = session.read.format(form).load(name)
        told = session.sql(f"DESCRIBE HISTORY delta.`{name}`").collect()
        versions = sum(int((one.operationMetrics or {}).get("numOutputRows", 0)) > 1 for one in told)
    else:
        found = session.table(name)
        versions = session.table(f"{name}.snapshots").where("summary['samza-dsl-run'] IS NOT NULL").count()
    print("rows", found.count(), found.distinct().count(), versions, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
