"""Checks and derivations over the graph: copartitioning, sizes, grouping, ordering and rules."""
