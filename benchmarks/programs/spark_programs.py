"""Whole programs as Spark jobs, each beside what one writes by hand."""

from __future__ import annotations

from benchmarks.programs.kit.spark_job import SparkJob
from benchmarks.programs.spark_rows import ROWS

JOBS: dict[str, SparkJob] = {one.name: one for one in ROWS}
"""All jobs by name."""
