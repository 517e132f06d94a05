"""Clicks without robots, with the section of each page by a table, as the visits of users: sessions of half an hour."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.programs.kit.hand import Hand, joined
from benchmarks.programs.kit.program import Program, Stream
from samza_dsl import App, aggregate, count, duration_ms, maximum, session, total

GAP = 1_800_000
DISORDER = 10_000
ACTIVE, USERS, PAGES, SECTIONS = 500, 50_000, 400, 12


class Page(Struct, frozen=True):
    """What the table of pages says."""

    url: str
    section: str


class Click(Struct, frozen=True):
    """A page was looked at; what has a default, the program finds out."""

    at_ms: int
    user: str
    url: str
    agent: str
    stayed_ms: int
    section: str | None = None


class Visit(Struct, frozen=True):
    """The clicks of one user, of which none came half an hour after the one before."""

    user: str
    start: int
    clicks: int
    in_shop: int
    longest_ms: int


class Sums(Struct, frozen=True):
    """What a visit comes to."""

    clicks: int
    in_shop: int
    longest_ms: int


def generate(messages: int, seed: int) -> dict[str, list[Any]]:
    """Make clicks of five hundred users at a time, who go after twenty; a tenth are of robots."""
    chance = Random(seed)
    pages = [
        Page(f"/page/{number}", f"section-{number % SECTIONS}" if number % 9 else "shop") for number in range(PAGES)
    ]
    active = [f"u{chance.randrange(USERS)}" for _ in range(ACTIVE)]
    clicks = []
    for number in range(messages):
        place = chance.randrange(ACTIVE)
        at = number * 200 + DISORDER - chance.randrange(DISORDER)
        agent = "robot" if chance.random() < 0.1 else "browser"
        clicks.append(Click(at, active[place], f"/page/{chance.randrange(PAGES + 5)}", agent, chance.randrange(90_000)))
        if chance.random() < 0.05:
            active[place] = f"u{chance.randrange(USERS)}"
    return {"clicks": clicks, "pages": pages}


def with_section(click: Click, page: Page | None) -> Click:
    return replace(click, section=page.section) if page else click


def pipeline(workspace: Path) -> App:
    app = App("clickstream")
    clicks = app.input("clicks", value=Click, timestamp=lambda click: click.at_ms, max_disorder_ms=DISORDER)
    pages = app.table("pages", key=str, value=Page, broadcast=True)
    (
        clicks.filter(lambda click: click.agent != "robot")
        .join(pages, with_section, on=lambda click: click.url, how="left")
        .partition_by(lambda click: click.user, value=Click, op_id="by-user")
        .window(
            session(milliseconds=duration_ms(minutes=30)),
            aggregate(
                Sums,
                clicks=count(),
                in_shop=total(lambda click: click.section == "shop"),
                longest_ms=maximum(lambda click: click.stayed_ms),
            ),
        )
        .map(lambda pane: Visit(pane.key, pane.start, pane.value.clicks, pane.value.in_shop, pane.value.longest_ms))
        .send_to(app.output("visits", value=Visit))
    )
    return app


class ByHand(Hand):
    """A list of open visits for each user, and a heap of when they end."""

    keeps = ("users", "due")

    def __init__(self) -> None:
        super().__init__()
        self.sections: dict[str, str] = {}
        self.users: dict[str, list[list[int]]] = {}  # [start, end, clicks, in shop, longest]
        self.due: list[tuple[int, str]] = []
        self.out["visits"] = []

    def learn(self, table: str, rows: list[Page]) -> None:
        self.sections = {page.url: page.section for page in rows}

    def takes(self) -> dict[str, Callable[[list[Any], int], int]]:
        return {"clicks": self.take}

    def take(self, clicks: list[Click], watermark: int) -> int:
        users, due, section_of = self.users, self.due, self.sections.get
        for click in clicks:
            at = click.at_ms
            if click.agent != "robot" and at >= watermark:
                user = click.user
                in_shop, stayed = section_of(click.url) == "shop", click.stayed_ms
                visits = users.get(user)
                if visits is None:
                    visits = users[user] = []
                for visit in visits:
                    if visit[0] < at + GAP and at < visit[1]:
                        if at < visit[0]:
                            visit[0] = at
                        if at + GAP > visit[1]:
                            visit[1] = at + GAP
                        visit[2] += 1
                        visit[3] += in_shop
                        if stayed > visit[4]:
                            visit[4] = stayed
                        break
                else:
                    visits.append([at, at + GAP, 1, in_shop, stayed])
                    heapq.heappush(due, (at + GAP, user))
                if len(visits) > 1:
                    users[user] = joined(visits)
            if at - DISORDER > watermark:
                watermark = at - DISORDER
        return watermark

    def advance(self, watermark: int) -> None:
        due, users, out = self.due, self.users, self.out["visits"]
        while due and due[0][0] <= watermark:
            end, user = heapq.heappop(due)
            visits = users.get(user, [])
            for visit in visits:
                if visit[1] == end:
                    out.append(Visit(user, visit[0], visit[2], int(visit[3]), visit[4]))
                    visits.remove(visit)
                    if not visits:
                        del users[user]
                    break
                if visit[0] < end < visit[1]:
                    heapq.heappush(due, (visit[1], user))
                    break


PROGRAM = Program(
    name="clickstream",
    title="clicks: filter → table join → partition_by → sessions",
    messages=500_000,
    streams={"clicks": Stream(Click), "pages": Stream(Page, key=lambda page: page.url, carried=True, single=True)},
    outputs=("visits",),
    generate=generate,
    pipeline=pipeline,
    by_hand=lambda workspace: ByHand(),
    tables=frozenset({"pages"}),
    is_on_kafka=True,
)
