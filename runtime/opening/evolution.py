"""A planned program beside what has run: the operators that are kept, changed, added and dropped, and their state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
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

    `complaints` say why a run would be refused. Where just one operator can have its state, that is `heir`. Where it is
    `anew`, what it keeps and all that is kept below it would be something else, had the program always been so.
    """

    operator: str
    what: What
    entries: int
    means: str
    complaints: tuple[Complaint, ...] = ()
    heir: str = ""
    anew: bool = False


class Decisions(NamedTuple):
    """The ids of the operators of which a user says what becomes of them.

    Of one that is computed `again` a function was changed, which nobody can see from outside; one that is `kept` is as
    it was, whatever has changed.
    """

    forgotten: Collection[str] = ()
    converted: Collection[str] = ()
    again: Collection[str] = ()
    kept: Collection[str] = ()


def anew_of(graph: Graph, found: Mapping[str, Evolved], said: Decisions) -> tuple[str, ...]:
    """Return the operators that are to be computed anew, as a comparison has `found` and a user has `said`."""
    heirs = {one.heir for one in found.values() if one.heir}
    left = {*said.forgotten, *said.converted, *said.kept, *heirs}
    # The rows of a table that was forgotten are read anew, and what is below it has met others.
    tables = {id for id in said.forgotten if id in graph.tables}
    changed = {id for id, one in found.items() if one.anew and id not in left} | tables | {*said.again}
    return computed_anew(graph, changed, left - {*said.again})


def computed_anew(graph: Graph, changed: Collection[str], left: Collection[str] = ()) -> tuple[str, ...]:
    """Return the operators whose state depends on what was changed, but for those that are left as they are.

    A table that is looked into is not among them: a run reads it anew by itself.
    """
    known = {id for id in changed if id in graph.specs}
    below = known.union(*map(graph.below, known))
    return tuple(
        id
        for id, spec in graph.specs.items()
        if id in below and id not in left and spec.stateful and not spec.looked_into
    )


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
            found.append(Evolved(id, "changed", entries, mine[0].wrong, mine, anew=graph.specs[id].stateful))
        elif changed:
            means = f"{'; '.join(changed)}: what is kept stays in a run, and this holds from here on"
            found.append(Evolved(id, "changed", entries, means, anew=True))
        elif id in noted or id in kept:
            found.append(Evolved(id, "kept", entries, "goes on where it was"))
        else:
            is_read = id in graph.inputs
            begins = "is read from its start" if is_read else "begins with nothing in a run, where its inputs are now"
            # Of a new input the live run reads all, so that nothing was missed.
            found.append(Evolved(id, "added", entries, begins, anew=not is_read or graph.specs[id].looked_into))
    return found
