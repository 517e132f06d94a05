"""What an application reads as tables: the door, and what may be said of one."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from operators.base import Serde, Site
from operators.io import Table as TableSpec
from operators.io import VersionedTable
from operators.policies import Policy, fail
from operators.sites import here
from planner.errors import refuse
from samza_dsl.checks import check_name, check_type, check_whole, function_said, source_said
from samza_dsl.ends import Table
from samza_dsl.pacing import Pace, paced

if TYPE_CHECKING:
    from samza_dsl.app import App

K = TypeVar("K")
V = TypeVar("V")


class Tables:
    """The tables of an application."""

    @overload
    def table(
        self,
        stream: str,
        *,
        value: type[V],
        key: type[K],
        broadcast: bool = False,
        partitions: int | None = None,
        timestamp: Callable[[V], Any] | None = None,
        max_disorder_ms: int = 0,
        retention_ms: int | None = None,
        on_error: Policy = fail,
        **pace: Unpack[Pace],
    ) -> Table[K, V]: ...

    @overload
    def table(
        self,
        stream: str,
        *,
        value: type[V],
        key: Callable[[V], K],
        broadcast: bool = False,
        partitions: int | None = None,
        partitioned_by_key: bool = False,
        timestamp: Callable[[V], Any] | None = None,
        max_disorder_ms: int = 0,
        retention_ms: int | None = None,
        on_error: Policy = fail,
        **pace: Unpack[Pace],
    ) -> Table[K, V]: ...

    @overload
    def table(
        self,
        stream: str,
        *,
        value: Serde | UnionType | None = None,
        key: Any,
        broadcast: bool = False,
        partitions: int | None = None,
        partitioned_by_key: bool = False,
        timestamp: Callable[[Any], Any] | None = None,
        max_disorder_ms: int = 0,
        retention_ms: int | None = None,
        on_error: Policy = fail,
        **pace: Unpack[Pace],
    ) -> Table[Any, Any]: ...

    def table(
        self,
        stream: str,
        *,
        value: Any = None,
        key: Any,
        broadcast: bool = False,
        partitions: int | None = None,
        partitioned_by_key: bool = False,
        timestamp: Callable[[Any], Any] | None = None,
        max_disorder_ms: int = 0,
        retention_ms: int | None = None,
        on_error: Policy = fail,
        **pace: Unpack[Pace],
    ) -> Table[Any, Any]:
        """Read a stream as a table: the newest value of each key, complete before what joins it is read.

        With `broadcast` every task has all of it; else a task has the keys of its own partition, and the table is
        joined with a stream that is partitioned alike. Where `key` is a function, its writer has to put all rows of a
        key into one partition, which you say by `partitioned_by_key`. Raises PlanError for a malformed argument.

        >>> from samza_dsl import App
        >>> app = App("a")
        >>> app.table("planes", key=str, value=dict, broadcast=True).spec.kind
        'table'

        With `retention_ms` it is a table of versions, each from its own time on, and a message joins the one of its own
        time. `timestamp`, `max_disorder_ms` and a `pace` are as those of `app.input`; a record without a value removes
        its key as of the time that the record has itself. Versions are kept for messages that lie up to `retention_ms`
        before the watermark; at 0, only for those that are in time.

        >>> app.table("prices", key=str, value=int, timestamp=lambda price: 0, retention_ms=3_600_000).spec.kind
        'versioned_table'
        """
        site = here()
        check_name(site, "a stream", stream)
        check_whole(site, "partitions", partitions, optional=True)
        check_type(site, "table(broadcast=...)", broadcast, bool, "broadcast=True")
        read_as = source_said(site, "table", value, key, partitioned_by_key, on_error)
        said = {"stream": stream, "partitions": partitions, **read_as}
        times = _times_said(site, timestamp, max_disorder_ms, retention_ms, pace, broadcast)
        spec = VersionedTable(**said, **times) if times else TableSpec(**said, broadcast=broadcast)
        app = cast("App", self)
        return Table(app, app.add(spec))


def _times_said(
    site: Site, timestamp: Any, max_disorder_ms: Any, retention_ms: Any, pace: Pace, broadcast: bool
) -> dict[str, Any] | None:
    """Return what makes a table one of versions, None for one without; refuses what can't be meant."""
    check_whole(site, "max_disorder_ms", max_disorder_ms, least=0)
    check_whole(site, "retention_ms", retention_ms, least=0, optional=True)
    paced(site, pace)
    if retention_ms is None:
        said = {"timestamp": timestamp is not None, "max_disorder_ms": bool(max_disorder_ms)} | dict.fromkeys(
            pace, True
        )
        for name in (name for name, is_said in said.items() if is_said):
            wrong = f"{name}= is about versions, and a table without retention_ms= has only the newest rows"
            raise refuse(site, wrong, f"retention_ms=0, or no {name}=")
        return None
    if broadcast:
        wrong = "a table of versions is joined by key, and not broadcast"
        raise refuse(site, wrong, ".partition_by(...) on the stream, and no broadcast=True")
    timestamp_of = function_said(site, "table(timestamp=...)", timestamp)
    return {"timestamp_of": timestamp_of, "max_disorder_ms": max_disorder_ms, "retention_ms": retention_ms, **pace}
