"""The frozen plan of a run, as plain data that can be compared, drawn, and written to JSON and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from operators.core.durations import Duration
from operators.io import TableInput
from planner.model.stored_forms import ReadForm
from planner.model.virtual_tasks import VirtualTask

if TYPE_CHECKING:
    import networkx

T = TypeVar("T")

Role = Literal["input", "table", "intermediate", "output", "dead_letter"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an application, all of them, with their defaults.

    `max_in_flight` bounds the outstanding messages of a task, `max_drain_ms` how long a commit may wait for them.
    `batch_records` is how many messages are taken in at once, `max_uncommitted` after how many written ones a commit
    is forced, `max_partitions` the cap on intermediate streams, `cache_entries` the objects that each store keeps
    decoded, `threads` how many tasks with blocking functions run at once (0: on the loop);
    then a call that blocks longer than `blocking_timeout_ms` ends the run. With `inline` what a function returns is
    written into the generated loop where that does the same as calling it. A task reads the partitions of its number of
    all inputs, or one partition of one (`group_by`). A commit is of one task, or of all of a container (`commit_by`).
    With `elasticity`, a power of two, each task is so many virtual ones, which have a share of its keys each; where
    nothing is said, as many as `samza-dsl scale` has said last.
    What a run measures is also written to the stream `metrics_to`, every ten seconds.

    >>> Options(commit_interval_ms=100).guarantee
    'exactly_once'
    """

    # The descriptions are what the command line says of each: its flags, variables and file keys are made of these.
    guarantee: Annotated[
        Literal["exactly_once", "at_least_once"],
        Meta(description="What holds after a crash."),
    ] = "exactly_once"
    commit_interval_ms: Annotated[int, Meta(description="Commit at least so often.")] = 1_000
    max_drain_ms: Annotated[int, Meta(description="How long a commit may wait for calls in flight.")] = 30_000
    max_in_flight: Annotated[int, Meta(description="Messages of a task that may be outstanding.")] = 1_000
    batch_records: Annotated[int, Meta(description="Messages that are taken in at once.")] = 10_000
    max_uncommitted: Annotated[int, Meta(description="Written messages after which a commit is forced.")] = 100_000
    max_partitions: Annotated[int, Meta(description="The most partitions of a stream between stages.")] = 256
    cache_entries: Annotated[int, Meta(description="Clean values that each store keeps decoded.")] = 100_000
    threads: Annotated[int, Meta(description="Tasks with blocking functions that run at once, in threads.")] = 0
    blocking_timeout_ms: Annotated[
        int | None,
        Meta(description="With threads: a call that blocks longer ends the run."),
    ] = None
    inline: Annotated[bool, Meta(description="Write short functions into the generated loops.")] = True
    group_by: Annotated[
        Literal["partition", "stream_partition"],
        Meta(description="How partitions of inputs become tasks."),
    ] = "partition"
    commit_by: Annotated[Literal["task", "container"] | None, Meta(description="What commits at once.")] = None
    elasticity: Annotated[int | None, Meta(description="Virtual tasks that each task is split into: 1, 2, 4 …")] = None
    metrics_to: Annotated[str | None, Meta(description="The stream to which each container writes its numbers.")] = None

    # Type checkers alone see this: the fields hold ms, and users may give a timedelta, which the application turns into
    # ms.
    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            guarantee: Literal["exactly_once", "at_least_once"] = ...,
            commit_interval_ms: Duration = ...,
            max_drain_ms: Duration = ...,
            max_in_flight: int = ...,
            batch_records: int = ...,
            max_uncommitted: int = ...,
            max_partitions: int = ...,
            cache_entries: int = ...,
            threads: int = ...,
            blocking_timeout_ms: Duration | None = ...,
            inline: bool = ...,
            group_by: Literal["partition", "stream_partition"] = ...,
            commit_by: Literal["task", "container"] | None = ...,
            elasticity: int | None = ...,
            metrics_to: str | None = ...,
        ) -> None:
            """Take lengths of time as timedeltas as well: an application has them in ms."""

    @property
    def factor(self) -> int:
        """The number of virtual tasks that each task is split into."""
        return 1 if self.elasticity is None else self.elasticity


def whole(options: Options) -> Options:
    """Return options by which no task is split, as where an engine shares work out by itself.

    >>> whole(Options(elasticity=4)).factor
    1
    """
    return msgspec.structs.replace(options, elasticity=1)


class Unsplit(msgspec.Struct, frozen=True):
    """Why the tasks of an operator can't be split by keys, and what to write instead."""

    wrong: str
    instead: str


class OperatorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One operator: what it is, where the user wrote it, and what it needs."""

    id: str
    kind: str
    label: str = ""
    site: str = ""
    parents: tuple[str, ...] = ()
    stage: str = ""
    terminal: bool = False
    stateful: bool = False
    asynchronous: bool = False
    store: str | None = None
    on_error: str = "fail"
    by_order: str = ""
    """The part of its results that depends on the order of messages, where nothing fixes that order."""
    unsplit: Unsplit | None = None

    @property
    def is_table(self) -> bool:
        """Whether it is a table that is looked into."""
        return self.kind == TableInput.kind


class ExitPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An exit of a segment: an operator that writes, keeps state or awaits; `whole` when every row takes it."""

    id: str
    operators: tuple[str, ...]
    whole: bool = False


class SegmentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A run of operators below `entry`, stateless or with state by key, fused into one Python function over columns.

    `source` is the function that also keeps track of rows, `plain` the same for batches that carry values only.
    `folding`, where all its exits are windows, reads keys and times off the values and groups these by window in the
    same loop. `lines` and so on say which operator each line of these came from; `counted` are the operators for which
    the function counts: what they drop where something below tells the rest, else what they emit; `inlined` those whose
    functions it does not call, and `calls` whether it calls any; `reads` the columns beside the values that it takes,
    without the keys where it is `reading` these itself; `keyed` the operators that keep state by key within it, as
    exits from which their messages come back.
    """

    entry: str
    source: str
    plain: str
    lines: tuple[str, ...]
    plain_lines: tuple[str, ...]
    exits: tuple[ExitPlan, ...]
    counted: tuple[str, ...] = ()
    inlined: tuple[str, ...] = ()
    calls: bool = True
    reads: tuple[str, ...] = ()
    reading: bool = False
    keyed: tuple[ExitPlan, ...] = ()
    folding: str = ""
    folding_lines: tuple[str, ...] = ()


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A stage: the operators between two repartitionings, run as one chain per partition.

    Where each partition of each stream has one of its own, `apart` has each task's number, stream and partition. With
    virtual tasks `buckets` is how many each base task is split into, and `width` the number of base tasks of the plan.
    """

    id: str
    inputs: tuple[str, ...]
    operators: tuple[str, ...]
    tables: tuple[str, ...] = ()
    partitions: int = 1
    segments: tuple[SegmentPlan, ...] = ()
    ordered: bool = False
    by_key: bool = False
    drain_ms: int = 0
    apart: tuple[tuple[int, str, int], ...] = ()
    buckets: int = 1
    width: int = 0

    @property
    def bases(self) -> Sequence[int]:
        """The numbers of the base tasks that run it: its tasks, where these are not split."""
        return [task for task, _, _ in self.apart] if self.apart else range(self.partitions)

    @property
    def tasks(self) -> Sequence[int]:
        """The numbers of the tasks that run it, which go up."""
        if self.buckets == 1:
            return self.bases
        return [base + self.width * bucket for bucket in range(self.buckets) for base in self.bases]

    def is_run_by(self, task: int) -> bool:
        """Whether a task runs it, which every task is asked: so nothing is listed for it.

        >>> stage = StagePlan(id="s", inputs=("a",), operators=(), partitions=2, buckets=4, width=3)
        >>> [task for task in range(-1, 14) if stage.is_run_by(task)] == stage.tasks
        True
        """
        return task >= 0 and self.bucket_of(task) < self.buckets and self.base_of(task) in self.bases

    def bucket_of(self, task: int) -> int:
        """Return the bucket of keys that a task has in its base task's partitions."""
        return 0 if self.buckets == 1 else task // self.width

    def base_of(self, task: int) -> int:
        """Return the base task of a task."""
        return task if self.buckets == 1 else task % self.width

    def partition_of(self, task: int, stream: str) -> int:
        """Return the partition of a stream that a task reads, if there is one of that number; -1 where it reads none.

        >>> StagePlan(id="s", inputs=("a", "b"), operators=(), apart=((0, "a", 0), (1, "b", 0))).partition_of(1, "a")
        -1
        """
        base = self.base_of(task)
        if not self.apart:
            return base
        return next((partition for one, name, partition in self.apart if (one, name) == (base, stream)), -1)


class StreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that the application reads or writes, by which operators, and what it is made with.

    `bound` says what it is bound to, where that is known, and what that promises.
    """

    name: str
    role: Role
    partitions: int | None = None
    written_by: tuple[str, ...] = ()
    read_by: tuple[str, ...] = ()
    broadcast: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None
    compression: str | None = None
    bound: str = ""
    forms: tuple[ReadForm, ...] = ()
    """The records that each input or table of it reads."""


class StorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one operator: a store per task."""

    name: str
    operator: str
    kind: str = "lmdb"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a run: operators, the stages that they form, and the streams and stores between them.

    >>> Plan.from_json(Plan(app="empty").to_json()).app
    'empty'
    """

    app: str
    options: Options = Options()
    operators: tuple[OperatorPlan, ...] = ()
    stages: tuple[StagePlan, ...] = ()
    streams: tuple[StreamPlan, ...] = ()
    stores: tuple[StorePlan, ...] = ()
    version: int = 1

    @property
    def tasks(self) -> int:
        """The number of tasks: the partitions of the widest stage, or the largest number of a task plus one."""
        # The numbers of a stage go up, so its last one is its largest. Every task asks for this: none is listed for it.
        return max(
            (base + 1 + one.width * (one.buckets - 1) for one in self.stages for base in one.bases[-1:]), default=0
        )

    def virtual(self, task: int) -> VirtualTask:
        """Return the share of the partitions that a task has, by its number."""
        factor = self.options.factor
        if factor == 1:
            return VirtualTask(task)
        width = self.tasks // factor
        return VirtualTask(task % width, task // width, factor)

    def siblings(self, task: int) -> list[str]:
        """Return the names of the virtual tasks that share a task's partitions, its own among them."""
        base, _, factor = self.virtual(task)
        return [VirtualTask(base, bucket, factor).name for bucket in range(factor)]

    @property
    def results(self) -> list[StreamPlan]:
        """The streams that a run leaves for others: the outputs, then those of dead letters."""
        return [stream for role in ("output", "dead_letter") for stream in self.streams if stream.role == role]

    def operator(self, id: str) -> OperatorPlan:
        """Return an operator by its id; raises KeyError."""
        found: OperatorPlan = _by(self.operators, "id", id)
        return found

    def stage(self, id: str) -> StagePlan:
        """Return a stage by its id; raises KeyError."""
        found: StagePlan = _by(self.stages, "id", id)
        return found

    def stream(self, name: str) -> StreamPlan:
        """Return a stream by its name; raises KeyError."""
        found: StreamPlan = _by(self.streams, "name", name)
        return found

    def source(self, stage: str) -> str:
        """Return the Python source that a stage's stateless operators were fused into; raises KeyError."""
        return "\n\n".join(segment.folding or segment.source for segment in self.stage(stage).segments)

    def to_json(self) -> str:
        """Return the plan as JSON, the same from run to run."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Return the plan that `to_json` wrote; raises msgspec.ValidationError for anything else."""
        return msgspec.json.decode(text, type=cls)

    def to_networkx(self) -> networkx.DiGraph[str]:
        """Return operators and streams as the nodes of a graph, with their fields as attributes."""
        # Pictures are imported when one is asked for: the plan lies below them.
        from planner.picture.description import to_networkx

        return to_networkx(self)

    def to_text(self) -> str:
        """Return the plan as indented text."""
        from planner.picture.description import to_text

        return to_text(self)

    def to_mermaid(self) -> str:
        """Return the plan as a Mermaid flowchart."""
        from planner.picture.description import to_mermaid

        return to_mermaid(self)

    def to_dot(self) -> str:
        """Return the plan in Graphviz' language."""
        from planner.picture.description import to_dot

        return to_dot(self)

    def to_svg(self) -> str:
        """Return the plan as a picture."""
        from planner.picture.drawing import to_svg

        return to_svg(self)

    def to_html(self) -> str:
        """Return the plan as a page of its own, that needs nothing from the network."""
        from planner.picture.drawing import to_html

        return to_html(self)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        picture = self.to_svg()
        scrolling = f'<div style="overflow-x: auto">{picture}</div>'
        return {"text/html": scrolling, "image/svg+xml": picture, "text/plain": self.to_text()}


def _by(items: tuple[T, ...], field: str, wanted: str) -> T:
    for item in items:
        if getattr(item, field) == wanted:
            return item
    known = ", ".join(repr(getattr(item, field)) for item in items)
    raise KeyError(f"{wanted!r} is not in the plan, which has {known}")
