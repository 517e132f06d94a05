"""The templates without state: each has what the pipeline says, and what the loop by hand does for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random


@dataclass
class Text:
    """A program as it is put together: lines of the pipeline, and of the class by hand.

    `body` is what is done for an event, by hand; its variables are user, kind, path, amount, id and at. `ordered` says
    that events of a key come in the order in which they lie in their partition, whatever reads them.
    """

    chance: Random
    late: float
    key: str = ""
    ordered: bool = True
    functions: list[str] = field(default_factory=list)
    pipeline: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fires: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    depth: int = 0

    def says(self, call: str, stream: str = "stream", of: str | None = None) -> None:
        """Add an operator to the pipeline."""
        self.pipeline.append(f"{stream} = {of or stream}{call}")

    def does(self, *lines: str) -> None:
        """Add lines to what is done for an event; a last one that ends with a colon has all that follows in it."""
        self.body += ["    " * self.depth + line for line in lines]
        self.depth += lines[-1].endswith(":")

    def function(self, *lines: str) -> None:
        """Add a function of the pipeline's, once."""
        if lines[0] not in self.functions:
            self.functions += [*lines, "", ""]

    def keeps(self, name: str, first: str) -> None:
        """Add an attribute that the program by hand has to remember."""
        self.attributes.append(f"{name} = {first}")

    def output(self) -> str:
        """Add an output, and return its name."""
        self.outputs.append(f"out-{len(self.outputs)}")
        return self.outputs[-1]


def keep_large(text: Text) -> None:
    least = text.chance.randrange(50, 500)
    text.says(f".filter(lambda e: e.amount > {least})")
    text.does(f"if amount > {least}:")


def keep_people(text: Text) -> None:
    text.says('.filter(lambda e: e.kind != "robot")')
    text.does('if kind != "robot":')


def keep_short_paths(text: Text) -> None:
    text.function("def is_short(e):", "    return len(e.path) < 4")
    text.says(".filter(is_short)")
    text.does("if len(path) < 4:")


def scale(text: Text) -> None:
    by = text.chance.randrange(2, 9)
    text.says(f".map(lambda e: replace(e, amount=e.amount * {by} + 1))")
    text.does(f"amount = amount * {by} + 1")


def shorten(text: Text) -> None:
    text.function("def shortened(e):", '    return replace(e, kind=e.kind.partition("-")[0])')
    text.says(".map(shortened)")
    text.does('kind = kind.partition("-")[0]')


def split(text: Text) -> None:
    text.says('.flat_map(lambda e: [replace(e, kind=kind) for kind in e.kind.split("-")])')
    text.does("of_event = amount", 'for kind in kind.split("-"):')
    text.does("amount = of_event")  # which what follows may change


def look_up(text: Text) -> None:
    text.function(
        "def with_country(e, row):",
        "    return e if row is None else replace(e, path=row.country)",
    )
    text.says('.join(users, with_country, on=lambda e: e.user, how="left")')
    text.does("path = country_of(user, path)")


def branch(text: Text) -> None:
    most = text.chance.randrange(300, 900)
    text.pipeline += [
        f'parts = stream.branch(lambda e: "large" if e.amount > {most} else "small", into=("large", "small"))',
        f'stream = parts["large"].map(lambda e: replace(e, amount={most})).merge(parts["small"])',
    ]
    text.does(f"if amount > {most}:", f"    amount = {most}")
    text.ordered = False


STATELESS: tuple[Callable[[Text], None], ...] = (
    *(keep_large, keep_people, keep_short_paths, scale, shorten, split, look_up, branch),
)
