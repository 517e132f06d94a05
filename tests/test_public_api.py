"""What a user meets first: public names and fluent methods, each with its docstring and an example that runs."""

import doctest
import inspect
import re

import pytest

import samza_dsl
from samza_dsl import App, MessageStream


def examples(thing):
    return [
        example
        for example in doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")
        if doctest.SKIP not in example.options
    ]


def public_methods(kind):
    """Return (name, method) of what `kind` itself defines for users; a property or an overload counts once."""
    return [
        pytest.param(name, getattr(member, "fget", member), id=f"{kind.__name__}.{name}")
        for name, member in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    ]


def snake_case(name):
    return re.sub(r"([A-Z])", lambda letter: f"_{letter[1].lower()}", name)


def test_public_names_are_sorted_and_exist():
    assert sorted(samza_dsl.__all__) == samza_dsl.__all__
    assert [name for name in samza_dsl.__all__ if not hasattr(samza_dsl, name)] == []


def test_what_is_imported_is_public():
    names = {
        name for name, value in vars(samza_dsl).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert names - set(samza_dsl.__all__) == set(), "add it to __all__, or import it elsewhere"


@pytest.mark.parametrize("name", samza_dsl.__all__)
def test_a_public_name_has_a_docstring_with_an_example_that_runs(name):
    thing = getattr(samza_dsl, name)
    kind = thing if inspect.isclass(thing) or inspect.isfunction(thing) else type(thing)
    assert examples(thing), f"{name}: write a docstring with an example (>>>) for {kind.__module__}.{kind.__qualname__}"


@pytest.mark.parametrize(("name", "method"), public_methods(MessageStream))
def test_a_fluent_method_has_a_docstring_with_an_example_that_runs(name, method):
    assert examples(method), f"MessageStream.{name}: write a docstring with an example (>>>)"


@pytest.mark.parametrize(("name", "method"), public_methods(App))
def test_a_method_of_the_application_has_a_docstring(name, method):
    assert inspect.getdoc(method), f"App.{name}: write a docstring"


@pytest.mark.parametrize("name", ["flatMap", "asyncFlatMap", "partitionBy", "sendTo"])
def test_the_spelling_of_the_literature_is_the_same_method(name):
    assert getattr(MessageStream, name) is getattr(MessageStream, snake_case(name))
