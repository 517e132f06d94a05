"""Plans to describe and draw: small ones by hand, one that is out to break pictures, and random ones."""

import msgspec
from hypothesis import strategies as st

from planner.model.plan import ExitPlan, OperatorPlan, Plan, SegmentPlan, StagePlan, StorePlan, StreamPlan

HOSTILE = (
    "<script>alert(1)</script>",
    "\"double\" and 'single' quotes",
    "a & b &amp; c; #35; `code`",
    "first line\nsecond\r\nthird\x1b[31m\x00",
    "x" * 300,
    "word " * 60,
    "\N{ROCKET}\N{WAVING HAND SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}" * 12,
    "\u05e9\u05dc\u05d5\u05dd \u202egnp.exe\u202c \u0645\u0631\u062d\u0628\u0627",
    "back\\slash \\N ]] --> end %% {{}} |x|",
    "W" * 40,
    "\u6f22\u5b57" * 30,
)
FILE = "/home/me/project/app.py"


def operator(name: str, kind: str, *parents: str, stage: str = "stage-1", line: int = 1, **rest) -> OperatorPlan:
    return OperatorPlan(id=name, kind=kind, parents=parents, stage=stage, site=f"{FILE}:{line}", **rest)


def plan(app: str, operators: list[OperatorPlan], streams: list[StreamPlan], **partitions: int) -> Plan:
    """Return the plan of these operators and streams, with a store for each operator that names one."""
    stages = []
    for name in dict.fromkeys(one.stage for one in operators if one.stage):
        held = tuple(one.id for one in operators if one.stage == name)
        inputs = tuple(one.name for one in streams if set(held) & set(one.read_by))
        stages.append(
            StagePlan(id=name, inputs=inputs, operators=held, partitions=partitions.get(name.replace("-", "_"), 4))
        )
    stores = tuple(
        StorePlan(name=one.store, operator=one.id, kind="memory" if one.kind == "table" else "lmdb")
        for one in operators
        if one.store
    )
    return Plan(app=app, operators=tuple(operators), stages=tuple(stages), streams=tuple(streams), stores=stores)


def chain() -> Plan:
    """A chain of five."""
    return plan(
        "tags",
        [
            operator("clicks", "input", label="clicks", line=3),
            operator("filter-clicks", "filter", "clicks", label="is_human", line=5),
            operator("map-clicks", "map", "filter-clicks", label="to_tag", line=6, on_error="skip"),
            operator("flat_map-clicks", "flat_map", "map-clicks", label="λ", line=7),
            operator("send_to-tags", "send_to", "flat_map-clicks", label="tags", line=8, terminal=True),
        ],
        [
            StreamPlan(name="clicks", role="input", partitions=4, read_by=("filter-clicks",)),
            StreamPlan(name="tags", role="output", partitions=2, written_by=("send_to-tags",)),
        ],
    )


def flights() -> Plan:
    """The shape of the main job: a table, a fork with an async arm, stages with state, and dead letters."""
    delays = {"stage": "stage-2", "line": 51}
    return plan(
        "carrier-delays",
        [
            operator("flights", "input", label="flights", line=31, on_error="dead letter to bad-flights"),
            operator("planes", "table", stage="", label="planes", line=32, stateful=True, store="planes"),
            operator("join", "table_join", "flights", "planes", label="left join with planes", line=41),
            operator("branch", "branch", "join", label="late | on_time", line=43),
            operator("late", "branch_arm", "branch", label="late", line=43),
            operator("on_time", "branch_arm", "branch", label="on_time", line=43),
            operator(
                "weather", "async_flat_map", "late", label="≤ 500 in flight, 2,000 ms", line=45, asynchronous=True
            ),
            operator("merge", "merge", "weather", "on_time", line=46),
            operator("by-carrier", "partition_by", "merge", label="λ", line=50, terminal=True),
            operator("hourly", "window", "by-carrier", label="hourly: count", stateful=True, store="hourly", **delays),
            operator("send_to-delays", "send_to", "hourly", label="delays", terminal=True, **delays),
            operator("alert", "sink", "hourly", label="page_someone", terminal=True, **delays),
        ],
        [
            StreamPlan(name="flights", role="input", partitions=4, read_by=("join",)),
            StreamPlan(name="bad-flights", role="dead_letter", partitions=1, written_by=("flights",)),
            StreamPlan(name="planes", role="table", partitions=1, read_by=("join",), broadcast=True),
            StreamPlan(
                name="delays-by-carrier",
                role="intermediate",
                partitions=8,
                written_by=("by-carrier",),
                read_by=("hourly",),
            ),
            StreamPlan(name="delays", role="output", written_by=("send_to-delays",)),
        ],
        stage_2=8,
    )


def pattern() -> Plan:
    """Eight streams read by one input, next to a ninth."""
    names = [f"orders-{country}" for country in ("de", "es", "fr", "it", "nl", "pl", "se", "uk")]
    return plan(
        "shop",
        [
            operator("orders", "input", label="orders-*", line=3),
            operator("refunds", "input", label="refunds", line=4),
            operator("merge", "merge", "orders", "refunds", line=5),
            operator("send_to-all", "send_to", "merge", label="all", line=6, terminal=True),
        ],
        [
            *(StreamPlan(name=name, role="input", partitions=16, read_by=("orders",)) for name in names),
            StreamPlan(name="refunds", role="input", partitions=16, read_by=("merge",)),
            StreamPlan(name="all", role="output", partitions=16, written_by=("send_to-all",)),
        ],
    )


def hostile() -> Plan:
    """Every name that a user gives is out to break the picture."""
    operators = [
        operator(f"{number}{text}", text, *[f"{number - 1}{HOSTILE[number - 1]}"][:number], label=text, on_error=text)
        for number, text in enumerate(HOSTILE)
    ]
    source = SegmentPlan(
        entry=HOSTILE[0],
        source="\n".join(HOSTILE),
        plain="",
        lines=HOSTILE,
        plain_lines=(),
        exits=(ExitPlan(id="x", operators=()),),
    )
    stage = StagePlan(id=HOSTILE[0], inputs=HOSTILE, operators=HOSTILE, segments=(source,))
    streams = tuple(
        StreamPlan(name=text, role=role, written_by=(operators[0].id,), read_by=(operators[-1].id,))
        for text, role in zip(HOSTILE, ("input", "table", "intermediate", "output", "dead_letter") * 3, strict=False)
    )
    named = [msgspec.structs.replace(one, stage=stage.id, site=f"{HOSTILE[0]}/{one.id}:1") for one in operators]
    stores = tuple(StorePlan(name=text, operator=operators[0].id) for text in HOSTILE)
    return Plan(app=HOSTILE[0], operators=tuple(named), stages=(stage,), streams=streams, stores=stores)


LOOKS = ({}, {"asynchronous": True}, {"stateful": True, "store": "kept"}, {"terminal": True}, {"on_error": "skip"})


@st.composite
def random_plans(draw: st.DrawFn) -> Plan:
    """Draw plans of up to four stages, in which any operator may read any earlier one."""
    labels = st.one_of(st.text(max_size=20), st.sampled_from(HOSTILE))
    operators: list[OperatorPlan] = []
    streams: list[StreamPlan] = []
    for number in range(draw(st.integers(1, 12))):
        earlier = [one.id for one in operators]
        parents = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
        stage = f"stage-{draw(st.integers(1, 4))}"
        kind = draw(st.sampled_from(["map", "merge", "window", "partition_by", "table", "input"]))
        look = draw(st.sampled_from(LOOKS))
        operators.append(operator(f"op-{number}", kind, *parents, stage=stage, label=draw(labels), **look))
    ids = st.lists(st.sampled_from([one.id for one in operators]), unique=True, max_size=3).map(tuple)
    for number in range(draw(st.integers(0, 6))):
        role = draw(st.sampled_from(["input", "table", "intermediate", "output", "dead_letter"]))
        count = draw(st.none() | st.integers(1, 1_000))
        name = f"stream-{number}-{draw(labels)}"
        streams.append(StreamPlan(name=name, role=role, partitions=count, written_by=draw(ids), read_by=draw(ids)))
    return plan("random", operators, streams)
