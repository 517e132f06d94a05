"""Plans as pictures: everything is in them and in its place, nothing overlaps, and no name breaks out of its text."""

import re
import xml.etree.ElementTree as ET
from html import unescape
from html.parser import HTMLParser
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.model.plan import Plan
from planner.picture.arrangement import arrange
from planner.picture.layout import Box, Line, Link, layered, rank
from planner.picture.lettering import broken, fitted, fitted_name, text_width
from planner.picture.page import highlighted
from tests.planner.plans import HOSTILE, chain, flights, hostile, pattern, random_plans

NAMESPACE = "{http://www.w3.org/2000/svg}"
BY_HAND = [chain(), flights(), pattern(), hostile(), Plan(app="nothing")]
PLANS = pytest.mark.parametrize("plan", BY_HAND, ids=["chain", "flights", "pattern", "hostile", "nothing"])


def overlap(a: Box, b: Box) -> bool:
    return a.x < b.right and b.x < a.right and a.y < b.bottom and b.y < a.bottom


def inside(outer: Box, inner: Box) -> bool:
    return outer.x <= inner.x and inner.right <= outer.right and outer.y <= inner.y and inner.bottom <= outer.bottom


def on_border(box: Box, x: int, y: int) -> bool:
    return (x in (box.x, box.right) and box.y <= y <= box.bottom) or (
        y in (box.y, box.bottom) and box.x <= x <= box.right
    )


def at_home(panel: Box, boxes: dict[str, Box], line: Line) -> bool:
    return inside(panel, boxes[line.source]) or inside(panel, boxes[line.target])


def check_places(plan: Plan) -> None:
    picture = arrange(plan)
    whole = Box(0, 0, picture.width, picture.height)
    blocks = [*picture.panels.values(), *picture.streams.values()]
    assert all(inside(whole, box) for box in blocks)
    assert not any(overlap(a, b) for a, b in combinations(blocks, 2))
    assert not any(overlap(a, b) for a, b in combinations(picture.cards.values(), 2))
    assert set(picture.cards) == {operator.id for operator in plan.operators}
    assert set(picture.streams) == {stream.name for stream in plan.streams}
    for operator in plan.operators:
        homes = [name for name, panel in picture.panels.items() if inside(panel, picture.cards[operator.id])]
        assert len(homes) == 1
        assert operator.stage in (homes[0], "")
    boxes = {**picture.cards, **{f"stream:{name}": box for name, box in picture.streams.items()}}
    for line in picture.lines:
        start, end = line.points[0], line.points[-1]
        assert on_border(boxes[line.source], start.x, start.y)
        assert on_border(boxes[line.target], end.x, end.y)
        for a, b in pairwise(line.points):
            run = Box(min(a.x, b.x), min(a.y, b.y), abs(a.x - b.x), abs(a.y - b.y))
            assert not any(overlap(run, box) for box in boxes.values()), "a line runs through a card or a stream"
            elsewhere = [panel for panel in picture.panels.values() if not at_home(panel, boxes, line)]
            assert not any(overlap(run, panel) for panel in elsewhere), "a line runs through a stage"
    assert len(picture.lines) == plan.to_networkx().number_of_edges()


@given(plan=random_plans())
def test_nothing_overlaps_and_everything_is_in_its_panel(plan):
    check_places(plan)


@PLANS
def test_plans_by_hand_are_in_order_too(plan):
    check_places(plan)


def test_a_chain_is_straight():
    cards = arrange(chain()).cards
    assert len({card.x for card in cards.values()}) == 1


def test_the_main_flow_is_straight_past_a_table():
    cards = arrange(flights()).cards
    assert cards["flights"].x == cards["join"].x == cards["branch"].x
    assert cards["planes"].right < cards["flights"].x
    assert cards["late"].x < cards["branch"].x < cards["on_time"].x


def shown(svg: str) -> list[str]:
    """Return the texts of a picture, tooltips included."""
    root = ET.fromstring(svg)
    return [element.text or "" for element in root.iter() if element.tag in (f"{NAMESPACE}text", f"{NAMESPACE}title")]


@PLANS
def test_the_picture_shows_everything(plan):
    svg = plan.to_svg()
    texts = "\n".join(shown(svg))
    assert svg.count('class="card ') == len(plan.operators)
    assert svg.count('class="stream ') == len(plan.streams)
    assert svg.count('class="panel"') == len({operator.stage for operator in plan.operators} - {""})
    if plan != hostile():
        for name in [one.id for one in plan.operators] + [one.name for one in plan.streams + plan.stores]:
            assert name in texts
        for stage in plan.stages:
            assert f"{stage.partitions} partitions" in texts
        for stream in plan.streams:
            assert "\N{MULTIPLICATION SIGN}" + str(stream.partitions or "?") in texts


def test_kinds_of_things_look_different():
    svg = flights().to_svg()
    for look in ("input", "table", "intermediate", "output", "dead_letter"):
        assert f'class="stream r-{look}"' in svg
    for look in ("source", "table", "stateless", "async", "stateful", "terminal"):
        assert f'class="card r-{look}"' in svg
    assert svg.count('class="line dead"') == 1
    assert svg.count('class="icon store"') == len(flights().stores)
    assert {"input stream", "dead letters", "async operator", "terminal operator", "store"} <= set(shown(svg))
    assert "dead letters" not in shown(chain().to_svg())


@given(plan=random_plans())
def test_pictures_are_xml_for_any_names(plan):
    ET.fromstring(plan.to_svg())


class Tags(HTMLParser):
    """The tags of a page, each with its attributes, and whether all were closed."""

    EMPTY = ("meta", "col", "rect", "path", "circle", "line")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


@given(plan=random_plans())
def test_pages_are_whole_for_any_names(plan):
    check_page(plan)


@PLANS
def test_pages_by_hand_are_whole_too(plan):
    check_page(plan)


def check_page(plan: Plan) -> None:
    tags = Tags(plan.to_html())
    assert tags.open == []
    names = [tag for tag, _ in tags.seen]
    assert names.count("script") == names.count("svg") == 1
    assert names.count("details") == sum(len(stage.segments) for stage in plan.stages)
    attributes = {name for _, given in tags.seen for name in given}
    assert not any(name.startswith("on") for name in attributes)
    assert not attributes & {"src", "href", "xlink:href"}


@PLANS
def test_nothing_comes_from_elsewhere(plan):
    for text in (plan.to_svg(), plan.to_html()):
        local = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert re.findall(r"https?://|//\w+\.|url\(|@import|/home", local) == []


def test_source_is_shown_with_where_its_lines_are_from():
    page = hostile().to_html()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@given(source=st.one_of(st.text(), st.sampled_from(HOSTILE), st.text(alphabet="\"'#\\\nab1 <&rf")))
def test_highlighting_changes_nothing_of_the_source(source):
    marked = highlighted(source)
    assert unescape(re.sub(r"</?span[^>]*>", "", marked)) == source
    assert all(line.count("<span") == line.count("</span") for line in marked.split("\n"))


@given(
    text=st.one_of(st.text(), st.sampled_from(HOSTILE)),
    width=st.integers(30, 300),
    size=st.sampled_from([10.5, 13, 22]),
    bold=st.booleans(),
)
def test_text_fits(text, width, size, bold):
    assert text_width(fitted(text, width, size, bold=bold), size, bold=bold) <= width
    assert text_width(fitted_name(text, width, size, bold=bold), size, bold=bold) <= width
    lines = broken(text, width, size, bold=bold)
    assert 1 <= len(lines) <= 2
    assert all(text_width(line, size, bold=bold) <= width for line in lines)


@st.composite
def graphs(draw):
    boxes = {f"b{number}": draw(st.integers(1, 50)) for number in range(draw(st.integers(1, 10)))}
    ends = st.sampled_from(list(boxes))
    pairs = draw(st.lists(st.tuples(ends, ends).filter(lambda pair: pair[0] != pair[1]), max_size=20, unique=True))
    return boxes, pairs


@given(graph=graphs(), compact=st.booleans())
def test_rows_keep_their_gaps(graph, compact):
    boxes, pairs = graph
    links = [Link(source, target, boxes[source] // 2, boxes[target] // 2) for source, target in pairs]
    layout = layered(boxes, links, gap=7, lane=5, compact=compact)
    widest = max(sum(boxes.get(spot, 5) + 7 for spot in row) for row in layout.rows)
    for row in layout.rows:
        for left, right in pairwise(row):
            assert layout.across[left] + boxes.get(left, 5) + 7 <= layout.across[right]
        assert not compact or layout.across[row[-1]] + boxes.get(row[-1], 5) + 7 <= widest


@given(graph=graphs())
def test_links_lead_down_unless_they_close_a_circle(graph):
    boxes, pairs = graph
    rows = rank(list(boxes), pairs)
    assert all(rows[source] != rows[target] for source, target in pairs)
    earlier = [(source, target) for source, target in pairs if int(source[1:]) < int(target[1:])]
    rows = rank(list(boxes), earlier)
    assert all(rows[source] < rows[target] for source, target in earlier)
    assert min(rows.values()) >= 0
