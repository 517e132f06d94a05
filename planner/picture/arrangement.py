"""Places everything in the picture of a plan: panels and streams in columns, to the right, and lines between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from planner.model.flow import edges, plain, role, stages, stream_node
from planner.model.plan import Plan
from planner.picture.layout import Bend, Box, Layout, Line, Link, Point, layered, rank
from planner.picture.lettering import text_width
from planner.picture.panel import Door, Panel, panel

STREAM_HEIGHT, STREAM_WIDTH, STREAM_FRAME = 54, 290, 44
NAME_SIZE, ROLE_SIZE, BADGE_ROOM = 13, 11, 44
COLUMN_GAP, STACK_GAP, LANE = 64, 26, 18
STAGE = "stage:"
WEIGHTS = {"intermediate": 3, "dead_letter": 1}


@dataclass(frozen=True)
class Picture:
    """Boxes of stages, operators and streams by name, the lines between them, and the size of it all."""

    panels: dict[str, Box]
    cards: dict[str, Box]
    streams: dict[str, Box]
    lines: list[Line]
    width: int
    height: int


@dataclass(frozen=True)
class _Passage:
    """A line between two blocks, which are panels or streams; `way` is 1 where it goes to the right, else -1."""

    source: str
    target: str
    start: str
    end: str
    way: int
    weight: int

    @property
    def exit(self) -> Door:
        """The door through which it leaves its first block."""
        return Door(self.source, self.way, True)

    @property
    def entry(self) -> Door:
        """The door through which it enters its last block."""
        return Door(self.target, -self.way, False)


def arrange(plan: Plan) -> Picture:
    """Place everything.

    >>> from planner.model.plan import OperatorPlan
    >>> operator = OperatorPlan(id="map-1", kind="map", stage="stage-1")
    >>> picture = arrange(Plan(app="demo", operators=(operator,)))
    >>> picture.panels["stage-1"], picture.cards["map-1"]
    (Box(x=0, y=0, width=324, height=127), Box(x=24, y=54, width=276, height=49))
    """
    passages, ranks = _passages(plan)
    blocks = _blocks(plan, passages)
    links = [
        Link(p.start, p.end, blocks[p.start].doors[p.exit][-1].y, blocks[p.end].doors[p.entry][0].y, p.weight)
        for p in passages
    ]
    # The layout flows downwards, and this picture to the right: its rows are columns here, and its widths heights.
    heights = {name: block.height for name, block in blocks.items()}
    layout = layered(heights, links, STACK_GAP, LANE, ranks, compact=True)
    columns = _columns(layout, blocks)
    boxes = {name: _box(block, columns[ranks[name]], layout.across[name]) for name, block in blocks.items()}
    inside = [(block, boxes[name]) for name, block in blocks.items()]
    lines = [line.moved(box.x, box.y) for block, box in inside for line in block.lines]
    lines += [_line(number, passage, layout, columns, blocks, boxes) for number, passage in enumerate(passages)]
    return Picture(
        panels={name.removeprefix(STAGE): box for name, box in boxes.items() if name.startswith(STAGE)},
        cards={name: card.moved(box.x, box.y) for block, box in inside for name, card in block.cards.items()},
        streams={stream.name: boxes[stream_node(stream.name)] for stream in plan.streams},
        lines=lines,
        width=max((box.right for box in boxes.values()), default=0),
        height=max((box.bottom for box in boxes.values()), default=0),
    )


def _passages(plan: Plan) -> tuple[list[_Passage], dict[str, int]]:
    """Return the lines between blocks, and the column of each block."""
    home = {operator.id: STAGE + stage.id for stage, held in stages(plan) for operator in held}
    ends = [(u, v, home.get(u, u), home.get(v, v)) for u, v in edges(plan)]
    between = [(u, v, start, end) for u, v, start, end in ends if start != end]
    blocks = [*(stream_node(stream.name) for stream in plan.streams), *dict.fromkeys(home.values())]
    ranks = rank(blocks, [(start, end) for _, _, start, end in between])
    weights = {stream_node(stream.name): WEIGHTS.get(stream.role, 2) for stream in plan.streams}
    passages = [
        _Passage(u, v, start, end, 1 if ranks[start] < ranks[end] else -1, weights.get(u, weights.get(v, 1)))
        for u, v, start, end in between
    ]
    return passages, ranks


def _blocks(plan: Plan, passages: list[_Passage]) -> dict[str, Panel]:
    """Return the blocks, by name, that are placed as a whole: streams, and stages with all that is in them."""
    width = _stream_width(plan)
    blocks = {stream_node(stream.name): _stream(stream_node(stream.name), width) for stream in plan.streams}
    for stage, held in stages(plan):
        if held:
            name = STAGE + stage.id
            exits = [passage.exit for passage in passages if passage.start == name]
            entries = [passage.entry for passage in passages if passage.end == name]
            blocks[name] = panel(plan, stage, held, exits + entries)
    return blocks


def _stream_width(plan: Plan) -> int:
    """Return one width for all streams: the longest name's, or that of its role and partition count, up to a limit."""
    names = [text_width(plain(stream.name), NAME_SIZE, bold=True) for stream in plan.streams]
    roles = [text_width(role(stream).upper(), ROLE_SIZE, bold=True) + BADGE_ROOM for stream in plan.streams]
    return min(max([*names, *roles, 0]) + STREAM_FRAME, STREAM_WIDTH)


def _stream(node: str, width: int) -> Panel:
    """Return a stream as a block: lines end in the middle of its sides."""
    doors: dict[Door, tuple[Point, ...]] = {}
    for side, leaving in product((1, -1), (True, False)):
        across = side if leaving else -side
        doors[Door(node, side, leaving)] = (Point(width if side > 0 else 0, STREAM_HEIGHT // 2, across, 0),)
    return Panel(width, STREAM_HEIGHT, {}, [], doors)


def _columns(layout: Layout, blocks: dict[str, Panel]) -> list[Box]:
    """Return the strip of each column."""
    columns: list[Box] = []
    x = 0
    for spots in layout.rows:
        width = max((blocks[spot].width for spot in spots if not isinstance(spot, Bend)), default=0)
        columns.append(Box(x, 0, width, 0))
        x += width + COLUMN_GAP
    return columns


def _box(block: Panel, column: Box, y: int) -> Box:
    return Box(column.x + (column.width - block.width) // 2, y, block.width, block.height)


def _line(
    number: int, passage: _Passage, layout: Layout, columns: list[Box], blocks: dict[str, Panel], boxes: dict[str, Box]
) -> Line:
    """Return the line of a passage; it turns only between columns, where there are no blocks."""
    start, end = boxes[passage.start], boxes[passage.end]
    points = [point.moved(start.x, start.y) for point in blocks[passage.start].doors[passage.exit]]
    arrival = [point.moved(end.x, end.y) for point in blocks[passage.end].doors[passage.entry]]
    points.append(_edge(points[-1], columns, passage.way))
    for bend in layout.bends(number)[:: passage.way]:
        y, column = layout.across[bend] + LANE // 2, columns[bend.rank]
        points.extend([Point(column.x, y, passage.way, 0), Point(column.right, y, passage.way, 0)][:: passage.way])
    points.extend([_edge(arrival[0], columns, -passage.way), *arrival])
    return Line(passage.source, passage.target, tuple(dict.fromkeys(points)))


def _edge(point: Point, columns: list[Box], side: int) -> Point:
    """Return the point moved to the edge of its column."""
    column = next(column for column in columns if column.x <= point.x <= column.right)
    return point._replace(x=column.right if side > 0 else column.x)
