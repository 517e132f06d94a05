"""The HTML page of a plan."""

from __future__ import annotations

from planner.plan import Plan


def page(plan: Plan, svg: str) -> str:
    """Return the page."""
    return f"<!doctype html><meta charset=utf-8><body>{svg}"
