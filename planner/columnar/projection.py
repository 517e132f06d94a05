"""Lowers the filters and maps between an input and an output to columns: from a record's to those of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from operators.io import SendTo
from operators.stateless import Filter, Map
from planner.columnar.terms import NotColumnar, Term, columns_of, condition_of, names_in, record_of, term_of
from planner.model.graph import Graph


class Step(NamedTuple):
    """A filter, as its condition, or a map, as the columns of the record that it makes."""

    id: str
    condition: Term | None = None
    made: tuple[tuple[str, Term], ...] = ()


class Reshaped(NamedTuple):
    """The way from an input to an output: event time, only looked at, filters, maps, and the columns written."""

    entry: str
    exit: str
    stream: str
    timestamp: Term | None
    steps: tuple[Step, ...]
    written: tuple[Term, ...]
    """The columns of the output, as the last step leaves them."""
    columns: tuple[Term, ...]
    """The columns of all fields of a record, whether anything looks at them or not."""

    @property
    def needed(self) -> list[str]:
        """The names of the columns of the input that any term reads."""
        terms = [] if self.timestamp is None else [self.timestamp]
        for step in self.steps:
            terms += [term for _, term in step.made] if step.condition is None else [step.condition]
            if step.condition is None:
                # What comes next looks at what this one makes, and no more at the columns of the input.
                break
        else:
            terms += self.written
        return sorted({name for term in terms for name in names_in(term)})


def reshaped(graph: Graph, entry: str, kind: object) -> Reshaped:
    """Return what an input feeds as operations on columns of a `kind` of records; raises NotColumnar."""
    source, filters, maps = graph.inputs[entry], graph.of(Filter), graph.of(Map)
    if source.watermark_of is not None or source.key_of is not None:
        raise NotColumnar("it has a key= or watermark= of its own, which are called for each record")
    if source.max_ahead_ms is not None or source.unit not in (None, "ms"):
        raise NotColumnar("it has a max_ahead_ms= or unit=, for which each record's time is looked at")
    columns = fields = columns_of(kind)
    assert isinstance(kind, type), "columns_of refuses all else"
    steps: list[Step] = []
    for id in one_way(graph, entry):
        spec = graph.specs[id]
        if id in graph.of(SendTo):
            (output,) = spec.outputs
            # Columns are written as they are: only the declared type says that the output's serde would write the same.
            declared = getattr(output.value, "type", None)
            if graph.of(SendTo)[id].headers is not None:
                raise NotColumnar("headers are made for each record")
            if declared is not kind:
                raise NotColumnar(f"the output {output.stream!r} is not declared to hold a {kind.__name__}")
            at = None if source.timestamp_of is None else term_of(source.timestamp_of, fields, ("int",))
            exit, written = spec.exit, tuple(columns.values())
            found = Reshaped(entry, exit, output.stream, at, tuple(steps), written, tuple(fields.values()))
            if not found.needed:
                raise NotColumnar("nothing looks at any column")
            return found
        if id in filters:
            steps.append(Step(id, condition_of(filters[id].function, columns)))
        elif id in maps and maps[id].headers:
            raise NotColumnar(f"{id} takes the headers of each record")
        elif id in maps:
            kind, made = record_of(maps[id].function, columns)
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
