"""The parameters of operators when records were read last, and their changes since."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, MethodType

import msgspec
from msgspec.structs import replace

from operators.core.base import Spec
from operators.core.wording import stable
from operators.partition_by import PartitionBy, hash_
from planner.model.graph import Graph
from planner.model.virtual_tasks import is_task
from runtime.encoding.serdes import Tagged
from runtime.job.job_model import JOB
from runtime.model.checkpoint import Checkpoint
from runtime.model.metrics import ChangeMetrics

PARAMETERS = "parameters"
"""The word under which the job notes the parameters of operators."""
MOST_DEEP = 5
"""The steps in which functions are found that other functions hold."""
MOST_HELD = 32
"""The values of a list that are looked at for functions: one that a function holds may be a table of millions."""
PLAIN = frozenset({bool, int, float, str})
_NAMED = frozenset({type, MethodType, BuiltinFunctionType, MethodDescriptorType})
_MODULES = re.compile(r"\b(?:\w+\.)+(?=[A-Za-z_])|(?: object)? at 0x[0-9a-fA-F]+")


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """The parameters of one operator when the application was last opened.

    `former` are those when something was read last, None where they are the same; `read` is the sum of the offsets that
    had been read of its inputs when they changed. `calls` tells its functions from others, by what they do.
    """

    now: dict[str, str]
    former: dict[str, str] | None = None
    read: int = 0
    calls: str = ""


def without_modules(words: str) -> str:
    """Return words without what depends on how the program is started: modules of types, and addresses.

    >>> without_modules("rows Json(type=<class '__main__.Order'>)")
    "rows Json(type=<class 'Order'>)"
    """
    return _MODULES.sub("", words)


def key_words(spec: Spec, graph: Graph) -> dict[str, str]:
    """Return the words for the keys by which an operator's state lies; nothing where it lies by none."""
    if spec.looked_into:
        return {"keys": repr(spec.key or Tagged())}
    if not spec.keyed:
        return {}
    origin = graph.keyed_by(graph.streams_into(spec.op_id or "")[0]) or ""
    partitioning = graph.of(PartitionBy).get(origin)
    by = hash_ if partitioning is None else partitioning.by
    return {"keys": repr(graph.key_serde(origin) or Tagged()), "partitioned by": str(by)}


def parameters_of(graph: Graph) -> dict[str, dict[str, str]]:
    """Return the parameters of operators with state, and of inputs above these: all that results depend on."""
    found = {}
    for id, spec in graph.specs.items():
        if spec.stateful or (spec.source and any(graph.specs[one].stateful for one in graph.below(id))):
            keys = {} if spec.source else {**key_words(spec, graph), "reads": _way_to(graph, id)}
            if spec.event_time and not spec.source:
                keys["event time"] = f"that of {' and '.join(graph.timed_by(id))}"
            words = {"kind": spec.kind, **spec.parameters(), **keys}
            found[id] = {name: without_modules(one) for name, one in words.items()}
    return found


def _way_to(graph: Graph, id: str) -> str:
    """Return the words for how messages come to an operator: by operators without state, from inputs and from state.

    Of those without state only the kinds are told: the ids that the library gives them change with what stands beside.
    """
    found = []
    for parent in graph.parents(id):
        spec = graph.specs[parent]
        if spec.stateful or spec.source:
            found.append(parent)
        else:
            way = _way_to(graph, parent)
            if spec.repartitions and spec.gives_keys and not spec.rekeys:
                found.append(way)  # its messages are as they were, in another place
            else:
                found.append(f"({way}) > {spec.kind}" if " and " in way else f"{way} > {spec.kind}")
    return " and ".join(found)


def noted_parameters(checkpoints: Mapping[str, Checkpoint]) -> dict[str, Noted] | None:
    """Return what was noted when an application was last opened; None where no version that notes it has opened it."""
    noted = checkpoints.get(JOB, Checkpoint(0)).meanings.get(PARAMETERS)
    return None if noted is None else msgspec.json.decode(noted, type=dict[str, Noted])


def to_note(graph: Graph, checkpoints: Mapping[str, Checkpoint]) -> str:
    """Return what is noted of an application that is opened now."""
    before, reads, found = noted_parameters(checkpoints), offsets_read(checkpoints), {}
    for id, now in parameters_of(graph).items():
        read = _read(graph, id, reads)
        if before is None or not read:
            found[id] = Noted(now)
        elif id not in before:
            found[id] = Noted(now, {}, read)
        else:
            found[id] = _followed(before[id], now, read)
    told = {id: replace(one, calls=calls_of(graph.specs[id])) for id, one in found.items()}
    return msgspec.json.encode(told).decode()


def renamed(noted: str, moves: Mapping[str, str]) -> str:
    """Return what was noted, under the new ids of operators."""
    found = msgspec.json.decode(noted, type=dict[str, Noted])
    return msgspec.json.encode({moves.get(id, id): one for id, one in found.items()}).decode()


def noted_as(noted: str, graph: Graph, ids: Collection[str]) -> str:
    """Return what was noted, as if some operators had always been as they are now."""
    found, now = msgspec.json.decode(noted, type=dict[str, Noted]), parameters_of(graph)
    found |= {id: Noted(now[id]) for id in ids if id in now}
    return msgspec.json.encode(found).decode()


def changes_of(graph: Graph, checkpoints: Mapping[str, Checkpoint]) -> tuple[ChangeMetrics, ...]:
    """Return the changes since something was read last, as they are noted now."""
    return tuple(
        ChangeMetrics(operator=id, what=tuple(differences(one.former, one.now)), is_new=not one.former)
        for id, one in (noted_parameters(checkpoints) or {}).items()
        if one.former is not None and id in graph.specs
    )


def changed_now(
    graph: Graph, checkpoints: Mapping[str, Checkpoint], noted: str, kept: Collection[str]
) -> Iterator[ChangeMetrics]:
    """Yield the changes since the application was last opened, of operators that have read, or `kept`, anything.

    `noted` is what is noted now.
    """
    before, reads = noted_parameters(checkpoints) or {}, offsets_read(checkpoints)
    for id, one in msgspec.json.decode(noted, type=dict[str, Noted]).items():
        what = (*differences(before[id].now, one.now),) if id in before else ()
        if what and (id in kept or _read(graph, id, reads)):
            yield ChangeMetrics(operator=id, what=what)


def traded(checkpoints: Mapping[str, Checkpoint], noted: str, kept: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield operators that `kept` something and call now what another one called in the run before, with its id.

    That other one does no longer: their ids were exchanged, or given on, and state goes with ids.
    """
    before, now = noted_parameters(checkpoints) or {}, msgspec.json.decode(noted, type=dict[str, Noted])
    calls = {id: one.calls for id, one in now.items()}
    for id in now.keys() & before.keys() & {*kept}:
        if not calls[id] or before[id].calls in ("", calls[id]):
            continue
        kind = now[id].now.get("kind")
        had = [other for other, one in before.items() if one.calls == calls[id] and one.now.get("kind") == kind]
        if len(had) == 1 and calls.get(had[0]) != calls[id]:
            yield id, had[0]


def calls_of(spec: Spec) -> str:
    """Return a short word for what an operator's functions do, other than for others; "" where it has none."""
    values = [getattr(spec, one.name) for one in fields(spec) if one.name not in spec.beside_results]
    parts = [*_told(values, MOST_DEEP)]
    return blake2b("\n".join(parts).encode(errors="replace"), digest_size=8).hexdigest() if parts else ""


def _told(values: Iterable[object], deep: int) -> Iterator[str]:
    """Yield words for the functions among values: their code, with the plain values that they were made with.

    Whatever else a function holds is told by its type alone, as nothing of a user's own may be called for this.
    """
    # A function may hold itself, and so may what it holds.
    for value in values if deep else ():
        held, kind = list[object](), type(value)
        if type(value) is partial:
            held = [value.func, *value.args, *value.keywords.values()]
        elif type(value) is FunctionType:
            yield _code_told(value.__code__)
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # of a name that has no value yet
                    held.append(cell.cell_contents)
            held += value.__defaults__ or ()
        elif type(value) is list or type(value) is tuple:
            held = [*islice(value, MOST_HELD)]
        elif kind.__module__.startswith("operators.") and is_dataclass(kind):
            held = [getattr(value, one.name) for one in fields(kind)]
        elif callable(value):
            yield getattr(value, "__qualname__", "") if kind in _NAMED else kind.__qualname__
        if kind is partial or kind is FunctionType:
            yield stable([one for one in held if type(one) in PLAIN])
        yield from _told(held, deep - 1)


def _code_told(code: CodeType) -> str:
    inside = (_code_told(one) if isinstance(one, CodeType) else stable(one) for one in code.co_consts)
    return f"{code.co_name} {code.co_code.hex()} {code.co_names} [{', '.join(inside)}]"


def offsets_read(checkpoints: Mapping[str, Checkpoint]) -> dict[str, int]:
    """Return the sum of the offsets read of each stream, over all partitions."""
    found = Counter[str]()
    for name, checkpoint in checkpoints.items():
        if is_task(name):
            for one in checkpoint.positions:
                found[one.stream] += one.offset
    return found


def _followed(before: Noted, now: dict[str, str], read: int) -> Noted:
    """Return what is noted of an operator of which something is noted already."""
    # Who changes a program twice before it reads anything has changed it once, against what read last.
    has_read = before.former is None or before.read != read
    former = before.now if has_read else before.former or {}
    is_as_then = former and not [*differences(former, now)]
    return Noted(now) if is_as_then else Noted(now, former, read)


def differences(former: Mapping[str, str] | None, now: Mapping[str, str]) -> Iterator[str]:
    """Yield in words the differences of parameters that both versions of the library know."""
    for name in now:
        # A parameter that only one version of the library knows is no change of the user's.
        if former and name in former and former[name] != now[name]:
            yield f"{name} was {former[name]}, and is {now[name]}"


def _read(graph: Graph, id: str, reads: Mapping[str, int]) -> int:
    """Return the sum of the offsets read of all inputs above an operator."""
    above = [graph.inputs[one] for one in (id, *graph.above(id)) if one in graph.inputs]
    return sum(offset for stream, offset in reads.items() if any(spec.matches(stream) for spec in above))
