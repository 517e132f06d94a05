"""The legend of the picture of a plan, with the shapes and colours that are in it."""

from __future__ import annotations

from planner.model.flow import family
from planner.model.plan import Plan
from planner.picture.layout import Box, Point
from planner.picture.lettering import text_width
from planner.picture.shapes import CYLINDER, TIMES, badge, curve, group, outline, text

ROW, GLYPH, SPACE = 28, 28, 18
_WORDS = {
    "input": "input stream",
    "table": "table",
    "intermediate": "intermediate stream",
    "output": "output stream",
    "dead_letter": "dead letters",
    "source": "source",
    "stateless": "stateless operator",
    "stateful": "stateful operator",
    "async": "async operator",
    "terminal": "terminal operator",
}


def legend(plan: Plan, width: int) -> tuple[list[str], int]:
    """Return the parts of the legend, in rows that fit in `width`, and how high they are.

    >>> legend(Plan(app="demo"), 400)[1]
    28
    """
    shown = {stream.role for stream in plan.streams} | {family(operator) for operator in plan.operators}
    items = [(_glyph(look), words) for look, words in _WORDS.items() if look in shown]
    if plan.stores:
        cylinder = f'<path class="icon" d="{CYLINDER}" transform="translate(9 2)"/>'
        items.append((group("r-stateful", Box(0, 0, 0, 0), [], [cylinder]), "store"))
    if any(operator.is_table for operator in plan.operators):
        items.append((_stroke("lookup"), "lookup"))
    items.append((badge(0, -1, f"{TIMES}4"), "partitions"))
    parts: list[str] = []
    x = y = 0
    for glyph, words in items:
        needed = GLYPH + 8 + text_width(words, 12)
        if x and x + needed > width:
            x, y = 0, y + ROW
        parts.append(group("key", Box(x, y, 0, 0), [], [glyph, text("key", GLYPH + 8, 12, words)]))
        x += needed + SPACE
    return parts, y + ROW


def _glyph(look: str) -> str:
    """Return a small picture of a stream's shape or an operator's card."""
    if look in ("input", "table", "intermediate", "output", "dead_letter"):
        shape = outline(look, GLYPH, 16)
    else:
        wall = "M22 0h2a4 4 0 0 1 4 4v8a4 4 0 0 1-4 4h-2z" if look == "terminal" else "M4 3h3v10h-3z"
        shape = f'<rect class="face" width="{GLYPH}" height="16" rx="4"/><path class="bar" d="{wall}"/>'
    return group(f"r-{look}", Box(0, 0, 0, 0), [], [shape])


def _stroke(look: str) -> str:
    return f'<path class="line {look}" d="{curve([Point(0, 8, 1, 0), Point(GLYPH, 8, 1, 0)])}"/>'
