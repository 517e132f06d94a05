"""Spark as a batch engine: the only folder that imports pyspark."""
