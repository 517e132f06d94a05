"""A plan in words: exact for small plans, harmless for hostile ones, and the same in every process."""

import os
import re
import subprocess
import sys

import pytest
from hypothesis import given

from planner.model.flow import edges, family, stream_node
from planner.model.plan import Plan
from samza_dsl import App
from tests.planner.plans import HOSTILE, chain, flights, hostile, pattern, random_plans

PLANS = pytest.mark.parametrize(
    "plan", [chain(), flights(), pattern(), hostile(), Plan(app="nothing")], ids=lambda p: ""
)

FLIGHTS = """\
carrier-delays · exactly once · 2 stages, 12 operators, 5 streams, 2 stores

stage-1 · 4 partitions
  reads   flights [input, 4], planes [broadcast table, 1]
  ├─ input · flights                                            app.py:31  on error: dead letter to bad-flights
  │  table_join · join · left join with planes                  app.py:41
  │  branch · late | on_time                                    app.py:43
  │  ├─ branch_arm · late                                       app.py:43
  │  │  async_flat_map · weather · ≤ 500 in flight, 2,000 ms    app.py:45
  │  │  merge                                                   app.py:46
  │  │  partition_by · by-carrier · λ                           app.py:50  → delays-by-carrier
  │  └─ branch_arm · on_time                                    app.py:43  → merge
  └─ table · planes                                             app.py:32  → join
  stores  planes (memory)
  writes  bad-flights [dead letter, 1], delays-by-carrier [intermediate, 8]

stage-2 · 8 partitions
  reads   delays-by-carrier [intermediate, 8]
  └─ window · hourly · hourly: count                            app.py:51
     ├─ send_to-delays · delays                                 app.py:51  → delays
     └─ sink · alert · page_someone                             app.py:51
  stores  hourly (lmdb)
  writes  delays [output]
"""

MERMAID = """\
flowchart LR
  s0(["clicks<br/>input · 4 partitions"]):::input
  s1(["tags<br/>output · 2 partitions"]):::output
  subgraph stage0["stage-1 · 4 partitions"]
    o0["input · clicks<br/>app.py#58;3"]:::source
    o1("filter-clicks · is_human<br/>app.py#58;5"):::stateless
    o2("map-clicks · to_tag<br/>app.py#58;6"):::stateless
    o3("flat_map-clicks · λ<br/>app.py#58;7"):::stateless
    o4[/"send_to-tags · tags<br/>app.py#58;8"/]:::terminal
  end
  s0 --> o0
  o4 --> s1
  o0 --> o1
  o1 --> o2
  o2 --> o3
  o3 --> o4
  classDef input fill:#e7f0ff,stroke:#1f5fc4,color:#15202e
  classDef output fill:#e1f6ec,stroke:#0b7049,color:#15202e
  classDef source fill:#e7f0ff,stroke:#1f5fc4,color:#15202e
  classDef stateless fill:#f5f7fa,stroke:#4d5c70,color:#15202e
  classDef terminal fill:#e1f6ec,stroke:#0b7049,color:#15202e
"""

DOT = r"""digraph plan {
  graph [rankdir=LR, labelloc=t, fontname=Helvetica];
  label="tags · exactly once · 1 stage, 5 operators, 2 streams, 0 stores";
  node [style=filled, fontname=Helvetica, fontsize=11];
  edge [color=gray40];
  s0 [label="clicks\ninput · 4 partitions", shape=cds, fillcolor="#e7f0ff", color="#1f5fc4"];
  s1 [label="tags\noutput · 2 partitions", shape=cds, fillcolor="#e1f6ec", color="#0b7049"];
  subgraph cluster_0 {
    label="stage-1 · 4 partitions"; style=rounded; color=gray60;
    o0 [label="input · clicks\napp.py:3", shape=box, fillcolor="#e7f0ff", color="#1f5fc4"];
    o1 [label="filter-clicks · is_human\napp.py:5", shape=box, fillcolor="#f5f7fa", color="#4d5c70"];
    o2 [label="map-clicks · to_tag\napp.py:6", shape=box, fillcolor="#f5f7fa", color="#4d5c70"];
    o3 [label="flat_map-clicks · λ\napp.py:7", shape=box, fillcolor="#f5f7fa", color="#4d5c70"];
    o4 [label="send_to-tags · tags\napp.py:8", shape=rarrow, fillcolor="#e1f6ec", color="#0b7049"];
  }
  s0 -> o0;
  o4 -> s1;
  o0 -> o1;
  o1 -> o2;
  o2 -> o3;
  o3 -> o4;
}
"""

RENDER = """
import hashlib, sys
from planner.model.plan import Plan
plan = Plan.from_json(sys.stdin.read())
graph = plan.to_networkx()
every = [plan.to_text(), plan.to_mermaid(), plan.to_dot(), plan.to_svg(), plan.to_html(), plan.to_json()]
every += [repr(list(graph.nodes(data=True))), repr(list(graph.edges))]
print(hashlib.sha256("".join(every).encode()).hexdigest())
"""

LATE_NETWORKX = """
import sys
from planner.model.plan import Plan
plan = Plan(app="demo")
plan.to_text(), plan.to_mermaid(), plan.to_dot(), plan.to_svg(), plan.to_html()
assert "networkx" not in sys.modules
"""


def run(code: str, text: str = "", seed: str = "0") -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_text():
    assert flights().to_text().splitlines() == FLIGHTS.splitlines()


def test_mermaid():
    assert chain().to_mermaid().splitlines() == MERMAID.splitlines()


def test_dot():
    assert chain().to_dot().splitlines() == DOT.splitlines()


def test_networkx_has_operators_and_streams_with_what_is_known_of_them():
    graph = flights().to_networkx()
    assert graph.nodes["hourly"]["store"] == "hourly"
    assert graph.nodes["hourly"]["node"] == "operator"
    assert graph.nodes["stream:delays-by-carrier"]["partitions"] == 8
    assert graph.nodes["stream:delays-by-carrier"]["node"] == "stream"
    assert list(graph.predecessors("hourly")) == ["stream:delays-by-carrier"]
    assert set(graph.successors("flights")) == {"join", "stream:bad-flights"}
    assert list(graph.predecessors("flights")) == ["stream:flights"]
    assert list(graph.successors("alert")) == []


@PLANS
@pytest.mark.ci
def test_the_same_from_process_to_process(plan):
    text = plan.to_json()
    assert run(RENDER, text, seed="1") == run(RENDER, text, seed="4294967295")


def test_networkx_is_imported_only_for_the_graph():
    run(LATE_NETWORKX)


@PLANS
def test_json_brings_back_the_same_plan_and_drawings(plan):
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert (again.to_text(), again.to_svg()) == (plan.to_text(), plan.to_svg())


def test_lists_are_broken_between_their_items():
    lines = pattern().to_text().splitlines()
    reads = lines.index("stage-1 · 4 partitions") + 1
    assert lines[reads].startswith("  reads   orders-de [input, 16], orders-es [input, 16]")
    assert lines[reads].endswith("],")
    assert lines[reads + 1].startswith("          orders-")


def test_text_has_nothing_that_steers_a_terminal():
    text = hostile().to_text()
    assert all(character.isprintable() or character in "\n\u200d" for character in text)
    assert len(text.splitlines()) < 40


def is_harmless_mermaid(line: str) -> bool:
    text = r'"(?:<br/>|#\d+;|[^"<>#&;`|{}\[\]])*"'
    node = rf"[os]\d+(\[|\(|\{{\{{|\[\(|\[/|\(\[|\[\[|>){text}(\]|\)|\}}\}}|\)\]|/\]|\]\)|\]\]):::\w+"
    shapes = rf"\s*({node}|subgraph stage\d+\[{text}\]|end|[os]\d+ --> [os]\d+|classDef .*|flowchart LR)"
    return re.fullmatch(shapes, line) is not None


def is_harmless_dot(text: str) -> bool:
    return (
        re.fullmatch(r"[\w\s{}\[\]=,;>-]*", re.sub(r'"(?:[^"\\\n&<>]|\\["\\n]|&(?:amp|lt|gt);)*"', "", text))
        is not None
    )


@given(plan=random_plans())
def test_other_languages_see_labels_only_as_labels(plan):
    assert [line for line in plan.to_mermaid().splitlines() if not is_harmless_mermaid(line)] == []
    assert is_harmless_dot(plan.to_dot())


def test_hostile_names_stay_labels():
    assert [line for line in hostile().to_mermaid().splitlines() if not is_harmless_mermaid(line)] == []
    assert is_harmless_dot(hostile().to_dot())
    assert all(HOSTILE[0] not in text for text in (hostile().to_mermaid(), hostile().to_dot()))


@given(plan=random_plans())
def test_every_operator_is_in_the_text_once(plan):
    lines = plan.to_text().splitlines()
    for operator in plan.operators:
        assert sum(re.search(rf"[─ ]{operator.id}( |$)", line.split("  →")[0]) is not None for line in lines) == 1, (
            operator
        )


def test_what_reads_a_table_by_its_changes_or_versions_is_reached_from_its_stream():
    app = App("tables")
    prices = app.table("prices", key=str, value=int, retention_ms=0)
    app.input("carts", key=str, value=int).join(prices, max, op_id="priced").sink(print)
    app.table("names", key=str, value=int).join(prices, max, op_id="named").changes().sink(print)
    plan = app.plan()
    found = edges(plan)
    for table, joins in (("prices", ["priced", "named"]), ("names", ["named"])):
        assert [target for source, target in found if source == stream_node(table)] == [table]
        assert [target for source, target in found if source == table] == joins
        assert family(next(one for one in plan.operators if one.id == table)) == "source"
