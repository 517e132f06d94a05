"""Profile enrichment, the example of the async design, against a loop that asks nobody."""

import subprocess
import sys
from collections import Counter

import pytest

from samza_dsl import testing
from tests.flights.streams import EXAMPLES, example


def by_hand(enrichment, views):
    profiles = [enrichment.profile_of(view.member) if view.member % 10 else None for view in views]
    return [enrichment.enriched(view, profile) for view, profile in zip(views, profiles, strict=True)]


def test_each_view_has_the_profile_of_its_member_though_calls_fail_and_the_process_dies():
    enrichment = example("profile_enrichment")
    views = list(enrichment.generated(seconds=10))
    expected = by_hand(enrichment, views)
    for schedule in (None, testing.Schedule(1, (testing.CrashPoint("turn", 40),))):
        results = testing.run(enrichment.app, {"page-views": views}, schedule)
        assert Counter(results["enriched-views"]) == Counter(expected)
        counted = {(pane.key, pane.start): pane.value for pane in results["views-by-country"]}
        assert counted == Counter((one.country, one.view.at_ms // 10_000 * 10_000) for one in expected)


def test_few_calls_answer_for_many_views():
    enrichment = example("profile_enrichment")
    views = list(enrichment.generated(seconds=10))
    with testing.running(enrichment.app) as run:
        run.send("page-views", *views)
        run.advance_time(seconds=60)
        counters = next(one for one in run.metrics().operators if one.operator == "profiles").counters
    members = {view.member for view in views}
    assert len(members) <= counters["members asked for"] < 2 * len(members)
    assert counters["fetches"] < len(members) / 4
    assert counters.get("rows kept", 0) + counters["rows awaited"] > len(views) / 2


@pytest.mark.ci
def test_as_a_program_it_prints_a_line_per_window_and_country():
    program = [sys.executable, EXAMPLES / "profile_enrichment.py"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 6 * 4
