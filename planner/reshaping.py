"""From a record's columns to those of another: filters and maps between an input and an output, both of columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from operators.io import Input, SendTo
from operators.stateless import Filter, Map
from planner.columns import NotColumnar, Term, columns_of, condition_of, names_in, record_of, term_of
from planner.counting import exit_of
from planner.graph import Graph


class Step(NamedTuple):
    """A filter, by its condition, or a map, by the columns of what it makes."""

    id: str
    condition: Term | None = None
    made: tuple[tuple[str, Term], ...] = ()


class Reshaped(NamedTuple):
    """From an input to an output: event time, which is only looked at, filters and maps, and what is written."""

    entry: str
    exit: str
    stream: str
    timestamp: Term | None
    steps: tuple[Step, ...]
    written: tuple[Term, ...]
    """The columns of the output, as the last step leaves them."""
    columns: tuple[Term, ...]
    """What all fields of a record are read from, whether anything looks at them or not."""

    @property
    def needed(self) -> list[str]:
        """The names of the columns that are looked at."""
        terms = [] if self.timestamp is None else [self.timestamp]
        for step in self.steps:
            terms += [term for _, term in step.made] if step.condition is None else [step.condition]
            if step.condition is None:
                break  # what comes next looks at what this one makes
        else:
            terms += self.written
        return sorted({name for term in terms for name in names_in(term)})


def reshaped(graph: Graph, entry: str, kind: Any) -> Reshaped:
    """Return how what an input feeds is computed on columns, where records are of a `kind`; raises NotColumnar."""
    source = graph.specs[entry]
    assert isinstance(source, Input)
    if source.watermark_of is not None or source.key_of is not None:
        raise NotColumnar("it has a key= or watermark= of its own, which are called for each record")
    columns = fields = columns_of(kind)
    steps: list[Step] = []
    for id in one_way(graph, entry):
        spec = graph.specs[id]
        if isinstance(spec, SendTo):
            output = spec.output
            declared = getattr(output.value, "type", None)
            if declared is not kind:
                raise NotColumnar(f"the output {output.stream!r} is not declared to hold a {kind.__name__}")
            at = None if source.timestamp_of is None else term_of(source.timestamp_of, fields, ("int",))
            exit, written = exit_of(spec), tuple(columns.values())
            found = Reshaped(entry, exit, output.stream, at, tuple(steps), written, tuple(fields.values()))
            if not found.needed:
                raise NotColumnar("nothing looks at any column")
            return found
        if isinstance(spec, Filter):
            steps.append(Step(id, condition_of(spec.function, columns)))
        elif isinstance(spec, Map):
            kind, made = record_of(spec.function, columns)
            columns = columns_of(kind)
            steps.append(Step(id, made=tuple(made.items())))
        else:
            raise NotColumnar(f"{id} is no filter and no map")
    raise NotColumnar("it leads to no output")


def one_way(graph: Graph, entry: str) -> Iterator[str]:
    """Yield what an input feeds, one behind the other; raises NotColumnar where ways part or meet."""
    id = entry
    while children := graph.children(id):
        if len(children) != 1 or graph.streams_into(children[0]) != [id]:
            raise NotColumnar(f"more than one way leads from {id}")
        (id,) = children
        yield id
