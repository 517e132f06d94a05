"""Headers that other writers of Kafka write go on as they are, whatever their names and values."""

from contextlib import closing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.errors import Damaged, TooLarge
from runtime.ports.streams import END, Control
from runtime.stage.outputs import check_size
from runtime.systems.kafka.client.record_limits import KafkaLimit
from runtime.systems.kafka.streams.records import CARRIED, CONTROL, SIGN, STAMP, TIME, as_reads, as_records
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, dead_letter
from samza_dsl.data.records import records_from
from samza_dsl.room.letters import SENT_AGAIN, Redrive, letters, send_again
from tests.scale import examples
from tests.simulation.crash import run_once
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import NOW_MS, Cluster, Partition, Topic

NAMES = [
    CONTROL,
    STAMP,
    SIGN,
    TIME,
    CARRIED,
    CARRIED + STAMP,
    "samza-",
    "",
    "a",
    "\N{SNOWMAN}",
    "stream",
    "traceparent",
]
SAID = [None, b"", b"zzz", b"\0" * 8, b"\xff" * 8, msgspec.msgpack.encode(Control("a", 7)), msgspec.msgpack.encode(END)]
contents = st.sampled_from(SAID) | st.binary(max_size=9)
headers = st.lists(st.tuples(st.sampled_from(NAMES) | st.text(max_size=3), contents), max_size=4)
rows = st.lists(st.tuples(st.none() | st.sampled_from([b"", b"k", b"\0", b"\0a"]), headers), max_size=6)


def topic(cluster, name, found):
    """Make a topic of others, with a record of each key and headers; its value is its number."""
    cluster.topics[name] = Topic([Partition()], {}, cluster.topic_id())
    records = [(key, b"%d" % number, NOW_MS, said) for number, (key, said) in enumerate(found)]
    if records:
        cluster.write(None, 0, (name, 0), records)


def stored(environment, name):
    counts = range(environment.streams()[name].partitions)
    found = [one for number in counts for one in records_from(environment, name, number, 0)]
    return sorted((int(one.value), dict(one.headers)) for one in found)


STEPS = {
    "map": lambda stream: stream.map(lambda number: number),
    "process": lambda stream: stream.partition_by(lambda number: number % 3, partitions=2, op_id="by").process(
        lambda number, context: [number], op_id="tagged"
    ),
    "async": lambda stream: stream.async_flat_map(_once),
    "shuffled": lambda stream: stream.partition_by(lambda number: number % 3, partitions=2, op_id="by"),
    "broadcast": lambda stream: stream.broadcast(partitions=1, op_id="all"),
}


async def _once(number):
    return [number]


def app(step="map", is_read=True, **sent):
    app = App("headed")
    numbers = STEPS[step](app.input("theirs", value=int, headers=is_read))
    numbers.send_to(app.output("out", value=int, partitions=1), **sent)
    return app


@settings(max_examples=examples(25, 250), deadline=None)
@given(found=rows, step=st.sampled_from(sorted(STEPS)), is_read=st.booleans(), is_made=st.booleans())
def test_any_headers_of_others_reach_the_function_and_the_output(tmp_path_factory, found, step, is_read, is_made):
    cluster, seen = Cluster(), []

    def made(number, headers):
        seen.append((number, dict(headers)))
        return {**headers, "schema": b"2"}

    sent = {"headers": made} if is_read and is_made else {}
    with simulated(cluster):
        topic(cluster, "theirs", found)
        with closing(opened(tmp_path_factory.mktemp("run"))) as environment:
            run_once(app(step, is_read, **sent), environment, until_now=True)
            out = stored(environment, "out")
    as_written = [(number, dict(said)) for number, (_, said) in enumerate(found)]
    if sent:
        assert sorted(seen) == as_written
        assert out == [(number, {**said, "schema": b"2"}) for number, said in as_written]
    else:
        assert out == [(number, said if is_read else {}) for number, said in as_written]


@settings(max_examples=examples(100, 2_000))
@given(found=rows, between=st.booleans(), said=st.none() | st.builds(Control, st.text(max_size=3), st.integers(0, 9)))
def test_rows_come_back_as_they_were_written(found, between, said):
    """What is written beside them is told from what they carry, whatever that is."""
    size = len(found)
    batch = Batch([b"1"] * size, [key for key, _ in found], [*range(-1, size - 1)])
    batch.headers = [{name: one for name, one in many if name != TIME or between} or None for _, many in found]
    if between:
        batch.stamps, batch.signs = [None if row % 2 else row for row in range(size)], [1] * size
    records = as_records(batch, said, between)
    records.keys = records.keys or [None] * len(records)
    records.timestamps = [NOW_MS if at is None else at for at in records.timestamps or [None] * len(records)]
    records.offsets = range(7, 7 + len(records))
    assert not size or min(records.timestamps) >= 0
    (read,) = as_reads(records, 7 + len(records), 0, "kafka://b/t/0" if between else None)
    assert read.control == said
    back = read.batch
    assert (back.headers or [None] * size) == batch.headers
    assert back.timestamps == batch.timestamps
    assert (back.stamps or [None] * size, back.signs or [None] * size) == (
        batch.stamps or [None] * size,
        batch.signs or [None] * size,
    )


@pytest.mark.parametrize(
    ("name", "said"), [(STAMP, b"zzz"), (STAMP, None), (SIGN, b""), (TIME, b"1"), (CONTROL, b""), (CONTROL, None)]
)
def test_damage_between_stages_is_told_with_its_record(name, said, cluster, tmp_path):
    shuffled = app("shuffled")
    topic(cluster, "theirs", [(None, []), (None, [])])
    with closing(opened(tmp_path)) as environment:
        run_once(shuffled, environment, until_now=True)
        at = cluster.topics["headed-by"].partitions[0].end
        cluster.write(None, 0, ("headed-by", 0), [(b"1", b"1", NOW_MS, [(name, said)])])
    with (
        closing(opened(tmp_path)) as environment,
        pytest.raises(Damaged, match=f"headed-by/0 at {at}.*{name}.*begin anew"),
    ):
        run_once(shuffled, environment, until_now=True)


def test_a_letter_has_headers_without_values_as_they_were(cluster, tmp_path):
    def fails(number):
        raise ValueError(number)

    app = App("failing")
    numbers = app.input("theirs", value=int, headers=True)
    numbers.map(fails, on_error=dead_letter("bad"), op_id="fails").send_to(app.output("out", value=int))
    topic(cluster, "theirs", [(None, [("a", None), (STAMP, None), ("operator", b"mine")])])
    with closing(opened(tmp_path)) as environment:
        run_once(app, environment, until_now=True)
        ((_, said),) = stored(environment, "bad")
        (letter,) = letters(environment, app.plan(), {})
        assert (letter.operator, letter.origin) == ("fails", "theirs/0 at 0")
        send_again(environment, app.plan(), Redrive(stream="bad", partition=0, offset=letter.offset, to="theirs"))
        (*_, again) = records_from(environment, "theirs", 0, 0)
        assert again.headers == {"a": None, STAMP: None, "operator": b"mine", SENT_AGAIN: b"bad/0/0"}
    assert (said["record.a"], said[f"record.{STAMP}"], said["record.operator"]) == (None, None, b"mine")
    assert said["operator"] == b"fails"


def test_a_log_carries_them_from_a_bound_input_to_a_bound_output(cluster, tmp_path):
    said = [[("a", None), (STAMP, b"zzz")], [(CONTROL, b"")], [(TIME, None), ("a", b"1")], []]
    topic(cluster, "theirs", [(b"k", one) for one in said])
    topic(cluster, "sent", [])
    bind = {name: f"kafka://simulated:9092/{to}" for name, to in (("theirs", "theirs"), ("out", "sent"))}
    with closing(LogEnvironment(tmp_path / "log")) as log:
        run_once(app("shuffled"), log, bind=bind, until_now=True)
    with closing(opened(tmp_path / "kafka")) as environment:
        assert stored(environment, "sent") == [(number, dict(one)) for number, one in enumerate(said)]


@settings(max_examples=examples(100, 1_000))
@given(found=st.lists(st.tuples(st.binary(max_size=2), headers), min_size=1, max_size=3), most=st.integers(60, 140))
def test_a_record_is_measured_with_its_headers(found, most):
    batch = Batch([b"1"] * len(found), [key for key, _ in found], headers=[dict(said) or None for _, said in found])
    limit = KafkaLimit("kafka://b/t", most)
    if max(limit.size(batch, row) for row in range(len(found))) > most:
        with pytest.raises(TooLarge, match="kafka://b/t can't be written"):
            check_size(limit, batch)
    else:
        check_size(limit, batch)


def test_an_end_that_we_have_written_is_one_and_a_record_like_it_is_none(cluster, tmp_path):
    like = [(b"k", [(CONTROL, b"")]), (b"\0", [(CONTROL, b""), ("a", b"")]), (b"\0", [(CONTROL, None)])]
    topic(cluster, "theirs", like)
    value = msgspec.msgpack.encode(END)
    cluster.write(None, 0, ("theirs", 0), [(key, value, NOW_MS, said) for key, said in like])
    with closing(opened(tmp_path)) as environment:
        assert environment.stream_stats("theirs")[0] == 6
        assert not environment.offsets("theirs", 0).ended
        environment.end_stream("theirs")
        assert environment.offsets("theirs", 0).ended
        assert environment.stream_stats("theirs")[0] == 6
