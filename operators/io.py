"""Where messages enter and leave: inputs, tables, outputs, and sinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from operators.base import NOWHERE, Serde, Site, Spec

IDLE_AFTER_MS = 30_000
"""How long nothing comes of a partition until it holds event time back no more."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Input(Spec):
    """A stream that the pipeline reads; several streams where `stream` is a pattern such as "orders-*".

    It is `partitioned_by_key` where its writer puts all records of which `key_of` makes one key into one partition.
    """

    stream: str
    value: Serde
    key: Serde | None = None
    key_of: Callable[[Any], Any] | None = None
    partitioned_by_key: bool = False
    timestamp_of: Callable[[Any], Any] | None = None
    watermark_of: Callable[[Any], Any] | None = None
    max_disorder_ms: int = 0
    idle_after_ms: int | None = IDLE_AFTER_MS
    close_on_idle: bool = False
    max_drift_ms: int | None = None
    partitions: int | None = None
    priority: int = 0

    kind: ClassVar[str] = "input"
    source: ClassVar[bool] = True
    tombstones: ClassVar[bool] = False
    """Whether a record without a value removes its key."""

    @property
    def is_pattern(self) -> bool:
        """Whether `stream` stands for all streams whose names match it."""
        return "*" in self.stream or "?" in self.stream

    def matches(self, name: str) -> bool:
        """Whether a stream of this name is one that it stands for."""
        return fnmatchcase(name, self.stream) if self.is_pattern else name == self.stream

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions that read key and timestamp off a value."""
        named = {"key": self.key_of, "timestamp": self.timestamp_of, "watermark": self.watermark_of}
        return {name: function for name, function in named.items() if function is not None}

    def describe(self) -> str:
        """The stream's name."""
        return self.stream


@dataclass(frozen=True, eq=False, kw_only=True)
class Table(Input):
    """A bootstrap stream, kept as the newest value of each key; with `broadcast` every task has all of it."""

    broadcast: bool = False

    kind: ClassVar[str] = "table"
    stateful: ClassVar[bool] = True
    tombstones: ClassVar[bool] = True

    def meaning(self) -> str:
        """The type of its rows."""
        return f"rows {self.value!r}"

    def changes(self) -> TableChanges:
        """Return the table as it is where it is joined with others."""
        return TableChanges(**{field.name: getattr(self, field.name) for field in fields(TableChanges)})


@dataclass(frozen=True, eq=False, kw_only=True)
class TableChanges(Input):
    """The records of a table, in the place of the table where it is joined with others: each may change a row."""

    kind: ClassVar[str] = "table_changes"
    tombstones: ClassVar[bool] = True


@dataclass(frozen=True, eq=False, kw_only=True)
class VersionedTable(Input):
    """A stream of the versions of a table's rows, each from its own time on; the joins with it keep them.

    A version is kept for messages that lie up to `retention_ms` before the watermark.
    """

    retention_ms: int

    kind: ClassVar[str] = "versioned_table"
    tombstones: ClassVar[bool] = True


@dataclass(frozen=True)
class Output:
    """A stream that the pipeline writes, and what it is made with where it is absent."""

    stream: str
    value: Serde
    key: Serde | None = None
    partitions: int | None = None
    site: Site = NOWHERE
    retention_ms: int | None = None
    retention_bytes: int | None = None
    compression: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class SendTo(Spec):
    """Write every message to an output stream."""

    output: Output

    kind: ClassVar[str] = "send_to"
    terminal: ClassVar[bool] = True
    encodes: ClassVar[bool] = True

    def describe(self) -> str:
        """The stream's name."""
        return self.output.stream


@dataclass(frozen=True, eq=False, kw_only=True)
class Sink(Spec):
    """Call a function with every message, for its effect outside; after a crash it may see a message again.

    Without a function, what it would have done was awaited above.
    """

    function: Callable[[Any], object] | None

    kind: ClassVar[str] = "sink"
    terminal: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The function that has the effect."""
        return {"sink": self.function} if self.function is not None else {}
