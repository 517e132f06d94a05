"""Runs a plan on Spark: the only part that imports pyspark, and only when it is asked to run."""
