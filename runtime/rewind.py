"""Going back on purpose: what happens to state, and refusing plans that would orphan it."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from planner.plan import Plan
from runtime.bindings import Bindings
from runtime.checkpoint import Position
from runtime.commit import SHARED
from runtime.errors import SamzaError
from runtime.systems.base import Commit, Environment


def check_state(environment: Environment, plan: Plan) -> None:
    """Refuse a plan without the operator that existing state belongs to; raises SamzaError."""
    known = {store.name for store in plan.stores}
    orphans = [store for store in environment.stores(plan.app) if store not in known]
    if orphans:
        raise SamzaError(
            f"the app {plan.app!r} has state of {', '.join(map(repr, orphans))}, and no operator of that id now: name "
            f"the operator as before (op_id={orphans[0]!r}), or begin anew: samza-dsl reset {plan.app}"
        )


def rewind(environment: Environment, plan: Plan, bindings: Bindings, state: Literal["reset", "keep"] | None) -> int:
    """Set an application's inputs back to their start, and return its generation.

    "reset" drops state, timers, watermarks and what lies in intermediate streams. "keep" keeps them, so that replayed
    records are late wherever their windows have fired. Raises SamzaError when the application has state and neither
    was said.
    """
    intermediates = [stream for stream in plan.streams if stream.role == "intermediate"]
    durable = [store for store in plan.stores if store.kind != "memory"]
    if state is None and (intermediates or durable) and environment.checkpoints(plan.app):
        raise SamzaError(
            f"the app {plan.app!r} has state and intermediate streams, and a rewind must say what becomes of them: "
            "--state reset (begin anew) or --state keep (replayed records are late where their windows have fired)"
        )
    if state == "keep":
        return _keep(environment, plan, bindings)
    written = environment.checkpoints(plan.app).get(SHARED)
    bindings.empty_outputs(written.outputs if written is not None else {})
    environment.reset(plan.app)
    for stream in intermediates:
        environment.delete_stream(stream.name)
    bindings.create_streams(plan)
    return environment.own(plan.app)


def check_rewind(from_start: bool, state: str | None) -> None:
    """Refuse to guess what becomes of state; raises SamzaError."""
    if state not in (None, "reset", "keep"):
        raise SamzaError(f'state={state!r} says nothing of the state; write state="reset" or state="keep"')
    if state is not None and not from_start:
        raise SamzaError(f"state={state!r} is about a rewind: add from_start=True, or leave it out")


def _keep(environment: Environment, plan: Plan, bindings: Bindings) -> int:
    left = {stream.name for stream in plan.streams if stream.role in ("intermediate", "table")}
    generation = environment.generation(plan.app)
    checkpoints = {
        task: replace(
            checkpoint,
            positions=tuple(
                position if position.stream in left else replace(position, offset=_start(bindings, position))
                for position in checkpoint.positions
            ),
        )
        for task, checkpoint in environment.checkpoints(plan.app).items()
    }
    environment.commit(Commit(plan.app, generation, [], [], checkpoints))
    return generation


def _start(bindings: Bindings, position: Position) -> int:
    exists = position.stream in bindings.sources or position.stream in bindings.environment.streams()
    return bindings.origin(position.stream, position.partition).offsets().start if exists else 0
