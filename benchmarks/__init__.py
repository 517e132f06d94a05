"""What a pipeline costs, as a multiple of the plain loop that does the same work."""

from __future__ import annotations

from benchmarks.embedded_log import EmbeddedLog
from benchmarks.keyed_count import KeyedCount
from benchmarks.stateless_chain import StatelessChain
from benchmarks.workload import Workload

WORKLOADS: dict[str, type[Workload]] = {
    kind.description.name: kind for kind in (StatelessChain, KeyedCount, EmbeddedLog)
}
"""All workloads by the name that issues and reports give them."""
