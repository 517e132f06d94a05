"""Whole programs as users write them, each beside the program that one would write by hand."""

from __future__ import annotations

from benchmarks.programs import (
    candles,
    clickstream,
    enrichment,
    flight_windows,
    flights,
    fraud,
    log_lines,
    orders,
    readme,
    sensors,
    words,
)
from benchmarks.programs.kit.program import Program

ALL = (flights, readme, flight_windows, clickstream, fraud, log_lines, enrichment, orders, sensors, words, candles)

PROGRAMS: dict[str, Program] = {one.PROGRAM.name: one.PROGRAM for one in ALL}
"""All programs by name."""
