"""Applications of which everything but the state is on a real broker: exactly once, whatever happens."""

import asyncio
import math
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import msgspec
import pytest

from operators.core.base import Batch
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import Damaged, EnvironmentFault, Fenced
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, Control, StreamConfig
from runtime.systems.kafka.client import metadata as kafka_metadata
from runtime.systems.kafka.client.private_names import answer_to
from runtime.systems.kafka.coordination.owner import PURGE_EVERY
from runtime.systems.kafka.environment import KafkaEnvironment
from runtime.systems.kafka.state import changelog as kafka_changelog
from runtime.systems.kafka.streams import fetcher as kafka_fetcher
from runtime.systems.kafka.streams import streams as kafka_streams
from runtime.systems.kafka.streams.fetcher import KafkaFetcher
from samza_dsl import App, Json, KafkaCluster, String
from tests.faults.processes import wait_until
from tests.kafka.topics import consume, create, group_offsets, produce, replace

ANSWER_MS = 10_000
"""How long it takes at most until a broker that has nothing new says so."""


@pytest.fixture
def cluster(broker):
    return KafkaCluster(f"kafka://{broker.bootstrap}")


@pytest.fixture
def opened(cluster, tmp_path):
    """Open an environment with its state in a directory of that name; all are closed at the end."""
    environments = []

    def opened(name: str = "here") -> KafkaEnvironment:
        environments.append(KafkaEnvironment(cluster, tmp_path / name))
        return environments[-1]

    yield opened
    for environment in environments:
        environment.close()


def counting(topics: str) -> App:
    """Count words after a repartitioning, and tell each new count."""
    app = App(topics)
    words = app.input(f"{topics}-words", value=String())
    counts = words.partition_by(lambda word: word, partitions=2, op_id="by-word").scan(
        lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count"
    )
    counts.send_to(app.output(f"{topics}-counts", value=Json(list)))
    return app


def told(broker, topics) -> list[tuple[str, int]]:
    found = consume(broker, f"{topics}-counts")
    return sorted(tuple(msgspec.json.decode(record.value)) for records in found.values() for record in records)


def expected(words) -> list[tuple[str, int]]:
    return sorted((word, number + 1) for word, count in Counter(words).items() for number in range(count))


def test_a_pipeline_with_state_goes_on_where_it_was_left(broker, topics, cluster, tmp_path):
    words = [f"w{number % 5}" for number in range(60)]
    create(broker, f"{topics}-words", 2)
    for start in (0, 20, 40):
        rows = [(number % 2, None, word.encode()) for number, word in enumerate(words[start : start + 20])]
        produce(broker, f"{topics}-words", *rows)
        counting(topics).run(tmp_path / "state", environment=cluster, until_now=True)
        assert told(broker, topics) == expected(words[: start + 20])


def test_topics_of_others_cost_a_run_nothing(broker, topics, cluster, tmp_path, monkeypatch):
    create(broker, f"{topics}-words")
    produce(broker, f"{topics}-words", (0, None, b"a"))
    create(broker, f"{topics}-of-others")
    counting(topics).run(tmp_path / "state", environment=cluster, until_now=True)
    told_of = Counter()

    async def counted(*arguments):
        for topic in (answer := await answer_to(*arguments)).to_object()["topics"]:
            told_of[topic["topic"]] += 1
        return answer

    monkeypatch.setattr(kafka_metadata, "answer_to", counted)
    counting(topics).run(tmp_path / "state", environment=cluster, until_now=True)
    # All are looked at once where the environment is opened, and once where inputs are counted.
    assert told_of[f"{topics}-words"] > told_of[f"{topics}-of-others"] == 2


def test_brokers_say_when_there_is_no_more_in_a_partition(broker, topics, opened):
    create(broker, f"{topics}-words", 2)
    produce(broker, f"{topics}-words", (0, None, b"a"))
    environment, owner, offset = opened(), opened("owner"), 0
    owner.append([Append(f"{topics}-words", 0, Batch([b"b"]))])  # behind which is the marker of its transaction
    members = environment.join(topics, owner.own(topics), "one", 1)  # from now on nothing is waited for

    def is_all_read():
        nonlocal offset
        found = environment.read(f"{topics}-words", 0, offset)
        offset = offset if found is None else found.next_offset
        return environment.unheard_ms(f"{topics}-words", 0, offset) < ANSWER_MS

    assert environment.unheard_ms(f"{topics}-words", 0, offset) == math.inf
    wait_until(is_all_read)
    assert offset == 3
    assert environment.unheard_ms(f"{topics}-words", 0, 0) == math.inf, "there is something"
    assert environment.unheard_ms(f"{topics}-words", 1, 0) == math.inf, "nobody has asked"
    members.leave()


def test_an_application_that_begins_anew_does_all_of_it_again(broker, topics, cluster, tmp_path):
    create(broker, f"{topics}-words", 1)
    produce(broker, f"{topics}-words", *((0, None, word) for word in (b"a", b"b", b"a")))
    for how in ({}, {"from_start": True, "state": "reset"}, {}):
        counting(topics).run(tmp_path / "state", environment=cluster, until_now=True, **how)
    assert told(broker, topics) == sorted(expected(["a", "b", "a"]) * 2)


def test_a_topic_that_was_made_anew_and_has_grown_past_the_position_stops_the_run(broker, topics, cluster, tmp_path):
    create(broker, f"{topics}-words", 1)
    produce(broker, f"{topics}-words", *((0, None, word) for word in (b"a", b"b", b"a")))
    counting(topics).run(tmp_path / "state", environment=cluster, until_now=True)
    replace(broker, f"{topics}-words", *[b"c"] * 9)
    for _ in range(2):
        with pytest.raises(Damaged, match=r"partition 0, was made anew since it was read up to offset 3: .*reset"):
            counting(topics).run(tmp_path / "state", environment=cluster, until_now=True)
    assert told(broker, topics) == expected(["a", "b", "a"])
    counting(topics).run(tmp_path / "state", environment=cluster, until_now=True, from_start=True, state="keep")
    assert told(broker, topics) == expected(["a", "b", "a", *["c"] * 9])


def test_what_is_between_stages_carries_all_columns_and_what_producers_say(opened, topics):
    environment, stream = opened(), f"{topics}-s"
    environment.create_stream(stream, StreamConfig(intermediate=True))
    columns = {"keys": [b"k", None], "timestamps": [-5, 2**60], "stamps": [3, -(2**62)], "signs": [1, -1]}
    said = Control("p", 7, 2, beside=(Control("q", 8, 2, idle=True),))
    environment.append([Append(stream, 0, Batch([b"a", None], **columns), said)])
    read = environment.read(stream, 0, 0)
    assert (read.batch.values, read.control) == ([b"a", None], said)
    assert {name: getattr(read.batch, name) for name in columns} == columns
    assert environment.offsets(stream, 0).end == 4  # two rows, the control, and the transaction's marker


def test_an_ended_partition_stays_so(opened, topics):
    environment, stream = opened(), f"{topics}-s"
    environment.create_stream(stream, StreamConfig(partitions=2))
    environment.append([Append(stream, 0, Batch([b"a"]))])
    environment.end_stream(stream)
    environment.end_stream(stream)
    environment.close()
    again = opened()
    assert [again.offsets(stream, number).ended for number in range(2)] == [True, True]
    with pytest.raises(EnvironmentFault, match="partition 1, has ended"):
        again.append([Append(stream, 1, Batch([b"b"]))])


def test_what_is_consumed_between_stages_is_removed(opened, topics):
    environment, stream = opened(), f"{topics}-s"
    environment.create_stream(stream, StreamConfig(intermediate=True))
    generation = environment.own(topics)
    for _ in range(40):
        end = environment.offsets(stream, 0).end
        rows = [Append(stream, 0, Batch([b"x"]))]
        environment.commit(Commit(topics, generation, rows, [], {}, {(stream, 0): end}))
    environment.close()
    assert opened().offsets(stream, 0).start > 20


def test_what_is_consumed_is_removed_beside_a_stream_that_was_deleted(opened, topics):
    environment, kept, dropped = opened(), f"{topics}-kept", f"{topics}-dropped"
    for stream in (kept, dropped):
        environment.create_stream(stream, StreamConfig(intermediate=True))
    generation = environment.own(topics)
    for number in range(PURGE_EVERY):
        if number == PURGE_EVERY // 2:
            environment.delete_stream(dropped)
        present = environment.streams().keys() & {kept, dropped}
        ends = {(stream, 0): environment.offsets(stream, 0).end for stream in present}
        rows = [Append(stream, 0, Batch([b"x"])) for stream in present]
        environment.commit(Commit(topics, generation, rows, [], {}, ends))
    environment.close()
    assert opened().offsets(kept, 0).start > 0


def test_what_is_asked_waits_for_no_fetch(opened, topics, monkeypatch):
    monkeypatch.setattr(kafka_fetcher, "BUSY_MS", 0.0)
    monkeypatch.setattr(kafka_fetcher, "FETCH_WAIT_MS", 20_000)
    environment, stream = opened(), f"{topics}-s"
    environment.create_stream(stream, StreamConfig(partitions=2))
    assert environment.read(stream, 0, 0) is None  # and from now on a broker is asked for more
    with ThreadPoolExecutor(1) as pool:
        asked = [pool.submit(environment.offsets, stream, 1) for _ in range(20)]
        assert not wait(asked, timeout=600).not_done
    assert environment.known(stream, 1) == environment.offsets(stream, 1)


def test_metrics_ask_no_broker(cluster, opened, topics, tmp_path, monkeypatch):
    environment, stream = opened("writer"), f"{topics}-words"
    environment.create_stream(stream, StreamConfig(partitions=2))
    environment.append([Append(stream, 0, Batch([b"read"]))])
    app, called, may_go_on = App(topics), threading.Event(), threading.Event()

    async def look_up(word):
        if word != "read":
            called.set()
            await asyncio.to_thread(may_go_on.wait)
        return [word]

    words = app.input(stream, value=String()).async_flat_map(look_up)
    words.send_to(app.output(f"{topics}-found", value=String()))
    app.run(tmp_path / "here", environment=cluster, until_now=True)
    environment.append([Append(stream, 1, Batch([b"new"]))])

    async def check():
        async with app.running(tmp_path / "here", environment=cluster, until_now=True) as run:
            await asyncio.to_thread(called.wait)
            with monkeypatch.context() as patched:
                patched.setattr(KafkaFetcher, "refresh", lambda self, partition: pytest.fail("asks"))
                assert [one.lag for one in run.metrics().inputs] == [0, 0]
            may_go_on.set()
            await run.settled()

    asyncio.run(check())


def committed(topics: str, generation: int, offset: int, *state) -> Commit:
    """What a task commits that has read so far, and holds such entries."""
    position = Position("log", f"{topics}-words", 0, offset)
    return Commit(topics, generation, [], [StateWrites("st", 0, [*state])], {"0": Checkpoint(generation, (position,))})


def test_an_earlier_owner_is_fenced_wherever_it_runs(opened, topics):
    zombie, successor = opened("there"), opened("here")
    zombie.create_stream(f"{topics}-words", StreamConfig())
    first = zombie.own(topics)
    zombie.commit(committed(topics, first, 1, (b"k", b"1")))
    second = successor.own(topics)
    assert successor.state_get(topics, "st", 0, b"k") == b"1"
    with pytest.raises(Fenced, match=f"generation {second}, and this run is of {first}"):
        zombie.commit(committed(topics, first, 2, (b"k", b"zombie")))
    assert zombie.state_get(topics, "st", 0, b"k") == b"1"
    successor.commit(committed(topics, second, 2, (b"k", b"2")))
    assert opened("elsewhere").checkpoints(topics)["0"].positions[0].offset == 2


def test_state_here_is_brought_up_to_date_by_what_is_newer_alone(opened, topics):
    first = opened("first")
    first.create_stream(f"{topics}-words", StreamConfig())
    generation = first.own(topics)
    for number in range(5):
        first.commit(committed(topics, generation, number, (b"%d" % number, b"1")))
    first.close()
    again = opened("first")
    again.own(topics)
    assert again.restored(topics) == 0
    again.close()
    second = opened("second")
    generation = second.own(topics)
    assert second.restored(topics) == 5
    second.commit(committed(topics, generation, 6, (b"0", None), (b"9", b"2")))
    second.close()
    last = opened("first")
    last.own(topics)
    assert last.restored(topics) == 2
    assert dict(last.state_range(topics, "st", 0)) == {b"1": b"1", b"2": b"1", b"3": b"1", b"4": b"1", b"9": b"2"}


def test_state_here_that_may_have_missed_a_deletion_is_made_anew(opened, topics, monkeypatch):
    first = opened("first")
    first.create_stream(f"{topics}-words", StreamConfig())
    first.commit(committed(topics, first.own(topics), 1, (b"a", b"1"), (b"b", b"1")))
    first.close()
    second = opened("second")
    second.commit(committed(topics, second.own(topics), 2, (b"a", None)))
    second.close()
    monkeypatch.setattr(kafka_changelog, "TOO_OLD_MS", -1)
    again = opened("first")
    again.own(topics)
    assert again.restored(topics) == 3, "all of it, and not the deletion alone"
    assert dict(again.state_range(topics, "st", 0)) == {b"b": b"1"}


def test_state_here_of_another_cluster_or_before_a_reset_is_made_anew(opened, topics):
    old, other = opened("old"), opened("other")
    old.create_stream(f"{topics}-words", StreamConfig())
    old.commit(committed(topics, old.own(topics), 1, (b"stale", b"1")))
    old.close()
    other.reset(topics)
    assert other.checkpoints(topics) == {}
    other.commit(committed(topics, other.generation(topics), 1, (b"new", b"2")))
    other.close()
    again = opened("old")
    again.own(topics)
    assert dict(again.state_range(topics, "st", 0)) == {b"new": b"2"}


def test_a_commit_whose_state_was_not_written_here_is_found_in_the_changelog(opened, topics, monkeypatch):
    environment = opened()
    environment.create_stream(f"{topics}-words", StreamConfig())
    generation = environment.own(topics)
    environment.commit(committed(topics, generation, 1, (b"k", b"1")))
    monkeypatch.setattr(environment, "_write_locally", killed)
    with pytest.raises(KeyboardInterrupt):
        environment.commit(committed(topics, generation, 2, (b"k", b"2")))
    assert environment.state_get(topics, "st", 0, b"k") == b"1"
    environment.close()
    again = opened()
    again.own(topics)
    assert again.checkpoints(topics)["0"].positions[0].offset == 2
    assert again.state_get(topics, "st", 0, b"k") == b"2"
    assert again.restored(topics) == 1


def killed(*_):
    raise KeyboardInterrupt


def test_the_inputs_positions_are_those_of_a_group_without_members(broker, opened, topics):
    environment = opened()
    environment.create_stream(f"{topics}-words", StreamConfig())
    environment.append([Append(f"{topics}-words", 0, Batch([b"a", b"b"]))])
    environment.commit(committed(topics, environment.own(topics), 2))
    # Brokers answer a commit before they mark it so in the topic of groups.
    wait_until(lambda: group_offsets(broker, topics) == {(f"{topics}-words", 0): 2})


def test_the_ranges_of_all_streams_are_told_though_one_is_deleted_meanwhile(opened, topics, monkeypatch):
    environment = opened()
    environment.create_stream(f"{topics}-kept", StreamConfig(partitions=2))
    gone = iter([{f"{topics}-gone": StreamConfig()}])
    all_of = environment._streams.all
    monkeypatch.setattr(environment._streams, "all", lambda **how: next(gone, {}) | all_of(**how))
    found = environment.ranges()
    assert [one.end for one in found[f"{topics}-kept"]] == [0, 0]
    assert f"{topics}-gone" not in found
    assert next(gone, None) is None


@pytest.mark.parametrize(
    "look",
    [
        lambda environment, app: environment.asked_scale(app),
        lambda environment, app: environment.job_model(app),
        lambda environment, app: environment.progress(app),
        lambda environment, app: environment.runs(app).said(),
        lambda environment, app: environment.generation(app),
        lambda environment, app: environment.checkpoints(app),
    ],
    ids=["scale", "job model", "progress", "said", "generation", "checkpoints"],
)
@pytest.mark.parametrize("there", [True, False], ids=["begun", "never begun"])
def test_looks_that_a_run_repeats_ask_for_no_topic_of_others(look, there, opened, topics, monkeypatch):
    if there:
        opened().own(topics)
    environment, asked, ask = opened("other"), [], kafka_streams.topics_of
    monkeypatch.setattr(
        kafka_streams, "topics_of", lambda client, names=None: asked.append(names) or ask(client, names)
    )
    for _ in range(2):
        look(environment, topics)
    assert asked
    assert all(names is not None and all(name.startswith(topics) for name in names) for names in asked), asked
