"""A user's function that raised: at which operator, on which record, and how it is told."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from operators.base import Spec
from runtime.errors import OperatorFailure


class Failure(Exception):
    """Carries what a user's function raised, with the id of its operator, up to where the policy is applied."""

    def __init__(self, operator: str, error: Exception) -> None:
        super().__init__(operator, error)
        self.operator = operator
        self.error = error


def locate(error: Exception, lines: Mapping[str, tuple[str, ...]], otherwise: str) -> str:
    """Return the operator whose line of fused source raised `error`, given each fused file's operators by line."""
    trace = error.__traceback__
    while trace is not None:
        owners = lines.get(trace.tb_frame.f_code.co_filename)
        if owners and trace.tb_lineno and owners[trace.tb_lineno - 1]:
            return owners[trace.tb_lineno - 1]
        trace = trace.tb_next
    return otherwise


def tell(spec: Spec, error: Exception, where: str) -> OperatorFailure:
    """Return the error that ends a run: the operator and its line, the record, what was raised, and what to do."""
    raised = "".join(traceback.format_exception_only(error)).strip()
    failure = OperatorFailure(
        f"{spec.kind} {spec.op_id!r} at {spec.site}: {raised}, on {where}; nothing of that record was committed. Mend "
        "the function, or let such records pass: on_error=skip, dead_letter('name') or retry(3)"
    )
    failure.__cause__ = error
    return failure
