"""Windows that the row of a table says: each key's own length, or time zone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from operators.sites import check_plain, mistake
from operators.window_types import ByRow, WindowType
from samza_dsl.ends import Table

T = TypeVar("T")


@dataclass(frozen=True)
class WindowsBy:
    """What `windows_by` says: a table, the windows of its rows, and how a row is found."""

    table: Table[Any, Any]
    choose: Callable[[Any], WindowType]
    on: Callable[[Any], object] | None

    @property
    def windows(self) -> ByRow:
        """The windows of values that come with their rows."""
        return ByRow(self.table.spec.stream, self.choose)


def windows_by(
    table: Table[Any, T], choose: Callable[[T | None], WindowType], *, on: Callable[[Any], object] | None = None
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
