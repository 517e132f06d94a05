"""Aggregations of windows, each with the sums that one keeps for it by hand."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Sum:
    """An aggregation: `{s}` is its place among a window's sums, `{t}` that in another window's, to be merged."""

    name: str
    said: str
    first: str
    more: tuple[str, ...]
    merged: str
    result: str = "{s}"


COUNT = Sum("number", "count()", "1", ("{s} += 1",), "{s} + {t}")
TOTAL = Sum("sum", "total(lambda e: e.amount)", "amount", ("{s} += amount",), "{s} + {t}")
MOST = Sum("most", "maximum(lambda e: e.amount)", "amount", ("if amount > {s}:", "    {s} = amount"), "max({s}, {t})")
LEAST = Sum("least", "minimum(lambda e: e.amount)", "amount", ("if amount < {s}:", "    {s} = amount"), "min({s}, {t})")
MEAN = Sum("mean", "mean(lambda e: e.amount)", "amount", ("{s} += amount",), "{s} + {t}", "{s} / {n}")
KINDS = Sum("kinds", "distinct(lambda e: e.kind)", "{{kind}}", ("{s}.add(kind)",), "{s} | {t}", "len({s})")

ALONE = (COUNT, TOTAL, MOST, KINDS)
TOGETHER = (TOTAL, MOST, LEAST, MEAN, KINDS)


@dataclass(frozen=True)
class Sums:
    """One aggregation, or a record of several, of which the first is the count, and the list that holds them by hand.

    `offset` is how many other numbers lie before them in that list.
    """

    sums: tuple[Sum, ...]
    record: str
    offset: int = 0

    @classmethod
    def drawn(cls, chance: Random, record: str, offset: int = 0) -> Sums:
        """Draw one aggregation, or several together."""
        if chance.random() < 0.5:
            return cls((chance.choice(ALONE),), "", offset)
        return cls((COUNT, *chance.sample(TOGETHER, chance.randrange(1, 4))), record, offset)

    def said(self) -> str:
        """Return the pipeline's words."""
        if not self.record:
            return self.sums[0].said
        return f"aggregate({self.record}, {', '.join(f'{one.name}={one.said}' for one in self.sums)})"

    def definition(self) -> list[str]:
        """Return the class of the record, if there is one."""
        if not self.record:
            return []
        types = ("float" if one is MEAN else "int" for one in self.sums)
        fields = [f"    {one.name}: {kind}" for one, kind in zip(self.sums, types, strict=True)]
        return [f"class {self.record}(Struct, frozen=True):", *fields, "", ""]

    def _at(self, variable: str, place: int) -> str:
        return f"{variable}[{place + self.offset}]"

    def first(self) -> str:
        """Return the sums of one event, without the brackets."""
        return ", ".join(one.first.format() for one in self.sums)

    def more(self, variable: str) -> list[str]:
        """Return what is done for one more event."""
        return [line.format(s=self._at(variable, place)) for place, one in enumerate(self.sums) for line in one.more]

    def merged(self, variable: str, other: str) -> list[str]:
        """Return what makes one of two."""
        return [
            f"{self._at(variable, place)} = " + one.merged.format(s=self._at(variable, place), t=self._at(other, place))
            for place, one in enumerate(self.sums)
        ]

    def result(self, variable: str) -> str:
        """Return the result."""
        found = [
            one.result.format(s=self._at(variable, place), n=self._at(variable, 0))
            for place, one in enumerate(self.sums)
        ]
        return f"{self.record}({', '.join(found)})" if self.record else found[0]

    def number(self) -> str | None:
        """Return how a number is read off a pane's value, by which panes are compared; None where there is none."""
        if self.record:
            return f".{self.sums[1].name}"
        return ""
