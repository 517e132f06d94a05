"""Whole programs as users write them, each beside the program that one would write by hand."""

from __future__ import annotations

from benchmarks.programs import clickstream, fraud, log_lines, readme
from benchmarks.programs.kit.program import Program

PROGRAMS: dict[str, Program] = {one.PROGRAM.name: one.PROGRAM for one in (readme, clickstream, fraud, log_lines)}
"""All programs by name."""
