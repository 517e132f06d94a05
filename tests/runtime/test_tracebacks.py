"""What an error tells: the operator, the record, and the lines of the user."""

import traceback

import pytest

from runtime.model.errors import OperatorFailure


def inverted(n):
    return 1 / n


def twice(n, context):
    return [n, n]


@pytest.mark.parametrize(
    ("build", "place"),
    [
        (lambda numbers: numbers.map(inverted), "numbers/0 at 3"),
        (lambda numbers: numbers.filter(lambda n: n < 9).map(inverted), "numbers/0 at 3"),
        (lambda numbers: numbers.map(abs).merge(numbers).map(inverted), "numbers/0 at 3"),
        (lambda numbers: numbers.process(twice, op_id="twice").map(inverted), "numbers/0 at 3"),
    ],
)
@pytest.mark.parametrize("times", ["one", "several"])
def test_an_exception_names_the_record(app, log, build, place, times):
    build(app.input("numbers", value=int, key=str)).send_to(app.output("out"))
    log.write("numbers", [9, 1, 2, 0, 1], keys="abcde", timestamps=[7] * 5 if times == "one" else [1, 2, 3, 4, 5])
    with pytest.raises(OperatorFailure, match=f"^map .* ZeroDivisionError: .* on {place}; "):
        app.run(log.path, until_now=True)


def test_an_exception_names_operator_line_and_record(app, log):
    def invert(n):
        return 1 / n

    site = f"{__file__}:{invert.__code__.co_firstlineno + 4}"
    app.input("numbers", value=int).filter(lambda n: n < 9).map(invert, op_id="invert").send_to(app.output("out"))
    log.write("numbers", [9, 1, 0, 2])
    with pytest.raises(OperatorFailure) as caught:
        app.run(log.path, until_now=True)
    told = str(caught.value)
    assert told.startswith(f"map 'invert' at {site}: ZeroDivisionError: division by zero, on numbers/0 at 2; ")
    assert "on_error=skip, dead_letter('name') or retry(3)" in told
    assert log.values("numbers") == [9, 1, 0, 2]


def traceback_of(app, log):
    """Run an app that fails, and return the traceback of what its function raised."""
    with pytest.raises(OperatorFailure) as caught:
        app.run(log.path, until_now=True)
    return "".join(traceback.format_exception(caught.value.__cause__))


def test_a_traceback_shows_the_generated_line_and_the_users_function(app, log):
    def invert(n):
        return 1 / n

    app.input("numbers", value=int).map(invert, op_id="invert").send_to(app.output("out"))
    log.write("numbers", [0])
    shown = traceback_of(app, log)
    assert 'File "<fused numbers' in shown
    assert "= 1 / value" in shown
    assert "return 1 / n" in shown


def test_a_traceback_shows_the_generated_call_of_what_is_not_inlined(app, log):
    app.input("numbers", value=int).map(lambda n: round(1 / n), op_id="invert").send_to(app.output("out"))
    log.write("numbers", [0])
    shown = traceback_of(app, log)
    assert "= map__invert(value)" in shown
    assert "round(1 / n)" in shown


def test_a_traceback_goes_on_to_the_user_where_what_was_read_is_not_made(app, log):
    numbers = app.input("numbers", value=int).map(lambda n: {"n": n, "less": n - 1})
    numbers.map(lambda pair: (pair["n"], pair["less"])).filter(lambda pair: pair[0] / pair[1]).send_to(
        app.output("out")
    )
    log.write("numbers", [3, 1])
    assert "_less = value - 1" in app.plan().source("stage-1")
    shown = traceback_of(app, log)
    assert ".filter(lambda pair: pair[0] / pair[1])" in shown


def test_only_the_inlined_function_that_failed_is_called_for_its_traceback(app, log):
    calls = []
    numbers = app.input("numbers", value=int, key=str).map(lambda n: (calls.append(n), n)[1])
    arms = numbers.branch(lambda n: "odd" if n % 2 else "even", into=("odd", "even"))
    both = arms["odd"].merge(arms["even"].map(abs))
    both.filter(lambda n: 1 / n, op_id="invert").send_to(app.output("out"))
    log.write("numbers", [1, 2, 0, 3])
    with pytest.raises(OperatorFailure, match=r"filter 'invert' at .* division by zero, on numbers/0 at 2;") as caught:
        app.run(log.path, until_now=True)
    assert calls == [1, 2, 0]
    assert "both.filter(lambda n: 1 / n" in "".join(traceback.format_exception(caught.value.__cause__))
