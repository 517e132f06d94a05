"""Whatever fails on Spark is told as live: the operator, the user's line, and no stack of Spark's."""

import ctypes
import json
import os
import sys
import threading
import traceback
from importlib.machinery import ModuleSpec
from types import ModuleType

import msgspec
import pytest

from runtime.model.clock import sleep_ms
from runtime.model.errors import OperatorFailure
from runtime.spark import own_code
from samza_dsl import App, SamzaError, Spark, total, tumbling

HERE = "test_failures_on_spark.py:"
LOCK = threading.Lock()


class Tick(msgspec.Struct):
    key: str
    at: int


def fails(tick):
    return 1 // (tick.at - 300)


async def fails_later(tick):
    return [fails(tick)]


async def hangs(tick):
    await sleep_ms(60_000)
    return [tick]


def leaves(tick):
    return tick if tick.at != 300 else sys.exit("bye")


def dies(tick):
    return tick if tick.at != 300 else os._exit(3)


def crashes(tick):
    return tick if tick.at != 300 else ctypes.string_at(0)


class Opened:
    def open(self, context):
        raise OSError("no database")

    def __call__(self, tick):
        return tick


def keyed(ticks):
    return ticks.partition_by(lambda tick: tick.key, partitions=2)


AS_LIVE = {
    "function": lambda ticks: ticks.map(fails, op_id="failing"),
    "function behind the shuffle": lambda ticks: keyed(ticks).map(fails, op_id="failing"),
    "aggregation": lambda ticks: keyed(ticks).window(tumbling(seconds=1), total(fails), op_id="failing"),
    "state": lambda ticks: keyed(ticks).scan(lambda n, tick: n + fails(tick), init=int, op_id="failing"),
    "key": lambda ticks: ticks.partition_by(fails, op_id="failing").map(str),
    "call": lambda ticks: ticks.async_flat_map(fails_later, op_id="failing"),
    "timeout": lambda ticks: ticks.async_flat_map(hangs, timeout_ms=200, op_id="failing"),
    "value": lambda ticks: ticks.map(lambda tick: object(), op_id="making"),
    "number": lambda ticks: ticks.map(lambda tick: {"c": float("nan")}, op_id="making"),
    "open": lambda ticks: ticks.map(Opened(), op_id="failing"),
    "malformed": lambda ticks: ticks,
    "sink": lambda ticks: (ticks.sink(fails, op_id="failing"), ticks)[1],
}
OF_WORKERS = {
    "exit": (leaves, rf"^SystemExit: bye, raised at .*{HERE}\d+ in a worker of Spark$"),
    "death": (dies, r"a worker died, Python worker exited unexpectedly .*; a run without Spark shows where$"),
    "crash": (crashes, rf"a worker died, .* Segmentation fault at .*{HERE}\d+"),
    "lock": (
        lambda tick: (LOCK, tick)[1],
        rf"^map 'failing' at .*{HERE}\d+: its map can't be sent to the workers .*lock",
    ),
}


@pytest.fixture
def bind(tmp_path):
    rows = [{"key": f"k{at % 7}", "at": at} for at in range(0, 600, 3)]
    (tmp_path / "ticks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "malformed.jsonl").write_text('{"key": "a", "at": 1}\n{"key": 1}\n')
    return {"ticks": tmp_path / "ticks.jsonl"}


def each_way(kinds):
    """Return each kind with both ways in which a run goes on Spark, of which CI tries one, in turn."""
    ways = ("bounded", "micro-batches")
    return [
        pytest.param(kind, way, marks=() if (number + place) % 2 == 0 else pytest.mark.long)
        for number, kind in enumerate(kinds)
        for place, way in enumerate(ways)
    ]


@pytest.fixture
def spark(way, session, tmp_path):
    on = {"checkpoint": tmp_path / "checkpoint", "end": True} if way == "micro-batches" else {}
    return Spark(session, **on)


def failing(made):
    app = App("failing")
    made(app.input("ticks", value=Tick, timestamp=lambda tick: tick.at)).send_to(app.output("out"))
    return app


def told(raised):
    words = str(raised.value)
    assert not [word for word in ("org.apache", "py4j", "Py4J", "\n") if word in words], words
    assert raised.value.__cause__ is None or "py4j" not in type(raised.value.__cause__).__module__
    return words


@pytest.mark.parametrize(("what", "way"), each_way(AS_LIVE))
def test_what_fails_is_told_as_a_live_run_tells_it(what, way, bind, spark, tmp_path):
    if what == "malformed":
        bind["ticks"] = tmp_path / "malformed.jsonl"
    with pytest.raises(OperatorFailure) as live:
        failing(AS_LIVE[what]).run(tmp_path / "live", bind={**bind, "out": tmp_path / "live.jsonl"})
    with pytest.raises(OperatorFailure) as raised:
        failing(AS_LIVE[what]).run(tmp_path / "data", on=spark, bind={**bind, "out": tmp_path / "out.jsonl"})
    words = told(raised)
    assert words.partition(", on ")[0] == told(live).partition(", on ")[0] and HERE in words


@pytest.mark.parametrize(("what", "way"), each_way(OF_WORKERS))
def test_what_only_a_worker_meets_is_told_without_stacks(what, way, bind, spark, tmp_path):
    function, words = OF_WORKERS[what]
    with pytest.raises(SamzaError, match=words) as raised:
        failing(lambda ticks: ticks.map(function, op_id="failing")).run(
            tmp_path / "data", on=spark, bind={**bind, "out": tmp_path / "out.jsonl"}
        )
    told(raised)
    assert not (tmp_path / "out.jsonl").is_file()


@pytest.mark.parametrize(("error", "is_told"), [(BrokenPipeError(32, "Broken pipe"), False), (ValueError("x"), True)])
def test_what_a_cancelled_task_can_no_longer_write_is_not_told(monkeypatch, capsys, error, is_told):
    daemon = ModuleType("__main__")
    daemon.__spec__ = ModuleSpec("pyspark.daemon", None)
    daemon.traceback = traceback
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    own_code.keep_daemon_quiet.cache_clear()
    own_code.keep_daemon_quiet()
    try:
        raise error
    except type(error):
        daemon.traceback.print_exc()
    assert ("Traceback" in capsys.readouterr().err) == is_told
