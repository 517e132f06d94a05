"""Exceptions and values that can't be told, or not be encoded: policies hold, and processes tell each other of them."""

import asyncio
import logging
import os
import socket
import traceback
from dataclasses import dataclass

import msgspec
import pytest

from operators.core.wording import LONGEST, named, raised, shown, words_of
from runtime.containers.protocol import Connection, EndedWell
from runtime.functions.user_lines import deepest, user_lines
from runtime.model.errors import Elsewhere, SamzaError
from runtime.model.metrics import OperatorMetrics, RunMetrics
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.units.carried_error import WorkerFailed, carried, told
from samza_dsl import App, PlanError, count, dead_letter, fold, remote_table, retry, skip, testing, tumbling
from samza_dsl.application.container import _failed as failed
from samza_dsl.settings import logs
from tests.sample import crossed


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class Odd(Exception):
    def __str__(self):
        return None


class Text(str):
    __slots__ = ()

    def encode(self, *_args):
        raise RuntimeError("encoded by itself")

    __format__ = encode


class Subclassed(Exception):
    def __str__(self):
        return Text("\ud800")


class Nameless(type):
    @property
    def __name__(cls):
        raise SystemExit("no name")


class OfNameless(Exception, metaclass=Nameless):
    pass


@dataclass(frozen=True)
class Frozen(Exception):
    code: int = 7


def refuses(self, *_args):
    raise SystemExit("not to be asked")


def exiting(kind):
    """Return an error whose text is no text, but the end of a program."""

    def ends(self):
        raise kind

    return type("Exiting", (Exception,), {"__str__": ends, "__repr__": ends})()


ATTRIBUTES = {
    name: property(refuses) for name in ("__class__", "__cause__", "__context__", "__traceback__", "__notes__", "args")
}
ATTRIBUTES |= {"__getattribute__": refuses, "__setattr__": refuses, "__bool__": refuses, "__len__": refuses}


def untold(name, thing):
    """Return an error that can't be asked for something, by itself and as what others came of."""
    kind = type("Untold", (Exception,), {name: thing})
    caused, met = ValueError("caused"), ValueError("met")
    caused.__cause__, met.__context__ = kind("told"), kind("told")
    return {f"no {name}": kind("told"), f"cause with no {name}": caused, f"context with no {name}": met}


def posing(kind):
    return type("Posing", (Exception,), {"__class__": kind})("told")


def circular():
    error = ValueError("again")
    error.__cause__ = error
    return error


def odd_notes():
    error = ValueError("noted")
    error.__notes__ = [Mute(), 3]
    return error


def odd_syntax():
    error = SyntaxError("bad")
    error.lineno, error.text, error.filename, error.offset = "x", 3, 4, "y"
    return error


ERRORS = {
    "mute": Mute,
    "odd": Odd,
    "exits": lambda: exiting(SystemExit),
    "cancels": lambda: exiting(asyncio.CancelledError),
    "closes": lambda: exiting(GeneratorExit),
    "exiting argument": lambda: ValueError(exiting(SystemExit)),
    "subclass of str": Subclassed,
    "file name": lambda: FileNotFoundError(2, "No such file", os.fsdecode(b"caf\xe9.txt")),
    "class without a name": lambda: OfNameless("told"),
    "surrogate": lambda: ValueError("\ud800 lone"),
    "nul": lambda: ValueError("a\x00b"),
    "long": lambda: ValueError("x" * 3_000_000),
    "arguments": lambda: ValueError(Mute()),
    "group": lambda: ExceptionGroup("several \ud800", [Mute(), ValueError("\udce9")]),
    "circular": circular,
    "notes": odd_notes,
    "syntax": odd_syntax,
    "key": lambda: KeyError("\udce9"),
    "of ours": lambda: SamzaError("\udce9"),
    "frozen": lambda: Frozen(7),
    "posing as an exit": lambda: posing(SystemExit),
    "posing as a mistake": lambda: posing(PlanError),
    **{
        name: lambda name=name, said=said: untold(said, ATTRIBUTES[said])[name]
        for said in ATTRIBUTES
        for name in untold(said, ATTRIBUTES[said])
    },
}
POLICIES = {"skip": skip, "dead_letter": dead_letter("lost"), "retry": retry(1, then=dead_letter("lost"))}


@pytest.fixture(params=ERRORS)
def error(request):
    """Each of the errors; a test that crosses them with other cases names them as its parameters."""
    return ERRORS[request.param]()


def test_any_error_has_a_text_that_can_be_encoded(error):
    for tell in (words_of, named, raised, shown):
        text = tell(error)
        assert type(text) is str
        assert text.encode()
        assert len(text) <= LONGEST + 100


@pytest.mark.parametrize("form", logs.FORMATS)
def test_any_error_is_told_in_a_line_of_the_log_with_where_it_was_raised(error, form):
    one = raised_by(error)
    record = logging.makeLogRecord({"msg": "failed", "exc_info": (type(one), one, None)})
    (line,) = logs.line_of(record, logs.LogSettings(form, "warning", {})).splitlines()
    assert "test_error_text.py" in line and line.encode()


def mapped(stream, work, **how):
    return stream.map(work, **how)


def awaited(stream, work, **how):
    async def one(value):
        return [work(value)]

    return stream.async_flat_map(one, **how)


def processed(stream, work, **how):
    return stream.partition_by(str).process(lambda value, _context: [work(value)], **how)


def keyed(stream, work, **how):
    return stream.partition_by(work, **how)


def looked_up(stream, work, **how):
    async def fetch(keys):
        return {key: work(key) for key in keys}

    return stream.join(remote_table(fetch, batch_size=1), lambda value, row: row, on=lambda value: value, **how)


def folded(stream, work, **how):
    window = stream.partition_by(lambda value: 0).window(
        tumbling(hours=1), fold(list, lambda found, value: [*found, work(value)]), **how
    )
    return window.flat_map(lambda pane: pane.value)


STEPS = {step.__name__: step for step in (mapped, awaited, processed, keyed, looked_up, folded)}


@pytest.mark.parametrize(("error", "policy", "step"), crossed(ERRORS, POLICIES, STEPS), indirect=["error"])
def test_any_error_meets_its_policy(error, policy, step):
    def work(value):
        if value == 2:
            raise error
        return value

    app = App("failing")
    STEPS[step](app.input("numbers", value=int), work, on_error=POLICIES[policy]).send_to(app.output("out"))
    results = testing.run(app, {"numbers": [1, 2, 3]})
    assert (sorted(results["out"]), len(results.get("lost", []))) == ([1, 3], policy != "skip")


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupt_while_the_text_of_an_error_is_made_ends_a_run_whatever_the_policy(step):
    def work(value):
        raise exiting(KeyboardInterrupt)

    app = App("interrupted")
    STEPS[step](app.input("numbers", value=int), work, on_error=dead_letter("lost")).send_to(app.output("out"))
    with pytest.raises(KeyboardInterrupt):
        testing.run(app, {"numbers": [1]})


@pytest.mark.parametrize("tell", [named, words_of, shown])
def test_an_interrupt_is_no_text(tell):
    with pytest.raises(KeyboardInterrupt):
        tell(exiting(KeyboardInterrupt))


@pytest.mark.parametrize(("error", "step"), crossed(ERRORS, STEPS), indirect=["error"])
def test_any_error_ends_a_run_with_its_operator_and_line(error, step):
    def work(value):
        raise error

    app = App("failing")
    STEPS[step](app.input("numbers", value=int), work, op_id="working").send_to(app.output("out"))
    with pytest.raises(SamzaError) as ended:
        testing.run(app, {"numbers": [1]})
    assert f" 'working' at {__file__}:" in str(ended.value)
    assert str(ended.value).encode()
    assert any("in work" in line for line in user_lines(ended.value.__cause__))
    assert deepest(ended.value) is not None


@pytest.mark.parametrize(("error", "method"), crossed(ERRORS, ["open(context)", "close()"]), indirect=["error"])
def test_any_error_of_an_object_ends_a_run_with_its_operator(error, method):
    class Client:
        def open(self, context):
            self.meet("open(context)")

        def close(self):
            self.meet("close()")

        def meet(self, called):
            if called == method:
                raise error

        def __call__(self, value):
            return value

    app = App("failing")
    app.input("numbers", value=int).map(Client(), op_id="working").send_to(app.output("out"))
    with pytest.raises(SamzaError) as ended:
        app.run(MemoryEnvironment(), bind={"numbers": [1]})
    assert f"map 'working' at {__file__}:" in str(ended.value)
    assert f", in {method} of its Client" in str(ended.value)


@pytest.mark.parametrize(("error", "part"), crossed(ERRORS, ["timestamp", "key"]), indirect=["error"])
def test_any_error_of_a_part_of_a_record_ends_a_run_with_its_operator(error, part):
    def read(value):
        raise error

    app = App("failing")
    numbers = app.input("numbers", value=int, **({"key": str, "timestamp": abs} | {part: read}))
    numbers.window_all(tumbling(seconds=1), count()).send_to(app.output("out"))
    with pytest.raises(SamzaError) as ended:
        app.run(MemoryEnvironment(), bind={"numbers": [1]})
    assert f"input 'numbers' at {__file__}:" in str(ended.value)
    assert f", on the {part} of numbers/0 at 0;" in str(ended.value)


async def heard(said):
    """Return what another process hears."""
    ours, theirs = socket.socketpair()
    line, other = await Connection.over(ours), await Connection.over(theirs)
    line.say(said)
    await line.close()
    found = await other.hear()
    await other.close()
    return found


def raised_by(error):
    try:
        raise error
    except Exception as same:
        return same


def test_a_container_tells_of_any_error(error):
    said = failed(raised_by(error))
    assert asyncio.run(heard(said)) == said


def test_a_container_tells_its_numbers_whatever_they_are_called():
    counted = OperatorMetrics(operator="work", task=0, counters={"caf\udce9": 3})
    found = asyncio.run(heard(EndedWell(metrics=RunMetrics(operators=(counted,)))))
    assert found.metrics.operators[0].counters == {"caf\\udce9": 3}


def test_a_worker_of_spark_tells_of_any_error(error):
    with pytest.raises(WorkerFailed) as failure, carried():
        raise error
    assert "".join(traceback.format_exception(failure.value)).encode()  # by Spark
    same = told(RuntimeError(f"Job aborted: {failure.value}"))
    assert isinstance(same, SamzaError)
    assert msgspec.json.encode(str(same))


def test_what_was_raised_from_itself_has_a_first():
    assert isinstance(deepest(circular()), ValueError)
    assert isinstance(deepest(raised_by(Elsewhere(("a line",)))), Elsewhere)


class Shy:
    def __repr__(self):
        raise RuntimeError("nobody sees me")


def test_a_value_that_can_not_be_shown_is_a_dead_letter():
    def work(value):
        raise ValueError

    app = App("shy")
    app.input("things").map(work, on_error=dead_letter("lost")).send_to(app.output("out"))
    run = app.run(MemoryEnvironment(), bind={"things": [Shy()]})
    assert run.received("lost") == [b"<Shy whose __repr__ raised RuntimeError>"]
