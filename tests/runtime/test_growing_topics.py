"""A topic of others that gets more partitions, whose writers learn of them late: each key goes on with its state."""

import random
import tempfile
from collections import Counter
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
from samza_dsl import App, Options, String, after_count, count, session, testing, total, tumbling
from tests.runtime.test_laws_on_kafka import HOSTS, troubles
from tests.scale import examples
from tests.simulation.crash import rows_of, run_once
from tests.simulation.kafka import die, opened, simulated
from tests.simulation.kafka_brokers import PROCESS, Cluster, Died, Partition

SIDES = "left", "right"
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


def application(pipeline):
    """Return an application on two topics of others, whose keys are those of its state."""
    app = App("growing", Options(commit_interval_ms=5))
    how = {"value": dict, "key": str, "timestamp": lambda tick: tick["at"], "max_disorder_ms": LATEST_MS}
    sides, out = [app.input(side, **how) for side in SIDES], app.output("results", value=str)
    for stream in (*pipeline(*sides), *(side.map(lambda tick: f"{tick['n']} passes") for side in sides)):
        stream.send_to(out)
    return app


ticks = st.lists(
    st.tuples(st.sampled_from(SIDES), st.sampled_from("abcdefgh"), st.integers(0, 60), st.integers(0, 9)), max_size=12
)


def write(environment, chance, sizes, ticks, hashed=murmur2):
    """Write to each topic, now and then by a number of partitions that it had before."""
    for side, key, at, n in ticks:
        partition = hashed(key.encode()) % chance.choice(sizes[side])
        value = msgspec.json.encode({"at": at * 1_000, "n": n})
        environment.append([Append(side, partition, Batch([value], keys=[key.encode()]))])


def grow(cluster, sizes, side, partitions):
    """Give a topic so many partitions more."""
    there = cluster.topics[side].partitions
    there += [Partition() for _ in range(partitions)]
    sizes[side].append(len(there))


def is_through(pipeline, cluster, directory, seed):
    """Whether a process has read all that there is."""
    environment = None
    try:
        environment = opened(directory)
        run_once(application(pipeline), environment, seed, until_now=True)
        environment.close()
    except (Died, SamzaError):
        if environment is not None:
            die(cluster, environment)
        cluster.dead.discard(PROCESS.get())
        return False
    return True


@pytest.mark.parametrize(
    ("pipeline", "hashed"),
    [*((one, murmur2) for one in PIPELINES), *((one, crc32) for one in (summed, windowed, early, timed))],
    ids=lambda one: one.__name__,
)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(ticks, st.integers(0, 3), st.integers(0, 2), troubles), min_size=2, max_size=4),
)
@settings(max_examples=examples(12, 2_000))
def test_each_key_goes_on_with_its_state_wherever_its_records_come(pipeline, hashed, seed, lives):
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
            write(environment, chance, sizes, given, hashed)
            written += given
            if number == len(lives) - 1:
                for side in SIDES:
                    environment.end_stream(side)
            cluster.changes, cluster.troubles = 0, [*troubles]
            for attempt in range(len(troubles) + 1):
                if is_through(pipeline, cluster, Path(folder) / chance.choice(HOSTS), seed + attempt):
                    break
            else:
                raise AssertionError("it does not come to its end")
            cluster.troubles = []
        results = [String().decode(value) for rows in rows_of(environment, "results") for _, value, _ in rows]
        environment.close()
    given = {side: [(key, {"at": at * 1_000, "n": n}) for one, key, at, n in written if one == side] for side in SIDES}
    assert Counter(results) == Counter(
        testing.run(application(pipeline), given, partitions=dict.fromkeys(SIDES, 1))["results"]
    )


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
