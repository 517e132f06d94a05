"""Places everything inside a stage: the cards of its operators in rows, downwards, and the lines between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from planner.model.flow import counted, edges, plain, stores
from planner.model.plan import OperatorPlan, Plan, StagePlan
from planner.picture.layout import Bend, Box, Layout, Line, Link, Point, Spot, layered
from planner.picture.lettering import broken, text_width

CARD_WIDTH, CARD_HEIGHT, LABEL_LINE, FOOTER = 276, 49, 17, 26
LABEL_SIZE, LABEL_WIDTH = 13, CARD_WIDTH - 30
PADDING, HEAD = 24, 54
CARD_GAP, ROW_GAP, LANE = 28, 38, 16
CHANNEL, CORNER, INSET = 10, 9, 24
FLOW = 1_000


class Door(NamedTuple):
    """A way for lines from a card to a side of its panel (1: right, -1: left), or from that side to the card."""

    card: str
    side: int
    leaving: bool


@dataclass(frozen=True)
class Panel:
    """The inside of a stage, seen from its corner."""

    width: int
    height: int
    cards: dict[str, Box]
    lines: list[Line]
    doors: dict[Door, tuple[Point, ...]]


def label_lines(operator: OperatorPlan) -> list[str]:
    """Return the lines that say what an operator does, at most two.

    >>> label_lines(OperatorPlan(id="a", kind="async_flat_map", label="≤ 500 in flight, order by key, 2,000 ms"))
    ['≤ 500 in flight, order by key,', '2,000 ms']
    """
    return broken(operator.label, LABEL_WIDTH, LABEL_SIZE, bold=True) if plain(operator.label) else []


def has_footer(plan: Plan, operator: OperatorPlan) -> bool:
    """Whether there is more to say than fits: of state, of the order of messages, or of errors."""
    return bool(stores(plan, operator)) or operator.on_error != "fail" or bool(operator.by_order)


def panel(plan: Plan, stage: StagePlan, operators: list[OperatorPlan], doors: Iterable[Door]) -> Panel:
    """Arrange a stage's operators, with a way to the side for every door.

    >>> stage = StagePlan(id="s", inputs=(), operators=())
    >>> inside = panel(Plan(app="demo"), stage, [OperatorPlan(id="a", kind="map")], [])
    >>> inside.cards, inside.width, inside.height
    ({'a': Box(x=24, y=54, width=276, height=49)}, 324, 127)
    """
    doors = list(dict.fromkeys(doors))
    links = _links(plan, operators)
    feeders = {door.card for door in doors if not door.leaving}
    leavers = {door.card for door in doors if door.leaving}
    place = {operator.id: -n if operator.id in leavers else n for n, operator in enumerate(operators)}
    # Streams come from the left and go on to the right, so the cards that lines enter or leave stand at that side.
    from_left_to_right = sorted(operators, key=lambda one: ((one.id in leavers) - (one.id in feeders), place[one.id]))
    layout = layered({operator.id: CARD_WIDTH for operator in from_left_to_right}, links, CARD_GAP, LANE)
    heights = {operator.id: _card_height(plan, operator) for operator in operators}
    channels = _channels(layout, doors)
    rows = _rows(layout, heights, channels)
    cards = {
        spot: Box(PADDING + layout.across[spot], row.y + (row.height - heights[spot]) // 2, CARD_WIDTH, heights[spot])
        for spots, row in zip(layout.rows, rows, strict=True)
        for spot in spots
        if not isinstance(spot, Bend)
    }
    ends = [PADDING + start + (LANE if isinstance(spot, Bend) else CARD_WIDTH) for spot, start in layout.across.items()]
    width = (
        max([*ends, text_width(stage.id, 15, bold=True) + text_width(counted(stage.partitions, "partition"), 12)])
        + PADDING
    )
    strips = {spot: row for spots, row in zip(layout.rows, rows, strict=True) for spot in spots}
    lines = [_line(number, link, layout, strips, cards) for number, link in enumerate(links)]
    ways = {door: _way(door, cards[door.card], strips[door.card], channels.get(door), width) for door in doors}
    below = sum(door.leaving and door.card in layout.rows[-1] for door in channels) * CHANNEL
    return Panel(width, rows[-1].bottom + below + PADDING, cards, lines, ways)


def _card_height(plan: Plan, operator: OperatorPlan) -> int:
    return CARD_HEIGHT + LABEL_LINE * len(label_lines(operator)) + FOOTER * has_footer(plan, operator)


def _links(plan: Plan, operators: list[OperatorPlan]) -> list[Link]:
    """Return the links within the stage; those from tables give way, so that the main flow is straight."""
    kinds = {operator.id: operator.kind for operator in operators}
    inner = [(source, target) for source, target in edges(plan) if source in kinds and target in kinds]
    middle = CARD_WIDTH // 2
    return [Link(source, target, middle, middle, 1 if kinds[source] == "table" else FLOW) for source, target in inner]


def _channels(layout: Layout, doors: list[Door]) -> dict[Door, int]:
    """Return a channel, by number and row, for each door whose way is not free: below the row, or above it."""
    channels: dict[Door, int] = {}
    for spots in layout.rows:
        cards = [spot for spot in spots if not isinstance(spot, Bend)]
        for leaving in (True, False):
            here = [door for door in doors if door.card in cards and door.leaving == leaving]
            blocked = [door for door in here if cards[-1 if door.side > 0 else 0] != door.card]
            channels.update({door: number for number, door in enumerate(blocked)})
    return channels


def _rows(layout: Layout, heights: dict[str, int], channels: dict[Door, int]) -> list[Box]:
    """Return the strip that each row of cards takes up; channels push the strips apart."""
    rows: list[Box] = []
    y = HEAD - ROW_GAP
    for spots in layout.rows:
        y += ROW_GAP + CHANNEL * sum(not door.leaving and door.card in spots for door in channels)
        height = max((heights[spot] for spot in spots if not isinstance(spot, Bend)), default=0)
        rows.append(Box(0, y, 0, height))
        y += height + CHANNEL * sum(door.leaving and door.card in spots for door in channels)
    return rows


def _line(number: int, link: Link, layout: Layout, strips: dict[Spot, Box], cards: dict[str, Box]) -> Line:
    """Return the line of a link; it turns only between rows, where there are no cards."""
    down = 1 if strips[link.source].y < strips[link.target].y else -1
    points: list[Point] = []
    spots: list[Spot] = [link.source, *layout.bends(number)[::down], link.target]
    for spot in spots:
        strip = strips[spot]
        if isinstance(spot, Bend):
            x, levels = PADDING + layout.across[spot] + LANE // 2, [strip.y, strip.bottom][::down]
        else:
            x, box = cards[spot].x + CARD_WIDTH // 2, cards[spot]
            levels = [strip.y, box.y, box.bottom, strip.bottom][::down]
            levels = levels[2:] if spot == link.source else levels[:2]
        points.extend(Point(x, y, 0, down) for y in dict.fromkeys(levels))
    return Line(link.source, link.target, tuple(points))


def _way(door: Door, card: Box, row: Box, channel: int | None, width: int) -> tuple[Point, ...]:
    """Return the points of a door's way, in the direction of the flow: straight, or round a corner into a channel."""
    edge = width if door.side > 0 else 0
    across = door.side if door.leaving else -door.side
    if channel is None:
        points = [
            Point(card.right if door.side > 0 else card.x, card.middle, across, 0),
            Point(edge, card.middle, across, 0),
        ]
        return tuple(points if door.leaving else points[::-1])
    x = card.right - INSET if door.side > 0 else card.x + INSET
    y = row.bottom + CORNER + 4 + CHANNEL * channel if door.leaving else row.y - CORNER - 7 - CHANNEL * channel
    away = 1 if door.leaving else -1
    points = [
        Point(x, card.bottom if door.leaving else card.y, 0, 1),
        Point(x, y - CORNER * away, 0, 1),
        Point(x + CORNER * door.side, y, across, 0),
        Point(edge, y, across, 0),
    ]
    return tuple(points if door.leaving else points[::-1])
