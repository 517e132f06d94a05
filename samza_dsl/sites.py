"""Finds the place in the user's program that an operator comes from."""

from __future__ import annotations

import sys
from pathlib import Path

from operators.base import NOWHERE, Site

ROOT = Path(__file__).resolve().parent.parent
OURS = tuple(str(ROOT / package) + "/" for package in ("samza_dsl", "runtime", "planner", "operators"))


def here() -> Site:
    """Return the file and line of the nearest caller outside our own packages."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(OURS):
        if frame.f_back is None:
            return NOWHERE
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno)
