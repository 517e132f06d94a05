"""A run on Spark that appends to a table, and says when it begins to write there."""

import sys
from pathlib import Path

from msgspec import Struct

from runtime.spark.table_writer import TableWriter
from samza_dsl import App, IntoTable, Spark

ROWS = 20_000


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


def main(directory, table, *jars):
    """Append all rows to a table of a format whose jars are given."""
    write = TableWriter.write

    def telling(writer, files):
        print("writing", flush=True)
        write(writer, files)
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
    spark = Spark(master="local[2]", options=options)
    if table == "count":
        session = spark.opened()
        frames = {
            "delta": lambda: session.read.format("delta").load(f"{directory}/delta"),
            "iceberg": lambda: session.table("lake.db.rows"),
        }
        found = frames[jars[0]]()
        print("rows", found.count(), found.distinct().count(), flush=True)
        return
    bind = {"numbers": [*range(ROWS)], "rows": IntoTable(table, "append")}
    pipeline().run(Path(directory, "data"), on=spark, bind=bind)


if __name__ == "__main__":
    main(*sys.argv[1:])
