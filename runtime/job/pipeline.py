"""The pipeline: what any runner is given of an application."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.model.graph import Graph
from planner.model.plan import Options
from runtime.functions.user_functions import Around


@dataclass(frozen=True)
class Pipeline:
    """An application as it is run: its graph, its options, and what its users' functions are wrapped in."""

    graph: Graph
    options: Options
    around: tuple[Around, ...] = ()

    @property
    def wrapped(self) -> bool:
        """Whether functions are wrapped, so that none may be inlined or computed on columns."""
        return bool(self.around)

    def of(self, graph: Graph) -> Pipeline:
        """Return it with another graph."""
        return replace(self, graph=graph)
