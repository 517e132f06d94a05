"""A plan as a picture: SVG for notebooks and documents, and an HTML page that needs nothing from the network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import NamedTuple

from planner.model.flow import stages, stream_node
from planner.model.plan import Plan
from planner.picture.arrangement import arrange
from planner.picture.description import headline
from planner.picture.layout import Box, Line
from planner.picture.legend import legend
from planner.picture.lettering import fitted, text_width
from planner.picture.page import page
from planner.picture.palette import stylesheet
from planner.picture.shapes import badge, card, group, line, stage_panel, stream, text

MARGIN, TITLE_HEIGHT, LEAST_WIDTH, GONE_ROW, TITLE_ROW = 32, 92, 640, 30, 40


Marks = Mapping[str, str]
"""The words on what becomes of operators, by id, where a plan is compared with what has run: `added · 3 keys`."""


class _Drawn(NamedTuple):
    """A picture with its size."""

    svg: str
    width: int
    height: int


def to_svg(
    plan: Plan,
    rates: Mapping[tuple[str, str], str] | None = None,
    marks: Marks | None = None,
    was: Plan | None = None,
) -> str:
    """Return the plan as a picture, complete in itself, that suits light and dark surroundings.

    With `rates`, lines have what is said of them, by the nodes that they go from and to; who shows the picture live
    finds these, and cards, by their `data-id`. With `marks` operators have these at their cards, and those that the
    plan has not stand under its title. The plan that it `was` is drawn beside it, where there is one.

    >>> to_svg(Plan(app="demo"))[:46]
    '<svg xmlns="http://www.w3.org/2000/svg" class='
    """
    drawn = _drawn(plan, titled=True, rates=rates, marks=marks or {})
    return drawn.svg if was is None else _beside(was, plan, marks or {})


def to_html(plan: Plan, marks: Marks | None = None, was: Plan | None = None) -> str:
    """Return the plan as a page: the picture, its operators, and the Python source that they were fused into."""
    drawn = _drawn(plan, titled=False, rates=None, marks=marks or {})
    return page(plan, drawn.svg if was is None else _beside(was, plan, marks or {}))


def _beside(was: Plan, plan: Plan, marks: Marks) -> str:
    """Return two plans side by side, each with the marks of the operators that it has."""
    drawn = []
    for one in (was, plan):
        known = {operator.id for operator in one.operators}
        mine = {id: words for id, words in marks.items() if id in known}
        drawn.append(_drawn(one, titled=True, rates=None, marks=mine))
    before, after = drawn
    width, height = before.width + MARGIN + after.width, TITLE_ROW + max(before.height, after.height)
    left = Box(0, TITLE_ROW, 0, 0)
    right = Box(before.width + MARGIN, TITLE_ROW, 0, 0)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="samza-plan" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(plan.app)} before and after">',
            text("subtitle", MARGIN, TITLE_ROW - 12, "before"),
            text("subtitle", right.x + MARGIN, TITLE_ROW - 12, "after"),
            group("before", left, [], [before.svg]),
            group("after", right, [], [after.svg]),
            "</svg>",
        ]
    )


def _drawn(plan: Plan, *, titled: bool, rates: Mapping[tuple[str, str], str] | None, marks: Marks) -> _Drawn:
    picture = arrange(plan)
    room = max(picture.width, LEAST_WIDTH)
    head = TITLE_HEIGHT if titled else MARGIN
    gone, gone_height = _gone(plan, marks, room)
    top = head + gone_height
    key, key_height = legend(plan, room)
    width, height = room + 2 * MARGIN, top + picture.height + MARGIN + key_height + MARGIN // 2
    name, _, facts = headline(plan).partition(" · ")
    title = [text("title", MARGIN, 46, fitted(name, room, 22, bold=True)), text("subtitle", MARGIN, 68, facts)]
    panels = [stage_panel(stage, picture.panels[stage.id]) for stage, held in stages(plan) if held]
    lines = [line(one, _look(plan, one.source, one.target)) for one in picture.lines]
    badges = [_rate(one, rate) for one in picture.lines if (rate := (rates or {}).get((one.source, one.target)))]
    badges += [_mark(marks[id], box) for id, box in picture.cards.items() if id in marks]
    cards = [
        card(plan, operator, picture.cards[operator.id], operator.id if rates is not None else "")
        for operator in plan.operators
    ]
    streams = [stream(one, picture.streams[one.name]) for one in plan.streams]
    origin = Box((room - picture.width) // 2 + MARGIN, top, 0, 0)
    svg = "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="samza-plan" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(headline(plan))}">',
            f"<style>{stylesheet(marked=bool(marks))}</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="14"/>',
            *(title if titled else []),
            *([group("gone", Box(MARGIN, head, 0, 0), [], gone)] if gone else []),
            # Painted in this order: lines go over panels, and end below cards and streams.
            group("flow", origin, [], ["\n".join(["", *panels, *lines, *cards, *streams, *badges, ""])]),
            group("legend", Box(MARGIN, top + picture.height + MARGIN, 0, 0), [], key),
            "</svg>",
        ]
    )
    return _Drawn(svg, width, height)


def _gone(plan: Plan, marks: Marks, room: int) -> tuple[list[str], int]:
    """Return the marks of operators that the plan does not have, in rows that fit, and how high they are."""
    known = {operator.id for operator in plan.operators}
    found: list[str] = []
    x = y = 0
    for id, words in marks.items():
        if id in known:
            continue
        label = fitted(f"{id}: {words}", room, 11, bold=True)
        width = text_width(label, 11, bold=True) + 12
        if x and x + width > room:
            x, y = 0, y + GONE_ROW
        found.append(group(f"mark-{words.partition(' ')[0]}", Box(x, y, 0, 0), [], [badge(0, 0, label)]))
        x += width + 10
    return found, y + GONE_ROW if found else 0


def _mark(words: str, box: Box) -> str:
    """Return the mark of an operator, over the upper edge of its card."""
    width = text_width(words, 11, bold=True) + 12
    at = Box(box.x + max(box.width - width - 10, 10), box.y - 9, 0, 0)
    return group(f"mark-{words.partition(' ')[0]}", at, [], [badge(0, 0, words)])


def _rate(line: Line, rate: str) -> str:
    """Return what is said of a line, in the middle of its last part, where lines of one node have parted."""
    before, last = line.points[-2:]
    at = Box((before.x + last.x) // 2, (before.y + last.y) // 2, 0, 0)
    return group("rate", at, [], [badge(0, 0, rate)], f"{line.source}>{line.target}")


def _look(plan: Plan, source: str, target: str) -> str:
    """Return the look of a line: into dead letters, from a table that is looked into, or plain."""
    dead = {stream_node(stream.name) for stream in plan.streams if stream.role == "dead_letter"}
    tables = {operator.id for operator in plan.operators if operator.is_table}
    return "dead" if target in dead else "lookup" if source in tables else "flow"
