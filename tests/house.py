"""Measures the house rules that have a number: `python -m tests.house` prints each beside its bar."""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import networkx

from tests.source import PACKAGES, ROOT, nodes, python_files, tree

ORDER = (
    "operators.core",
    "operators.state",
    "operators",
    "operators.aggregations",
    "operators.windows",
    "operators.joins",
    "planner.model",
    "planner.checks",
    "planner.codegen",
    "planner.columnar",
    "planner.picture",
    "planner",
    "runtime.model",
    "runtime.encoding",
    "runtime.encoding.formats",
    "runtime.ports",
    "runtime.functions",
    "runtime.reading",
    "runtime.stores",
    "runtime.systems.host",
    "runtime.systems.log",
    "runtime.systems.memory",
    "runtime.systems.files.places",
    "runtime.systems.files",
    "runtime.systems.folders",
    "runtime.systems.frames",
    "runtime.systems.http",
    "runtime.systems.databases",
    "runtime.systems.redis",
    "runtime.systems.kafka.client",
    "runtime.systems.connectors",
    "runtime.systems.kafka.broker",
    "runtime.systems.kafka.streams",
    "runtime.systems.kafka.state",
    "runtime.systems.kafka.coordination",
    "runtime.systems.kafka",
    "runtime.stage",
    "runtime.job",
    "runtime.task",
    "runtime.assembly",
    "runtime.commit",
    "runtime.loop",
    "runtime.opening",
    "runtime.stored_state",
    "runtime.queries",
    "runtime.run",
    "runtime.containers",
    "runtime.watching",
    "runtime.reprocessing",
    "runtime.units",
    "runtime.units.worker",
    "runtime.units.publication",
    "runtime.units.driver",
    "runtime.spark",
    "samza_dsl.settings",
    "samza_dsl.view",
    "samza_dsl.fluent",
    "samza_dsl.application",
    "samza_dsl.data",
    "samza_dsl.room",
    "samza_dsl.testing",
    "samza_dsl.cli",
    "samza_dsl",
)
"""The folders, bottom-up: each imports only from itself and from those above it in this list."""

AGAINST_THE_ORDER = {
    (
        "planner.model",
        "planner.picture",
    ): "a Plan shows itself: its methods import a picture when asked",
    ("operators", "operators.windows"): "a PartitionBy says the Window that it folds for, a type alone",
    ("samza_dsl.application", "samza_dsl.room"): "a run notes itself, and shows itself when asked",
    ("samza_dsl.fluent", "samza_dsl.application"): "a MessageStream names the type of the App that it is part of",
}
"""The imports that the order does not allow, each with the reason; at most five."""

SMALL_ON_PURPOSE = {
    "operators.windows.window_operators": "it imports all window operators, and they the window",
    "planner.checks.single_calls": "a check of the planner, which the runtime asks for",
    "runtime.encoding.copies": "a concept with laws of its own",
    "runtime.loop.chooser": "a concept with laws of its own",
    "runtime.stores.shared": "a store of its own",
    "runtime.systems.files.parquet_archive": "pyarrow is imported late",
    "runtime.systems.frames.results": "a run names it, and what reads a frame imports pyarrow",
}
"""Modules under sixty lines with one importer, each with the reason; commands are a module each."""

BEGINS_WITH = re.compile(r"(What|How|Where|Who|Have|Which|When|Whose)\b")
DISPATCH = {
    "planner/model/graph.py": "`Graph.of` gives the specs of one class, typed, to all who ask more than traits of them",
    "runtime/assembly/task_builder.py": "`_exit` is a singledispatch: exits do I/O, which specs know nothing of",
}
"""The files that may ask a spec for its class, each with the reason: one for each layer that has a dispatch."""
SMALL = 60


class Bar(NamedTuple):
    """One number of the house, the most or least that it may be, and where it is not kept."""

    name: str
    number: float
    bar: float
    at_least: bool = False
    places: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.number >= self.bar if self.at_least else self.number <= self.bar


@cache
def modules() -> dict[str, Path]:
    """Return every module of the product by its dotted name."""
    found = {}
    for file in python_files(*PACKAGES):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = file
    return found


def folder_of(module: str) -> str:
    """Return the folder that a module lies in; a package's `__init__` lies in the package."""
    return module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]


@cache
def imported() -> dict[str, frozenset[str]]:
    """Return the modules of the product that each imports, lazily and for types alone, too."""
    known = modules()
    found: dict[str, set[str]] = defaultdict(set)
    for module, file in known.items():
        for node in nodes(tree(file)):
            if isinstance(node, ast.Import):
                named = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                named = [full if (full := f"{base}.{one.name}") in known else base for one in node.names]
            else:
                continue
            found[module] |= {name for name in named if name in known and name != module}
    return {module: frozenset(others) for module, others in found.items()}


def crossings() -> dict[tuple[str, str], list[str]]:
    """Return the imports between folders: by whose and whose, the modules that make them."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module, others in imported().items():
        for other in others:
            pair = folder_of(module), folder_of(other)
            if pair[0] != pair[1] and other not in PACKAGES:
                found[pair].append(f"{module} imports {other}")
    return found


def largest_folder() -> Bar:
    """Count the modules of the largest folder."""
    counts = Counter(folder_of(module) for module, file in modules().items() if file.name != "__init__.py")
    folder, number = counts.most_common(1)[0]
    return Bar("modules in the largest folder", number, 15, places=(folder,))


def cycles() -> Bar:
    """Count the knots of folders that import each other, without the named exceptions."""
    graph = networkx.DiGraph(pair for pair in crossings() if pair not in AGAINST_THE_ORDER)
    knots = [sorted(knot) for knot in networkx.strongly_connected_components(graph) if len(knot) > 1]
    return Bar("folder cycles", len(knots), 0, places=tuple(map(str, knots)))


def classes_named_twice() -> Bar:
    """Count the names that more than one class of the product has."""
    places = defaultdict(list)
    for module, file in modules().items():
        for node in tree(file).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    return Bar("duplicate class names", len(twice), 0, places=tuple(f"{name}: {twice[name]}" for name in sorted(twice)))


def splinters() -> Bar:
    """Count the small modules that one other module imports, and that have no reason."""
    importers = Counter(other for others in imported().values() for other in others)
    found = [
        module
        for module, file in modules().items()
        if file.name not in ("__init__.py", "__main__.py")
        and not module.startswith("samza_dsl.cli.")
        and len(file.read_text().splitlines()) < SMALL
        and importers[module] == 1
        and module not in SMALL_ON_PURPOSE
    ]
    return Bar("modules under 60 lines with one importer", len(found), 0, places=tuple(found))


def documented() -> Iterator[tuple[str, str]]:
    """Yield the place and the docstring of every module, class and function of the product."""
    for file in modules().values():
        for node in nodes(tree(file)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                line = getattr(node, "lineno", 1)
                yield f"{file.relative_to(ROOT)}:{line}", ast.get_docstring(node) or ""


def questions() -> Bar:
    """Count the docstrings that begin as a question does, and not with their subject."""
    found = tuple(place for place, text in documented() if BEGINS_WITH.match(text))
    return Bar("docstrings that begin with What, How, Where, Who, Have", len(found), 0, places=found)


DOORS = (
    "samza_dsl/fluent/",
    "samza_dsl/application/",
    "samza_dsl/data/",
    "samza_dsl/testing/",
    "samza_dsl/cli/",
)
"""Where users name each argument: a door has as many as its users may say, and hands them on as one value."""
FUNCTIONS_OF_USERS = ("operators/windows/window_types.py", "planner/model/plan.py")
"""More doors: window types, whose lengths may be said in any unit, and `Options`."""


def parameters() -> Bar:
    """Count the functions with more than seven parameters, without the doors whose arguments users name."""
    found = []
    for file in modules().values():
        place = str(file.relative_to(ROOT))
        for node in nodes(tree(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                said = node.args
                names = [one.arg for one in (*said.posonlyargs, *said.args, *said.kwonlyargs)]
                number = len([name for name in names if name not in ("self", "cls")])
                is_door = place.startswith(DOORS) or place in ("samza_dsl/laws.py", *FUNCTIONS_OF_USERS)
                if number > 7 and not is_door:
                    found.append(f"{place}:{node.lineno} {node.name} has {number}")
    return Bar("parameters over seven", len(found), 0, places=tuple(found))


@cache
def specs() -> frozenset[str]:
    """Return the names of the classes of specs."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for file in modules().values()
        for node in tree(file).body
        if isinstance(node, ast.ClassDef)
    }
    found = {"Spec"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return frozenset(found)


def asks_what_a_spec_is(node: ast.AST) -> bool:
    """Whether this is `isinstance(spec, …)`, `isinstance(…, Window)`, `spec.kind == "…"` or the like."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        named = {ast.unparse(one) for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
        return ast.unparse(node.args[0]).rpartition(".")[2] == "spec" or not named.isdisjoint(specs() - {"Spec"})
    if isinstance(node, ast.Compare):
        is_kind = ast.unparse(node.left).rpartition(".")[2] == "kind"
        return is_kind and isinstance(node.ops[0], ast.Eq) and isinstance(node.comparators[0], ast.Constant)
    return False


def switches() -> Bar:
    """Count the places outside of the dispatch that ask a spec for its class or its kind."""
    found = []
    for file in modules().values():
        place = str(file.relative_to(ROOT))
        if place in DISPATCH:
            continue
        sure = {id(node.test) for node in nodes(tree(file)) if isinstance(node, ast.Assert)}  # which choose nothing
        asking = (node for node in nodes(tree(file)) if id(node) not in sure and asks_what_a_spec_is(node))
        found += [f"{place}:{node.lineno}" for node in asking]
    return Bar("isinstance(spec, …) and kind == outside of the dispatch", len(found), 0, places=tuple(found))


@cache
def lines() -> int:
    """Count the lines of the product."""
    return sum(len(file.read_text().splitlines()) for file in modules().values())


def anys() -> Bar:
    """Count how often `Any` stands in a thousand lines."""
    found = sum(
        isinstance(node, ast.Name) and node.id == "Any" for file in modules().values() for node in nodes(tree(file))
    )
    return Bar("Any per 1,000 lines", round(found / lines() * 1_000, 1), 12)


@cache
def own_comments() -> int:
    """Count the comments on a line of their own."""
    found = 0
    for file in modules().values():
        for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
            found += token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
    return found


def comments() -> Bar:
    """Count the comments on a line of their own in a thousand lines."""
    return Bar("own-line comments per 1,000 lines", round(own_comments() / lines() * 1_000, 1), 15, at_least=True)


def invariants() -> Bar:
    """Count the asserts in a thousand lines that say more than a type."""
    found = 0
    for file in modules().values():
        for node in nodes(tree(file)):
            if isinstance(node, ast.Assert):
                said = ast.unparse(node.test)
                found += not (said.startswith("isinstance(") or said.endswith("is not None"))
    return Bar("invariant asserts per 1,000 lines", round(found / lines() * 1_000, 2), 2, at_least=True)


def size() -> Bar:
    """Count the lines of the product, in thousands, without the comments that the house asks for."""
    return Bar("thousand lines without comments", round((lines() - own_comments()) / 1_000, 1), 47.5)


def product_files() -> Bar:
    """Count the files of the product."""
    return Bar("product files", sum(file.name != "__init__.py" for file in modules().values()), 260)


BARS = (
    largest_folder,
    cycles,
    classes_named_twice,
    splinters,
    questions,
    parameters,
    switches,
    anys,
    comments,
    invariants,
    product_files,
    size,
)


def main() -> None:
    """Print every number of the house beside its bar, and where it is not kept."""
    for measure in BARS:
        bar = measure()
        sign = "≥" if bar.at_least else "≤"
        print(f"{'ok  ' if bar.holds else 'OPEN'} {bar.number:>7} {sign} {bar.bar:<6} {bar.name}")
        if not bar.holds:
            for place in bar.places[:200]:
                print(f"              {place}")


if __name__ == "__main__":
    main()
