"""Test applications in memory and in virtual time: on lists, step by step, through crashes, and one operator alone."""

from samza_dsl.testing.conformance import check_pulled, check_sink, check_source
from samza_dsl.testing.environment import CrashPoint
from samza_dsl.testing.events import AdvanceTime, Watermark, drive
from samza_dsl.testing.held_calls import Call
from samza_dsl.testing.lists import run, unordered
from samza_dsl.testing.schedules import Schedule, schedule
from samza_dsl.testing.steps import TestRun, running
from samza_dsl.testing.streams import DeadLetter, Record

__all__ = [
    "AdvanceTime",
    "Call",
    "CrashPoint",
    "DeadLetter",
    "Record",
    "Schedule",
    "TestRun",
    "Watermark",
    "check_pulled",
    "check_sink",
    "check_source",
    "drive",
    "run",
    "running",
    "schedule",
    "unordered",
]
