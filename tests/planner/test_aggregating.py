"""What is written for an aggregation adds and finishes as the aggregation does, whatever values come, and however."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from planner.codegen.aggregating import compiled, finishing, written
from samza_dsl import aggregate, collect, count, first, last, maximum, mean, minimum, reduce, top_k, total

AGGREGATIONS = {
    "count": count(),
    "mean": mean(lambda v: v),
    "total": total(lambda v: v),
    "maximum": maximum(lambda v: v),
    "minimum": minimum(lambda v: v),
    "first": first(lambda v: v),
    "last": last(lambda v: v),
    "first of all": first(),
    "last of all": last(),
    "collect": collect(),
    "top": top_k(2, by=lambda v: 0 if v is None else v),
    "reduce": reduce(lambda a, b: b),
    "called": maximum(lambda v: (lambda n: n)(v)),
    "within": aggregate(dict, n=count(), least=minimum(lambda v: v)),
}
FLOATS = st.floats(width=32) | st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e308])
KINDS = {
    "ints": st.integers(-5, 5) | st.integers(),
    "floats": FLOATS,
    "bools": st.booleans(),
    "decimals": st.decimals(-9, 9, places=2) | st.just(Decimal("NaN")),
    "fractions": st.fractions(-9, 9, max_denominator=9).map(Fraction),
    "text": st.text(max_size=2),
    "tuples": st.tuples(st.integers(0, 3), FLOATS),
}
MIXED = st.sampled_from([*KINDS]).flatmap(lambda kind: st.lists(st.none() | KINDS[kind], max_size=6))
BATCHES = st.lists(MIXED | st.lists(st.one_of(*KINDS.values()), max_size=4), max_size=4)


def outcome(aggregation, batches):
    """Return what each batch leaves, and the result; of what raises, the type of the error."""
    found = []
    try:
        state = aggregation.init()
        for batch in batches:
            found.append(repr(state := aggregation.add(state, batch)))
        found.append(repr(aggregation.finish(state)))
    except Exception as error:
        found.append(type(error))
    return found


@given(st.lists(st.sampled_from([*AGGREGATIONS]), min_size=1, max_size=5), BATCHES)
def test_several_side_by_side_are_written_as_they_are_called(names, batches):
    several = aggregate(dict, **{f"part{number}": AGGREGATIONS[name] for number, name in enumerate(names)})
    assert outcome(compiled(several), batches) == outcome(several, batches)


@given(st.sampled_from([*AGGREGATIONS]), BATCHES)
def test_one_alone_is_written_as_it_is_called(name, batches):
    alone = AGGREGATIONS[name]
    assert outcome(compiled(alone), batches) == outcome(alone, batches)


def test_no_list_that_was_given_is_changed():
    values = [3, None, 1.5]
    made = compiled(aggregate(dict, n=count(), all=collect(), sum=total(lambda v: v), most=maximum(lambda v: v)))
    made.add(made.init(), values)
    assert values == [3, None, 1.5]


def test_what_has_no_code_is_not_written():
    assert written(count()) == written(top_k(1, by=len)) == finishing(count()) == finishing(top_k(1, by=len)) == ""


def test_one_of_which_a_function_was_replaced_is_called():
    changed = replace(collect(), finish=len)
    several = aggregate(dict, number=changed, most=replace(maximum(lambda v: v), finish=str))
    assert outcome(compiled(changed), [[3, 4]]) == outcome(changed, [[3, 4]]) == ["(3, 4)", "2"]
    assert outcome(compiled(several), [[3, 4], [5]]) == outcome(several, [[3, 4], [5]])
