"""The order of a plan's graph is that of networkx, which shares no code with it."""

from types import SimpleNamespace

import networkx
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.graph import Graph, parents_first, reached
from tests.scale import examples

NODES = st.integers(0, 7)
GRAPHS = st.dictionaries(NODES, st.lists(NODES, max_size=4), min_size=1, max_size=8)
"""The parents of each node, which may stand there twice."""


def drawn(parents):
    graph = networkx.DiGraph((parent, child) for child, found in parents.items() for parent in found)
    graph.add_nodes_from(parents)
    return graph


@settings(max_examples=examples(200, 20_000))
@given(GRAPHS, NODES)
def test_what_is_reached_lies_behind_a_node(parents, start):
    graph = drawn(parents)
    graph.add_node(start)
    expected = networkx.descendants(graph, start) | {
        start for circle in networkx.simple_cycles(graph) if start in circle
    }
    assert reached(graph.__getitem__, start) == expected


@settings(max_examples=examples(200, 20_000))
@given(GRAPHS, st.permutations(range(8)))
def test_parents_come_first_and_else_who_has_the_smaller_place(parents, place):
    parents = {child: [parent for parent in found if parent < child] for child, found in parents.items()}
    expected = [*networkx.lexicographical_topological_sort(drawn(parents), key=place.__getitem__)]
    assert parents_first(parents, place.__getitem__) == expected


@settings(max_examples=examples(200, 20_000))
@given(GRAPHS, st.sets(NODES), st.sets(NODES))
def test_stages_hang_together_where_the_graph_is_not_cut(parents, repartitions, tables):
    """A table is looked into by whoever reads it, and has no parents."""
    parents = {
        child: [parent for parent in parents.get(child, ()) if parent < child and child not in tables]
        for child in range(8)
    }
    specs = {
        str(id): SimpleNamespace(
            repartitions=id in repartitions - tables,
            looked_into=id in tables,
            parents=[SimpleNamespace(op_id=str(parent)) for parent in found],
        )
        for id, found in parents.items()
    }
    whole = networkx.Graph()
    whole.add_nodes_from(id for id, spec in specs.items() if not spec.looked_into)
    for id, spec in specs.items():
        children = [*drawn(parents).successors(int(id))]
        together = [*map(str, children)] if spec.repartitions else [id, *map(str, children)]
        if not spec.looked_into:
            networkx.add_path(whole, together) if spec.repartitions else networkx.add_star(whole, together)
    found = Graph("app", specs).stages
    assert sorted(map(sorted, found)) == sorted(map(sorted, networkx.connected_components(whole)))
