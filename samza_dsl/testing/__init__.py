"""Test applications in memory and in virtual time: on lists, step by step, through crashes, and one operator alone."""

from samza_dsl.testing.environment import CrashPoint
from samza_dsl.testing.held_calls import Call
from samza_dsl.testing.lists import Watermark, drive, run, unordered
from samza_dsl.testing.running import TestRun, running
from samza_dsl.testing.schedules import Schedule, schedule
from samza_dsl.testing.streams import DeadLetter, Record

__all__ = [
    "Call",
    "CrashPoint",
    "DeadLetter",
    "Record",
    "Schedule",
    "TestRun",
    "Watermark",
    "drive",
    "run",
    "running",
    "schedule",
    "unordered",
]
