"""A plan as a picture: SVG for notebooks and documents, and an HTML page that needs nothing from the network."""

from __future__ import annotations

from planner.arrange import arrange
from planner.describe import headline
from planner.flow import stages, stream_node
from planner.layout import Box
from planner.legend import legend
from planner.lettering import fitted
from planner.page import page
from planner.palette import stylesheet
from planner.plan import Plan
from planner.shapes import card, group, line, stage_panel, stream, text

MARGIN, TOP, LEAST_WIDTH = 32, 92, 560


def to_svg(plan: Plan) -> str:
    """Return the plan as a picture, complete in itself, that suits light and dark surroundings.

    >>> to_svg(Plan(app="demo"))[:46]
    '<svg xmlns="http://www.w3.org/2000/svg" class='
    """
    picture = arrange(plan)
    room = max(picture.width, LEAST_WIDTH)
    key, key_height = legend(plan, room)
    width, height = room + 2 * MARGIN, TOP + picture.height + MARGIN + key_height + MARGIN
    name, _, facts = headline(plan).partition(" · ")
    panels = [stage_panel(stage, picture.panels[stage.id]) for stage, held in stages(plan) if held]
    lines = [line(one, _look(plan, one.source, one.target)) for one in picture.lines]
    cards = [card(plan, operator, picture.cards[operator.id]) for operator in plan.operators]
    streams = [stream(one, picture.streams[one.name]) for one in plan.streams]
    origin = Box((room - picture.width) // 2 + MARGIN, TOP, 0, 0)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="samza-plan" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            f"<style>{stylesheet()}</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="14"/>',
            text("title", MARGIN, 46, fitted(name, room, 22, bold=True)),
            text("subtitle", MARGIN, 68, fitted(facts, room, 12)),
            group("", origin, [headline(plan)], ["\n".join(["", *panels, *lines, *cards, *streams, ""])]),
            group("legend", Box(MARGIN, TOP + picture.height + MARGIN, 0, 0), ["Legend"], key),
            "</svg>",
        ]
    )


def to_html(plan: Plan) -> str:
    """Return the plan as a page: the picture, its operators, and the Python source that they were fused into."""
    return page(plan, to_svg(plan))


def _look(plan: Plan, source: str, target: str) -> str:
    """Return how a line looks: into dead letters, from a table that is looked into, or plain."""
    dead = {stream_node(stream.name) for stream in plan.streams if stream.role == "dead_letter"}
    tables = {operator.id for operator in plan.operators if operator.kind == "table"}
    return "dead" if target in dead else "lookup" if source in tables else "flow"
