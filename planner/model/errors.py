"""The error of a program that can't be planned."""

from __future__ import annotations

from operators.core.base import Site, Spec


class PlanError(Exception):
    """A mistake in the pipeline that can be seen before it runs: where, what is wrong, and what to write instead.

    >>> raise refuse(None, "the app 'a' reads nothing", "app.input(...)")
    Traceback (most recent call last):
    planner.model.errors.PlanError: the app 'a' reads nothing; write instead: app.input(...)
    """


def refuse(where: Spec | Site | None, wrong: str, instead: str) -> PlanError:
    """Return the error for a mistake at an operator, or at a place in the user's program.

    >>> print(refuse(Site("app.py", 3), "the stream has no name", 'app.input("flights")'))
    app.py:3: the stream has no name; write instead: app.input("flights")
    """
    if isinstance(where, Spec):
        name = f"{where.kind} {where.op_id!r}" if where.op_id else where.kind
        return PlanError(f"{name} at {where.site}: {wrong}; write instead: {instead}")
    return PlanError(f"{where}: {wrong}; write instead: {instead}" if where else f"{wrong}; write instead: {instead}")


def late_use(spec: Spec, name: str) -> PlanError:
    """Return the error for a context, or a list or map of it, that is used behind its call, as by a thread."""
    return refuse(
        spec,
        f"its function has ended, and context.{name} is used, which is of use during that call alone",
        "await or join in the function what it begins, or give that what it needs, and not the context; ask in each "
        "call for the lists and maps of its key",
    )
