"""State in the place of what operators have: it is staged, and then there as a whole, whenever a crash comes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from operators.core.entry_keys import StateEntry
from planner.model.errors import refuse
from planner.model.graph import Graph
from planner.model.plan import Plan
from runtime.commit.commit import STATE
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import wall_clock_ms
from runtime.model.errors import SamzaError, SerdeError
from runtime.opening.rewind import can_convert, check_whole, meanings_of, no_state_error
from runtime.opening.stored_state import COPIED_AT_ONCE, COPIED_BYTES, STAGED, lies, replace_staged
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, typed
from runtime.ports.state import StateWrites
from runtime.stored_state.entries import OPERATOR, Row, Stored, StoredEntries

Change = Callable[[StateEntry], StateEntry | None]


def imported(environment: Environment, plan: Plan, graph: Graph, rows: Iterable[tuple[str, Row]]) -> dict[str, int]:
    """Replace the state of the operators that rows are of, all at once; return the number of entries of each.

    Each row comes with the words for where it stands. The application is owned here. Raises SamzaError where a row is
    none, and leaves all as it was.
    """
    check_whole(environment, plan)
    now, forms = meanings_of(plan, graph), dict[str, StoredEntries]()

    def entries() -> Iterator[tuple[str, Stored]]:
        for where, row in rows:
            operator = str(row.get(OPERATOR))
            if operator not in forms:
                if operator not in now:
                    raise SamzaError(
                        f"{where}: the app {plan.app!r} has no operator {operator!r} that keeps state: it has "
                        f"{_named(now)}; nothing was changed"
                    )
                forms[operator] = StoredEntries(plan, graph, operator)
            try:
                yield where, forms[operator].stored(row)
            except SerdeError as error:
                raise SamzaError(f"{where}: {error}; nothing was changed") from error

    counts = staged(environment, plan.app, entries())
    _replace(environment, plan, graph, counts)
    return counts


def converted(
    environment: Environment, plan: Plan, graph: Graph, operator: str, stored: Iterable[Stored], change: Change
) -> tuple[int, int]:
    """Replace each entry of an operator by what a function makes of it; return how many there were, and are.

    The application is owned here. What the function raises goes through, and all is as it was.
    """
    check_whole(environment, plan)
    check_convert(environment, plan, graph, operator)
    form, before = StoredEntries(plan, graph, operator), 0

    def entries() -> Iterator[tuple[str, Stored]]:
        nonlocal before
        for one in stored:
            before += 1
            if (now := form.changed(one, change)) is not None:
                yield f"what the function made of {form.row(one)}", now

    counts = staged(environment, plan.app, entries()) or {operator: 0}
    _replace(environment, plan, graph, counts)
    return before, counts[operator]


def check_convert(environment: Environment, plan: Plan, graph: Graph, operator: str) -> None:
    """Refuse to convert state that is not there, or of an operator of another kind or with other keys."""
    app, kept, now = plan.app, environment.stores(plan.app), meanings_of(plan, graph)
    if operator not in kept:
        raise no_state_error(app, operator, kept)
    if operator not in now:
        raise SamzaError(f"the app {app!r} has no operator {operator!r} that keeps state: it has {_named(now)}")
    means = environment.checkpoints(app).get(STATE, Checkpoint(0)).meanings.get(operator, now[operator])
    spec = graph.specs[operator]
    if not can_convert(means, spec, graph):
        wrong = f"its state was kept as {means!r}, and its entries lie otherwise as {now[operator]!r}"
        raise refuse(spec, wrong, f"it as before; or {typed(environment, f'state forget {app} {operator}')}")


def doubled_error(where: str, one: Stored) -> SamzaError:
    """Return the error for an entry that stands where another one has its place already."""
    return SamzaError(
        f"{where}: another entry of {one.operator!r} has the same place, and only one of them can be kept; nothing was "
        "changed"
    )


def staged(
    environment: Environment,
    app: str,
    entries: Iterable[tuple[str, Stored]],
    *,
    apart: bool = False,
    doubled: Callable[[str, Stored], Exception] = doubled_error,
) -> dict[str, int]:
    """Write entries to where nobody looks, in commits of bounded size, and return the number of each operator's.

    Raises what `doubled` returns where two have one place. Where they are known to lie `apart`, what was written before
    is not asked for it.

    Where it raises, what it has written is removed again; where it is killed, by whoever owns the application next.
    """
    stores: set[str] = set()
    try:
        return _staged(environment, app, entries, stores, apart, doubled)
    except BaseException:
        environment.forget(app, stores)
        raise


def _staged(
    environment: Environment,
    app: str,
    entries: Iterable[tuple[str, Stored]],
    stores: set[str],
    apart: bool,
    doubled: Callable[[str, Stored], Exception],
) -> dict[str, int]:
    pending: dict[tuple[str, int], dict[bytes, bytes]] = defaultdict(dict)
    counts: dict[str, int] = defaultdict(int)
    held = size_bytes = 0
    written = False
    for where, one in entries:
        store = STAGED + one.operator
        stores.add(store)
        mine = pending[store, one.task]
        if one.place in mine or (written and environment.state_get(app, store, one.task, one.place) is not None):
            raise doubled(where, one)
        mine[one.place] = one.value
        counts[one.operator] += 1
        held, size_bytes = held + 1, size_bytes + len(one.place) + len(one.value)
        if held >= COPIED_AT_ONCE or size_bytes >= COPIED_BYTES:
            _write(environment, app, pending)
            pending.clear()
            held, size_bytes, written = 0, 0, not apart
    if pending:
        _write(environment, app, pending)
    return dict(counts)


def _write(environment: Environment, app: str, pending: Mapping[tuple[str, int], Mapping[bytes, bytes]]) -> None:
    state = [
        StateWrites(store, task, [(place, found[place]) for place in sorted(found)])
        for (store, task), found in pending.items()
    ]
    environment.commit(Commit(app, environment.generation(app), [], state, {}))


def _named(operators: Iterable[str]) -> str:
    return ", ".join(sorted(operators)) or "none"


def _replace(environment: Environment, plan: Plan, graph: Graph, operators: Collection[str]) -> None:
    now, lie = meanings_of(plan, graph), lies(plan, graph)
    replace_staged(
        environment,
        plan.app,
        {operator: now[operator] for operator in operators},
        {operator: lie[operator] for operator in operators if operator in lie},
        wall_clock_ms(),
    )
