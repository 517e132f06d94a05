"""Expressions of PromQL, parsed: the metrics and labels that they ask for, and the labels of what they come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser as promql

ADDED = frozenset({"instance", "job", "namespace", "pod"})
"""The labels that Prometheus adds as it scrapes."""
VARIABLES = {"$app": "spending", "$__rate_interval": "1m"}
"""What Grafana puts into the place of its variables."""

Labels = frozenset[str]


def parsed(expression: str) -> promql.Expr:
    """Parse an expression as Prometheus does, types and functions included; raises ValueError with what is wrong."""
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return promql.parse(expression)


def metrics_in(expression: Any) -> Iterator[str]:
    """Yield the name of each metric in an expression."""
    if isinstance(expression, promql.MatrixSelector):
        yield from metrics_in(expression.vector_selector)
    elif isinstance(expression, promql.VectorSelector):
        yield expression.name
    for part in _parts(expression):
        yield from metrics_in(part)


def labels_of(expression: Any, known: Mapping[str, Labels]) -> Labels:
    """Return the labels of what an expression comes to, given those of each metric.

    Raises AssertionError for a metric or a label that nobody tells, and for two sides that never meet.
    """
    kind = promql
    if isinstance(expression, kind.NumberLiteral | kind.StringLiteral):
        return frozenset()
    if isinstance(expression, kind.ParenExpr | kind.UnaryExpr | kind.SubqueryExpr):
        return labels_of(expression.expr, known)
    if isinstance(expression, kind.MatrixSelector):
        return labels_of(expression.vector_selector, known)
    if isinstance(expression, kind.VectorSelector):
        assert expression.name in known, f"nobody tells {expression.name}"
        found = known[expression.name] | ADDED
        named = {one.name for one in expression.matchers.matchers}
        assert named <= found, f"{expression.name} has no labels {sorted(named - found)}"
        return found
    if isinstance(expression, kind.AggregateExpr):
        return _of_aggregate(expression, labels_of(expression.expr, known))
    if isinstance(expression, kind.BinaryExpr):
        sides = labels_of(expression.lhs, known), labels_of(expression.rhs, known)
        return _of_sides(expression, *sides)
    assert isinstance(expression, kind.Call), f"{type(expression).__name__} is not known here"
    found = frozenset().union(*(labels_of(one, known) for one in expression.args))
    if expression.func.name == "histogram_quantile":
        assert "le" in found, "a quantile is of buckets, by their bounds"
        return found - {"le"}
    # What is absent has the labels of its matchers, of which there are none.
    return frozenset() if expression.func.name == "absent" else found


def _parts(expression: Any) -> list[Any]:
    if isinstance(expression, promql.BinaryExpr):
        return [expression.lhs, expression.rhs]
    if isinstance(expression, promql.Call):
        return expression.args
    return [expression.expr] if hasattr(expression, "expr") else []


def _of_aggregate(expression: Any, found: Labels) -> Labels:
    modifier = expression.modifier
    if modifier is None:
        return frozenset()
    assert modifier.type == promql.AggModifierType.By, "`without` keeps what the next version adds"
    by = frozenset(modifier.labels)
    assert by <= found, f"it groups by {sorted(by - found)}, which nobody tells"
    return by


def _of_sides(expression: Any, left: Labels, right: Labels) -> Labels:
    numbers = [_is_number(one) for one in (expression.lhs, expression.rhs)]
    if any(numbers):
        return right if numbers[0] else left
    op, modifier = str(expression.op), expression.modifier
    matching = modifier.matching if modifier is not None else None
    if op == "or":
        # Of `absent` there are no labels: an alert of it names none.
        return left & right if right else left
    if matching is not None:
        on = frozenset(matching.labels)
        assert on <= left & right, f"the sides meet on {sorted(on - (left & right))}, which not both have"
        return left
    assert left == right, f"the sides never meet: only one has {sorted(left ^ right)}"
    return left


def _is_number(expression: Any) -> bool:
    is_scalar = isinstance(expression, promql.Call) and expression.func.return_type == promql.ValueType.Scalar
    return is_scalar or isinstance(expression, promql.NumberLiteral)
