"""Draws figures as small SVGs that can be read on light and on dark ground."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.figures import Chart

WIDTH, ROW, LEFT, RIGHT, TOP, BOTTOM = 760, 22, 250, 70, 46, 40
HEIGHT = 300
TIMES = "\N{MULTIPLICATION SIGN}"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
"""Okabe and Ito's, which colour-blind readers can tell apart; each is dark and bright enough for both grounds."""

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2933; }
.title { font-size: 14px; font-weight: 600; }
.faint { fill: #66727f; }
.grid { stroke: #d5dbe1; } .one { stroke: #66727f; } .bar { stroke: #c0392b; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e8ec; } .faint { fill: #a3adb8; } .grid { stroke: #3b444d; } .one { stroke: #a3adb8; }
  .bar { stroke: #ff7b6b; }
}
"""

Scale = Callable[[float], float]


class Dot(NamedTuple):
    """A row of a chart: a value with its spread, its bar, and whether it is ours or leads a group."""

    label: str
    value: float
    low: float
    high: float
    bar: float | None = None
    ours: bool = True
    leads: bool = False


def dots(title: str, rows: Sequence[Dot]) -> str:
    """Draw a row for each value, on a logarithmic axis where 1 is the hand loop."""
    least = min(min(row.low, row.bar or row.low, 1.0) for row in rows) / 1.1
    most = max(max(row.high, row.bar or row.high, 1.0) for row in rows) * 1.1
    height = TOP + ROW * len(rows) + BOTTOM
    bottom = height - BOTTOM
    at = logarithmic(least, most, LEFT, WIDTH - RIGHT)
    drawn = [text(12, 22, title, "title")]
    for tick in log_ticks(least, most):
        drawn += [line(at(tick), TOP, at(tick), bottom, "one" if tick == 1 else "grid")]
        drawn += [text(at(tick), bottom + 18, f"{tick:g} {TIMES}", "faint", "middle")]
    for number, row in enumerate(rows):
        if row.leads and number:
            drawn += [line(12, TOP + ROW * number, WIDTH - 12, TOP + ROW * number, "grid")]
        y, colour = TOP + ROW * (number + 0.5), COLOURS[0 if row.ours else 1]
        drawn += [text(LEFT - 12, y + 4, row.label, anchor="end")]
        drawn += [f'<line x1="{at(row.low):.1f}" y1="{y}" x2="{at(row.high):.1f}" y2="{y}" stroke="{colour}"/>']
        drawn += [f'<circle cx="{at(row.value):.1f}" cy="{y}" r="5" fill="{colour}"/>']
        if row.bar is not None:
            drawn += [line(at(row.bar), y - 8, at(row.bar), y + 8, "bar")]
        drawn += [text(WIDTH - RIGHT + 12, y + 4, f"{readable(row.value)} {TIMES}")]
    return picture(title, height, drawn)


def lines(title: str, chart: Chart) -> str:
    """Draw a chart's lines; an axis that is not logarithmic begins at 0."""
    points = [point for found in chart.lines.values() for point in found]
    (least_x, most_x), (least_y, most_y) = (extent(axis) for axis in zip(*points, strict=True))
    left, right, top, bottom = 70, WIDTH - 110, TOP, HEIGHT - BOTTOM - 8
    at_x = logarithmic(least_x, most_x, left, right) if "x" in chart.log else linear(0, most_x, left, right)
    if "y" in chart.log:
        at_y = logarithmic(least_y / 1.3, most_y * 1.3, bottom, top)
        ticks_y = log_ticks(least_y / 1.3, most_y * 1.3)
    else:
        at_y = linear(0, most_y * 1.15, bottom, top)
        ticks_y = linear_ticks(most_y * 1.15)
    drawn = [text(12, 22, title, "title"), text(12, 39, chart.y, "faint")]
    for tick in ticks_y:
        drawn += [line(left, at_y(tick), right, at_y(tick), "grid")]
        drawn += [text(left - 8, at_y(tick) + 4, f"{tick:,g}", "faint", "end")]
    for x in sorted({x for x, _ in points}):
        drawn += [text(at_x(x), bottom + 18, f"{x:,g}", "faint", "middle")]
    drawn += [text((left + right) / 2, bottom + 36, chart.x, "faint", "middle")]
    labels = spaced([(at_y(found[-1][1]), name) for name, found in chart.lines.items()])
    for colour, (name, found) in zip(COLOURS, chart.lines.items(), strict=False):
        places = [(at_x(x), at_y(y)) for x, y in found]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn += [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places]
        drawn += [text(right + 12, labels[name] + 4, name)]
    return picture(title, HEIGHT, drawn)


def spaced(places: list[tuple[float, str]]) -> dict[str, float]:
    """Move labels down until none lies on another."""
    found: dict[str, float] = {}
    lowest = -math.inf
    for y, name in sorted(places):
        found[name] = lowest = max(y, lowest + 15)
    return found


def extent(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def logarithmic(least: float, most: float, first: float, last: float) -> Scale:
    whole = math.log(most / least) or 1.0
    return lambda value: first + (last - first) * math.log(value / least) / whole


def linear(least: float, most: float, first: float, last: float) -> Scale:
    whole = most - least or 1.0
    return lambda value: first + (last - first) * (value - least) / whole


def log_ticks(least: float, most: float) -> list[float]:
    """Return powers of ten, and the more numbers between them, the fewer powers there are."""
    steps = (1,) if most / least > 300 else (1, 2, 5) if most / least > 10 else (1, 2, 3, 4, 5, 7)
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in ticks if least <= tick <= most]


def linear_ticks(most: float) -> list[float]:
    """Return about five round numbers from 0 on."""
    rough = most / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough)
    return [step * number for number in range(int(most / step) + 1)]


def readable(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def picture(title: str, height: float, drawn: list[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return "\n".join((head, f"<style>{STYLE}</style>", *drawn, "</svg>\n"))
