"""Fuses into one loop the reading of keys and times, a run of stateless operators, and the windows behind it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from operators.core.base import EARLIEST_MS, LATEST_MS, Serde
from operators.partition_by import PartitionBy
from operators.windows.window import BY_KEY, Window
from planner.codegen.fusion import INDENT, SourceLine, Writer, bound
from planner.model.graph import Graph

IN_LOOP = 2
"""The depth of the lines that every message comes to."""
EARLY = (f"if timestamp < {EARLIEST_MS}:", '    raise ValueError("too early a timestamp")')


def fold(graph: Graph, entry: str, inline: bool = True) -> list[SourceLine]:
    """Write the loop; no lines where messages from `entry` reach anything but windows that tile the time line.

    `segment(values, keys, kinds, highest, *places)` returns the highest timestamp, the late rows per exit, each with
    its place counted from the end, and counts. Keys that are read off values are of one kind: those of the entry, and
    those that an exit makes; those that records carry are given as they are held. It
    has no effect but on the groups that `places` give out, so that where anything raises, or is not as most records
    are, what it did is dropped and the batch goes the ordinary way.
    """
    spec = graph.inputs.get(entry)
    if spec is None or spec.timestamp_of is None or spec.watermark_of or spec.unit not in (None, "ms"):
        return []
    writer = _FoldingWriter(graph, entry, inline, spec.max_disorder_ms)
    has_key = spec.key_of is not None or spec.key is not None
    foldable = all(_fold_of(graph, exit) and (has_key or graph.specs[exit].rekeys) for exit in writer.exits)
    return writer.lines(rows=False) if foldable and writer.exits and not writer.inner and not writer.reads else []


def carried_key(graph: Graph, entry: str) -> Serde | None:
    """Return the serde of the keys that records of an input carry; None where keys are read off their values."""
    spec = graph.inputs[entry]
    return None if spec.key_of is not None else spec.key


def window_behind(graph: Graph, id: str) -> Window | None:
    """Return the windows that messages may be grouped for before a repartitioning; None where rows have to go on.

    What more than one operator reads has no one grouping.
    """
    spec, children = graph.of(PartitionBy).get(id), graph.children(id)
    if spec is None or spec.combines is not None or not spec.rekeys or len(children) != 1:
        return None
    window = graph.of(Window).get(children[0])
    return window if window is not None and window.fold is not None else None


def windows_at(graph: Graph, exit: str) -> Window | None:
    """Return the windows that a loop may group values for at an exit: those there, or behind a repartitioning."""
    spec = graph.of(PartitionBy).get(exit)
    if spec is None:
        return graph.of(Window).get(exit)
    return spec.combines or window_behind(graph, exit)


def _fold_of(graph: Graph, id: str) -> str | None:
    """Return the line that adds a value to the group of its window; None where there is no such group."""
    # Values go on with their keys, also where they are only counted: what a cut leaves goes on as rows.
    return BY_KEY if window_behind(graph, id) is not None else graph.specs[id].fold


class _FoldingWriter(Writer):
    """Writes a loop over the values of one source partition.

    In the window at hand, `low` <= timestamp < `high`, and in the one before it, nothing is late: the watermark,
    `highest` less the disorder allowed, has not reached their ends. A timestamp from `limit` on brings it to one of
    them, and both bounds are given up; a late value, which has a group and no bounds, leaves them. No time there is too
    early, so only where not every message comes to a window all times are looked at.
    """

    def __init__(self, graph: Graph, entry: str, inline: bool, disorder_ms: int) -> None:
        self.disorder_ms = disorder_ms
        self.all_come = False
        super().__init__(graph, entry, inline)

    def lines(self, rows: bool) -> list[SourceLine]:
        """Return the whole function; it keeps track of no rows."""
        exits = range(len(self.exits))
        key, timestamp = bound(self.entry, "key"), bound(self.entry, "timestamp")
        needs_key = not all(self.graph.specs[exit].rekeys for exit in self.exits)
        reads_key = needs_key and carried_key(self.graph, self.entry) is None
        kinds = "".join(f" kind{n}," for n, exit in enumerate(self.exits) if self.graph.specs[exit].rekeys)
        check = "type(key) is not kind or " if reads_key else ""
        body = [
            f"def segment(values, keys, kinds, highest, {', '.join(f'place{n}' for n in exits)}):",
            f"    kind,{kinds} = kinds",
            *(f"    {_no_bounds(n)}" for n in exits),
            *(f"    group{n}, limit{n}, late{n} = None, {LATEST_MS}, []" for n in exits),
            *([INDENT + self.counters_at_zero()] if self.counted else []),
            # No row number is kept: what is left in the iterator tells the place of a late row, at no cost for the
            # others.
            "    rest = iter(values)",
            "    for value in rest:" if reads_key or not needs_key else "    for value, key in zip(rest, keys):",
            *([f"        key = {self.written(f'{key}(value)', self.entry)}"] if reads_key else []),
            f"        timestamp = {self.written(f'{timestamp}(value)', self.entry)}",
            # Whatever is unusual drops the whole batch here: the ordinary way knows which record is to blame.
            f"        if {check}type(timestamp) is not int:",
            '            raise TypeError("not as most keys and timestamps are")',
        ]
        after = [
            "        if timestamp > highest:",
            "            highest = timestamp",
            # The bounds of windows that may end are looked up anew, and not those of longer ones beside them.
            *(line for n in exits for line in self._giving_up(n)),
            *(() if self.all_come else [f"        el{EARLY[0]}", INDENT * 2 + EARLY[1]]),
            f"    return highest, ({''.join(f'late{n}, ' for n in exits)}), {self.counts()}",
        ]
        return [*map(SourceLine, body), *self.body, *map(SourceLine, after)]

    def _emit_exit(self, id: str, value: str, depth: int, whole: bool) -> Iterator[SourceLine]:
        self.exits.setdefault(id, {})[id] = None
        n = list(self.exits).index(id)
        rekeys = self.graph.specs[id].rekeys
        key = f"key{n}" if rekeys else "key"
        adding = partial((_fold_of(self.graph, id) or "pass").format, value=value, key=key)
        stamp = f"highest - {self.disorder_ms}"
        looks = depth == IN_LOOP and not self.all_come
        self.all_come |= looks
        for line in (
            *(self._reading_key(id, n, value) if rekeys else ()),
            f"if low{n} <= timestamp < high{n}:",
            f"    {adding(group=f'group{n}')}",
            # Values out of order go to and fro between two windows.
            f"elif low_before{n} <= timestamp < high_before{n}:",
            f"    {adding(group=f'before{n}')}",
            "else:",
            *([INDENT + line for line in EARLY] if looks else ()),
            f"    begins, ends, group = place{n}(timestamp, {stamp})",
            "    if begins < ends:",
            f"        low_before{n}, high_before{n}, before{n} = low{n}, high{n}, group{n}",
            f"        low{n}, high{n}, group{n} = begins, ends, group",
            f"        first = high_before{n} if low_before{n} < high_before{n} < ends else ends",
            f"        limit{n} = first + {self.disorder_ms}",
            "    if group is None:",
            f"        late{n}.append(({value}, {key}, timestamp, {stamp}, ~rest.__length_hint__()))",
            "    else:",
            f"        {adding(group='group')}",
        ):
            yield SourceLine(INDENT * depth + line, id)

    def _giving_up(self, n: int) -> tuple[str, ...]:
        depth = INDENT * (IN_LOOP + 1)
        then = f"{depth}{INDENT}{_no_bounds(n)}", f"{depth}{INDENT}limit{n} = {LATEST_MS}"
        return f"{depth}if timestamp >= limit{n}:", *then

    def _reading_key(self, id: str, n: int, value: str) -> tuple[str, ...]:
        key = self.written(f"{bound(id, 'key')}({value})", id)
        return f"key{n} = {key}", f"if type(key{n}) is not kind{n}:", f"    raise TypeError({n}, type(key{n}))"


def _no_bounds(n: int) -> str:
    return f"low{n} = high{n} = low_before{n} = high_before{n} = 0"
