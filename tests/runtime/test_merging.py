"""What was recomputed is merged with live results that go on: whatever comes when, a live result holds."""

import json
from contextlib import closing

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.encoding.serdes import Json, String
from runtime.model.errors import OperatorFailure, SamzaError
from runtime.model.history import prefer_live
from runtime.ports.streams import Append, StreamConfig
from runtime.reprocessing.merge import Merging, merge_into
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, produce, total, tumbling
from samza_dsl.testing.environment import Crash, CrashPoint
from tests.scale import examples
from tests.simulation.crash import Watched, memory

results = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 1), st.sampled_from([None, *range(9)])), max_size=5
)
crashes = st.lists(
    st.builds(CrashPoint, st.sampled_from(("before_commit", "after_commit")), st.integers(1, 4)), max_size=3
)


class Busy(Watched):
    """An environment to which the live job writes whenever the merging commits."""

    def __init__(self, inner, crash, live):
        super().__init__(inner, crash)
        self._live = live

    def commit(self, commit):
        if self._live:
            put(self, "live", self._live.pop(0))
        super().commit(commit)


def put(environment, stream, rows):
    count = environment.streams()[stream].partitions
    for partition in range(count):
        mine = [row for row in rows if row[0][0] % count == partition]
        keys, at, values = ([*column] for column in zip(*mine, strict=True)) if mine else ([], [], [])
        data = [None if value is None else json.dumps(value).encode() for value in values]
        if mine:
            environment.append([Append(stream, partition, Batch(data, keys, at))])


def newest(environment, stream, is_windowed):
    """Return the newest result of each key and window."""
    found = {}
    for partition in range(environment.streams()[stream].partitions):
        offset = 0
        while (read := environment.read(stream, partition, offset)) is not None:
            batch, offset = read.batch, read.next_offset
            for key, at, value in zip(batch.keys or (), batch.timestamps or (), batch.values, strict=True):
                found[key, at if is_windowed else 0] = None if value is None else json.loads(value)
    return found


def expected_of(recomputed, live, is_windowed, merge):
    """Return what holds: the last of each, chosen between where there are both."""
    last = [{(key, at if is_windowed else 0): value for key, at, value in rows} for rows in (recomputed, live)]
    both = last[0].keys() & last[1].keys()
    return last[0] | last[1] | {one: merge(one[0].decode(), last[1][one], last[0][one]) for one in both}


def larger(key, live, recomputed):
    return max((one for one in (live, recomputed) if one is not None), default=None)


A, C = b"a", b"c"


def merge_while_live_results_come(environment, recomputed, live, is_windowed, crashes, partitions):
    """Merge through crashes, while live results come in bunches; a live one holds in the end, whenever it came."""
    for stream, number in (("recomputed", 1), ("live", partitions)):
        environment.create_stream(stream, StreamConfig(partitions=number))
    put(environment, "recomputed", recomputed)
    written = [row for rows in live for row in rows]
    put(environment, "live", live[0] if live else [])
    later = live[1:]
    merging = Merging("merging", "recomputed", "live", Json(), String(), is_windowed, prefer_live)
    for crash in [*crashes, None]:
        try:
            merge_into(Busy(environment, crash, later), merging)
        except Crash:
            continue
        break
    for rows in later:
        put(environment, "live", rows)
    assert newest(environment, "live", is_windowed) == expected_of(recomputed, written, is_windowed, prefer_live)


@given(results, st.lists(results, max_size=6), st.booleans(), crashes, st.integers(1, 2))
@example(
    [(A, 0, 1)], [[(C, 1, 2)], [], [], [(A, 1, 2)], [(A, 1, 5)]], False, [], 1
)  # two come before the first is seen
@example([(A, 0, 1)], [[(C, 1, 2)], [(A, 1, 2)], [(A, 1, 5)]], False, [CrashPoint("after_commit", 2)], 1)
@settings(max_examples=examples(600, 50_000))
def test_a_live_result_holds_whenever_it_comes(recomputed, live, is_windowed, crashes, partitions):
    environment = memory()
    merge_while_live_results_come(environment, recomputed, live, is_windowed, crashes, partitions)


@given(results, results, st.booleans())
def test_a_function_chooses_between_results_of_the_same(recomputed, live, is_windowed):
    environment = memory()
    for stream, rows in (("recomputed", recomputed), ("live", live)):
        environment.create_stream(stream, StreamConfig())
        put(environment, stream, rows)
    last = {row[0] + bytes([row[1] * is_windowed]): row for row in recomputed}
    environment.delete_stream("recomputed")
    environment.create_stream("recomputed", StreamConfig())
    put(environment, "recomputed", [*last.values()])
    merge_into(environment, Merging("merging", "recomputed", "live", Json(), String(), is_windowed, larger))
    expected = expected_of([*last.values()], live, is_windowed, larger)
    assert newest(environment, "live", is_windowed) == expected


def spending():
    app = App("spending")
    orders = app.input("orders", value=dict, timestamp=lambda order: order["at"])
    sums = orders.partition_by(lambda order: order["who"], partitions=2, op_id="by-who").window(
        tumbling(milliseconds=10), total(lambda order: order["amount"]), op_id="sums"
    )
    sums.map(lambda pane: pane.value).send_to(app.output("spent", value=int, key=str))
    return app


ORDERS = [{"who": who, "amount": amount, "at": at} for who, amount, at in [("a", 1, 1), ("b", 2, 2), ("a", 3, 15)]]
TODAY = [{"who": "a", "amount": 7, "at": 16}, {"who": "c", "amount": 5, "at": 17}]


def spent(data):
    with closing(LogEnvironment(data)) as environment:
        assert [*environment.streams()] == ["orders", "spending-by-who", "spent"]
        assert environment.state_stats("spending.recomputing-spent") == {}
        return newest(environment, "spent", is_windowed=True)


def test_history_is_merged_with_live_results_of_the_same_windows(tmp_path):
    app, data = spending(), tmp_path / "data"
    produce("orders", TODAY, data=data, end=True)
    app.run(data)
    live = spent(data)
    assert live == {(b"a", 19): 7, (b"c", 19): 5}
    app.reprocess(data, bind={"orders": ORDERS}, merge_into={"spent": "spent"})
    assert spent(data) == {(b"a", 9): 1, (b"b", 9): 2, **live}
    app.reprocess(data, bind={"orders": ORDERS}, merge_into={"spent": "spent"}, merge=lambda key, *both: sum(both))
    assert spent(data) == {(b"a", 9): 1, (b"b", 9): 2, **live, (b"a", 19): 10}


def test_what_fails_to_merge_is_told_and_can_be_merged_again(tmp_path):
    app, data = spending(), tmp_path / "data"
    produce("orders", TODAY, data=data, end=True)
    app.run(data)
    with pytest.raises(OperatorFailure, match="merge= raised ZeroDivisionError for the key 'a': "):
        app.reprocess(data, bind={"orders": ORDERS}, merge_into={"spent": "spent"}, merge=lambda *which: 1 // 0)
    app.reprocess(data, bind={"orders": ORDERS}, merge_into={"spent": "spent"})
    assert spent(data)[b"b", 9] == 2


def test_what_has_no_key_can_not_be_merged(tmp_path):
    app = App("passing")
    app.input("numbers", value=int).send_to(app.output("out", value=int))
    produce("out", [1], data=tmp_path)
    with pytest.raises(SamzaError, match=r"has no key, by which it could be merged .* behind \.partition_by"):
        app.reprocess(tmp_path, bind={"numbers": [1]}, merge_into={"out": "out"})
    with pytest.raises(SamzaError, match=r"sends nothing to 'other', .* it sends to out"):
        app.reprocess(tmp_path, bind={"numbers": [1]}, merge_into={"other": "out"})
