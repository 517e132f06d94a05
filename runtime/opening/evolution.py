"""A planned program beside what has run: the operators that are kept, changed, added and dropped, and their state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple

from planner.model.graph import Graph
from planner.model.plan import Plan
from runtime.job.parameters import differences, noted_parameters, parameters_of
from runtime.opening.rewind import Complaint, check_whole, complaints_of
from runtime.opening.stored_state import stored
from runtime.ports.environment import Environment, LiveEnvironment

What = Literal["kept", "changed", "added", "dropped"]
NOTHING_KEPT = "nothing is kept"


class Evolved(NamedTuple):
    """An operator of the planned program or of the one that has run, and what its change means for its state.

    `complaints` say why a run would be refused. Where just one operator can have its state, that is `heir`.
    """

    operator: str
    what: What
    entries: int
    means: str
    complaints: tuple[Complaint, ...] = ()
    heir: str = ""


def evolved(environment: Environment, plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> list[Evolved]:
    """Compare a planned program with what has run, by its operators with state and its inputs above these."""
    check_whole(environment, plan)
    kept = {one.operator: one.entries + (one.unread or 0) for one in stored(environment, plan.app)}
    noted, now = noted_parameters(environment.checkpoints(plan.app)) or {}, parameters_of(graph)
    complaints: dict[str, list[Complaint]] = {}
    planned = {stream.name for stream in plan.streams if stream.role == "intermediate"} | environment.streams().keys()
    moves = None if isinstance(environment, LiveEnvironment) else planned.__contains__
    for one in complaints_of(environment, plan, graph, partitions, moves=moves):
        complaints.setdefault(one.operator, []).append(one)
    # An operator that several could be given to, or that could have that of several, is the user's to name.
    heirs = Counter(one.heirs for found in complaints.values() for one in found if len(one.heirs) == 1)
    found = []
    for id in dict.fromkeys((*now, *noted, *sorted({*kept, *complaints} - graph.specs.keys()), *complaints)):
        mine = tuple(complaints.get(id, ()))
        heir = next((one.heirs[0] for one in mine if len(one.heirs) == 1 and heirs[one.heirs] == 1), "")
        entries = kept.get(id, 0)
        if id not in graph.specs:
            means = "nobody would read what it keeps" if mine else NOTHING_KEPT
            found.append(Evolved(id, "dropped", entries, means, mine, heir))
            continue
        changed = [*differences(noted[id].now, now[id])] if id in noted and id in now else []
        if mine:
            found.append(Evolved(id, "changed", entries, mine[0].wrong, mine))
        elif changed:
            means = f"{'; '.join(changed)}: what is kept stays, and this holds from here on"
            found.append(Evolved(id, "changed", entries, means))
        elif id in noted or id in kept:
            found.append(Evolved(id, "kept", entries, "goes on where it was"))
        else:
            begins = "is read from its start" if id in graph.inputs else "begins with nothing, where its inputs are now"
            found.append(Evolved(id, "added", entries, begins))
    return found
