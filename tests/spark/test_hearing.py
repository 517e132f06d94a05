"""What workers say while they run is heard, and of two attempts only one counts."""

import random
import socket
import threading
import time
import zlib

import msgspec

from runtime.model.clock import LoopClock
from runtime.model.metrics import InputMetrics, OperatorMetrics, RunMetrics
from runtime.spark.progress import Seen
from runtime.units.driver.application import Application
from runtime.units.driver.engine import finish
from runtime.units.heartbeats import Address, Hearing, Said, Saying
from runtime.units.program import Program
from samza_dsl import App, count, tumbling
from tests.simulation.crash import NOW_MS, memory
from tests.spark.shuffling import shuffled, virtual_time


def said(unit, received, done=False):
    return Said(unit, RunMetrics(operators=(OperatorMetrics(operator="map", task=unit, received=received),)), {}, done)


def counts(hearing):
    return [one.metrics.received("map") for one in hearing.furthest()]


def wait_while(condition):
    until = time.monotonic() + 60
    while condition() and time.monotonic() < until:
        threading.Event().wait(0.001)


def heard(hearing, expected):
    wait_while(lambda: counts(hearing) != expected)
    return counts(hearing)


def test_of_two_attempts_the_one_counts_that_has_come_further():
    hearing = Hearing("127.0.0.1")
    attempts = [Saying(hearing.address, lambda: said(0, 0)) for _ in range(2)]
    attempts[0].say(said(0, 70))
    assert heard(hearing, [70]) == [70]
    attempts[1].say(said(0, 10))
    attempts[1].say(said(1, 5))
    assert heard(hearing, [70, 5]) == [70, 5]
    attempts[1].say(said(0, 60, done=True))
    assert heard(hearing, [60, 5]) == [60, 5]
    attempts[0].say(said(0, 90))
    attempts[0].say(said(1, 6))
    assert heard(hearing, [60, 6]) == [60, 6]
    for attempt in attempts:
        attempt.close()
    hearing.close()


def test_where_no_such_host_is_here_only_this_machine_is_heard():
    hearing = Hearing("198.51.100.7", "a.host.invalid")
    assert hearing.address.host == "198.51.100.7"
    assert hearing._socket.getsockname()[0] == "127.0.0.1"
    hearing.close()


def test_what_others_say_is_not_heard():
    hearing = Hearing("127.0.0.1")
    host, port, token = hearing.address
    told = zlib.compress(msgspec.msgpack.encode(said(0, 7)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        for data in (b"", b"x" * 16 + told, token, token + b"no", token + zlib.compress(b"\xc1"), token + told):
            other.sendto(data, (host, port))
    assert heard(hearing, [7]) == [7]
    hearing.close()


def test_what_is_heard_of_all_units_is_what_the_run_comes_to(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{number}\n" for number in range(300)))
    app = App("counting")
    keyed = (
        app.input("numbers", value=int, timestamp=lambda n: n)
        .filter(lambda n: n % 3)
        .partition_by(lambda n: n % 7, partitions=3)
    )
    keyed.window(tumbling(milliseconds=50), count()).send_to(app.output("panes"))
    hearing = Hearing("127.0.0.1")
    application = Application(app.pipeline(), memory(), {"numbers": tmp_path})
    program = Program((application.job,), 1, hearing.address)
    seen = Seen(application.job, hearing)
    assert [(one.tasks, one.running, one.done) for one in seen.metrics().stages] == [(2, 0, 0), (3, 0, 0)]
    with virtual_time(0):
        rows = shuffled(program, random.Random(0), LoopClock(NOW_MS))
    run = finish([application], program, rows, 0.0)[0]
    wait_while(lambda: sum(one.done for one in seen.metrics().stages) < 5)
    found = seen.metrics()
    assert found.operators == run.metrics().operators and found.received("filter-numbers") == 600
    assert [(one.tasks, one.running, one.done) for one in found.stages] == [(2, 0, 2), (3, 0, 3)]
    assert [(one.offset, one.lag) for one in found.inputs[:2]] == [(300, 0), (300, 0)]
    assert sum(one.offset for one in found.inputs[2:]) > 0, "rows between stages are read"
    assert all(one.offset == one.end for one in found.inputs[2:])
    hearing.close()


def test_files_that_nobody_has_begun_are_taken_to_be_as_dense_as_others(tmp_path):
    for name, rows in (("a", 100), ("b", 50)):
        (tmp_path / f"{name}.jsonl").write_text("7\n" * rows)
    app = App("copying")
    app.input("numbers", value=int).send_to(app.output("copy"))
    application = Application(app.pipeline(), memory(), {"numbers": tmp_path})
    hearing = Hearing("127.0.0.1")
    seen = Seen(application.job, hearing)
    saying = Saying(hearing.address, lambda: said(0, 0))
    one = InputMetrics(stream="numbers", partition=0, task=0, offset=10, end=100, lag=90, watermark=0)
    saying.say(Said(0, RunMetrics(inputs=(one,)), {}))
    wait_while(lambda: not hearing.furthest())
    assert [(one.partition, one.offset, one.end) for one in seen.metrics().inputs] == [(0, 10, 100), (1, 0, 50)]
    saying.close()
    hearing.close()
    application.close()


def test_a_driver_that_is_not_there_stops_nobody():
    saying = Saying(Address("no.such.host.invalid", 9, b""), lambda: said(0, 0))
    saying.say(said(0, 1))
    saying.close()
