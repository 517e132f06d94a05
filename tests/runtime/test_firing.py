"""What fires meets its operator's policy as records do: a timer or a pane leaves all of its effects or none."""

from operators.policies import dead_letter, retry, skip
from runtime.serdes import Tagged
from samza_dsl import App, fold, testing, tumbling


def timers(policy, fails):
    """Set a timer for every number; those for which `fails` raise."""

    def on_message(number, context):
        context.set_timer(number)

    def on_timer(at_ms, context):
        context.state = at_ms
        if fails(at_ms):
            raise ZeroDivisionError(f"timer {at_ms}")
        return [at_ms]

    app = App("firing")
    numbers = app.input("numbers", value=int, key=lambda n: n % 2, timestamp=lambda n: n)
    numbers.process(on_message, on_timer=on_timer, on_error=policy, op_id="timed").send_to(app.output("out", value=int))
    return app


def test_a_timer_that_fails_is_skipped_alone():
    app = timers(skip, lambda at_ms: at_ms % 10 == 3)
    assert testing.run(app, {"numbers": list(range(500))})["out"] == [n for n in range(500) if n % 10 != 3]


def test_a_timer_that_fails_is_dead_lettered_with_its_time_and_key():
    results = testing.run(timers(dead_letter("bad"), lambda at_ms: at_ms == 2), {"numbers": [1, 2, 3]})
    assert results["out"] == [1, 3]
    assert [Tagged().decode(data) for data in results["bad"]] == [2]


def test_a_timer_is_retried():
    tries = []

    def fails(at_ms):
        tries.append(at_ms)
        return at_ms == 2 and tries.count(2) <= 4

    assert testing.run(timers(retry(3, then=skip), fails), {"numbers": [1, 2, 3]})["out"] == [1, 2, 3]


def test_a_pane_whose_finish_fails_is_skipped_alone():
    def finish(numbers):
        if 7 in numbers:
            raise ValueError("seven")
        return sum(numbers)

    app = App("firing")
    numbers = app.input("numbers", value=int, key=lambda n: n % 3, timestamp=lambda n: n)
    sums = numbers.window(
        tumbling(milliseconds=10),
        fold(tuple, lambda held, n: (*held, n), lambda a, b: a + b, finish),
        on_error=dead_letter("bad"),
    )
    sums.map(lambda pane: (pane.start, pane.key, pane.value)).send_to(app.output("out"))
    results = testing.run(app, {"numbers": list(range(30))})
    groups = [
        (start, key, [n for n in range(start, start + 10) if n % 3 == key]) for start in (0, 10, 20) for key in range(3)
    ]
    assert sorted(results["out"]) == [(start, key, sum(held)) for start, key, held in groups if 7 not in held]
    assert [Tagged().decode(data) for data in results["bad"]] == [(0, 10, (1, 4, 7))]
