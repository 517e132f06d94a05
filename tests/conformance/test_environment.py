"""What every environment does, whichever it is."""

from itertools import pairwise, product

import pytest

from operators.core.base import COLUMNS, MAX_TIMESTAMP, Batch
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import Damaged, EnvironmentFault, Fenced
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import END, Append, Control, Offsets, StreamConfig, in_one
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.log.newest_rows import TOMBSTONE_MS
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl.testing.environment import MortalEnvironment
from tests.simulation.directory import Directory, SimulatedLog


class Clock:
    """Wall-clock time that a test moves by hand."""

    def __init__(self):
        self.ms = 1_000

    def __call__(self):
        return self.ms


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["log", "memory", "mortal", "simulated"])
def environment(request, tmp_path, clock):
    if request.param == "log":
        environment = LogEnvironment(tmp_path, now_ms=clock)
    elif request.param == "memory":
        environment = MemoryEnvironment(now_ms=clock)
    elif request.param == "mortal":
        environment = MortalEnvironment(now_ms=clock)
    else:
        environment = SimulatedLog(Directory(), now_ms=clock)
    yield environment
    environment.close()


def values(environment, stream="s", partition=0, offset=None, max_records=10_000):
    """All (offset, value) pairs and controls from `offset` on."""
    rows, controls = [], []
    if offset is None:
        offset = environment.offsets(stream, partition).start
    while read := environment.read(stream, partition, offset, max_records):
        assert len(read.batch) <= max_records
        rows += zip(read.batch.offsets, read.batch.values, strict=True)
        if read.control:
            controls.append(read.control)
        assert read.next_offset > offset
        offset = read.next_offset
    return rows, controls


def batch(*items, **columns):
    return Batch(list(items), **columns)


def test_a_stream_is_made_once(environment):
    config = StreamConfig(partitions=3, compression="zlib", retention_ms=5)
    assert environment.create_stream("s", config) == config
    assert environment.create_stream("s", StreamConfig()) == config
    environment.create_stream("a", StreamConfig())
    assert environment.streams() == {"s": config, "a": StreamConfig()}
    assert environment.offsets("s", 2) == Offsets(0, 0, False)


@pytest.mark.parametrize("name", ["", ".", "..", "a..b", ".hidden", "a/b", "a b", "é", "x" * 201, "a\n"])
def test_names_that_could_be_paths_are_refused(environment, name):
    with pytest.raises(EnvironmentFault, match="is no stream name"):
        environment.create_stream(name, StreamConfig())
    with pytest.raises(EnvironmentFault, match="is no application name"):
        environment.own(name)


@pytest.mark.parametrize(
    "config",
    [StreamConfig(partitions=0), StreamConfig(compression="lz5"), StreamConfig(retention_bytes=-1)],
    ids=["no partitions", "unknown compression", "negative retention"],
)
def test_configurations_that_mean_nothing_are_refused(environment, config):
    with pytest.raises(EnvironmentFault, match="Stream 's'"):
        environment.create_stream("s", config)
    assert environment.streams() == {}


def test_all_columns_come_back(environment, clock):
    environment.create_stream("s", StreamConfig(compression="zlib"))
    columns = {
        "keys": [b"k", None],
        "timestamps": [-1, 2**60],
        "stamps": [3, -(2**62)],
        "headers": [{"x": b"\0"}, None],
        "signs": [1, -1],
    }
    environment.append([Append("s", 0, batch(b"a", None, **columns), Control("p", 7, 2))])
    read = environment.read("s", 0, 0)
    assert read.batch.values == [b"a", None]
    assert {name: getattr(read.batch, name) for name in COLUMNS} == {
        **columns,
        "offsets": range(2),
        "owners": None,
        "origins": None,
    }
    assert (read.control, read.next_offset) == (Control("p", 7, 2), 2)


def test_rows_without_a_timestamp_have_the_time_of_their_append(environment, clock):
    environment.create_stream("s", StreamConfig())
    clock.ms = 77
    environment.append([Append("s", 0, batch(b"a", b"b"))])
    clock.ms = 78
    assert environment.read("s", 0, 1).batch.timestamps == [77]
    assert environment.read("s", 0, 0).batch.keys is None


def test_reads_go_on_from_any_offset(environment):
    environment.create_stream("s", StreamConfig(partitions=2))
    environment.append([Append("s", 1, batch(b"0", b"1", b"2"), Control("p", 5)), Append("s", 1, batch(b"3"))])
    assert environment.read("s", 1, 0, 2).batch.offsets == range(2)
    assert environment.read("s", 1, 0, 2).control is None
    assert environment.read("s", 1, 2, 2).control == Control("p", 5)
    assert [value for _, value in values(environment, "s", 1, 1, 1)[0]] == [b"1", b"2", b"3"]
    assert environment.read("s", 1, 4) is None
    assert environment.read("s", 0, 0) is None


def test_what_is_read_belongs_to_the_reader(environment):
    environment.create_stream("s", StreamConfig())
    rows = batch(b"a", b"b")
    environment.append([Append("s", 0, rows)])
    rows.values.append(b"c")
    for max_records in (10, 1):
        environment.read("s", 0, 0, max_records).batch.values[0] = b"x"
        assert environment.read("s", 0, 0, max_records).batch.values[0] == b"a"


def test_a_reader_may_leave_a_batch_in_its_midst(environment):
    environment.create_stream("s", StreamConfig())
    environment.append([Append("s", 0, batch(b"0", b"1", b"2")), Append("s", 0, batch(b"3", b"4"))])
    for offset in (1, 3, 0, 4, 2):
        assert environment.read("s", 0, offset, 1).batch.values == [b"%d" % offset]


def test_a_control_alone_has_an_offset_of_its_own(environment):
    environment.create_stream("s", StreamConfig())
    environment.append([Append("s", 0, batch(b"a")), Append("s", 0, batch(), Control("p", 9)), Append("s", 0, batch())])
    assert environment.offsets("s", 0) == Offsets(0, 2, False)
    read = environment.read("s", 0, 1)
    assert (len(read.batch), read.control, read.next_offset) == (0, Control("p", 9), 2)


def test_an_ended_partition_takes_nothing_more(environment):
    environment.create_stream("s", StreamConfig(partitions=2))
    environment.append([Append("s", 0, batch(b"a"), END)])
    environment.end_stream("s")
    environment.end_stream("s")
    assert environment.offsets("s", 0) == Offsets(0, 1, True)
    assert environment.offsets("s", 1) == Offsets(0, 1, True)
    assert environment.read("s", 1, 0).control == Control("", MAX_TIMESTAMP)
    with pytest.raises(EnvironmentFault, match="partition 1, has ended"):
        environment.append([Append("s", 1, batch(b"b"))])


def test_records_are_counted_and_neither_controls_nor_what_is_gone(environment):
    environment.create_stream("s", StreamConfig(partitions=2, compacted=True))
    environment.create_stream("other", StreamConfig())
    assert environment.stream_stats("s") == (0, 0)
    environment.append([Append("s", 0, batch(b"a", b"b", keys=[b"k", b"k"]), Control("p", 1))])
    environment.append([Append("s", 1, batch(b"c", keys=[b"k"]), END), Append("other", 0, batch(b"d"))])
    records, size_bytes = environment.stream_stats("s")
    assert (records, size_bytes > 0) == (3, True)
    environment.compact("s")
    assert environment.stream_stats("s")[0] == 2
    with pytest.raises(EnvironmentFault, match="no stream 'nosuch'"):
        environment.stream_stats("nosuch")


def test_what_each_of_several_producers_said_last_outlives_compaction(environment):
    for number, said in enumerate(product(["p", "q", "pq"], repeat=3)):
        stream = f"s{number}"
        environment.create_stream(stream, StreamConfig(compacted=True))
        for at, together in enumerate(said):
            control = in_one([Control(one, at) for one in together])
            environment.append([Append(stream, 0, batch(b"v", keys=[b"k"]), control)])
        environment.compact(stream)
        rows, controls = values(environment, stream)
        assert rows == [(2, b"v")]
        last = {one: at for at, together in enumerate(said) for one in together}
        assert {one.producer: one.watermark for control in controls for one in control.words} == last


def test_an_append_is_all_or_nothing(environment):
    environment.create_stream("s", StreamConfig(partitions=2))
    for last in (Append("s", 2, batch(b"x")), Append("t", 0, batch(b"x")), Append("s", 0, batch("text"))):
        with pytest.raises(EnvironmentFault):
            environment.append([Append("s", 0, batch(b"a")), last])
    with pytest.raises(EnvironmentFault, match="has ended"):
        environment.append([Append("s", 1, batch(b"a"), END), Append("s", 1, batch(b"b"))])
    with pytest.raises(EnvironmentFault, match="1 values has 2 keys"):
        environment.append([Append("s", 0, batch(b"a", keys=[b"k", b"k"]))])
    assert environment.offsets("s", 0) == environment.offsets("s", 1) == Offsets(0, 0, False)


def test_offsets_that_are_not_there_are_an_error(environment):
    environment.create_stream("s", StreamConfig())
    environment.append([Append("s", 0, batch(b"a"))])
    for offset in (-1, 2):
        with pytest.raises(Damaged, match="there is 0 to 1"):
            environment.read("s", 0, offset)
    with pytest.raises(EnvironmentFault, match="no partition 1"):
        environment.read("s", 1, 0)
    with pytest.raises(EnvironmentFault, match="no stream 'nosuch'"):
        environment.read("nosuch", 0, 0)


def test_a_stream_made_anew_has_nothing_of_the_old_one(environment):
    for name in ("s", "other"):
        environment.create_stream(name, StreamConfig())
        environment.append([Append(name, 0, batch(b"old", b"older"))])
    environment.read("s", 0, 0, 1)
    environment.delete_stream("s")
    environment.delete_stream("s")
    assert list(environment.streams()) == ["other"]
    environment.create_stream("s", StreamConfig(partitions=2))
    assert environment.offsets("s", 0) == Offsets(0, 0, False)
    with pytest.raises(Damaged, match="made anew"):
        environment.read("s", 0, 1)
    assert len(values(environment, "other")[0]) == 2


def test_what_is_read_tells_a_stream_from_others_and_from_those_that_had_its_name(environment):
    def write_and_read(name):
        environment.create_stream(name, StreamConfig(partitions=2))
        environment.append(Append(name, partition, batch(b"a", b"b")) for partition in range(2))
        return {environment.stream_id(name)} | {
            environment.read(name, partition, offset, 1).stream_id for partition in range(2) for offset in range(2)
        }

    found = []
    for name in ("s", "other", "s", "s"):
        if name in environment.streams():
            environment.delete_stream(name)
        found.append(write_and_read(name))
    assert [len(ids) for ids in found] == [1] * 4
    assert len(set.union(*found)) == 4
    assert 0 not in set.union(*found)
    assert write_and_read("s") == found[-1]


def test_the_version_grows_with_every_change(environment):
    versions = [environment.version()]
    for change in (
        lambda: environment.create_stream("s", StreamConfig()),
        lambda: environment.append([Append("s", 0, batch(b"a"))]),
        lambda: environment.own("app"),
        lambda: environment.commit(Commit("app", 1, [], [StateWrites("st", 0, [(b"k", b"v")])], {})),
        lambda: environment.reset("app"),
        lambda: environment.end_stream("s"),
        lambda: environment.delete_stream("s"),
    ):
        change()
        versions.append(environment.version())
    assert versions == sorted(set(versions))
    environment.streams()
    assert environment.version() == versions[-1]


def test_a_commit_shows_everything_together(environment):
    environment.create_stream("out", StreamConfig())
    generation = environment.own("app")
    checkpoint = Checkpoint(generation, (Position("log", "in", 0, 5, watermark=3, producers={"p": 1}),), {"w": 4})
    environment.commit(
        Commit(
            "app",
            generation,
            [Append("out", 0, batch(b"o"))],
            [StateWrites("st", 0, [(b"a", b"1"), (b"b", b"")]), StateWrites("st", 7, [(b"a", b"3")])],
            {"task-0": checkpoint},
        )
    )
    assert values(environment, "out")[0] == [(0, b"o")]
    assert environment.checkpoints("app") == {"task-0": checkpoint}
    assert environment.state_get("app", "st", 0, b"a") == b"1"
    assert environment.state_get("app", "st", 0, b"b") == b""
    assert environment.state_get("app", "st", 7, b"b") is None
    assert environment.state_get("app", "nosuch", 0, b"a") is None
    assert environment.state_get("ap", "st", 0, b"a") is None
    assert environment.state_stats("app") == {("st", 0): (2, 3), ("st", 7): (1, 2)}
    assert environment.checkpoints("nobody") == environment.state_stats("nobody") == {}
    environment.commit(Commit("app", generation, [], [StateWrites("st", 0, [(b"a", None), (b"nosuch", None)])], {}))
    assert list(environment.state_range("app", "st", 0)) == [(b"b", b"")]
    assert environment.checkpoints("app") == {"task-0": checkpoint}


def test_applications_are_those_that_were_owned(environment):
    assert environment.applications() == []
    environment.generation("never")
    for app in ("b", "a-b", "a"):
        environment.own(app)
    environment.reset("b")
    assert environment.applications() == ["a", "a-b", "b"]


def test_a_commit_of_an_older_generation_leaves_nothing(environment):
    environment.create_stream("out", StreamConfig())
    assert environment.generation("app") == 0
    old = environment.own("app")
    environment.reset("app")
    writes = [StateWrites("st", 0, [(b"a", b"1")])]
    with pytest.raises(Fenced, match="generation 2, and this run is of 1"):
        environment.commit(Commit("app", old, [Append("out", 0, batch(b"o"))], writes, {"t": Checkpoint(1)}))
    assert environment.offsets("out", 0).end == 0
    assert environment.state_get("app", "st", 0, b"a") is None
    assert environment.checkpoints("app") == {}
    assert environment.own("app") == 3 == environment.generation("app")


def test_a_commit_that_can_not_be_written_leaves_nothing(environment):
    environment.create_stream("out", StreamConfig())
    generation = environment.own("app")
    environment.end_stream("out")
    writes = [StateWrites("st", 0, [(b"a", b"1")])]
    with pytest.raises(EnvironmentFault, match="has ended"):
        environment.commit(Commit("app", generation, [Append("out", 0, batch(b"o"))], writes, {"t": Checkpoint(1)}))
    assert environment.state_get("app", "st", 0, b"a") is None
    assert environment.checkpoints("app") == {}


def test_reset_removes_the_state_of_one_application(environment):
    for app in ("app", "app2"):
        generation = environment.own(app)
        writes = [StateWrites(store, 0, [(b"k", b"v")]) for store in ("a", "b")]
        environment.commit(Commit(app, generation, [], writes, {"t": Checkpoint(generation)}))
    environment.reset("app", ["a", "nosuch"])
    assert environment.state_stats("app") == {("b", 0): (1, 2)}
    assert environment.checkpoints("app") == {}
    environment.reset("app")
    assert environment.state_stats("app") == {}
    assert environment.state_stats("app2") == {("a", 0): (1, 2), ("b", 0): (1, 2)}
    assert environment.checkpoints("app2") == {"t": Checkpoint(1)}


def test_the_state_of_some_stores_is_forgotten_and_nothing_else(environment):
    for app in ("app", "app2"):
        generation = environment.own(app)
        writes = [StateWrites(store, task, [(b"k", b"v")]) for store in ("a", "b") for task in (0, 1)]
        environment.commit(Commit(app, generation, [], writes, {"t": Checkpoint(generation)}))
    generation = environment.generation("app")
    for _ in range(2):
        environment.forget("app", ["a", "nosuch"])
        assert environment.stores("app") == ["b"]
        assert environment.state_stats("app") == {("b", 0): (1, 2), ("b", 1): (1, 2)}
        assert environment.checkpoints("app") == {"t": Checkpoint(generation)}
    environment.commit(Commit("app", generation, [], [StateWrites("a", 0, [(b"new", b"v")])], {}))
    assert dict(environment.state_range("app", "a", 0)) == {b"new": b"v"}
    assert environment.state_get("app", "a", 1, b"k") is None
    assert environment.state_stats("app2") == dict.fromkeys([("a", 0), ("a", 1), ("b", 0), ("b", 1)], (1, 2))


def test_keys_of_any_length_are_kept_in_order(environment):
    long = [b"\x05" * 471, b"\x05" * 472, *(b"\x05" * 600 + bytes([n]) for n in (9, 3, 200, 0)), b"\x05" * 5_000]
    keys = sorted([b"", b"\x05", b"\x05" * 470, b"\x05" * 470 + b"\x06", b"\x06", b"\xff" * 600, *long])
    generation = environment.own("app")
    items = [(key, key[-3:]) for key in keys]
    environment.commit(
        Commit("app", generation, [], [StateWrites("s", task, items) for task in (0, 1, 2**31)], {}),
    )
    assert [environment.state_get("app", "s", 1, key) for key in keys] == [value for _, value in items]
    assert environment.state_get("app", "s", 1, b"\x05" * 599) is None
    for start in [*keys, b"\x05" * 473, b"\x04"]:
        for end in [*keys, None, b"\x05" * 473]:
            expected = [item for item in items if item[0] >= start and (end is None or item[0] < end)]
            assert list(environment.state_range("app", "s", 1, start, end)) == expected
    environment.commit(Commit("app", generation, [], [StateWrites("s", 1, [(keys[-2], None)])], {}))
    assert environment.state_get("app", "s", 1, keys[-2]) is None


def test_a_range_of_many_entries_is_whole(environment):
    generation = environment.own("app")
    items = [(b"%05d" % (number // 3) + b"\0" * (number % 3), b"%d" % number) for number in range(1_000)]
    environment.commit(Commit("app", generation, [], [StateWrites("s", 0, items)], {}))
    assert list(environment.state_range("app", "s", 0)) == items
    assert list(environment.state_range("app", "s", 0, b"00100", b"00300")) == items[300:900]


def test_retention_drops_whole_batches_by_age(environment, clock):
    environment.create_stream("s", StreamConfig(retention_ms=100))
    for clock.ms in (0, 50, 101, 120):
        environment.append([Append("s", 0, batch(b"a", b"b"))])
    assert environment.offsets("s", 0) == Offsets(2, 8, False)
    with pytest.raises(Damaged, match="there is 2 to 8"):
        environment.read("s", 0, 1)
    clock.ms = 100_000
    environment.append([Append("s", 0, batch(b"a"))])
    assert values(environment) == ([(8, b"a")], [])


def test_retention_drops_whole_batches_by_size(environment):
    environment.create_stream("s", StreamConfig(retention_bytes=50_000))
    for _ in range(20):
        environment.append([Append("s", 0, batch(b"x" * 10_000))])
    start, end, _ = environment.offsets("s", 0)
    assert end == 20
    assert 3 <= end - start <= 5
    environment.append([Append("s", 0, batch(b"x" * 100_000))])
    assert environment.offsets("s", 0) == Offsets(20, 21, False)


def consume(environment, generation, *appends, **consumed):
    """Commit that of a stream's partition 0 everything below an offset is consumed."""
    places = {(stream, 0): offset for stream, offset in consumed.items()}
    environment.commit(Commit("app", generation, list(appends), [], {}, places))


def test_what_is_consumed_of_an_intermediate_stream_goes_in_whole_batches(environment):
    environment.create_stream("s", StreamConfig(intermediate=True))
    environment.append([Append("s", 0, batch(b"0", b"1")), Append("s", 0, batch(b"2", b"3"), Control("p", 1))])
    generation = environment.own("app")
    consume(environment, generation, s=1)
    assert environment.offsets("s", 0) == Offsets(0, 4, False)
    consume(environment, generation, Append("s", 0, batch(), Control("p", 2)), s=3)
    assert environment.offsets("s", 0) == Offsets(2, 5, False)
    assert values(environment, offset=3) == ([(3, b"3")], [Control("p", 1), Control("p", 2)])
    with pytest.raises(Damaged, match="there is 2 to 5"):
        environment.read("s", 0, 1)
    consume(environment, generation, s=5)
    assert (environment.offsets("s", 0), environment.read("s", 0, 5)) == (Offsets(5, 5, False), None)
    assert environment.stream_stats("s") == (0, 0)
    environment.append([Append("s", 0, batch(b"5"))])
    assert values(environment) == ([(5, b"5")], [])


def test_what_is_consumed_of_another_stream_stays(environment):
    environment.create_stream("s", StreamConfig())
    environment.append([Append("s", 0, batch(b"0"))])
    consume(environment, environment.own("app"), s=1)
    assert environment.offsets("s", 0) == Offsets(0, 1, False)


def test_a_commit_that_is_refused_has_consumed_nothing(environment):
    environment.create_stream("s", StreamConfig(intermediate=True))
    environment.append([Append("s", 0, batch(b"0"))])
    generation = environment.own("app")
    with pytest.raises(Fenced):
        consume(environment, generation - 1, s=1)
    with pytest.raises(EnvironmentFault, match="no stream 'nosuch'"):
        consume(environment, generation, Append("nosuch", 0, batch(b"x")), s=1)
    assert environment.offsets("s", 0) == Offsets(0, 1, False)


def test_what_is_consumed_goes_faster_than_it_comes(environment):
    environment.create_stream("s", StreamConfig(intermediate=True))
    environment.append([Append("s", 0, batch(b"x")) for _ in range(2_000)])
    generation = environment.own("app")
    for _ in range(50):
        consume(environment, generation, *[Append("s", 0, batch(b"x"))] * 20, s=environment.offsets("s", 0).end)
    assert environment.stream_stats("s")[0] <= 20


def test_compaction_keeps_the_newest_row_of_each_key(environment, clock):
    environment.create_stream("s", StreamConfig(compacted=True))
    rows = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", None), (b"a", b"3")]
    for offset, (key, value) in enumerate(rows):
        environment.append([Append("s", 0, batch(value, keys=[key], timestamps=[offset]), Control("p", offset))])
    environment.compact("s")
    assert values(environment) == ([(3, b"1"), (4, None), (5, b"3")], [Control("p", 5)])
    assert environment.offsets("s", 0) == Offsets(0, 6, False)
    assert environment.read("s", 0, 1).batch.timestamps == [3, 4, 5]
    clock.ms += TOMBSTONE_MS + 1
    environment.append([Append("s", 0, batch(b"2", keys=[b"c"]))])
    environment.compact("s")
    assert values(environment)[0] == [(5, b"3"), (6, b"2")]
    assert values(environment, offset=6)[0] == [(6, b"2")]
    environment.compact("s")
    assert values(environment)[0] == [(5, b"3"), (6, b"2")]


def test_compaction_keeps_what_each_producer_said_last(environment):
    environment.create_stream("s", StreamConfig(compacted=True))
    for number, producer in enumerate(["p", None, "p", "q", None]):
        control = Control(producer, number) if producer else None
        environment.append([Append("s", 0, batch(b"v", keys=[b"%d" % number]), control)])
    environment.append([Append("s", 0, batch(), END)])
    environment.compact("s")
    rows, controls = values(environment)
    assert len(rows) == 5
    assert controls == [Control("p", 2), Control("q", 3), END]
    assert environment.read("s", 0, 3).control == Control("q", 3)


def test_compaction_comes_by_and_by(environment):
    environment.create_stream("s", StreamConfig(compacted=True, compression="zlib"))
    for number in range(500):
        environment.append([Append("s", 0, batch(b"%d" % number, keys=[b"%d" % (number % 10)]))])
    rows = values(environment)[0]
    assert len(rows) < 200
    assert rows[-10:] == [(number, b"%d" % number) for number in range(490, 500)]


def test_compaction_needs_keys(environment):
    environment.create_stream("s", StreamConfig(compacted=True))
    for rows in (batch(b"a"), batch(b"a", b"b", keys=[b"k", None])):
        with pytest.raises(EnvironmentFault, match="give every row a key"):
            environment.append([Append("s", 0, rows)])
    environment.append([Append("s", 0, batch(), Control("p", 1))])


def test_big_values_come_back(environment):
    environment.create_stream("s", StreamConfig())
    big = bytes(range(256)) * 40_000
    environment.append([Append("s", 0, batch(big, b"small"))])
    assert environment.read("s", 0, 0).batch.values == [big, b"small"]
    generation = environment.own("app")
    environment.commit(Commit("app", generation, [], [StateWrites("s", 0, [(b"k", big)])], {}))
    assert environment.state_get("app", "s", 0, b"k") == big


def test_each_commit_is_seen_by_who_looks_twice(environment):
    generation = environment.own("app")
    seen = [environment.settled_commits("app")]
    for number in (1, 2, 3, 3):
        state = [StateWrites("totals", 0, [(b"key", b"%d" % number)])]
        environment.commit(Commit("app", generation, [], state, {}))
        seen.append(environment.settled_commits("app"))
        assert environment.settled_commits("app") == seen[-1]
    assert all(one != other for one, other in pairwise(seen))
