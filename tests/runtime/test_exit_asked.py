"""What a function raises that is no Exception ends the run, with its operator and line; no policy heeds it."""

import asyncio
import logging
import sys

import pytest

from runtime.model.errors import ExitAsked, OperatorFailure
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, Options, SamzaError, dead_letter, fail, produce, retry, skip, testing, total, tumbling

POLICIES = {"fail": fail, "skip": skip, "dead letter": dead_letter("lost"), "retry": retry(2, backoff_ms=0, then=skip)}


class OddError(BaseException):
    """One of a user's own that is no Exception."""


def mapped(stream, raises, policy):
    return stream.map(raises, on_error=policy)


def awaited(stream, raises, policy):
    async def ask(value):
        return [raises(value)]

    return stream.async_flat_map(ask, on_error=policy)


def kept(stream, raises, policy):
    return stream.partition_by(lambda value: value, op_id="by").scan(lambda _, v: raises(v), on_error=policy)


def called(stream, raises, policy):
    stream.sink(raises, on_error=policy)
    return stream


def keyed(stream, raises, policy):
    return stream.partition_by(raises, on_error=policy)


def folded(stream, raises, policy):
    return stream.window(tumbling(milliseconds=1), total(raises), on_error=policy).map(lambda pane: pane.value)


PLACES = {"map": mapped, "async": awaited, "state": kept, "sink": called, "key": keyed, "window": folded}


def app_of(place, raised, policy=fail):
    def raises(value):
        if value == 2:
            raise raised
        return value

    app = App("leaving")
    stream = app.input("in", value=int, key=lambda value: value, timestamp=lambda value: value)
    PLACES[place](stream, raises, policy).send_to(app.output("out"))
    return app


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("place", PLACES)
def test_an_exit_that_a_function_asks_for_ends_the_run_with_its_code(place, policy, caplog):
    caplog.set_level(logging.WARNING, "samza_dsl")
    with pytest.raises(SystemExit) as ended:
        app_of(place, SystemExit(3), POLICIES[policy]).run(MemoryEnvironment(), bind={"in": [1, 2, 3]})
    assert ended.value.code == 3
    assert isinstance(ended.value.__cause__, ExitAsked)
    (told,) = [one for one in caplog.messages if "sys.exit(3)" in one]
    assert "test_exit_asked.py:" in told


@pytest.mark.parametrize("policy", ["fail", "skip"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("asked", "kind"), [(SystemExit(3), SystemExit), (KeyboardInterrupt(), KeyboardInterrupt)])
def test_an_exit_within_a_group_is_one_as_well(asked, kind, place, policy):
    group = BaseExceptionGroup("tasks", [ValueError(), BaseExceptionGroup("more", [asked])])
    with pytest.raises(kind) as ended:
        app_of(place, group, POLICIES[policy]).run(MemoryEnvironment(), bind={"in": [1, 2, 3]})
    assert isinstance(ended.value.__cause__, ExitAsked)
    assert "test_exit_asked.py:" in str(ended.value.__cause__)


@pytest.mark.parametrize(("asked", "code"), [(None, 0), (0, 0), (3, 3), ("stop here", 1), (True, True)])
def test_the_code_is_what_python_makes_of_it(asked, code):
    def leave(value):
        sys.exit(asked)

    app = App("leaving")
    app.input("in", value=int).map(leave).send_to(app.output("out"))
    with pytest.raises(SystemExit) as ended:
        app.run(MemoryEnvironment(), bind={"in": [1]})
    assert ended.value.code == code


def test_an_interrupt_is_handed_on_and_so_it_is_inside_an_event_loop():
    with pytest.raises(KeyboardInterrupt):
        app_of("map", KeyboardInterrupt()).run(MemoryEnvironment(), bind={"in": [1, 2]})

    async def run():
        with pytest.raises(SystemExit):
            await app_of("map", SystemExit(3)).run_async(MemoryEnvironment(), bind={"in": [1, 2]})

    asyncio.run(run())


@pytest.mark.parametrize("raised", [GeneratorExit(), asyncio.CancelledError("mine"), OddError("odd")], ids=repr)
@pytest.mark.parametrize("place", ["map", "state", "sink", "key", "window"])
def test_others_that_are_no_exceptions_are_told_as_what_they_are(place, raised):
    with pytest.raises(OperatorFailure) as ended:
        app_of(place, raised, skip).run(MemoryEnvironment(), bind={"in": [1, 2]})
    assert type(raised).__name__ in str(ended.value)
    assert "test_exit_asked.py:" in str(ended.value)


def test_threads_hand_an_exit_on_as_well():
    app = App("leaving", Options(threads=2))
    app.input("in", value=int).map(sys.exit).send_to(app.output("out"))
    with pytest.raises(SystemExit) as ended:
        app.run(MemoryEnvironment(), bind={"in": [3]})
    assert ended.value.code == 3


def test_a_test_is_told_of_an_exit_as_of_any_other_failure():
    with pytest.raises(SamzaError, match=r"sys.exit\(3\)"):
        testing.run(app_of("map", SystemExit(3)), {"in": [1, 2]})


def test_what_was_committed_before_an_exit_is_not_done_again(tmp_path):
    for raised in (SystemExit(3), None):
        app = app_of("map", raised) if raised else App("leaving")
        if not raised:
            app.input("in", value=int, key=lambda v: v, timestamp=lambda v: v).map(lambda v: v).send_to(
                app.output("out")
            )
            run = app.run(tmp_path, until_now=True)
            assert run.received("out") == [1, 2, 3]
        else:
            produce("in", [1, 2, 3], data=tmp_path)
            with pytest.raises(SystemExit):
                app.run(tmp_path, until_now=True)


async def in_a_group(work):
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.Event().wait())
        group.create_task(work())


async def in_a_task(work):
    await asyncio.create_task(work())


async def gathered(work):
    await asyncio.gather(asyncio.Event().wait(), work())


async def behind_it(work, tasks=[]):  # noqa: B006
    tasks[:] = [asyncio.create_task(work())]
    await asyncio.sleep(0)


async def in_a_callback(work):
    asyncio.get_running_loop().call_soon(lambda: work().send(None))
    await asyncio.sleep(0)


async def in_a_thread(work):
    await asyncio.to_thread(lambda: work().send(None))


async def in_an_iterator(work):
    async def generated():
        yield await asyncio.create_task(work())

    async for _ in generated():
        pass


async def waited(value):
    await asyncio.sleep(0)
    return [value]


BESIDE = [in_a_group, in_a_task, gathered, behind_it, in_a_callback, in_a_thread, in_an_iterator]
EXITS = [(SystemExit(3), "sys.exit(3)"), (KeyboardInterrupt(), "KeyboardInterrupt")]


@pytest.mark.parametrize("run", ["live", "a test"])
@pytest.mark.parametrize(("asked", "told"), EXITS)
@pytest.mark.parametrize("way", BESIDE)
def test_an_exit_beside_a_call_has_its_operator(way, asked, told, run):
    async def leave():
        raise asked

    async def ask(value):
        if value == 2:
            await way(leave)
        return [value]

    app = App("leaving")
    waits = app.input("in", value=int).async_flat_map(ask, op_id="leaves", on_error=skip)
    waits.async_flat_map(waited, op_id="another").send_to(app.output("out"))
    if run == "a test":
        with pytest.raises(SamzaError, match=r"'leaves' at .*test_exit_asked.py:") as test:
            testing.run(app, {"in": [1, 2, 3]})
        assert told in str(test.value)
        return
    with pytest.raises(type(asked)) as ended:
        app.run(MemoryEnvironment(), bind={"in": [1, 2, 3]})
    assert isinstance(ended.value.__cause__, ExitAsked)
    assert "'leaves' at " in str(ended.value.__cause__)
    assert told in str(ended.value.__cause__)
