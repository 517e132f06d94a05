"""The applications of the paper's Table 1, each against a few lines that do the same by hand, and as a program."""

import math
import subprocess
import sys
from collections import defaultdict

import pytest

from samza_dsl import testing
from tests.flights.streams import EXAMPLES, example
from tests.sample import sample

LINES = {
    "site_speed": 8,
    "call_graph": 19,
    "inception": None,
    "exception_tracing": 180,
    "data_popularity": 3,
    "data_enriching": None,
    "ab_testing": 3,
    "standardization": 30,
}
"""How many lines each prints, where that does not depend on chance."""


@pytest.mark.parametrize("name", sample(sorted(LINES)))
def test_as_a_program_it_prints_what_it_found(name):
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == (LINES[name] or len(lines)) and lines


@pytest.mark.ci
def test_site_speed_is_that_of_the_sorted_loads():
    speed = example("site_speed")
    given = [*speed.generated(minutes=6)]
    windows = defaultdict(list)
    for load in given:
        windows[load.page, load.at_ms // 300_000].append(load.ms)
    panes = testing.run(speed.app, {"loads": given})["speeds"]
    assert {(pane.key, pane.start // 300_000) for pane in panes} == windows.keys()
    for pane in panes:
        loads = sorted(windows[pane.key, pane.start // 300_000])
        found = pane.value
        assert (found.loads, found.mean_ms) == (len(loads), sum(loads) / len(loads))
        for share, quantile in ((0.5, found.median_ms), (0.95, found.p95_ms)):
            rank = share * (len(loads) - 1)
            assert 0.99 * loads[math.floor(rank)] <= quantile <= 1.01 * loads[math.ceil(rank)]


def test_a_route_has_every_call_of_its_request():
    graph = example("call_graph")
    routes = {found.request: found for found in testing.run(graph.app, graph.given())["routes"]}
    by_hand = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    times = defaultdict(list)
    for call in graph.generated():
        by_hand[call.request][call.caller][call.callee] += 1
        times[call.request] += [call.at_ms, call.at_ms + call.ms]
    assert {request: found.calls for request, found in routes.items()} == by_hand
    assert {request: found.ms for request, found in routes.items()} == {
        request: max(found) - min(found) for request, found in times.items()
    }


def test_exceptions_are_those_of_lines_that_tell_of_errors():
    inception = example("inception")
    given = inception.given(3)
    by_hand = [
        (line.at_ms, line.app, *line.text.split(": ", 1))
        for lines in given.values()
        for line in lines
        if line.level != "INFO" and ": " in line.text
    ]
    found = testing.run(inception.app, given)["exceptions"]
    assert sorted((one.at_ms, one.app, one.kind, one.message) for one in found) == sorted(by_hand)


def test_a_line_that_is_none_is_a_dead_letter():
    inception = example("inception")
    with testing.running(inception.app) as run:
        run.send("logs-a", *inception.generated("a", lines=1))
        run.send_bytes("logs-a", b"no line")
        run.advance_time(seconds=2)  # new streams are looked for once a second
        assert [letter.stream for letter in run.dead_letters("not-a-line")] == ["logs-a"]


def test_an_exception_has_the_machine_of_its_time():
    tracing = example("exception_tracing")
    placements, exceptions = [*tracing.placed()], [*tracing.thrown()]
    by_hand = {}
    for one in exceptions:
        ran = [p for p in placements if p.instance == one.instance and p.at_ms <= one.at_ms]
        by_hand[one] = max(ran, key=lambda placement: placement.at_ms).machine if ran else None
    found = testing.run(tracing.app, {"placements": placements, "exceptions": exceptions})["traced"]
    assert {one.thrown: one.machine for one in found} == by_hand
    assert len(found) == len(exceptions)


def test_the_most_popular_categories_have_the_most_relevant_reads():
    popularity = example("data_popularity")
    windows = defaultdict(lambda: defaultdict(list))
    for read in popularity.generated():
        item = popularity.ITEMS.get(read.item)
        if item is not None:
            score = -2.0 + 6.0 * min(read.seconds / item.words, 1) + 1.5 * read.shared
            windows[read.at_ms // 600_000][item.category].append(1 / (1 + math.exp(-score)))
    panes = testing.run(popularity.app, popularity.given())["popular"]
    assert [pane.start // 600_000 for pane in panes] == sorted(windows)
    for pane in panes:
        totals = {category: math.fsum(found) for category, found in windows[pane.start // 600_000].items()}
        most = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:3]
        assert [(category.key, category.value) for category in pane.value] == most


def test_an_order_has_its_customer_or_is_told_apart():
    enriching = example("data_enriching")
    results = testing.run(enriching.app, enriching.given())
    orders = [*enriching.generated()]
    known = [(order, enriching.CUSTOMERS[order.customer]) for order in orders if order.customer in enriching.CUSTOMERS]
    assert sorted((one.order.at_ms, one.name, one.country) for one in results["enriched"]) == [
        (order.at_ms, customer.name, customer.country) for order, customer in known
    ]
    unknown = [order for order in orders if order.customer not in enriching.CUSTOMERS]
    assert sorted(results["without-a-customer"], key=lambda order: order.at_ms) == unknown


def test_each_version_has_the_metrics_of_its_visits():
    ab = example("ab_testing")
    visits = [*ab.generated(minutes=20)]
    results = testing.run(ab.app, {"visits": visits})
    for name in ab.VERSIONS:
        panes = results[f"metrics-{name}"]
        assert [pane.start for pane in panes] == [0, 600_000]
        for pane in panes:
            own = [v for v in visits if v.tag == f"checkout-{name}" and pane.start <= v.at_ms < pane.end]
            found = pane.value
            assert (found.visits, found.clicks) == (len(own), sum(visit.clicked for visit in own))
            assert found.mean_seconds == pytest.approx(math.fsum(visit.seconds for visit in own) / len(own))
            assert found.members == pytest.approx(len({visit.member for visit in own}), rel=0.06)


def test_titles_are_what_the_model_says_and_a_new_model_says_something_else():
    standardization = example("standardization")
    expected = {
        "SWE": "Software Engineer",
        "Sr. software developer": "Software Engineer",
        "Data engineer, pipelines": "Data Engineer",
        "School teacher": "Teacher",
        "Professor": "Teacher",
        "Astronaut": None,
    }
    found = testing.run(standardization.app, standardization.given())["standardized"]
    assert {one.written: one.title for one in found} == expected
    with testing.running(standardization.app) as run:
        run.send("models", testing.Record(standardization.MODEL, "titles", 0))
        run.send("profile-updates", standardization.Profile(0, 1, "Astronaut"))
        learned = standardization.Standard(4, "Astronaut", {"astronaut": 1.0})
        run.send("models", testing.Record([*standardization.MODEL, learned], "titles", 1))
        run.send("profile-updates", standardization.Profile(1, 1, "Astronaut"))
        assert [one.title for one in run.read("standardized")] == [None, "Astronaut"]
