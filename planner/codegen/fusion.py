"""Fuses a run of stateless operators into one generated Python function over columns."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import length_hint
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec

from operators.core.policies import Fail
from operators.core.sites import FUSED
from operators.io import Input
from planner.codegen.counters import droppers, exit_below, teller
from planner.codegen.inlining import ONE_VALUE, called, inlined, made_by, written_out
from planner.model.graph import Graph
from planner.model.plan import ExitPlan, SegmentPlan

Segment = Callable[..., tuple[Any, ...]]
"""`segment(values, keys)` returns per exit its values, rows (None: every row) and new keys, then a tuple of counts."""

VALUES_ONLY = ", values only"
"""The end of such a name where the function keeps no rows."""
INDENT = "    "
VARIABLES = {"keys": "key", "timestamps": "timestamp", "signs": "sign", "headers": "header"}
"""The columns beside the values that operators may read, each with the loop's variable for one row of it."""
HEADER = "(header or {})"
"""The expression for the headers of a message as users know them: none are an empty dict."""
USER_KEY = "{key} if type({key}) is not bytes else {decode}({key})"
"""The expression for the user's key, given the held one."""
# Keys are held as themselves within a stage: encoding and decoding them again was half of a running count's time.
HOLD = "user_key if type(user_key) is int or (type(user_key) is str and user_key.isascii()) else {hold}(user_key)"
"""The expression for the held key, given the user's one, where a loop reads keys itself."""
LONGEST_RUN = 15
"""The number of blocks after which a run goes on in an inner function: Python nests 20 loops at most."""
BLOCK = 8
"""The weight of an operator that opens a block; one that opens none has 1."""


class SourceLine(NamedTuple):
    """A line of generated source, with its operator; `rows_of` and `keys_of` name an exit that alone needs it."""

    text: str
    operator: str = ""
    rows_of: str = ""
    keys_of: str = ""


def fuse(
    graph: Graph,
    entry: str,
    inline: bool = True,
    keyed: bool = False,
    longest_run: int = LONGEST_RUN,
    reading: bool = False,
) -> SegmentPlan:
    """Write the function of all that messages from `entry` pass before they are awaited, written, or kept in state.

    Where `keyed`, operators whose only state is by key are in the same loop; where `reading`, it reads the keys off the
    values, if it can. After `longest_run` blocks it goes on in an inner function.
    """
    writer = Writer(graph, entry, inline, keyed, longest_run, reading)
    lines, plain = writer.lines(rows=True), writer.lines(rows=False)
    assert all("\n" not in line.text for line in (*lines, *plain)), "an operator is found by the number of its line"
    return SegmentPlan(
        entry=entry,
        source="\n".join(line.text for line in lines),
        plain="\n".join(line.text for line in plain),
        lines=tuple(line.operator for line in lines),
        plain_lines=tuple(line.operator for line in plain),
        exits=tuple(
            ExitPlan(id=exit, operators=tuple(operators), whole=exit not in writer.partial)
            for exit, operators in writer.exits.items()
        ),
        keyed=tuple(
            ExitPlan(id=id, operators=(id,), whole=id not in writer.taken)
            for id in writer.reached
            if graph.specs[id].keyed_code
        ),
        counted=tuple(writer.counted),
        inlined=tuple(writer.inlined),
        calls=writer.calls,
        reads=writer.reads,
        reading=writer.reading,
    )


def compile_segment(
    segment: SegmentPlan, functions: Mapping[str, Mapping[str, object]], plain: bool = False
) -> tuple[Segment, str]:
    """Compile a segment to a function, and return it with its file name.

    Values stay as they are where they go to an operator that `functions` has no `encode` for.
    """
    name = f"{segment.entry}{VALUES_ONLY if plain else ''}"
    source = segment.plain if plain else segment.source
    for id in (id for exit in segment.exits for id in exit.operators if "encode" not in functions[id]):
        source = re.sub(re.escape(_encoded(id, "@")).replace("@", r"(\w+)"), r"\1", source)
    return compile_source(_shortened(source), name, functions)


def compile_source(source: str, name: str, functions: Mapping[str, Mapping[str, object]]) -> tuple[Segment, str]:
    """Compile generated source to a function, with the users' functions bound by operator and name.

    Returns it with the file name that its frames carry in tracebacks; the source is shown there.
    """
    filename = f"{FUSED}{name}>"
    namespace: dict[str, Any] = {
        bound(id, name): thing for id, named in functions.items() for name, thing in named.items()
    }
    namespace |= kinds_in(source, namespace)
    # The text is the planner's own, which plan.source() shows.
    exec(_compiled(source, filename), namespace)
    # Tracebacks then show the generated lines; a time of None keeps linecache from looking for the file.
    linecache.cache[filename] = (len(source), None, [line + "\n" for line in source.splitlines()], filename)
    return namespace["segment"], filename


def functions_of(graph: Graph) -> dict[str, Callable[..., object]]:
    """Return the functions of all operators by the variables by which generated source knows them."""
    return {bound(id, name): one for id, spec in graph.specs.items() for name, one in spec.functions().items()}


def kinds_in(source: str, functions: Mapping[str, object]) -> dict[str, type[msgspec.Struct]]:
    """Return the classes of Structs that generated source makes, by its variables, given those of the functions."""
    return {_class(name): made_by(one) for name, one in functions.items() if f"{_class(name)}(" in source}


def row_in(frame: FrameType) -> int | None:
    """Return the row at which a generated function is, or the function that called it; None where none is known."""
    at: FrameType | None = frame
    while at is not None and at.f_code.co_filename == frame.f_code.co_filename:
        known = at.f_locals
        # Only an error asks: the iterator over the batch knows how many are left, so good rows need no number.
        if "rest" in known:
            return len(known["values"]) - length_hint(known["rest"]) - 1
        if "row" in known:
            return int(known["row"])
        at = at.f_back
    return None


@lru_cache(maxsize=1_000)
def _compiled(source: str, filename: str) -> CodeType:
    """Return the byte code of source; all tasks of a process execute the same."""
    return compile(source, filename, "exec")


def bound(id: str, name: str) -> str:
    """Return the variable by which generated source knows a function of an operator."""
    return f"{name}__{word(id)}"


class Writer:
    """Writes one segment: depth first, in the order in which the user wrote the operators.

    Making one writes the body of the loop; `lines` then puts either variant of the function around it. Invariants: the
    code of each operator is written once, in its place or as an inner function; `exits`, `counted` and `taken` are in
    the order of the tuples that the function returns; each line knows its operator. Of the thread that plans alone.
    """

    def __init__(
        self,
        graph: Graph,
        entry: str,
        inline: bool,
        keyed: bool = False,
        longest_run: int = LONGEST_RUN,
        reading: bool = False,
    ) -> None:
        self.graph = graph
        self.entry = entry
        self.inline = inline
        self.keyed = keyed
        self.longest_run = longest_run
        self.exits: dict[str, dict[str, None]] = {}
        self.partial: set[str] = set()
        self.keyed_apart: set[str] = set()
        """The exits that need a column of keys, as not every value is its own key."""
        self.counted: list[str] = []
        self.taken: list[str] = []
        self.inlined: dict[str, None] = {}
        self.calls = False
        self.reached = self._reached()
        self.inner = self._inner_functions()
        self.droppers = droppers(graph, [id for id in self.reached if graph.specs[id].code is not None])
        self.reads = tuple(column for column, variable in VARIABLES.items() if self._is_read(variable))
        self.reading = reading and self._is_read("key") and _has_keys_to_read(graph.inputs.get(entry))
        if self.reading:
            self.reads = tuple(column for column in self.reads if column != "keys")
        self.variables = 0
        self.body = [*self._below(entry, "value", 2, whole=True)]
        self.inner_lines = [line for id in self.inner for line in self._inner(id)]

    def lines(self, rows: bool) -> list[SourceLine]:
        """Return the whole function; without `rows` it keeps no track of which row a value came from."""
        more = "".join(f", {column}=None" for column in self.reads if column != "keys")
        lines = [SourceLine(f"def segment(values, keys=None{more}):")]
        # Nothing is done to a value: the column goes on as it is, without a loop.
        if not self.reached and not self.partial and not any(map(self._makes_something, self._takers())):
            whole = "".join("(values, None), " for _ in self.exits)
            return [*lines, SourceLine(f"{INDENT}return ({whole}())")]
        for exit in self.exits:
            lines.append(SourceLine(f"{INDENT}{self._list(exit)} = []"))
            lines.append(SourceLine(f"{INDENT}{self._list(exit)}_rows = []", rows_of=exit))
            if self._rekeys(exit):
                lines.append(SourceLine(f"{INDENT}{self._list(exit)}_keys = []", keys_of=exit))
        if self.counters():
            lines.append(SourceLine(INDENT + self.counters_at_zero()))
        lines += self.inner_lines
        tracked = rows and bool(self.partial)
        lines += [*self._head(tracked, rows), *(self.body or [SourceLine(INDENT * 2 + "pass")])]
        found = [f"({self._columns_of(exit, rows)})" for exit in self.exits]
        lines.append(SourceLine(f"{INDENT}return ({''.join(one + ', ' for one in [*found, self.counts()])})"))
        kept = [
            line
            for line in lines
            if (not line.rows_of or (rows and line.rows_of in self.partial))
            and (not line.keys_of or line.keys_of in self.keyed_apart)
        ]
        # Without rows there is none to hand to an inner function: it is its last argument, and is cut off.
        return kept if tracked else [line._replace(text=line.text.replace(", row)", ")")) for line in kept]

    def _head(self, tracked: bool, rows: bool) -> Iterator[SourceLine]:
        """Write the head of the loop; its frame tells the row by `row`, or else by how many are left in `rest`."""
        values = "values" if tracked else "rest"
        names = ", ".join((*map(VARIABLES.__getitem__, self.reads), "value"))
        each = f"zip({', '.join((*self.reads, values))})" if self.reads else values
        if not tracked:
            yield SourceLine(f"{INDENT}rest = iter(values)")
            yield SourceLine(f"{INDENT}for {names} in {each}:")
        else:
            yield SourceLine(f"{INDENT}for row, {f'({names})' if self.reads else names} in enumerate({each}):")
        if self.reading:
            id = self.entry
            user_key = self.written(f"{bound(id, 'key')}(value)", id)
            yield SourceLine(f"{INDENT * 2}user_key = {user_key}", id)
            yield SourceLine(f"{INDENT * 2}key = {HOLD.format(hold=bound(id, 'hold'))}", id)
            if rows:
                yield SourceLine(f"{INDENT * 2}keys.append(key)", id)

    def _is_read(self, variable: str) -> bool:
        ids = [self.entry, *self.reached]
        below = {child for id in ids for child in self._children(id)}
        lines = [line for id in self.reached for line in self.code_of(id) or ()]
        return any(f"{{{variable}}}" in line for line in (*lines, *(self.graph.specs[id].header_code for id in below)))

    def _variables(self) -> list[str]:
        """Return the variables of a row that an inner function takes beside its value."""
        return [*(("key", "user_key") if self.reading else ()), *map(VARIABLES.__getitem__, self.reads)]

    def code_of(self, id: str) -> tuple[str, ...] | None:
        """Return the lines of an operator in the loop; None where its messages leave the loop."""
        spec = self.graph.specs[id]
        return spec.keyed_code if self.keyed and spec.code is None else spec.code

    def _takers(self) -> Iterator[str]:
        return (id for ids in self.exits.values() for id in ids)

    def _makes_something(self, taker: str) -> bool:
        return self.graph.specs[taker].encodes or self.graph.specs[taker].rekeys or self.graph.specs[taker].sided

    def _rekeys(self, exit: str) -> bool:
        return any(self.graph.specs[id].rekeys for id in self.exits[exit])

    def _columns_of(self, exit: str, rows: bool) -> str:
        name = self._list(exit)
        columns = [name, f"{name}_rows" if rows and exit in self.partial else "None"]
        keys = f"{name}_keys" if exit in self.keyed_apart else name
        return ", ".join([*columns, keys] if self._rekeys(exit) else columns)

    def _below(self, id: str, value: str, depth: int, whole: bool) -> Iterator[SourceLine]:
        for child in self._children(id):
            if child in self.inner:
                arguments = ", ".join((value, *self._variables()))
                yield SourceLine(f"{INDENT * depth}{_inner_name(child)}({arguments}, row)", child)
            else:
                yield from self._emit(child, id, value, depth, whole)

    def _emit(self, id: str, parent: str, value: str, depth: int, whole: bool) -> Iterator[SourceLine]:
        spec, code = self.graph.specs[id], self.code_of(id)
        if code is None:
            for one in self._from_sides(id, parent, value) if spec.sided else (value,):
                yield from self._emit_exit(id, one, depth, whole)
            return
        if spec.code is None and not whole:
            self.taken.append(id)
            yield SourceLine(f"{INDENT * depth}{_taken(id)} += 1", id)
        out = value
        if any("{out}" in line for line in code):
            self.variables += 1
            out = f"v{self.variables}"
        names = {name: bound(id, name) for name in (*spec.binds, *spec.functions())}
        user_key = "user_key" if self.reading else USER_KEY.format(key="key", decode=bound(id, "decode"))
        opened = depth
        for line in code:
            text = line.format(
                value=value,
                out=out,
                id=word(id),
                parent=word(parent),
                key="key",
                user_key=user_key,
                timestamp="timestamp",
                sign="sign",
                header=HEADER,
                **names,
            )
            yield SourceLine(INDENT * depth + self.written(text, id), id)
            if line.endswith(":"):
                opened, depth = depth, depth + 1
        tells = teller if spec.code is not None else exit_below
        if not spec.one_to_one and tells(self.graph, id) is None:
            yield self._count(id, depth)
        below = [*self._below(id, out, depth, whole and spec.one_to_one)]
        yield from below
        if not below and code and code[-1].endswith(":"):
            yield SourceLine(INDENT * depth + "pass", id)
        if id in self.droppers:
            yield SourceLine(f"{INDENT * opened}else:", id)
            yield self._count(id, opened + 1)

    def _count(self, id: str, depth: int) -> SourceLine:
        if id not in self.counted:
            self.counted.append(id)
        return SourceLine(f"{INDENT * depth}{_counter(id)} += 1", id)

    def _from_sides(self, id: str, parent: str, value: str) -> Iterator[str]:
        """Yield the expression for each side of an operator that reads this parent: (side, value)."""
        for side, one in enumerate(self.graph.streams_into(id)):
            if one == parent:
                yield f"({side}, {value})"

    def _emit_exit(self, id: str, value: str, depth: int, whole: bool) -> Iterator[SourceLine]:
        exit = self.graph.specs[id].exit
        if not whole or exit in self.exits:
            self.partial.add(exit)
        self.exits.setdefault(exit, {})[id] = None
        # Encoded here a value is small and still in the processor's cache; a column encoded
        # later had to be fetched from memory again, and took the log (B6) a fifth more.
        yield SourceLine(f"{INDENT * depth}{self._list(exit)}.append({self._as_taken(id, value)})", id)
        yield SourceLine(f"{INDENT * depth}{self._list(exit)}_rows.append(row)", id, rows_of=exit)
        if self.graph.specs[id].rekeys:
            key = self.written(f"{bound(id, 'key')}({value})", id)
            # Where every value is its own key, as in partition_by(lambda word: word), one column serves as both.
            if key != value:
                self.keyed_apart.add(exit)
            yield SourceLine(f"{INDENT * depth}{self._list(exit)}_keys.append({key})", id, keys_of=exit)

    def _as_taken(self, id: str, value: str) -> str:
        spec = self.graph.specs[id]
        if not spec.encodes or not spec.header_code:
            return _encoded(id, value) if spec.encodes else value
        names = {name: bound(id, name) for name in spec.functions()}
        headers = self.written(spec.header_code.format(value=value, header=HEADER, **names), id)
        return f"{bound(id, 'headed')}({_encoded(id, value)}, {headers})"

    def written(self, text: str, id: str) -> str:
        """Return a line of an operator with its functions' expressions in place of calls, where they are inlined."""
        names = {bound(id, name): function for name, function in self.graph.specs[id].functions().items()}
        if self.inline:
            here = [name for name in names if called(text, name) is not None]
            found = {name: one for name in here if (one := written_out(names[name], _class(name))) is not None}
            if text.lstrip().startswith("for "):  # over messages: of a call the first result is looked at
                found = {name: one for name, one in found.items() if not isinstance(one.body, ONE_VALUE)}
            calling, text = text, inlined(text, found)
            if text != calling:
                self.inlined[id] = None
        self.calls |= any(called(text, name) is not None for name in names)
        return text

    def _inner(self, id: str) -> Iterator[SourceLine]:
        """Write an operator that several ways lead to, or that is too deep, as a function of its own."""
        parent = self._parents(id)[0]
        body = [*self._emit(id, parent, "value", 2, whole=False)]
        arguments = ", ".join(("value", *self._variables()))
        yield SourceLine(f"{INDENT}def {_inner_name(id)}({arguments}, row):", id)
        if self.counters():
            yield SourceLine(f"{INDENT * 2}nonlocal {', '.join(self.counters())}", id)
        yield from body or [SourceLine(INDENT * 2 + "pass", id)]

    def _children(self, id: str) -> list[str]:
        return [child for child in self.graph.children(id) if id in self.graph.streams_into(child)]

    def _parents(self, id: str) -> list[str]:
        return [parent for parent in self.graph.streams_into(id) if parent == self.entry or parent in self.reached]

    def _reached(self) -> list[str]:
        """Return the operators in the loop of the segment, parents first."""
        found = {self.entry}
        for id in self.graph.specs:
            if self.code_of(id) is not None and found.intersection(self.graph.streams_into(id)):
                found.add(id)
        return [id for id in self.graph.specs if id in found and id != self.entry]

    def _inner_functions(self) -> list[str]:
        """Return the operators that become inner functions: merges of several ways, and one every so many blocks.

        Callees stand before their callers.
        """
        depth, most = {self.entry: 0}, self.longest_run * BLOCK
        inner: list[str] = []
        # What several ways lead to is written once, as a function: in place it would be written once for each way.
        for id in self.reached:
            above = max(depth[parent] for parent in self._parents(id))
            opens = self.longest_run == 1 or any(line.endswith(":") for line in self.code_of(id) or ())
            depth[id] = above + (BLOCK if opens else 1)
            ways = sum(self.graph.specs[id].parents.count(self.graph.specs[p]) for p in self._parents(id))
            is_deep = depth[id] // most > above // most
            if ways > 1 or (is_deep and not self.graph.specs[id].arm):
                inner.append(id)
        return inner[::-1]

    def _list(self, exit: str) -> str:
        return f"x{list(self.exits).index(exit)}"

    def counters(self) -> list[str]:
        """Return the variables of the loop that count."""
        return [*map(_counter, self.counted), *map(_taken, self.taken)]

    def counters_at_zero(self) -> str:
        """Return the line that starts counting."""
        return " = ".join(self.counters()) + " = 0"

    def counts(self) -> str:
        """Return the expression for the tuple of counts."""
        return f"({''.join(name + ', ' for name in self.counters())})"


def _shortened(source: str) -> str:
    """Write what is made only to leave the loop at once without a variable; no line moves."""

    def joined(found: re.Match[str]) -> str:
        indent, made, expression, append = found.groups()
        is_used_once = len(re.findall(rf"\b{made}\b", source)) == 2
        return f"{indent}{append}({expression})\n" if is_used_once else found[0]

    found = re.sub(r"^( +)(v\d+) = (.+)\n\1(\w+\.append)\(\2\)$", joined, source, flags=re.MULTILINE)
    assert found.count("\n") == source.count("\n"), "SegmentPlan.lines names operators by line"
    return found


def _has_keys_to_read(spec: Input | None) -> bool:
    """Whether an entry's keys come from a function, are held in the usual way, and fail the run where they can't be."""
    # Where a policy lets bad keys pass they are read before: they must not stop a loop that has counted already.
    if spec is None or spec.key_of is None or spec.key is not None:
        return False
    return spec.on_error is None or isinstance(spec.on_error, Fail)


@lru_cache(maxsize=10_000)
def word(id: str) -> str:
    """Return an id as part of a Python name."""
    return re.sub(r"\W", "_", id)


def _encoded(id: str, value: str) -> str:
    """Return the expression that encodes a value; None, which takes a key out of a table, has no bytes."""
    return f"None if {value} is None else {bound(id, 'encode')}({value})"


def _class(function: str) -> str:
    """Return the variable by which generated source knows the class of the Structs that a function makes."""
    return f"Made_by_{function}"


def _counter(id: str) -> str:
    return f"n__{word(id)}"


def _taken(id: str) -> str:
    return f"taken__{word(id)}"


def _inner_name(id: str) -> str:
    return f"at__{word(id)}"
