"""The passes that turn a graph into a plan: PASSES reads like a table of contents."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path

from msgspec.structs import replace

from operators.async_flat_map import AsyncFlatMap
from operators.core.base import NOWHERE, Site, Spec
from operators.core.policies import DeadLetterPolicy, Retry, fail, final, worst_case_ms
from operators.joins.table_join import TableJoin
from planner.checks.copartitioning import check_keys_meet, check_table_meets
from planner.checks.grouping import group_tasks
from planner.checks.ordering import tell_order
from planner.checks.rules import RULES
from planner.checks.sizes import grown_sizes, source_sizes
from planner.checks.splitting import check_factor, tell_unsplit
from planner.codegen.folding import fold
from planner.codegen.fusion import LONGEST_RUN, functions_of, fuse, kinds_in, word
from planner.codegen.scalars import taken_apart
from planner.model.errors import refuse
from planner.model.function_names import label_of
from planner.model.graph import Graph, intermediate, parents_first, reached
from planner.model.identities import NAME
from planner.model.levers import ALL, Levers
from planner.model.plan import OperatorPlan, Options, Plan, Role, SegmentPlan, StagePlan, StorePlan, StreamPlan
from planner.model.stored_forms import ReadForm, stored_form


def plan(
    graph: Graph,
    options: Options | None = None,
    partitions: Mapping[str, int] | None = None,
    *,
    wrapped: bool = False,
    levers: Levers = ALL,
) -> Plan:
    """Plan a graph: apply every pass, in order, as `levers` has them.

    `partitions` has the partition counts of the streams that exist; where a stream does not, it is as large as it was
    declared, or 1. With `wrapped` functions, none is inlined. Raises PlanError for what can't run.
    """
    # A wrapped function is to see each of its calls, so none may be written into the loop.
    options = options or Options()
    drafted = Plan(app=graph.app, options=replace(options, inline=options.inline and levers.inlining and not wrapped))
    for each in PASSES:
        if each is fuse_segments:
            each = partial(fuse_segments, levers=levers)
        if (levers.folding or each is not fold_windows) and (levers.scalars or each is not take_apart):
            drafted = each(drafted, graph, partitions or {})
    return drafted


def check(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Refuse a pipeline that breaks a rule which holds whatever runs it."""
    if not graph.specs:
        raise refuse(None, f"the app {graph.app!r} reads nothing", 'app.input("flights").map(...).send_to(...)')
    words: dict[str, str] = {}
    for id, spec in graph.specs.items():
        # Generated source names variables by ids, in which Python knows no punctuation.
        if (other := words.setdefault(word(id), id)) != id:
            raise refuse(spec, f"its id differs from {other!r} only in punctuation", "a more distinct op_id=")
        for rule in RULES:
            rule(spec, graph, plan.options)
    return plan


def list_operators(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Describe every operator."""
    return replace(plan, operators=tuple(_describe(graph, id, spec) for id, spec in graph.specs.items()))


def split_into_stages(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Cut the graph below every repartitioning, and below tables; what still hangs together is a stage."""
    place = {id: n for n, id in enumerate(graph.specs)}
    members = [sorted(found, key=place.__getitem__) for found in graph.stages]
    stages = tuple(_stage(graph, n, ids) for n, ids in enumerate(_writers_first(graph, members), 1))
    of = {id: stage.id for stage in stages for id in stage.operators}
    return replace(
        plan, stages=stages, operators=tuple(replace(one, stage=of.get(one.id, "")) for one in plan.operators)
    )


def list_streams(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Name every stream that is read or written: intermediate ones `<app>-<operator id>`."""
    written: defaultdict[str, list[str]] = defaultdict(list)
    roles: dict[str, Role] = {}
    for id, spec in graph.specs.items():
        for name, role in streams_of(graph, spec):
            if roles.setdefault(name, role) != role:
                both = {role, roles[name]}
                feeds = ": it would feed itself" * (both == {"input", "output"})
                own = f".to_table('{name}-rows') of what is written there, in the place of app.table(...); or "
                instead = own * (both == {"table", "output"}) + "another stream name"
                raise refuse(spec, f"the stream {name!r} is both {roles[name]} and {role}{feeds}", instead)
            if role == "intermediate" and not NAME.fullmatch(name):
                raise refuse(spec, f"the stream name {name!r} is too long", "a shorter op_id=, or name of the app")
            if role in ("intermediate", "output", "dead_letter"):
                written[name].append(id)
    reading = defaultdict(list)
    forms: defaultdict[str, list[ReadForm]] = defaultdict(list)
    for id, source in graph.inputs.items():
        reading[source.stream].append(id)
        form = ReadForm(
            value=stored_form(source.value),
            key=stored_form(source.key) if source.key is not None else None,
            takes_none=source.reads_none,
        )
        forms[source.stream] += [form] * (form not in forms[source.stream])
    broadcast = {table.stream for table in graph.tables.values() if table.broadcast}
    outputs = {output.stream: output for spec in graph.specs.values() for output in spec.outputs}
    streams = tuple(
        StreamPlan(
            name=name,
            role=role,
            written_by=tuple(written[name]),
            read_by=_readers(graph, name, reading),
            broadcast=name in broadcast,
            retention_ms=outputs[name].retention_ms if name in outputs else None,
            retention_bytes=outputs[name].retention_bytes if name in outputs else None,
            compression=outputs[name].compression if name in outputs else None,
            forms=tuple(forms[name]),
        )
        for name, role in roles.items()
    )
    return replace(plan, streams=streams)


def size_streams(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Count partitions: explicit, else as what it is joined or merged with has, else the largest input's.

    A pattern is as large as the largest stream that it stands for.
    """
    sizes = source_sizes(plan, graph, partitions)
    of_stages, joins = grown_sizes(plan, graph, partitions, sizes), graph.of(TableJoin)
    for spec in (graph.specs[id] for stage in plan.stages for id in stage.operators):
        if spec.keyed:
            check_keys_meet(graph, spec, sizes, plan.options.max_partitions)
        if (join := joins.get(spec.op_id or "")) is not None:
            check_table_meets(graph, join, sizes, plan.options.max_partitions)
    stages = tuple(replace(stage, partitions=of_stages[stage.id]) for stage in plan.stages)
    sized = tuple(replace(s, partitions=sizes.get(s.name, partitions.get(s.name, 1))) for s in plan.streams)
    return replace(plan, stages=stages, streams=sized)


def tell_what_goes_by_order(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Mark each operator whose results depend on an order of messages that nothing fixes."""
    return tell_order(plan, graph)


def split_tasks(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Split each task into virtual ones, as many as the options say."""
    factor = plan.options.factor
    check_factor(plan, factor)
    if factor == 1:
        return plan
    width = plan.tasks
    return replace(plan, stages=tuple(replace(stage, buckets=factor, width=width) for stage in plan.stages))


def tell_what_stays_whole(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Mark each operator whose tasks can't be split by keys."""
    return tell_unsplit(plan, graph)


def assign_stores(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Give every operator with state, or with answers that it remembers, a store named as it is."""
    stores = tuple(
        StorePlan(
            name=id,
            operator=id,
            kind=spec.planned_store,
        )
        for id, spec in graph.specs.items()
        if spec.stateful or spec.remembers
    )
    named = {store.operator: store.name for store in stores}
    return replace(plan, stores=stores, operators=tuple(replace(o, store=named.get(o.id)) for o in plan.operators))


def check_waits(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Refuse a pause between retries that would block the event loop."""
    ids = (id for stage in plan.stages for id in stage.operators)
    for spec in map(graph.specs.__getitem__, ids if not plan.options.threads else ()):
        if isinstance(spec.on_error, Retry) and spec.on_error.backoff_ms and not spec.asynchronous:
            wrong = "waiting between retries would block the event loop"
            raise refuse(spec, wrong, "Options(threads=N); or async_flat_map(...)")
    return plan


def bound_drains(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Sum the worst cases of async calls along every path; refuse a path longer than `max_drain_ms`."""
    longest: dict[str, int] = {}
    tasks = {id: len(stage.tasks) for stage in plan.stages for id in stage.operators}
    for id, spec in graph.specs.items():
        above = max(
            (longest[parent] for parent in graph.parents(id) if not graph.specs[parent].repartitions), default=0
        )
        own = worst_case_ms(spec.on_error or fail, spec.call_timeout_ms(tasks[id])) if spec.asynchronous else 0
        longest[id] = above + own
        if own and longest[id] > plan.options.max_drain_ms:
            raise refuse(
                spec,
                f"with its timeout, retries and backoffs a call may take {longest[id]:,} ms along this path, and a "
                f"commit waits max_drain_ms = {plan.options.max_drain_ms:,} ms at most",
                "a shorter timeout_ms=, fewer retries, or a partition_by between the async operators",
            )
    stages = tuple(replace(s, drain_ms=max((longest[id] for id in s.operators), default=0)) for s in plan.stages)
    assert all(stage.drain_ms <= plan.options.max_drain_ms for stage in stages), "a commit waits that long at most"
    return replace(plan, stages=stages)


def fuse_segments(plan: Plan, graph: Graph, partitions: Mapping[str, int], levers: Levers = ALL) -> Plan:
    """Write one function for each run of operators below whatever messages can start from.

    It goes up to what writes or awaits, and to what keeps state where something in the stage awaits.
    """
    inline = plan.options.inline
    return replace(plan, stages=tuple(_with_segments(graph, stage, inline, levers) for stage in plan.stages))


def fold_windows(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Write one loop for reading, the stateless operators and the windows, where an input feeds nothing else."""
    return replace(plan, stages=tuple(_with_folding(graph, stage, plan.options.inline) for stage in plan.stages))


def take_apart(plan: Plan, graph: Graph, partitions: Mapping[str, int]) -> Plan:
    """Replace what loops make, and only read part by part, by variables for the parts."""
    if not plan.options.inline:
        return plan
    functions = functions_of(graph)
    return replace(plan, stages=tuple(_with_scalars(stage, functions) for stage in plan.stages))


Pass = Callable[[Plan, Graph, Mapping[str, int]], Plan]

# The order matters. Sizes are of streams and stages, so both are there before; a stage apart has other tasks, and
# drains are bounded for these, as a rate limit is shared among them. Loops are written for segments that are settled,
# and taken apart once all of their text is there.
PASSES: tuple[Pass, ...] = (
    check,
    list_operators,
    split_into_stages,
    list_streams,
    size_streams,
    tell_what_goes_by_order,
    tell_what_stays_whole,
    group_tasks,
    split_tasks,
    assign_stores,
    check_waits,
    bound_drains,
    fuse_segments,
    fold_windows,
    take_apart,
)


def begins_segment(spec: Spec) -> bool:
    """Whether messages start, or go on, from `spec` by themselves: sources, async results, panes, timers."""
    return spec.source or spec.asynchronous or spec.repartitions or (spec.stateful and not spec.terminal)


def _stage(graph: Graph, number: int, ids: list[str]) -> StagePlan:
    inputs: dict[str, None] = {}
    tables: dict[str, None] = {}
    joins, calls = graph.of(TableJoin), graph.of(AsyncFlatMap)
    for id in ids:
        if id in graph.inputs:
            inputs[graph.inputs[id].stream] = None
        if id in joins:
            tables[joins[id].table.stream] = None
        for parent in graph.parents(id):
            if graph.specs[parent].repartitions:
                inputs[intermediate(graph.app, parent)] = None
    orders = {calls[id].order for id in ids if id in calls}
    return StagePlan(
        id=f"stage-{number}",
        inputs=tuple(inputs),
        operators=tuple(ids),
        tables=tuple(tables),
        by_key="key" in orders,
        ordered="partition" in orders,
    )


def _writers_first(graph: Graph, members: list[list[str]]) -> list[list[str]]:
    """Return the operators of each stage, every stage behind those whose streams it reads.

    Refuses stages that read, by whatever way, what they write: their watermarks would never move.
    """
    stage_of = {id: number for number, ids in enumerate(members) for id in ids}
    cuts = [(id, child) for id, spec in graph.specs.items() if spec.repartitions for child in graph.children(id)]
    writers: dict[int, set[int]] = {stage: set() for stage in range(len(members))}
    for id, child in cuts:
        writers[stage_of[child]].add(stage_of[id])
    # Watermarks go from stage to stage, so in a circle each would wait for itself.
    for _, child in reversed(cuts):
        if stage_of[child] in reached(writers.__getitem__, stage_of[child]):
            wrong = "it brings messages together with what was repartitioned from them, and would wait for itself"
            raise refuse(graph.specs[child], wrong, ".partition_by(...) on both, before they meet")
    depths, place = _depths(graph), {id: n for n, id in enumerate(graph.specs)}

    # In the order in which operators were written, so that stages have the same numbers from run to run.
    def near(stage: int) -> tuple[int, int]:
        return max(map(depths.__getitem__, members[stage])), place[members[stage][0]]

    ordered = [members[stage] for stage in parents_first(writers, near)]
    assert sum(map(len, ordered)) == len(stage_of), "each operator is in one stage"
    return ordered


def _with_segments(graph: Graph, stage: StagePlan, inline: bool, levers: Levers) -> StagePlan:
    feeding = [
        id for id, spec in graph.specs.items() if spec.repartitions and set(graph.children(id)) & set(stage.operators)
    ]
    entries = [id for id in stage.operators if begins_segment(graph.specs[id]) and not graph.specs[id].repartitions]
    # Where something awaits, state is changed when a message is applied, and not while its batch is in the loop.
    keyed = levers.keyed and not any(graph.specs[id].asynchronous for id in stage.operators)
    longest_run = LONGEST_RUN if levers.fusion else 1
    how = inline, keyed, longest_run, keyed and levers.reading
    segments = tuple(fuse(graph, entry, *how) for entry in [*feeding, *entries])
    mixed = any(_is_mixed(graph, [exit.operators[0] for exit in segment.exits]) for segment in segments)
    return replace(stage, segments=segments, ordered=stage.ordered or mixed)


def _with_folding(graph: Graph, stage: StagePlan, inline: bool) -> StagePlan:
    def folded(segment: SegmentPlan) -> SegmentPlan:
        lines = fold(graph, segment.entry, inline)
        text, operators = "\n".join(line.text for line in lines), tuple(line.operator for line in lines)
        return replace(segment, folding=text, folding_lines=operators)

    return replace(stage, segments=tuple(map(folded, stage.segments)))


def _with_scalars(stage: StagePlan, functions: Mapping[str, object]) -> StagePlan:
    def apart(source: str) -> str:
        return "\n".join(taken_apart(source.split("\n"), kinds_in(source, functions)))

    segments = (
        replace(one, source=apart(one.source), plain=apart(one.plain), folding=apart(one.folding))
        for one in stage.segments
    )
    return replace(stage, segments=tuple(segments))


def _is_mixed(graph: Graph, exits: list[str]) -> bool:
    """Whether a message may take effect at once and await something as well: then effects keep the offsets' order."""
    return len({graph.specs[id].asynchronous for id in exits}) == 2


def _depths(graph: Graph) -> dict[str, int]:
    """Return the largest number of repartitionings on a way to each operator."""
    depths: dict[str, int] = {}
    for id in graph.specs:
        depths[id] = max((depths[p] + graph.specs[p].repartitions for p in graph.parents(id)), default=0)
    return depths


def _describe(graph: Graph, id: str, spec: Spec) -> OperatorPlan:
    return OperatorPlan(
        id=id,
        kind=spec.kind,
        label=spec.describe() or _names(spec),
        site=_short(spec.site) if spec.site != NOWHERE else "",
        parents=tuple(graph.parents(id)),
        terminal=spec.terminal,
        stateful=spec.stateful,
        asynchronous=spec.asynchronous,
        on_error=_policy(spec.on_error),
    )


def _short(site: Site) -> str:
    """Return a site as text that is the same wherever the project lies.

    Files are relative to the working folder, or else without their folder.
    """
    return f"{_short_file(site.file, os.getcwd())}:{site.line}"


@lru_cache(maxsize=1_000)
def _short_file(file: str, folder: str) -> str:
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name


def _names(spec: Spec) -> str:
    named = spec.functions().items()
    return ", ".join(label_of(one) for name, one in named if callable(one) and name != "init")


def _policy(policy: object) -> str:
    if isinstance(policy, Retry):
        return f"retry {policy.times} times, then {_policy(policy.then)}"
    if isinstance(policy, DeadLetterPolicy):
        return f"dead letter to {policy.stream}"
    return "fail" if policy is None else type(policy).__name__.lower()


def streams_of(graph: Graph, spec: Spec) -> list[tuple[str, Role]]:
    """Return the streams that one operator reads or writes, each with its role."""
    found: list[tuple[str, Role]] = []
    if spec.source:
        found.append((spec.subject, "table" if spec.looked_into else "input"))
    elif spec.repartitions and spec.op_id:
        found.append((intermediate(graph.app, spec.op_id), "intermediate"))
    found += [(output.stream, "output") for output in spec.outputs]
    letters = (final(spec.on_error or fail), spec.late)
    return found + [(letter.stream, "dead_letter") for letter in letters if isinstance(letter, DeadLetterPolicy)]


def _readers(graph: Graph, stream: str, sources: Mapping[str, list[str]]) -> tuple[str, ...]:
    if stream in sources:
        return tuple(child for id in sources[stream] for child in graph.children(id))
    repartitioning = stream.removeprefix(f"{graph.app}-")
    return tuple(graph.children(repartitioning)) if repartitioning in graph.specs and stream != repartitioning else ()
