"""Streams that get more partitions, whose writers put a key where others would not: each key goes on with its state."""

import random
import tempfile
from collections import Counter, defaultdict
from functools import partial
from itertools import product
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.partition_by import murmur2
from runtime.model.errors import SamzaError
from runtime.ports.streams import Append, StreamConfig
from samza_dsl import App, Options, String, after_count, count, session, total, tumbling
from samza_dsl.testing.environment import CrashPoint
from tests.runtime.test_laws_on_kafka import HOSTS, troubles
from tests.scale import examples
from tests.simulation.crash import memory, rows_of, run_once, run_through
from tests.simulation.kafka import die, opened, simulated
from tests.simulation.kafka_brokers import PROCESS, Cluster, Died, Partition

SIDES = "left", "right"
CRASHES = st.lists(
    st.builds(CrashPoint, st.sampled_from(("before_commit", "after_commit")), st.integers(1, 12))
    | st.builds(CrashPoint, st.just("turn"), st.integers(5, 150)),
    max_size=3,
)
LATEST_MS = 10**9
"""More than any record is late: which of a key's come first is not told by several partitions."""


def summed(left, right):
    yield left.scan(lambda seen, tick: seen + 1, init=int, emit=lambda key, seen: f"{key} {seen}", op_id="sums")


def windowed(left, right):
    panes = left.filter(lambda tick: tick["n"] % 5 > 0).window(tumbling(seconds=10), total(lambda tick: tick["n"]))
    yield panes.map(lambda pane: f"{pane.key} {pane.start} {pane.value}")


def early(left, right):
    panes = left.window(tumbling(seconds=30), count(), early=after_count(1), op_id="early")
    yield panes.map(lambda pane: f"{pane.key} {pane.start} {pane.value}")


def visits(left, right):
    panes = left.merge(right).window(session(seconds=5), count(), op_id="visits")
    yield panes.map(lambda pane: f"{pane.key} {pane.start} {pane.end} {pane.value}")


def met(left, right):
    yield left.join(right, lambda one, other: f"{one} {other}", within=(-5_000, 5_000), op_id="met")


def outer(left, right):
    yield left.join(right, lambda one, other: f"{one} {other}", within=(-2_000, 2_000), how="outer", op_id="outer")


def timed(left, right):
    def on_message(tick, context):
        context.state = (context.state or 0) + 1
        context.set_timer(tick["at"] + 7_000)
        return ()

    def on_timer(at_ms, context):
        yield f"{context.key} {at_ms} {context.state}"

    yield left.process(on_message, on_timer=on_timer, op_id="timed")


def several(left, right):
    yield from summed(left, right)
    again = right.partition_by(lambda tick: f"k{tick['n'] % 3}", key_type=str, op_id="by-n")
    yield again.scan(lambda seen, tick: seen + 1, init=int, emit=lambda key, seen: f"{key}: {seen}", op_id="again")


PIPELINES = [summed, windowed, early, visits, met, outer, timed, several]


def listed(left, right):
    ticks = left.merge(right.filter(lambda tick: tick["n"] < 0))
    yield ticks.scan(
        lambda seen, tick: [*seen, tick["n"]], init=list, emit=lambda key, seen: f"{key} {seen}", op_id="l"
    )


def application(pipeline, by_value=False):
    """Return an application on two streams of others, whose keys, stored or made of values, are those of its state."""
    app = App("growing", Options(commit_interval_ms=5))
    how = {"value": dict, "timestamp": lambda tick: tick["at"], "max_disorder_ms": LATEST_MS}
    how |= {"key": lambda tick: tick["k"], "partitioned_by_key": True} if by_value else {"key": str}
    sides = [app.input(side, **how) for side in SIDES]
    passing = (side.map(lambda tick: f"{tick['n']} passes") for side in sides)
    for number, stream in enumerate((*pipeline(*sides), *passing)):
        stream.send_to(app.output(f"results-{number}", value=str))
    return app


def results_of(environment):
    """Return what was written, with its keys, of each output."""
    outputs = [name for name in environment.streams() if name.startswith("results")]
    return {
        name: Counter((key, value) for rows in rows_of(environment, name) for key, value, _ in rows) for name in outputs
    }


ticks = st.lists(
    st.tuples(st.sampled_from(SIDES), st.sampled_from("abcdefgh"), st.integers(0, 60), st.integers(0, 9)), max_size=12
)


def in_turn(key):
    """Return the place of a key among others, which is no hash."""
    return key[0]


def write(environment, chance, sizes, ticks, hashed=murmur2, by_value=False):
    """Write to each topic, now and then by a number of partitions that it had before."""
    for side, key, at, n in ticks:
        partition = hashed(key.encode()) % chance.choice(sizes[side])
        batch = Batch([msgspec.json.encode(tick_of(key, at, n))], keys=[None if by_value else key.encode()])
        environment.append([Append(side, partition, batch)])


def tick_of(key, at, n):
    return {"at": at * 1_000, "n": n, "k": key}


def grow(cluster, sizes, side, partitions):
    """Give a topic so many partitions more."""
    there = cluster.topics[side].partitions
    there += [Partition() for _ in range(partitions)]
    sizes[side].append(len(there))


def is_through(app, cluster, directory, seed):
    """Whether a process has read all that there is."""
    environment = None
    try:
        environment = opened(directory)
        run_once(app, environment, seed, until_now=True)
        environment.close()
    except (Died, SamzaError):
        if environment is not None:
            die(cluster, environment)
        cluster.dead.discard(PROCESS.get())
        return False
    return True


@pytest.mark.parametrize(
    ("pipeline", "hashed", "by_value"),
    [
        *((one, murmur2, False) for one in PIPELINES),
        *((one, crc32, False) for one in (summed, windowed, early, timed)),
        *((one, in_turn, True) for one in (windowed, met, timed, several)),
    ],
    ids=lambda one: getattr(one, "__name__", "by value" if one else "stored"),
)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(ticks, st.integers(0, 3), st.integers(0, 2), troubles), min_size=2, max_size=4),
)
@settings(max_examples=examples(12, 2_000))
def test_each_key_goes_on_with_its_state_wherever_its_records_come(pipeline, hashed, by_value, seed, lives):
    chance, cluster, written = random.Random(seed), Cluster(seed), []
    sizes = {side: [number] for side, number in zip(SIDES, (2, 2), strict=True)}
    with tempfile.TemporaryDirectory() as folder, simulated(cluster):
        environment = opened(Path(folder) / "filling")
        for side in SIDES:
            environment.create_stream(side, StreamConfig(partitions=sizes[side][0]))
        for number, (given, left, right, troubles) in enumerate(lives):
            if number:
                for side, more in zip(SIDES, (left, right), strict=True):
                    grow(cluster, sizes, side, more)
            environment.close()
            environment = opened(Path(folder) / f"filling-{number}")
            write(environment, chance, sizes, given, hashed, by_value)
            written += given
            if number == len(lives) - 1:
                for side in SIDES:
                    environment.end_stream(side)
            cluster.changes, cluster.troubles = 0, [*troubles]
            for attempt in range(len(troubles) + 1):
                app = application(pipeline, by_value)
                if is_through(app, cluster, Path(folder) / chance.choice(HOSTS), seed + attempt):
                    break
            else:
                raise AssertionError("it does not come to its end")
            cluster.troubles = []
        results = results_of(environment)
        environment.close()
    assert results == expected(pipeline, written, by_value)


def expected(pipeline, written, by_value):
    """Return the results of ticks that lie in one partition."""
    environment = memory()
    for side in SIDES:
        environment.create_stream(side, StreamConfig())
    write(environment, random.Random(0), dict.fromkeys(SIDES, (1,)), written, by_value=by_value)
    for side in SIDES:
        environment.end_stream(side)
    run_once(application(pipeline, by_value), environment)
    return results_of(environment)


@pytest.mark.parametrize("pipeline", [*PIPELINES, listed], ids=lambda one: one.__name__)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(ticks, st.integers(0, 3), st.integers(0, 2), CRASHES, st.booleans()), min_size=2, max_size=5),
)
@settings(max_examples=examples(15, 3_000))
def test_keys_that_writers_put_themselves_go_on_on_the_embedded_log_in_their_order(pipeline, seed, lives):
    chance, environment, written = random.Random(seed), memory(), []
    places = defaultdict(lambda: chance.randrange(2**32))
    sizes = dict.fromkeys(SIDES, 2)
    for side in SIDES:
        environment.create_stream(side, StreamConfig(partitions=2))
    for number, (new, *more, crashes, is_run) in enumerate(lives):
        for side, by in zip(SIDES, more, strict=True):
            if number and by:
                sizes[side] += by
                environment.grow_stream(side, sizes[side])
        write_by(environment, places, sizes, new)
        written += new
        is_last = number == len(lives) - 1
        if is_last:
            for side in SIDES:
                environment.end_stream(side)
        if is_last or is_run:
            run_through(partial(application, pipeline, True), environment, crashes, seed + number, until_now=True)
    assert results_of(environment) == expected(pipeline, written, by_value=True)


@pytest.mark.parametrize("sizes", [(2, 3), (2, 3, 5), (1, 4)], ids=str)
def test_what_lay_unread_as_a_stream_was_given_more_partitions_is_read_before_what_came_then(sizes):
    environment, places = memory(), random.Random(len(sizes)).sample(range(100), 100)
    for side in SIDES:
        environment.create_stream(side, StreamConfig(partitions=sizes[0]))
    written = []
    for turn, partitions in enumerate((sizes[0], *sizes)):
        if turn > 1:
            environment.grow_stream("left", partitions)
        new = [("left", key, 0, n) for n in range(20 * turn, 20 * turn + 20) for key in "abcdefgh"]
        found = {(key, partitions): places[ord(key) * partitions % 100] for key in "abcdefgh"}
        write_by(environment, found, {"left": partitions}, new)
        written += new
        if not turn:
            run_once(application(listed, by_value=True), environment, until_now=True)
    run_once(application(listed, by_value=True), environment, until_now=True)
    assert results_of(environment) == expected(listed, written, by_value=True)


def test_a_record_of_a_new_partition_is_not_late_by_one_in_which_its_key_never_was():
    app = App("growing")
    how = {
        "value": dict,
        "key": lambda tick: tick["k"],
        "partitioned_by_key": True,
        "timestamp": lambda tick: tick["at"],
    }
    panes = app.input("left", **how).window(tumbling(seconds=60), count(), op_id="w")
    panes.map(lambda pane: f"{pane.key} {pane.start} {pane.value}").send_to(app.output("results", value=str))
    environment = memory()
    environment.create_stream("left", StreamConfig(partitions=2))
    places = {("a", 2): 0, ("b", 2): 1, ("b", 3): 2, ("a", 3): 0}
    write_by(environment, places, {"left": 2}, [("left", "a", 100, 0), ("left", "b", 10, 0)])
    environment.grow_stream("left", 3)
    write_by(environment, places, {"left": 3}, [("left", "b", 50, 0), ("left", "a", 110, 0)])
    environment.end_stream("left")
    run_once(app, environment)
    results = [String().decode(value) for rows in rows_of(environment, "results") for _, value, _ in rows]
    assert sorted(results) == ["a 60000 2", "b 0 2"]


def write_by(environment, places, sizes, ticks):
    """Write to each stream, each key where it happens to lie among so many partitions."""
    for side, key, at, n in ticks:
        batch = Batch([msgspec.json.encode(tick_of(key, at, n))])
        environment.append([Append(side, places[key, sizes[side]] % sizes[side], batch)])


def windows(by_user):
    app = App("growing", Options(commit_interval_ms=5))
    stream = app.input("left", value=dict, key=str, timestamp=lambda tick: tick["at"])
    if by_user:
        stream = stream.partition_by(lambda tick: tick["key"], key_type=str, op_id="by")
    panes = stream.window(tumbling(seconds=60), count(), op_id="w")
    panes.map(lambda pane: f"{pane.key} {pane.start} {pane.value}").send_to(app.output("results", value=str))
    return app


@pytest.mark.parametrize("by_user", [False, True], ids=["by itself", "by its user"])
@pytest.mark.parametrize("grown", [3, 4])
@pytest.mark.parametrize("hashed", [murmur2, crc32], ids=lambda one: one.__name__)
def test_a_window_that_has_fired_does_not_fire_again_behind_the_stream_that_comes_between(
    hashed, grown, by_user, tmp_path
):
    keys = "abcdefgh"
    # Of two partitions that have not come equally far those ahead have fired a window that the others have not.
    ahead = [key for key in keys if hashed(key.encode()) % 2]

    def put(environment, partitions, keys, *seconds):
        for at, key in product(seconds, keys):
            value = msgspec.json.encode({"at": at * 1_000, "key": key})
            place = "left", hashed(key.encode()) % partitions
            environment.append([Append(*place, Batch([value], keys=[key.encode()]))])

    cluster = Cluster(grown)
    with simulated(cluster):
        environment = opened(tmp_path / "filling")
        environment.create_stream("left", StreamConfig(partitions=2))
        put(environment, 2, keys, 10)
        put(environment, 2, ahead, 100)
        reader = opened(tmp_path / "here")
        run_once(windows(by_user=False), reader, until_now=True)
        reader.close()
        cluster.topics["left"].partitions += [Partition() for _ in range(grown - 2)]
        environment.close()
        environment = opened(tmp_path / "filling-anew")
        put(environment, grown, ahead, 20)  # it is late, wherever it comes
        put(environment, grown, keys, 110, 500)
        environment.end_stream("left")
        reader = opened(tmp_path / "there")
        run_once(windows(by_user), reader, until_now=True)
        reader.close()
        results = [String().decode(value) for rows in rows_of(environment, "results") for _, value, _ in rows]
        environment.close()
    panes = [(key, start, 1 + (key in ahead and start == 60_000)) for key in keys for start in (0, 60_000, 480_000)]
    assert 0 < len(ahead) < len(keys)
    assert sorted(results) == sorted(f"{key} {start} {number}" for key, start, number in panes)


def test_what_has_no_key_passes_where_it_is(tmp_path):
    def passing():
        app = App("growing", Options(commit_interval_ms=5))
        words = app.input("left", value=String(), key=str)
        words.map(str.upper).send_to(app.output("results", value=String()))
        keyed = words.filter(lambda word: word.startswith("k"))
        keyed.scan(lambda seen, word: (seen or 0) + 1, op_id="seen").map(str).send_to(
            app.output("seen", value=String())
        )
        return app

    cluster = Cluster(7)
    with simulated(cluster):
        environment = opened(tmp_path / "filling")
        environment.create_stream("left", StreamConfig(partitions=1))
        for partitions in (1, 3):
            environment.append(
                [Append("left", number, Batch([b"none", b"k"], keys=[None, b"k"])) for number in range(partitions)]
            )
            reader = opened(tmp_path / f"reading-{partitions}")
            run_once(passing(), reader, until_now=True)
            reader.close()
            if partitions == 1:
                cluster.topics["left"].partitions += [Partition(), Partition()]
                environment.close()
                environment = opened(tmp_path / "filling-anew")
        found = {
            name: Counter(value for rows in rows_of(environment, name) for _, value, _ in rows)
            for name in ("results", "seen")
        }
        environment.close()
    assert found == {"results": {b"NONE": 4, b"K": 4}, "seen": Counter([b"1", b"2", b"3", b"4"])}
