"""Stateless operators mean what the list comprehensions of the same functions mean."""

from hypothesis import given
from hypothesis import strategies as st

from operators.core.policies import skip
from samza_dsl import App, testing

NUMBERS = st.lists(st.integers(-50, 50), max_size=30)


def results(numbers, build):
    app = App("laws")
    build(app.input("numbers", value=int)).send_to(app.output("out", value=int))
    return testing.run(app, {"numbers": numbers})["out"]


@given(NUMBERS)
def test_filter_keeps_what_its_function_finds_true(numbers):
    assert results(numbers, lambda s: s.filter(lambda n: n % 3)) == [n for n in numbers if n % 3]


@given(NUMBERS)
def test_map_replaces_each_message(numbers):
    assert results(numbers, lambda s: s.map(lambda n: n * n)) == [n * n for n in numbers]


@given(NUMBERS)
def test_flat_map_replaces_each_message_by_any_number(numbers):
    assert results(numbers, lambda s: s.flat_map(lambda n: [n] * (n % 4))) == [n for n in numbers for _ in range(n % 4)]


@given(NUMBERS)
def test_a_chain_is_the_composition(numbers):
    def chain(stream):
        return stream.map(lambda n: n + 1).filter(lambda n: n % 2).flat_map(lambda n: (n, -n)).filter(lambda n: n < 20)

    assert results(numbers, chain) == [m for n in numbers if (n + 1) % 2 for m in (n + 1, -n - 1) if m < 20]


@given(NUMBERS)
def test_branches_split_and_replicate_and_merge_in_order(numbers):
    def arms(number):
        return [name for name, divisor in (("twos", 2), ("threes", 3)) if number % divisor == 0]

    def merged(stream):
        parts = stream.branch(arms, into=("twos", "threes"))
        return parts["twos"].merge(parts["threes"].map(lambda n: n * 100))

    expected = [m for n in numbers for m in [n] * (n % 2 == 0) + [n * 100] * (n % 3 == 0)]
    assert results(numbers, merged) == expected


@given(NUMBERS)
def test_a_branch_that_was_not_declared_is_an_error_of_the_record(numbers):
    def odd_ones_out(stream):
        chosen = stream.branch(lambda n: "nowhere" if n % 2 else "even", into=("even",), on_error=skip)
        return chosen["even"]

    assert results(numbers, odd_ones_out) == [n for n in numbers if n % 2 == 0]
