"""A user's function that raised: at which operator, on which record, and how it is told."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple

from operators.base import Spec
from operators.process import TimerFailed
from planner.errors import PlanError
from planner.fuse import FUSED, VALUES_ONLY, bound, functions_of, row_in
from planner.graph import Graph
from planner.inline import called, written_out
from planner.plan import SegmentPlan
from runtime.errors import OperatorFailure


class Whence(NamedTuple):
    """Where a record came from: a stream, partition and offset, or the operator that emitted it.

    It may be about a `part` of the record: its value, key or timestamp.

    >>> str(Whence("flights", 0, 7)), str(Whence("flights", 0, 7, last=9)), str(Whence("daily"))
    ('flights/0 at 7', 'one record of flights/0 from 7 to 9', 'what daily emitted')
    >>> str(Whence("flights", 0, 7, part="key")), str(Whence("by-word", 0))
    ('the key of flights/0 at 7', 'a message to by-word/0')
    """

    source: str
    partition: int | None = None
    offset: int | None = None
    last: int | None = None
    part: str = ""

    def __str__(self) -> str:
        if self.partition is None:
            return f"what {self.source} emitted"
        if self.last is not None and self.last != self.offset:
            return f"one record of {self.source}/{self.partition} from {self.offset} to {self.last}"
        if self.offset is None:
            return f"a message to {self.source}/{self.partition}"
        return f"the {self.part} of " * bool(self.part) + f"{self.source}/{self.partition} at {self.offset}"

    def headers(self) -> dict[str, bytes]:
        """Return what a dead letter says of it."""
        known = {"stream": self.source, "partition": self.partition, "offset": self.offset}
        return {name: str(value).encode() for name, value in known.items() if value is not None}


class Failure(Exception):
    """Carries what a user's function raised, with the id of its operator, up to where the policy is applied.

    `row` is the place of the record in its batch, where that is known. It is `given_up` when it was tried as often as
    its policy says. It may be that of a `timer` that was due before the record.
    """

    def __init__(self, operator: str, error: Exception, row: int | None = None, given_up: bool = False) -> None:
        super().__init__(operator, error)
        self.operator = operator
        self.timer: TimerFailed | None = None
        if isinstance(error, TimerFailed) and isinstance(error.__cause__, Exception):
            self.timer, error = error, error.__cause__
        self.error = error
        self.row = row
        self.given_up = given_up


def locate(error: Exception, lines: Mapping[str, tuple[str, ...]], otherwise: str) -> str:
    """Return the operator whose line of fused source raised `error`, given each fused file's operators by line."""
    trace, found = error.__traceback__, otherwise
    while trace is not None:
        owners = lines.get(trace.tb_frame.f_code.co_filename)
        if owners and trace.tb_lineno and owners[trace.tb_lineno - 1]:
            found = owners[trace.tb_lineno - 1]  # the innermost counts: one line of fused source may call another
        trace = trace.tb_next
    return found


def row_of(error: Exception) -> int | None:
    """Return the row at which fused source was when it raised."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(FUSED):
            return row_in(trace.tb_frame)
        trace = trace.tb_next
    return None


def trace_into(error: Exception, graph: Graph, operator: str, files: Collection[str], calling: SegmentPlan) -> None:
    """Let the traceback of what an inlined expression raised go on to the user's own line, by calling the function.

    `files` are those of the run of operators that raised, and `calling` is the same run with nothing inlined: line by
    line it says what would have been called.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or (file := last.tb_frame.f_code.co_filename) not in files:
        return
    lines = (calling.plain if file.endswith(f"{VALUES_ONLY}>") else calling.source).splitlines()
    for name, function in graph.specs[operator].functions().items():
        arguments = called(lines[last.tb_lineno - 1], bound(operator, name))
        if arguments is not None and written_out(function, "") is not None:
            with suppress(Exception):  # nobody has promised that what is made twice is the same
                functions = functions_of(graph)
                given = [_again(one, last.tb_frame.f_locals, lines, functions) for one in arguments]
                _call_for_traceback(function, given, last)


def _call_for_traceback(function: Callable[..., Any], given: list[Any], last: TracebackType) -> None:
    try:
        function(*given)
    except Exception as same:
        last.tb_next = same.__traceback__ and same.__traceback__.tb_next


def _again(variable: str, known: Mapping[str, Any], lines: Sequence[str], functions: Mapping[str, Any]) -> Any:
    """Return what a variable had; what was taken apart is made again, by the functions that would have been called."""
    if variable in known:
        return known[variable]
    setting = next(line for line in lines if line.lstrip().startswith(f"{variable} = "))
    made = ((function, called(setting, name)) for name, function in functions.items())
    function, arguments = next((function, arguments) for function, arguments in made if arguments is not None)
    return function(*(_again(one, known, lines, functions) for one in arguments))


def not_opened(spec: Spec, thing: object, error: Exception) -> OperatorFailure:
    """Return the error for a user's object that raised as it was opened."""
    raised = "".join(traceback.format_exception_only(error)).strip()
    name = type(thing).__qualname__.rpartition("<locals>.")[2]
    failure = OperatorFailure(f"{spec.kind} {spec.op_id!r} at {spec.site}: {raised}, in open(context) of its {name}")
    failure.__cause__ = error
    return failure


def tell(spec: Spec, error: Exception, where: Whence) -> OperatorFailure:
    """Return the error that ends a run: the operator and its line, the record, what was raised, and what to do."""
    raised = "".join(traceback.format_exception_only(error)).strip()
    failure = OperatorFailure(
        f"{spec.kind} {spec.op_id!r} at {spec.site}: {raised}, on {where}; nothing of that record was committed. Mend "
        "the function, or let such records pass: on_error=skip, dead_letter('name') or retry(3)"
    )
    failure.__cause__ = error
    return failure


@contextmanager
def attributed(operator: str) -> Iterator[None]:
    """Say of what is raised within which operator it was; a `PlanError` says it itself."""
    try:
        yield
    except PlanError:
        raise
    except Exception as error:
        raise Failure(operator, error) from error
