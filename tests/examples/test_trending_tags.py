"""Trending tags, the paper's example, against a few lines that count by hand."""

import subprocess
import sys
from collections import Counter

import pytest

from samza_dsl import testing
from tests.flights.streams import EXAMPLES, example


def test_each_window_has_the_tags_seen_most_so_far_among_those_in_it():
    trending = example("trending_tags")
    updates = list(trending.generated(seconds=35))
    panes = testing.run(trending.app, {"profile-updates": updates})["trending-tags"]
    assert [(pane.start, pane.value) for pane in panes] == by_hand(trending, updates)


def by_hand(trending, updates):
    seen, windows = Counter(), {}
    for update in updates:
        tags_in_window = windows.setdefault(update.at_ms // 10_000 * 10_000, {})
        for tag in trending.skill_tags(update) if update.field == "skills" else trending.job_tags(update):
            seen[tag] += 1
            tags_in_window[tag] = seen[tag]
    return [(start, trending.top_tags(tags)) for start, tags in windows.items()]


def test_tags_of_skills_and_jobs_count_together():
    trending = example("trending_tags")
    updates = [
        trending.Update(0, "skills", "Python, SQL"),
        trending.Update(1, "job", "Python Developer"),
        trending.Update(10_000, "skills", "SQL"),
    ]
    first, second = testing.run(trending.app, {"profile-updates": updates})["trending-tags"]
    assert first.value == [
        trending.TagCount("python", 2),
        trending.TagCount("developer", 1),
        trending.TagCount("sql", 1),
    ]
    assert second.value == [trending.TagCount("sql", 2)]


def test_a_window_is_over_when_an_update_of_the_next_one_comes():
    trending = example("trending_tags")
    with testing.running(trending.app) as run:
        run.send("profile-updates", trending.Update(0, "skills", "SQL"), trending.Update(9_999, "job", "SQL Developer"))
        [still_open] = run.panes("top-tags")
        assert still_open.value == [trending.TagCount("sql", 2), trending.TagCount("developer", 1)]
        assert run.read("trending-tags") == []
        assert run.state("counter") == {"sql": 2, "developer": 1}
        run.crash()
        run.restart()
        run.send("profile-updates", trending.Update(10_000, "skills", "Java"))
        [pane] = run.read("trending-tags")
        assert pane == still_open


@pytest.mark.ci
def test_as_a_program_it_prints_a_line_per_window():
    done = subprocess.run([sys.executable, EXAMPLES / "trending_tags.py"], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 6
    assert done.stdout.startswith("  0 s to 10 s: python ")
