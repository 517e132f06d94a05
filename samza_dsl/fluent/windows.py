"""The arguments of windows: their kinds, and the options of when they fire and what they keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from operators.aggregations.accumulator_serde import kept_by, of_bytes
from operators.aggregations.aggregation import Aggregation
from operators.core.base import Serde, Site
from operators.core.durations import Duration
from operators.core.policies import DeadLetterPolicy
from operators.core.sites import check_plain, mistake
from operators.windows.triggers import Trigger
from operators.windows.window import Emit, Panes
from operators.windows.window_types import ByClock, ByRow, Counted, OfKey, Sessions, Sliding, WindowType
from planner.model.errors import refuse
from runtime.encoding.serdes import Declared
from samza_dsl.fluent.checks import check_function, check_late, check_store, check_type, ms_said, state_said
from samza_dsl.fluent.table import Table

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
T = TypeVar("T")

KINDS = "tumbling(hours=1), session(minutes=30) or another"


@dataclass(frozen=True)
class WindowsBy:
    """The windows that a table's rows choose: the table, the choice, and the function that finds a row."""

    table: Table[Any, Any]
    choose: Callable[..., WindowType]
    on: Callable[..., object] | None

    @property
    def windows(self) -> ByRow:
        """The window type of values that come with their rows."""
        return ByRow(self.table.spec.stream, self.choose)


def windows_by(
    table: Table[K, T], choose: Callable[[T | None], WindowType], *, on: Callable[[Any], object] | None = None
) -> WindowsBy:
    """Let the row of a table say which windows a value is in: those of `choose(row)`, or of `choose(None)`.

    The row is that of the value's key, or with a broadcast table that of `on(value)`, as in `join`, when the value
    comes. What `choose` returns is `tumbling(...)`, `hopping(...)` or `daily(...)`; the windows of a key may overlap
    where its row has changed. Raises ValueError for what is no table or function, and PlanError where keys can't meet.

    >>> from samza_dsl import App, collect, testing, tumbling
    >>> app = App("digests")
    >>> minutes = app.table("settings", key=str, value=int)
    >>> digests = windows_by(minutes, lambda row: tumbling(minutes=row or 60))
    >>> news = app.input("news", key=str, value=str).window(digests, collect())
    >>> news.map(lambda pane: (pane.key, pane.end, pane.value)).send_to(app.output("mails"))
    >>> rows = [testing.Record(1, "ann", 0)]
    >>> given = [testing.Record(*one) for one in [("a", "ann", 1), ("b", "bob", 2), ("c", "ann", 3)]]
    >>> sorted(testing.run(app, {"settings": rows, "news": given})["mails"])
    [('ann', 60000, ['a', 'c']), ('bob', 3600000, ['b'])]
    """
    if not isinstance(table, Table):
        raise mistake(
            f"windows_by(...) got {table!r}, which is no table", "windows_by(app.table(...), lambda row: ...)"
        )
    check_plain("windows_by(table, ...)", choose)
    if on is not None:
        check_plain("windows_by(on=...)", on)
    return WindowsBy(table, choose, on)


@dataclass(frozen=True)
class WindowArguments:
    """The arguments of `window` that say when its windows fire and what is kept of them."""

    allowed_lateness_ms: Duration
    panes: Panes
    early: Trigger | None
    late_trigger: Trigger | None
    emit: Emit
    late: DeadLetterPolicy | None
    state: type[object] | Serde | None
    store: str


def fields_of_window(
    site: Site, windows: object, aggregation: Aggregation[V, R], said: WindowArguments
) -> dict[str, object]:
    """Return the fields of a window's spec without its windows; refuses arguments that contradict each other."""
    check_type(site, "window(...)", aggregation, Aggregation, "count(), mean(...), fold(...) or another")
    lateness = ms_said(site, "allowed_lateness_ms", said.allowed_lateness_ms, least=0)
    check_late(site, "window", said.late)
    _check_panes(site, said)
    _check_late_trigger(site, said, lateness)
    check_kind(site, windows, aggregation, lateness, said)
    how: dict[str, object] = {"panes": said.panes, "early": said.early, "late_trigger": said.late_trigger}
    how |= {"emit": said.emit, "late": said.late, "allowed_lateness_ms": lateness}
    how["store"] = check_store(site, said.store)
    how["aggregation"], how["messages"] = _kept(site, windows, aggregation, said.state)
    return how


def check_kind(
    site: Site,
    windows: object,
    aggregation: Aggregation[V, R],
    allowed_lateness_ms: int,
    said: WindowArguments | None = None,
) -> None:
    """Refuse anything but a kind of window, and options that this kind does not have."""
    if isinstance(windows, type) or not (
        isinstance(windows, OfKey | ByClock | WindowsBy) or hasattr(windows, "cell") or hasattr(windows, "assign")
    ):
        raise refuse(site, f"window(...) got {windows!r}, which is not a kind of window", KINDS)
    if hasattr(windows, "assign"):
        _check_own(site, windows)
    of_time = windows.windows if isinstance(windows, ByClock) else windows
    merges = isinstance(of_time, Sessions) or getattr(windows, "merges", False)
    if merges and not aggregation.mergeable:
        wrong = f"sessions that overlap become one, and {aggregation} does not say how two of its results do"
        raise refuse(site, wrong, "fold(..., merge=lambda a, b: ...)")
    if isinstance(windows, Counted | ByClock) and allowed_lateness_ms:
        by = "the clock" if isinstance(windows, ByClock) else "count"
        raise refuse(site, f"nothing is late at windows by {by}", "no allowed_lateness_ms=")
    if isinstance(of_time, Sliding) and said is not None:
        _check_sliding(site, allowed_lateness_ms, said)


def check_emit(site: Site, emit: object) -> None:
    """Refuse a value of `emit=` that is unknown."""
    if emit not in ("all", "final"):
        raise refuse(site, f"emit={emit!r} does not say which panes are emitted", 'emit="all" or "final"')


def _check_sliding(site: Site, allowed_lateness_ms: int, said: WindowArguments) -> None:
    """Refuse options that sliding windows do not have, since each ends with the value that makes it."""
    hopping = "hopping(minutes=30, every_ms=60_000)"
    if said.early is not None:
        wrong = "a sliding window ends with the value that makes it, so there is nothing of it to show before its end"
        raise refuse(site, wrong, f"no early=, or {hopping} with it")
    if said.late_trigger is not None:
        wrong = "a late value has panes in all windows behind it, as it comes, and these can't wait each for its own"
        raise refuse(site, wrong, f"no late_trigger=, or {hopping} with it")
    if said.panes == "retracting" and not allowed_lateness_ms:
        wrong = "a sliding window has one pane where nothing late is allowed, so there is none to withdraw"
        raise refuse(site, wrong, 'no panes="retracting", or allowed_lateness_ms=60_000')


def _check_own(site: Site, windows: object) -> None:
    """Refuse a user's own windows that a restart could not recognise, or that merge in a way of their own."""
    kind = type(windows)
    name = kind.__name__
    check_function(site, f"window({name}(...)), its assign(...),", getattr(windows, "assign", None), 3)
    if all("__repr__" not in vars(base) for base in kind.__mro__ if base is not object):
        wrong = f"window(...) got a {name} that does not say what it is, so a restart can't tell whether it is the same"
        raise refuse(site, wrong, f"@dataclass(frozen=True) above class {name}")
    if hasattr(windows, "merge"):
        wrong = f"{name} has a merge(...), and windows can only become one from the first start to the last end"
        raise refuse(site, wrong, f"merges = True in class {name}")


def _kept(
    site: Site, windows: object, aggregation: Aggregation[V, R], state: object
) -> tuple[Aggregation[V, R], Serde | None]:
    """Return the aggregation with its declared accumulator, and the serde of messages if the window keeps these."""
    serde = state_said(site, "window", "state", state)
    if serde is None or isinstance(serde, Declared):
        return aggregation, None
    kind = windows
    while isinstance(kind, WindowsBy | ByClock):
        kind = kind.windows
    # A sliding window keeps the messages themselves, which it takes out again one by one; others keep an accumulator.
    if isinstance(kind, Sliding):
        return of_bytes(aggregation, serde), serde
    return kept_by(aggregation, serde), None


def _check_late_trigger(site: Site, said: WindowArguments, allowed_lateness_ms: int) -> None:
    """Refuse a trigger of late panes where there are none, or one that goes by the clock."""
    trigger = said.late_trigger
    if trigger is None:
        return
    instead = "after_count(100), or after_delay(minutes=1) of event time"
    check_type(site, "window(late_trigger=...)", trigger, Trigger, instead)
    if not allowed_lateness_ms or said.emit == "final":
        wrong = "late_trigger= says when late values make panes, and there are none of these"
        raise refuse(site, wrong, 'allowed_lateness_ms=60_000 beside it, and emit="all"')
    if trigger.by_clock:
        raise refuse(site, f"late panes can't come {trigger} by the clock", instead)


def _check_panes(site: Site, said: WindowArguments) -> None:
    """Refuse unknown panes, and panes that `emit="final"` leaves out."""
    early = said.early
    if said.panes not in ("accumulating", "discarding", "retracting"):
        instead = 'panes="accumulating", "discarding" or "retracting"'
        raise refuse(site, f"panes={said.panes!r} is not what panes can be", instead)
    check_emit(site, said.emit)
    if said.early is not None:
        check_type(
            site, "window(early=...)", said.early, Trigger, "after_count(100), after_delay(minutes=1) or another"
        )
    if said.emit == "final" and (early is not None or said.panes != "accumulating"):
        wrong = 'emit="final" makes one pane of each window, which has all'
        raise refuse(site, wrong, f'emit="all", or leave out {"early=" if early is not None else "panes="}')
