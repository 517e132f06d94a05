"""What a stream of messages meets at its ends: the output that it is written to, and the table that it looks into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from operators.io import Output, VersionedTable
from operators.io import Table as TableSpec
from samza_dsl.table_joining import TableJoins

if TYPE_CHECKING:
    from samza_dsl.app import App

K = TypeVar("K")
V = TypeVar("V")


class OutputStream(Generic[V]):
    """A stream that the pipeline writes; `app.output` makes it.

    >>> from samza_dsl import App
    >>> App("a").output("totals", value=int).spec.stream
    'totals'
    """

    def __init__(self, app: App, spec: Output) -> None:
        self.app = app
        self.spec = spec


class Table(TableJoins[K, V]):
    """The newest value of each key of a stream, or its value as of a time; `app.table` makes it, `join` looks into it.

    >>> from samza_dsl import App
    >>> App("a").table("planes", key=str, value=dict).spec.stream
    'planes'
    """

    def __init__(self, app: App, spec: TableSpec | VersionedTable) -> None:
        self.app = app
        self.spec: TableSpec | VersionedTable = spec
