"""The SVG of each part of the picture of a plan: cards, streams, panels, lines and the legend."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import pairwise

from planner.model.flow import counted, family, place, plain, role, stores, traits
from planner.model.plan import OperatorPlan, Plan, StagePlan, StreamPlan
from planner.picture.layout import Box, Line, Point
from planner.picture.lettering import fitted, fitted_name, text_width
from planner.picture.panel import FOOTER, LABEL_LINE, LABEL_SIZE, PADDING, has_footer, label_lines

INDENT, MONO_SIZE = 18, 10.5
TIMES = "\N{MULTIPLICATION SIGN}"
CYLINDER = "M0 2.5a5 2.2 0 0 1 10 0v7a5 2.2 0 0 1-10 0zM0 2.5a5 2.2 0 0 0 10 0"
_CLOCK = "M6 0a6 6 0 1 0 .01 0zM6 3v3.2l2.2 1.4"


def text(look: str, x: int, y: int, words: str) -> str:
    """Return a line of text, escaped.

    >>> text("label", 1, 2, "a < b")
    '<text class="label" x="1" y="2">a &lt; b</text>'
    """
    return f'<text class="{look}" x="{x}" y="{y}">{escape(plain(words))}</text>'


def group(look: str, box: Box, tooltip: Iterable[str], parts: Iterable[str], name: str = "") -> str:
    """Return parts that belong together, drawn from the corner of `box`; the tooltip has a line per item.

    Who shows the picture live finds them by their `name`.
    """
    title = "\n".join(escape(plain(line)) for line in tooltip if line)
    titled = f"<title>{title}</title>" if title else ""
    named = f' data-id="{escape(name)}"' if name else ""
    return f'<g class="{look}"{named} transform="translate({box.x} {box.y})">{titled}{"".join(parts)}</g>'


def card(plan: Plan, operator: OperatorPlan, box: Box, name: str = "") -> str:
    """Return the card of an operator, to be found by a name."""
    look = family(operator)
    width, height = box.width, box.height
    parts = [f'<rect class="face" width="{width}" height="{height}" rx="10"/>']
    if operator.terminal:
        parts.append(f'<path class="bar" d="M{width - 8} 0a8 8 0 0 1 8 8v{height - 16}a8 8 0 0 1-8 8z"/>')
    else:
        parts.append(f'<rect class="bar" x="7" y="10" width="3" height="{height - 20}" rx="1.5"/>')
    if operator.asynchronous:
        parts.append(f'<path class="icon" d="{_CLOCK}" transform="translate({width - 27} 9)"/>')
    kind = fitted(operator.kind.replace("_", " ").upper(), width - 60, 11, bold=True)
    parts.append(text("kind", INDENT, 21, kind))
    lines = label_lines(operator)
    parts.extend(text("label", INDENT, 40 + LABEL_LINE * number, line) for number, line in enumerate(lines))
    bottom = 40 + LABEL_LINE * len(lines)
    site = fitted_name(place(operator.site), 120, MONO_SIZE, mono=True)
    parts.append(text("site", INDENT, bottom, site))
    if operator.id != operator.label:
        room = width - 2 * INDENT - text_width(site, MONO_SIZE, mono=True) - 10
        parts.append(text("id", width - INDENT, bottom, fitted_name(operator.id, room, MONO_SIZE, mono=True)))
    if has_footer(plan, operator):
        parts.extend(_footer(plan, operator, width, height))
    kept = [f"store {store}" for store in stores(plan, operator)]
    order = f"by order of arrival: {operator.by_order}" if operator.by_order else ""
    policy = f"on error: {operator.on_error}"
    tooltip = [f"{operator.kind} {operator.id}", operator.label, place(operator.site), *kept, order, policy]
    return group(f"card r-{look}", box, tooltip, parts, name)


def _footer(plan: Plan, operator: OperatorPlan, width: int, height: int) -> list[str]:
    """Return the foot of a card: a cylinder with the stores' names, what goes by order, and what happens on errors."""
    y = height - 10
    parts = [f'<path class="rule" d="M{INDENT} {height - FOOTER}H{width - INDENT}"/>']
    own, *others = stores(plan, operator) or [""]
    kept = ", ".join([own.removeprefix(f"{operator.id} ").strip("()"), *others])
    policy = {"fail": "", "skip": "skip on error"}.get(operator.on_error, operator.on_error)
    policy = " · ".join(words for words in ("by order of arrival" if operator.by_order else "", policy) if words)
    room = width - 2 * INDENT - 4
    if kept:
        parts.append(f'<path class="icon store" d="{CYLINDER}" transform="translate({INDENT} {height - 20})"/>')
        kept = fitted(kept, (room - 16) // 2 if policy else room - 16, 11)
        parts.append(text("note", INDENT + 16, y, kept))
    if policy:
        left = INDENT + (text_width(kept, 11) + 26 if kept else 0)
        parts.append(text("note policy", left, y, fitted(policy, width - INDENT - left, 11)))
    return parts


def stream(one: StreamPlan, box: Box) -> str:
    """Return a stream in the shape of its role, with its partition count as a badge."""
    parts = [outline(one.role, box.width, box.height)]
    count = f"{TIMES}{'?' if one.partitions is None else one.partitions}"
    pill = text_width(count, 11, bold=True) + 12
    room = box.width - 2 * 22
    kind = fitted(role(one).upper(), room - pill - 4, 11, bold=True)
    parts.append(text("kind", 22, 22, kind))
    parts.append(text("label", 22, 41, fitted_name(one.name, room, LABEL_SIZE, bold=True)))
    parts.append(badge(box.width - 18 - pill, 9, count))
    size = "partitions are counted when it runs" if one.partitions is None else counted(one.partitions, "partition")
    return group(f"stream r-{one.role}", box, [one.name, f"{role(one)} stream", size], parts)


def outline(role: str, width: int, height: int) -> str:
    """Return the shape of a role: ribbon in, arrow out, pipe between, grid for tables, sheet for dead letters."""
    middle = height // 2
    if role == "input":
        return f'<path class="shape" d="M0 0H{width}V{height}H0L10 {middle}z"/>'
    if role == "output":
        return f'<path class="shape" d="M0 0H{width - 12}L{width} {middle}L{width - 12} {height}H0z"/>'
    if role == "intermediate":
        pipe = f"M8 0H{width - 8}A8 {middle} 0 0 1 {width - 8} {height}H8A8 {middle} 0 0 1 8 0z"
        rim = f"M{width - 8} 0A8 {middle} 0 0 0 {width - 8} {height}"
        return f'<path class="shape" d="{pipe}"/><path class="rim" d="{rim}"/>'
    if role == "table":
        grid = f"M10 0V{height}M0 {middle // 2}H10M0 {middle}H10M0 {middle + middle // 2}H10"
        return f'<rect class="shape" width="{width}" height="{height}" rx="4"/><path class="rim" d="{grid}"/>'
    corner = f"M{width - 10} 0v10h10"
    return f'<path class="shape" d="M0 0H{width - 10}L{width} 10V{height}H0z"/><path class="rim" d="{corner}"/>'


def badge(x: int, y: int, words: str) -> str:
    """Return a few words in a pill."""
    width = text_width(words, 11, bold=True) + 12
    pill = f'<rect class="pill" x="{x}" y="{y}" width="{width}" height="18" rx="9"/>'
    return pill + text("badge", x + width // 2, y + 13, words)


def stage_panel(stage: StagePlan, box: Box) -> str:
    """Return the panel of a stage, with its name, its partition count, and how it runs."""
    partitions, *special = traits(stage)
    pill = text_width(partitions, 11, bold=True) + 12
    room = box.width - 2 * PADDING
    parts = [
        f'<rect class="ground" width="{box.width}" height="{box.height}" rx="16"/>',
        text("stage", PADDING, 29, fitted(stage.id, room - pill - 8, 15, bold=True)),
        badge(box.width - PADDING - pill, 15, partitions),
    ]
    if special:
        parts.append(text("traits", PADDING, 45, fitted(" · ".join(special), room, 11)))
    return group("panel", box, [stage.id, partitions, *special], parts)


def line(one: Line, look: str) -> str:
    """Return a line as a smooth curve with an arrowhead."""
    *before, last = one.points
    tip = last._replace(x=last.x - 7 * last.right, y=last.y - 7 * last.down)
    back = last.moved(-9 * last.right, -9 * last.down)
    wing = (4 * last.down, 4 * last.right)
    head = f"M{last.x} {last.y}L{back.x + wing[0]} {back.y + wing[1]}L{back.x - wing[0]} {back.y - wing[1]}z"
    return f'<path class="line {look}" d="{curve([*before, tip])}"/><path class="head {look}" d="{head}"/>'


def curve(points: list[Point]) -> str:
    """Return a path through points, in the directions that they say.

    >>> curve([Point(0, 0, 1, 0), Point(10, 0, 1, 0), Point(20, 8, 1, 0)])
    'M0 0H10C15 0 15 8 20 8'
    """
    parts = [f"M{points[0].x} {points[0].y}"]
    for start, end in pairwise(points):
        if start.down == end.down == 0 and start.y == end.y:
            parts.append(f"H{end.x}")
        elif start.right == end.right == 0 and start.x == end.x:
            parts.append(f"V{end.y}")
        else:
            away = start.moved(_half(start, start, end) * start.right, _half(start, start, end) * start.down)
            back = end.moved(-_half(end, start, end) * end.right, -_half(end, start, end) * end.down)
            parts.append(f"C{away.x} {away.y} {back.x} {back.y} {end.x} {end.y}")
    return "".join(parts)


def _half(at: Point, start: Point, end: Point) -> int:
    """Return half the way between two points in the direction that the line has at one of them."""
    return (abs(end.x - start.x) if at.right else abs(end.y - start.y)) // 2
