"""The ends of a pipeline: inputs, tables, outputs, and sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from types import UnionType
from typing import Any, ClassVar, NamedTuple, Union, get_args, get_origin

from operators.core.base import Headers, Output, Serde, Spec, told_of
from operators.core.entry_keys import OF_KEYS, EntryKinds
from operators.core.wording import shown

IDLE_AFTER_MS = 30_000
"""The ms without a record after which a partition holds event time back no more."""
UNJOINED = ("nobody joins this table", "stream.join(table, ...)")
"""The mistake of a table that is not looked into, and what to write instead."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Input(Spec):
    """A stream that the pipeline reads; several streams where `stream` is a pattern such as "orders-*".

    It is `partitioned_by_key` where its writer puts all records of which `key_of` makes one key into one partition.
    """

    stream: str
    value: Serde
    key: Serde | None = None
    key_of: Callable[..., object] | None = None
    partitioned_by_key: bool = False
    timestamp_of: Callable[..., object] | None = None
    watermark_of: Callable[..., object] | None = None
    max_disorder_ms: int = 0
    idle_after_ms: int | None = IDLE_AFTER_MS
    close_on_idle: bool = False
    max_drift_ms: int | None = None
    max_ahead_ms: int | None = None
    unit: str | None = None
    """The unit of its times: s, ms, us or ns; None if it is not said, and they are taken as ms."""
    partitions: int | None = None
    priority: int = 0
    headers: bool = False
    """Whether the headers of its records are read."""

    kind: ClassVar[str] = "input"
    source: ClassVar[bool] = True
    tells: ClassVar[tuple[str, ...]] = (
        *("key", "key_of", "timestamp_of", "watermark_of", "max_disorder_ms", "max_ahead_ms", "unit"),
    )

    @property
    def carries_headers(self) -> bool:
        """Whether they are read."""
        return self.headers

    @property
    def keeps_order(self) -> bool:  # type: ignore[override]
        """Whether it is one stream, whose partitions have an order."""
        return not self.is_pattern

    @property
    def subject(self) -> str:
        """The stream's name, or its pattern."""
        return self.stream

    @property
    def gives_keys(self) -> bool:  # type: ignore[override]
        """Whether keys are stored with its records, or read off them."""
        return bool(self.key or self.key_of)

    @property
    def reads_none(self) -> bool:
        """Whether a record without a value is None to the functions, and not malformed."""
        return self.tombstones or admits_none(self.value)

    @property
    def is_pattern(self) -> bool:
        """Whether `stream` stands for all streams whose names match it."""
        return "*" in self.stream or "?" in self.stream

    def matches(self, name: str) -> bool:
        """Whether a stream of this name is one that it stands for."""
        return fnmatchcase(name, self.stream) if self.is_pattern else name == self.stream

    def functions(self) -> dict[str, Callable[..., object]]:
        """Return the functions that read key, timestamp and watermark off a value."""
        named = {"key": self.key_of, "timestamp": self.timestamp_of, "watermark": self.watermark_of}
        return {name: function for name, function in named.items() if function is not None}

    def describe(self) -> str:
        """The stream's name."""
        return self.stream

    def parameters(self) -> dict[str, str]:
        """Return the parameters of its event time and keys."""
        return {name: told_of(getattr(self, name)) for name in self.tells}


@dataclass(frozen=True, eq=False, kw_only=True)
class TableInput(Input):
    """A bootstrap stream, kept as the newest value of each key; with `broadcast` every task has all of it."""

    broadcast: bool = False

    kind: ClassVar[str] = "table"
    stateful: ClassVar[bool] = True
    looked_into: ClassVar[bool] = True
    unread: ClassVar[tuple[str, str]] = UNJOINED
    tombstones: ClassVar[bool] = True
    tells: ClassVar[tuple[str, ...]] = (*Input.tells, "value", "broadcast")

    @property
    def planned_store(self) -> str:
        """The kind of its store: what every task has is read anew in each run."""
        return "memory" if self.broadcast else self.store

    def meaning(self) -> str:
        """The type of its rows."""
        return f"rows {self.value!r}"

    def entry_kinds(self) -> EntryKinds:
        """Return rows by key."""
        return OF_KEYS

    def key_at(self, place: bytes) -> bytes | None:
        """Return the key; each part of a task keeps all of a table that every task has."""
        return None if self.broadcast else place

    def changes(self) -> TableChanges:
        """Return the spec of its records as changes, for joins of tables."""
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
    versioned: ClassVar[bool] = True
    unread: ClassVar[tuple[str, str]] = UNJOINED
    tombstones: ClassVar[bool] = True


@dataclass(frozen=True, eq=False, kw_only=True)
class SendTo(Spec):
    """Write every message to an output stream, with the headers that `headers(value, headers)` makes, or its own."""

    output: Output
    headers: Callable[..., Headers] | None = None

    kind: ClassVar[str] = "send_to"
    terminal: ClassVar[bool] = True
    encodes: ClassVar[bool] = True
    uses_headers: ClassVar[bool] = True

    @property
    def header_code(self) -> str:  # type: ignore[override]
        """The call that makes the headers."""
        return "{headers}({value}, {header})" if self.headers is not None else ""

    def functions(self) -> dict[str, Callable[..., object]]:
        """The function that makes the headers."""
        return {} if self.headers is None else {"headers": self.headers}

    @property
    def subject(self) -> str:
        """The stream's name."""
        return self.output.stream

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The one output."""
        return (self.output,)

    @property
    def exit(self) -> str:
        """The exit of its output."""
        return f"{self.kind}-{self.output.stream}"

    def describe(self) -> str:
        """The stream's name."""
        return self.output.stream


@dataclass(frozen=True, eq=False, kw_only=True)
class SinkCall(Spec):
    """Call a function with every message, for its effect outside; after a crash it may see a message again.

    Without a function its effect was awaited by the operator above.
    """

    function: Callable[..., object] | None

    kind: ClassVar[str] = "sink"
    has_effects: ClassVar[bool] = True
    terminal: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., object]]:
        """The function that has the effect."""
        return {"sink": self.function} if self.function is not None else {}


def admits_none(serde: Serde) -> bool:
    """Whether the declared type of values has None among its alternatives."""
    declared = getattr(serde, "type", None)
    return get_origin(declared) in (Union, UnionType) and type(None) in get_args(declared)


class Headed(NamedTuple):
    """An encoded value with the headers that were made for it, on its way to an output."""

    value: Any
    headers: Headers | None


def headed(value: object, headers: Headers) -> Headed:
    """Return an encoded value with its headers; raises ValueError where these are none."""
    check_headers(headers)
    return Headed(value, headers or None)


def check_headers(headers: object) -> None:
    """Raise ValueError for anything but a mapping from names to bytes, or to None as Kafka's headers may have it.

    >>> check_headers({"trace": b"1"})
    """
    if not isinstance(headers, Mapping) or not all(
        type(name) is str and (value is None or type(value) is bytes) for name, value in headers.items()
    ):
        raise ValueError(f"{shown(headers)} are no headers; write instead: names and bytes, as {{'trace': b'1'}}")
