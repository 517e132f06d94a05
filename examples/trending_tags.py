"""Trending tags: the job of Listing 1 and Figure 3 in Samza's paper (VLDB 2017), over updates of profiles."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from samza_dsl import App, Pane, ProcessContext, fold, testing, tumbling

WORD = re.compile(r"[a-z]+")


class Update(Struct, frozen=True):
    """Someone has changed a profile: the skills, or the job."""

    at_ms: int
    field: Literal["skills", "job"]
    text: str


class TagCount(Struct, frozen=True):
    """How often a tag has been seen so far."""

    tag: str
    seen: int


def skill_tags(update: Update) -> list[str]:
    """Skills are a list: each is a tag."""
    return [skill.strip().lower() for skill in update.text.split(",")]


def job_tags(update: Update) -> list[str]:
    """A job is a title: each of its words is a tag."""
    return WORD.findall(update.text.lower())


def count_tag(tag: str, context: ProcessContext[str, int]) -> list[TagCount]:
    """Count a tag: the paper's MyCounter, with the key's state as its store."""
    context.state += 1
    return [TagCount(tag, context.state)]


def highest_counts(counts: dict[str, int], counted: TagCount) -> dict[str, int]:
    """Keep the highest count of each tag in a window."""
    return {**counts, counted.tag: max(counted.seen, counts.get(counted.tag, 0))}


def top_tags(counts: dict[str, int]) -> list[TagCount]:
    """Find the three tags with the highest counts: the paper's TopKFinder."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [TagCount(tag, seen) for tag, seen in ordered[:3]]


app = App("trending-tags")
updates = app.input("profile-updates", value=Update, timestamp=lambda update: update.at_ms)

skills = updates.filter(lambda update: update.field == "skills").flat_map(skill_tags)
jobs = updates.filter(lambda update: update.field == "job").flat_map(job_tags)
(
    skills.merge(jobs)
    .partition_by(lambda tag: tag, op_id="by-tag")
    .process(count_tag, init=int, op_id="counter")
    .window_all(tumbling(seconds=10), fold(dict, highest_counts, finish=top_tags), op_id="top-tags")
    .send_to(app.output("trending-tags", value=Pane[None, list[TagCount]]))
)


def generated(seconds: int = 60, seed: int = 0) -> Iterator[Update]:
    """Yield ten updates per second, in which some things are more popular than others."""
    chance = random.Random(seed)
    for at_ms in range(0, seconds * 1_000, 100):
        if chance.random() < 0.5:
            yield Update(
                at_ms, "skills", ", ".join(chance.choices(("Python", "Kafka", "Java", "SQL"), (4, 3, 2, 1), k=2))
            )
        else:
            yield Update(at_ms, "job", chance.choice(("Data Engineer", "Java Developer", "Python Engineer")))


if __name__ == "__main__":
    for pane in testing.run(app, {"profile-updates": list(generated())})["trending-tags"]:
        tags = ", ".join(f"{counted.tag} {counted.seen}" for counted in pane.value)
        print(f"{pane.start // 1_000:>3} s to {pane.end // 1_000} s: {tags}")
