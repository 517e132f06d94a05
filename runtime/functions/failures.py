"""Failures of users' functions: the operator, the record, and the error that tells of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NamedTuple

from operators.core.base import Spec
from operators.core.sites import FUSED
from operators.core.wording import askable, forget_tracebacks, raised, shown
from operators.process import TimerFailed
from planner.codegen.fusion import VALUES_ONLY, bound, functions_of, row_in
from planner.codegen.inlining import called, written_out
from planner.model.errors import PlanError
from planner.model.graph import Graph
from planner.model.plan import SegmentPlan
from runtime.model.errors import INTERRUPTED, ExitAsked, OperatorFailure, SamzaError


class Whence(NamedTuple):
    """The origin of a record: a stream, partition and offset, or the operator that emitted it.

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
        """Return the headers by which a dead letter tells of it."""
        known = {"stream": self.source, "partition": self.partition, "offset": self.offset}
        return {name: str(value).encode() for name, value in known.items() if value is not None}


class Failure(Exception):
    """Carries what a user's function raised, with the id of its operator, up to where the policy is applied.

    `row` is the place of the record in its batch, where that is known. It is `given_up` when it was tried as often as
    its policy says. It may be that of a `timer` that was due before the record. Its error is `askable`, so that whoever
    looks at it meets no code of the user's.
    """

    def __init__(self, operator: str, error: Exception, row: int | None = None, given_up: bool = False) -> None:
        error = askable(error)
        super().__init__(operator, error)
        self.operator = operator
        self.timer: TimerFailed | None = None
        if isinstance(error, TimerFailed) and isinstance(error.__cause__, Exception):
            self.timer, error = error, error.__cause__
        self.error = error
        self.row = row
        self.given_up = given_up

    def let_go(self) -> None:
        """Forget where it was raised."""
        for error in (self, self.error, self.timer):
            if error is not None:
                forget_tracebacks(error)


def locate(error: Exception, lines: Mapping[str, tuple[str, ...]], otherwise: str) -> str:
    """Return the operator whose line of fused source raised `error`, given each fused file's operators by line."""
    trace, found = error.__traceback__, otherwise
    while trace is not None:
        owners = lines.get(trace.tb_frame.f_code.co_filename)
        if owners and trace.tb_lineno and owners[trace.tb_lineno - 1]:
            # The innermost counts: one line of fused source may call another.
            found = owners[trace.tb_lineno - 1]
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
    """Lengthen the traceback of an inlined expression to the user's own line, by calling the function once.

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
            # Nobody has promised that a function does the same twice: then the traceback ends at the generated line.
            with suppress(Exception):
                functions = functions_of(graph)
                given = [_again(one, last.tb_frame.f_locals, lines, functions) for one in arguments]
                _call_for_traceback(function, given, last)


def _call_for_traceback(function: Callable[..., object], given: list[object], last: TracebackType) -> None:
    try:
        function(*given)
    except Exception as same:
        last.tb_next = same.__traceback__ and same.__traceback__.tb_next


def _again(
    variable: str, known: Mapping[str, object], lines: Sequence[str], functions: Mapping[str, Callable[..., object]]
) -> object:
    """Return the value that a variable had; one that was taken apart is made again, by its functions."""
    if variable in known:
        return known[variable]
    setting = next(line for line in lines if line.lstrip().startswith(f"{variable} = "))
    made = ((function, called(setting, name)) for name, function in functions.items())
    function, arguments = next((function, arguments) for function, arguments in made if arguments is not None)
    return function(*(_again(one, known, lines, functions) for one in arguments))


def life_error(spec: Spec, thing: object, error: Exception, called: str) -> OperatorFailure:
    """Return the error for a user's object that raised as it was opened or closed."""
    name = type(thing).__qualname__.rpartition("<locals>.")[2]
    failure = OperatorFailure(f"{spec.kind} {spec.op_id!r} at {spec.site}: {raised(error)}, in {called} of its {name}")
    failure.__cause__ = askable(error)
    return failure


def record_error(spec: Spec, error: Exception, where: Whence) -> OperatorFailure:
    """Return the error that ends a run: the operator and its line, the record, what was raised, and what to do."""
    failure = OperatorFailure(
        f"{spec.kind} {spec.op_id!r} at {spec.site}: {raised(error)}, on {where}; nothing of that record was "
        "committed. Mend the function, or let such records pass: on_error=skip, dead_letter('name') or retry(3)"
    )
    failure.__cause__ = askable(error)
    return failure


def exit_in(error: BaseException) -> SystemExit | KeyboardInterrupt | None:
    """Return the exit that an exception asks for: itself, or the first in a group, as of tasks that ran together.

    >>> exit_in(BaseExceptionGroup("two", [ValueError(), BaseExceptionGroup("one", [SystemExit(3)])]))
    SystemExit(3)
    """
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return error
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next((found for one in within if (found := exit_in(one)) is not None), None)


def exit_error(graph: Graph, operator: str, error: BaseException) -> SamzaError:
    """Return the error that ends a run for what a function raised that is no Exception, whatever its policy is.

    Where it is not known of which operator, it tells of the application alone.
    """
    spec = graph.specs.get(operator)
    place = f"a function of {graph.app!r}" if spec is None else f"{spec.kind} {spec.op_id!r} at {spec.site}"
    ends = "the run ends, and what was not committed yet is processed again by the next one"
    failure: SamzaError
    if isinstance(asked := exit_in(error), SystemExit):
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        failure = ExitAsked(f"{place}: it has called sys.exit({shown(asked.code)}): {ends}", code)
    elif asked is not None:
        failure = ExitAsked(f"{place}: it was interrupted, or has raised KeyboardInterrupt: {ends}", INTERRUPTED)
    else:
        failure = OperatorFailure(f"{place}: {raised(error)}, which is no Exception, so no policy heeds it: {ends}")
    failure.__cause__ = askable(error)
    return failure


def advice_for(spec: Spec) -> str:
    """Return the advice for an operator that is to keep a value which has no bytes.

    >>> from operators.deduplicate import Deduplicate
    >>> advice_for(Deduplicate(id_of=len, within_ms=1))
    'write e.g. deduplicate(..., id_type=MySerde())'
    """
    return f"write e.g. {spec.declares or '.map(...) before it, to a value that has bytes'}"


def unkept_error(spec: Spec, error: Exception) -> OperatorFailure:
    """Return the error for a value that an operator was left to keep, and that a commit could not write."""
    return OperatorFailure(
        f"{spec.kind} {spec.op_id!r} at {spec.site}: {raised(error)} ({advice_for(spec)}); nothing of that commit was "
        "written. Keep what has bytes, and put a value again where it is changed in place"
    )


@contextmanager
def attributed(operator: str) -> Iterator[None]:
    """Raise what is raised within as a `Failure` of an operator; a `PlanError` names the operator itself."""
    try:
        yield
    except PlanError:
        raise
    except Exception as error:
        raise Failure(operator, error) from error
