"""A layered layout: boxes in rows along the flow, few crossings, straight lines, the same from run to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from typing import NamedTuple

SWEEPS = 12
"""The number of times that rows are reordered, and boxes moved: by then little changes any more."""
GIVES_WAY, STAYS = 1e-6, 1e6
"""The weights with which a box that nothing pulls wants to stay, beside those of links, which are small integers."""


class Box(NamedTuple):
    """A rectangle in whole pixels."""

    x: int
    y: int
    width: int
    height: int

    @property
    def right(self) -> int:
        """The x of its right side."""
        return self.x + self.width

    @property
    def bottom(self) -> int:
        """The y of its lower side."""
        return self.y + self.height

    @property
    def middle(self) -> int:
        """The y half-way down."""
        return self.y + self.height // 2

    def moved(self, x: int, y: int) -> Box:
        """Return the same box further to the right and down."""
        return self._replace(x=self.x + x, y=self.y + y)


class Point(NamedTuple):
    """A point that a line passes, with its direction there: (1, 0) is to the right, (0, 1) down."""

    x: int
    y: int
    right: int
    down: int

    def moved(self, x: int, y: int) -> Point:
        """Return the same point further to the right and down."""
        return self._replace(x=self.x + x, y=self.y + y)


class Line(NamedTuple):
    """A line from one node of a plan to another, as a curve through points."""

    source: str
    target: str
    points: tuple[Point, ...]

    def moved(self, x: int, y: int) -> Line:
        """Return the same line further to the right and down."""
        return self._replace(points=tuple(point.moved(x, y) for point in self.points))


class Link(NamedTuple):
    """A line from one box to another: where along each box it is attached, and how much it wants to be straight."""

    source: str
    target: str
    leaves: int = 0
    enters: int = 0
    weight: int = 1


class Bend(NamedTuple):
    """The place in a row that a link, by its number, passes between its ends."""

    link: int
    rank: int


Spot = str | Bend


class Layout(NamedTuple):
    """Rows of boxes and bends, and where each begins across the flow."""

    rows: list[list[Spot]]
    across: dict[Spot, int]

    def bends(self, number: int) -> list[Bend]:
        """Return where the link of that number passes, in the order of the rows."""
        return [spot for row in self.rows for spot in row if isinstance(spot, Bend) and spot.link == number]


def layered(
    sizes: Mapping[str, int],
    links: list[Link],
    gap: int,
    lane: int,
    ranks: Mapping[str, int] | None = None,
    compact: bool = False,
) -> Layout:
    """Lay boxes of the given sizes out in rows, `gap` apart; a link over several rows takes a `lane` in each.

    With `compact` no row reaches beyond the longest one, even if that bends lines.

    >>> layered({"a": 10, "b": 10, "c": 10}, [Link("a", "b", 5, 5), Link("a", "c", 5, 5)], gap=4, lane=2)
    Layout(rows=[['a'], ['b', 'c']], across={'a': 7, 'b': 0, 'c': 14})
    """
    ranked = ranks or rank(list(sizes), [(link.source, link.target) for link in links])
    widths: dict[Spot, int] = dict(sizes.items())
    rows: list[list[Spot]] = [[] for _ in range(max(ranked.values(), default=-1) + 1)]
    for box in sizes:
        rows[ranked[box]].append(box)
    pieces: list[_Piece] = []
    for number, link in enumerate(links):
        # A link that closes a circle is laid out like one downwards; only its arrow goes up.
        if ranked[link.source] > ranked[link.target]:
            link = Link(link.target, link.source, link.enters, link.leaves, link.weight)
        through = [Bend(number, row) for row in range(ranked[link.source] + 1, ranked[link.target])]
        for bend in through:
            widths[bend] = lane
            rows[bend.rank].append(bend)
        pieces.extend(_pieces(link, through, lane // 2))
    ordered = _untangle(rows, pieces, widths)
    longest = max((sum(widths[spot] + gap for spot in row) for row in ordered), default=0)
    return Layout(ordered, _straighten(ordered, pieces, widths, gap, longest if compact else None))


def rank(boxes: list[str], links: list[tuple[str, str]]) -> dict[str, int]:
    """Return the row of each box: below all that lead to it; what nothing leads to stands just above its first reader.

    Links that close a circle count the other way round.

    >>> rank(["a", "b", "c", "table"], [("a", "b"), ("b", "c"), ("table", "c"), ("c", "a")])
    {'a': 0, 'b': 1, 'c': 2, 'table': 1}
    """
    targets: dict[str, list[str]] = {box: [] for box in boxes}
    for source, target in links:
        targets[source].append(target)
    order, backward = _depth_first(boxes, targets)
    forward = [(t, s) if (s, t) in backward else (s, t) for s, t in links if s != t]
    below: dict[str, list[str]] = {box: [] for box in boxes}
    for source, target in forward:
        below[source].append(target)
    rows = dict.fromkeys(boxes, 0)
    for box in order:
        for target in below[box]:
            rows[target] = max(rows[target], rows[box] + 1)
    fed = {target for _, target in forward}
    for box in boxes:
        if box not in fed and below[box]:
            rows[box] = min(rows[target] for target in below[box]) - 1
    return rows


def _depth_first(boxes: list[str], targets: Mapping[str, list[str]]) -> tuple[list[str], set[tuple[str, str]]]:
    """Return the boxes in an order that all links follow, but those returned too, which close a circle."""
    finished: list[str] = []
    backward: set[tuple[str, str]] = set()
    state: dict[str, str] = {}
    for box in boxes:
        path = [(box, iter(targets[box]))] if box not in state else []
        state.setdefault(box, "open")
        while path:
            at, rest = path[-1]
            found = next(rest, None)
            if found is None:
                state[at] = "done"
                finished.append(at)
                path.pop()
            elif found not in state:
                state[found] = "open"
                path.append((found, iter(targets[found])))
            elif state[found] == "open":
                backward.add((at, found))
    return finished[::-1], backward


class _Piece(NamedTuple):
    """The part of a link between two neighbouring rows."""

    above: Spot
    below: Spot
    leaves: int
    enters: int
    weight: int

    def turned(self) -> _Piece:
        """Return the same piece seen from below."""
        return _Piece(self.below, self.above, self.enters, self.leaves, self.weight)


def _pieces(link: Link, through: list[Bend], middle: int) -> Iterator[_Piece]:
    spots: list[Spot] = [link.source, *through, link.target]
    for above, below in pairwise(spots):
        leaves = middle if isinstance(above, Bend) else link.leaves
        enters = middle if isinstance(below, Bend) else link.enters
        between_bends = isinstance(above, Bend) and isinstance(below, Bend)
        # Between two bends nothing else is attached, so there a link had best be straight.
        yield _Piece(above, below, leaves, enters, link.weight * (8 if between_bends else 1))


def _untangle(rows: list[list[Spot]], pieces: list[_Piece], widths: Mapping[Spot, int]) -> list[list[Spot]]:
    """Reorder each row by the ends of its links, down and up by turns; return the order with the fewest crossings."""
    best, fewest = rows, _crossings(rows, pieces, widths)
    upside_down = [piece.turned() for piece in pieces]
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        rows = [list(row) for row in (rows if downwards else rows[::-1])]
        for fixed, moving in pairwise(rows):
            _reorder(fixed, moving, pieces if downwards else upside_down, widths)
        rows = rows if downwards else rows[::-1]
        crossings = _crossings(rows, pieces, widths)
        # A sweep may make it worse: the best of all is kept.
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _reorder(fixed: list[Spot], moving: list[Spot], pieces: list[_Piece], widths: Mapping[Spot, int]) -> None:
    places = {spot: place for place, spot in enumerate(fixed)}
    ends: dict[Spot, list[float]] = {spot: [] for spot in moving}
    for piece in pieces:
        if piece.above in places and piece.below in ends:
            ends[piece.below].append(places[piece.above] + piece.leaves / max(widths[piece.above], 1))
    wanted = {spot: sum(found) / len(found) if found else place for place, (spot, found) in enumerate(ends.items())}
    # A stable sort: what wants the same place stays as it was.
    moving.sort(key=wanted.__getitem__)


def _crossings(rows: list[list[Spot]], pieces: list[_Piece], widths: Mapping[Spot, int]) -> int:
    place = {spot: (number, place) for number, row in enumerate(rows) for place, spot in enumerate(row)}
    lines: list[list[tuple[float, float]]] = [[] for _ in rows]
    for above, below, leaves, enters, _ in pieces:
        number, left = place[above]
        lines[number].append((left + leaves / max(widths[above], 1), place[below][1] + enters / max(widths[below], 1)))
    return sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for row in lines for a, b in combinations(row, 2))


def _straighten(
    rows: list[list[Spot]], pieces: list[_Piece], widths: Mapping[Spot, int], gap: int, room: int | None
) -> dict[Spot, int]:
    """Move boxes to where their heaviest links are straight.

    First all sides pull by turns, until little changes; then each box goes exactly below what leads to it, and what
    nothing leads to goes above what it leads to.
    """
    above: dict[Spot, list[_Piece]] = {spot: [] for spot in widths}
    below: dict[Spot, list[_Piece]] = {spot: [] for spot in widths}
    for piece in pieces:
        above[piece.below].append(piece)
        below[piece.above].append(piece.turned())
    both = {spot: above[spot] + below[spot] for spot in widths}
    first = {spot: [] if above[spot] else below[spot] for spot in widths}
    rounds = [(both, rows, 1.0), (both, rows[::-1], 1.0)] * SWEEPS
    # Whatever is still undecided follows what leads to it; the first boxes follow what they lead to.
    rounds += [(above, rows, GIVES_WAY), (first, rows[::-1], STAYS)]
    across: dict[Spot, int] = dict.fromkeys(widths, 0)
    for neighbours, order, firmness in rounds:
        for row in order:
            wanted = {spot: _wish(across[spot], firmness, neighbours[spot], across) for spot in row}
            across.update(_apart(row, wanted, widths, gap, room))
    left = min(across.values(), default=0)
    return {spot: start - left for spot, start in across.items()}


def _wish(start: int, firmness: float, pieces: list[_Piece], across: Mapping[Spot, int]) -> tuple[float, float]:
    """Return the start that a spot wishes for, with a weight: as its heaviest links say, else where it is."""
    heaviest = max((piece.weight for piece in pieces), default=0)
    starts = [across[p.above] + p.leaves - p.enters for p in pieces if p.weight == heaviest]
    return (sum(starts) / len(starts), heaviest) if starts else (start, firmness)


def _apart(
    row: list[Spot], wanted: Mapping[Spot, tuple[float, float]], widths: Mapping[Spot, int], gap: int, room: int | None
) -> dict[Spot, int]:
    """Return the places nearest to the wanted ones, by least squares, that keep the row's order and gaps, in the room.

    Spots that would come too close form a block, which goes to the mean of what its members want.
    """
    offsets, end = [], 0
    for spot in row:
        offsets.append(end)
        end += widths[spot] + gap
    blocks: list[tuple[float, float, int]] = []
    for spot, offset in zip(row, offsets, strict=True):
        place, weight = wanted[spot]
        total, heft, members = (place - offset) * weight, weight, 1
        # Pooling neighbours that want to change places gives the least squares in one pass; compared without dividing.
        while blocks and blocks[-1][0] * heft >= total * blocks[-1][1]:
            before = blocks.pop()
            total, heft, members = total + before[0], heft + before[1], members + before[2]
        blocks.append((total, heft, members))
    starts = [round(total / heft) for total, heft, members in blocks for _ in range(members)]
    if room is not None:
        starts = [max(0, min(start, room - end)) for start in starts]
    return {spot: start + offset for spot, start, offset in zip(row, starts, offsets, strict=True)}
