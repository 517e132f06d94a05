"""Writes the functions that add values to the accumulators of an aggregation, and make results of these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from types import CodeType
from typing import Any, NamedTuple, TypeVar

from operators.aggregations.aggregation import Aggregation, ByName, itself
from operators.state.keyed_state import is_plain
from planner.codegen.inlining import expression

V = TypeVar("V")
R = TypeVar("R")

SHARED = {"total": "sum", "most": "max", "least": "min"}
"""What parts that read the same ask of the numbers together, and the function that makes it."""
KINDS: dict[str, Any] = {
    "INTS": {int},
    "WHOLE": frozenset({int, bool}),
    "FLOATS": {float},
    "NONE": type(None),
    "NUMBERS": frozenset({int, float, type(None)}),
}
"""The names of types that are written: of what was read, and of the accumulators that numbers are compared with."""


class WrittenPart(NamedTuple):
    """One of the aggregations side by side: its number, and the list of what it adds, as it is written."""

    number: int
    part: Aggregation[Any, Any]
    read: str

    def add(self, text: str, one: str = "") -> str:
        """Return the line that adds by an expression, or by a call where there is none: all, or the `one` there is."""
        state, read = f"state{self.number}", f"[{one}]" if one else self.read
        names = {"state": state, "read": read, "call": f"add{self.number}({state}, {read})"}
        names |= {"number": "1" if one else f"len({read})"}
        names |= {"first": one or f"{read}[0]", "last": one or f"{read}[-1]"}
        names |= {name: one or f"{name}_{read}" for name in SHARED}
        return f"{state} = {(text or '{call}').format(**names)}"

    def finish(self) -> str:
        """Return the expression for the result."""
        state = f"state{self.number}"
        if self.part.finish is itself:
            return state
        call = f"finish{self.number}({state})"
        return self.part.code.finish.format(state=state, call=call) or call


def written(aggregation: Aggregation[V, R]) -> str:
    """Return the source of `add(state, values)` for an aggregation; "" where it would be no other than its own.

    What several aggregations side by side read by the same expression is read once, and written in the place of a call.
    So are their sums and the like of numbers; what is no number, or NaN, is for the aggregation's own functions.

    One value by itself is added without a list, as most come where there are many keys.

    >>> from operators.aggregations.aggregation import aggregate, count, total
    >>> print(written(aggregate(dict, n=count(), sum=total(lambda pair: pair[0]))))
    def add(state, values):
        state0, state1, = state
        try:
            if len(values) == 1:
                value, = values
                state0 = state0 + 1
                one1 = value[0]
                if one1 is not None:
                    kind = type(one1)
                    if kind in WHOLE:
                        state1 = (state1[0] + one1, *state1[1:])
                    else:
                        state1 = add1(state1, [one1])
            else:
                state0 = state0 + len(values)
                read1 = [value[0] for value in values]
                kinds = {*map(type, read1)}
                if NONE in kinds:
                    read1 = [read for read in read1 if read is not None]
                    kinds.remove(NONE)
                if read1:
                    if kinds <= WHOLE:
                        total_read1 = sum(read1)
                        state1 = (state1[0] + total_read1, *state1[1:])
                    else:
                        state1 = add1(state1, read1)
        except Exception:
            return called(state, values)
        return state0, state1,
    """
    slots, reads = _slots(aggregation)
    return _adding(aggregation, slots, reads)


def _slots(aggregation: Aggregation[V, R]) -> tuple[list[WrittenPart], dict[str, str]]:
    """Return the aggregations side by side, and by the expression read off `value` the list of what it comes to."""
    reads: dict[str, str] = {}
    slots = []
    for number, part in enumerate(aggregation.parts or (aggregation,)):
        text = _reading(part, number)
        slots.append(WrittenPart(number, part, reads.setdefault(text, f"read{number}") if text else "values"))
    return slots, reads


def _adding(aggregation: Aggregation[V, R], slots: list[WrittenPart], reads: dict[str, str]) -> str:
    if all(slot.read == "values" and not slot.part.code.add for slot in slots) or not (reads or aggregation.parts):
        return ""
    one = [*(slot.add(slot.part.code.add, "value") for slot in slots if slot.read == "values")]
    body = [line for slot in slots if slot.read == "values" for line in _added_any(slot)]
    for text, read in reads.items():
        of_it = [slot for slot in slots if slot.read == read]
        found = read.replace("read", "one")
        one += [f"{found} = {text}", f"if {found} is not None:", *_indented(_added(of_it, read, found))]
        body += _read_off(text, read, _asks_kinds(of_it))
        if any(any(slot.part.code[:3]) for slot in of_it):
            body += [f"if {read}:", *_indented(_added(of_it, read))]
        else:
            body += [slot.add("") for slot in of_it]
    body = ["if len(values) == 1:", *_indented(["value, = values", *one]), "else:", *_indented(body)]
    states, state = _unpacked(aggregation, slots)
    return "\n".join(
        [
            f"def add({state}, values):",
            *_indented(states),
            "    try:",
            *_indented(_indented(body)),
            # Where it fails the user's functions are called, whose tracebacks have their own lines.
            "    except Exception:",
            f"        return called({state}, values)",
            f"    return {''.join(f'state{slot.number}, ' for slot in slots).rstrip() if states else state}",
        ]
    )


def _unpacked(aggregation: Aggregation[V, R], slots: list[WrittenPart]) -> tuple[list[str], str]:
    """Return the line that takes the accumulators of several apart, if they are several, and the name of what it is."""
    if not aggregation.parts:
        return [], "state0"
    return [f"{''.join(f'state{slot.number}, ' for slot in slots)}= state"], "state"


def _added_any(slot: WrittenPart) -> list[str]:
    """Return the lines that add values as they are, of which there may be none."""
    line = slot.add(slot.part.code.add)
    return [line] if slot.part.counts or not slot.part.code.add else ["if values:", *_indented([line])]


def _added(slots: list[WrittenPart], read: str, one: str = "") -> Iterator[str]:
    """Yield the lines that add what was read, of which there is some; or the `one` that was."""
    yield from (slot.add(slot.part.code.add, one) for slot in slots if slot.part.code.add)
    others = [slot for slot in slots if not slot.part.code.add]
    numbers = {slot.number: slot.part.code.numbers for slot in others}
    ints = {slot.number: slot.part.code.ints or slot.part.code.numbers for slot in others}
    if not _asks_kinds(slots):
        yield from (slot.add("", one) for slot in others)
        return
    if one:
        yield f"kind = type({one})"
    # A sum takes a bool, as a comparison comes to, for the int that it is; the largest of some stays a bool.
    if all(slot.part.code.ints for slot in others):
        yield "if kind in WHOLE:" if one else "if kinds <= WHOLE:"
    else:
        yield "if kind is int:" if one else "if kinds == INTS:"
    yield from _indented(() if one else _shared(ints.values(), read))
    yield from _indented(slot.add(ints[slot.number], one) for slot in others)
    if any(numbers.values()):
        # Only where all are numbers, and no NaN among them, is their sum a number.
        total = f"(total_{read} := sum({read})) == total_{read}"
        yield f"elif kind is float and {one} == {one}:" if one else f"elif kinds == FLOATS and {total}:"
        shared = () if one else (line for line in _shared(numbers.values(), read) if not line.startswith("total"))
        yield from _indented(shared)
        yield from _indented(slot.add(numbers[slot.number], one) for slot in others)
    yield "else:"
    yield from _indented(slot.add("", one) for slot in others)


def _asks_kinds(slots: list[WrittenPart]) -> bool:
    """Whether one of them adds numbers by an expression, as the types of what was read allow."""
    return any(slot.part.code.ints or slot.part.code.numbers for slot in slots if not slot.part.code.add)


def _read_off(text: str, read: str, asks_kinds: bool) -> list[str]:
    """Return the lines that read an expression off all values, without any None, and find the types of that."""
    if not asks_kinds:
        return [f"{read} = [read for value in values if (read := {text}) is not None]"]
    # The types tell of a None as well, so that none is looked for value by value.
    found = f"{read} = [{text} for value in values]", f"kinds = {{*map(type, {read})}}"
    without = f"{read} = [read for read in {read} if read is not None]", "kinds.remove(NONE)"
    return [*found, "if NONE in kinds:", *_indented(without)]


def _shared(texts: Collection[str], read: str) -> list[str]:
    """Return the lines that make what expressions ask of all numbers together."""
    asked = [name for name in SHARED if any(f"{{{name}}}" in text for text in texts)]
    return [f"{name}_{read} = {SHARED[name]}({read})" for name in asked]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def finishing(aggregation: Aggregation[Any, Any]) -> str:
    """Return the source of `finish(state)`; "" where it would be no other than the aggregation's own.

    >>> from operators.aggregations.aggregation import aggregate, count, total
    >>> print(finishing(aggregate(dict, n=count(), sum=total(len))))
    def finish(state):
        state0, state1, = state
        return into(n=state0, sum=state1[0] if state1[1:] == (0, 0, 0, 0) else finish1(state1))
    """
    slots, _ = _slots(aggregation)
    gather = aggregation.gather
    states, state = _unpacked(aggregation, slots)
    if isinstance(gather, ByName):
        result = ", ".join(f"{name}={slot.finish()}" for name, slot in zip(gather.names, slots, strict=True))
        result = f"into({result})"
    elif aggregation.parts or aggregation.finish is itself or not aggregation.code.finish:
        return ""
    else:
        result = slots[0].finish()
    return "\n".join([f"def finish({state}):", *_indented(states), f"    return {result}"])


def compiled(aggregation: Aggregation[Any, Any]) -> Aggregation[Any, Any]:
    """Return an aggregation that adds, begins and finishes by the functions that are written for it."""
    slots, reads = _slots(aggregation)
    namespace: dict[str, Any] = {**KINDS, "called": aggregation.add}
    for number, part, read in slots:
        namespace[f"of{number}"], namespace[f"finish{number}"] = part.of, part.finish
        namespace[f"add{number}"] = part.add if read == "values" else part.add_read
    if isinstance(aggregation.gather, ByName):
        namespace["into"] = aggregation.gather.function
    changed: dict[str, Any] = {}
    for name, source in (("add", _adding(aggregation, slots, reads)), ("finish", finishing(aggregation))):
        if source:
            # The text is the planner's own.
            exec(_code(source), namespace)
            changed[name] = namespace[name]
    # What ours begin with is always the same, and nobody can change it in place.
    are_ours = all(one.remake is not None and one.keeps != "the user's" for one in aggregation.leaves())
    if aggregation.parts and are_ours and is_plain(aggregation.init()):
        changed["init"] = partial(itself, aggregation.init())
    return replace(aggregation, **changed)


def _reading(part: Aggregation[V, R], number: int) -> str:
    """Return the expression for what a part reads off `value`; "" where it takes values as they are."""
    if part.of is None or part.add_read is None or part.counts:
        return ""
    found = expression(part.of)
    return f"of{number}(value)" if found is None or len(found.parameters) != 1 else found.of(["value"])


@lru_cache(maxsize=256)
def _code(source: str) -> CodeType:
    return compile(source, "<aggregation>", "exec")
