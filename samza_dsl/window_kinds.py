"""What is refused of the kinds of windows that a stream is aggregated by."""

from __future__ import annotations

from typing import Any

from operators.aggregations import Aggregation
from operators.base import Site
from operators.window_types import ByClock, Counted, OfKey, Sessions, Sliding
from planner.errors import refuse
from samza_dsl.checks import check_function
from samza_dsl.windows_by import WindowsBy

KINDS = "tumbling(hours=1), session(minutes=30) or another"


def check_kind(
    site: Site,
    windows: Any,
    aggregation: Aggregation[Any, Any],
    allowed_lateness_ms: int,
    early: Any = None,
    late_trigger: Any = None,
    panes: str = "accumulating",
) -> None:
    """Refuse what is no kind of window, and what can't be had of this one."""
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
    if isinstance(of_time, Sliding):
        _check_sliding(site, allowed_lateness_ms, early, late_trigger, panes)


def _check_sliding(site: Site, allowed_lateness_ms: int, early: Any, late_trigger: Any, panes: str) -> None:
    """Refuse what can't be had of windows that end with the value that makes them."""
    hopping = "hopping(minutes=30, every_ms=60_000)"
    if early is not None:
        wrong = "a sliding window ends with the value that makes it, so there is nothing of it to show before its end"
        raise refuse(site, wrong, f"no early=, or {hopping} with it")
    if late_trigger is not None:
        wrong = "a late value has panes in all windows behind it, as it comes, and these can't wait each for its own"
        raise refuse(site, wrong, f"no late_trigger=, or {hopping} with it")
    if panes == "retracting" and not allowed_lateness_ms:
        wrong = "a sliding window has one pane where nothing late is allowed, so there is none to withdraw"
        raise refuse(site, wrong, 'no panes="retracting", or allowed_lateness_ms=60_000')


def _check_own(site: Site, windows: Any) -> None:
    """Refuse a user's own windows that could not be found again, or would become one in a way of their own."""
    kind = type(windows)
    name = kind.__name__
    check_function(site, f"window({name}(...)), its assign(...),", windows.assign, 3)
    if all("__repr__" not in vars(base) for base in kind.__mro__ if base is not object):
        wrong = f"window(...) got a {name} that does not say what it is, so a restart can't tell whether it is the same"
        raise refuse(site, wrong, f"@dataclass(frozen=True) above class {name}")
    if hasattr(windows, "merge"):
        wrong = f"{name} has a merge(...), and windows can only become one from the first start to the last end"
        raise refuse(site, wrong, f"merges = True in class {name}")
