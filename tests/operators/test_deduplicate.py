"""Deduplication against a list of all that went on."""

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch
from operators.core.entry_keys import ordered
from operators.deduplicate import EXPIRY, ID, Deduplicate, DeduplicateOperator
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Evolving
from runtime.stores.cache import CachedStore
from runtime.stores.memory import MemoryStore
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, Options, testing
from tests.operators.joining import go_through, take_back
from tests.runtime.test_event_time import crashes
from tests.runtime.test_state_in_time import run, stamped
from tests.scale import examples
from tests.strategies import Event, records


@given(records(2, most=40), crashes, st.integers(0, 60), st.integers(1, 200), st.sampled_from((1, 3, 2_000)))
@settings(max_examples=examples(60, 10_000))
def test_of_messages_with_one_id_that_lie_close_together_the_first_goes_on(
    parts, crashes, disorder, within, batch_records
):
    def app():
        app = App("once", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder}
        stream = app.input("in", value=Event, **how)
        kept = stream.deduplicate(lambda e: [e.key, e.number % 2], within_ms=within)
        kept.map(lambda e: e.number).send_to(app.output("out", value=int))
        return app

    expected = []
    for part in parts:
        let_through = []
        for event, stamp in stamped(part, disorder):
            same = [at for id, at in let_through if id == (event.key, event.number % 2)]
            alive = [at for at in same if stamp is None or at + within > stamp]
            if not any(abs(at - event.at) < within for at in alive):
                let_through.append(((event.key, event.number % 2), event.at))
                expected.append(event.number)
    assert sorted(run(app, parts, crashes)) == sorted(expected)


def test_what_was_let_through_is_forgotten():
    app = App("once")
    numbers = app.input("in", value=int, timestamp=lambda n: n)
    numbers.deduplicate(lambda n: n, within_ms=10, op_id="once").send_to(app.output("out", value=int))
    with testing.running(app) as run:
        for start in range(0, 1_000, 100):
            run.send("in", *range(start, start + 100))
        assert run.read("out") == [*range(1_000)]
        (once,) = (one for one in run.metrics().stores if one.store == "once")
        assert 0 < once.entries <= 24


IDS = ("a", "b", 1, True, None, 1.5, (2, "b"), b"a")
STEPS = ("batch", "fire", "write back", "restart", "undo")


def durable():
    return CachedStore(MemoryEnvironment(), "app", "once", 0, Evolving())


def operator(store, within, most_held=100):
    spec = Deduplicate(id_of=lambda value: value, within_ms=within)
    return DeduplicateOperator(spec, spec.id_of, store, KeySerde(Evolving()), most_held)


def batch_of(told):
    ids, times, stamps = map(list, zip(*told, strict=True))
    return Batch(ids, None, times, stamps)


class Story:
    """Drives an operator with messages of two sources and steps, and knows by a list of all what must go on."""

    def __init__(self, store, within, disorder, most_held):
        self.store, self.within, self.disorder = store, within, disorder
        self.make = lambda: operator(store, within, most_held)
        self.operator = self.make()
        self.sources = [MIN_TIMESTAMP, MIN_TIMESTAMP]
        self.held, self.gone_on = [], []

    def feed(self):
        told, expected, late = [], [], []
        for source, id, at in self.held:
            stamp = self.sources[source]
            told.append((id, at, stamp))
            same = [then for other, then in self.gone_on if (type(other), other) == (type(id), id)]
            if not any(abs(then - at) < self.within and then + self.within > stamp for then in same):
                self.gone_on.append((id, at))
                expected.append((id, at, stamp))
            if at + self.within <= stamp:
                late.append((id, at))
            self.sources[source] = max(stamp, at - self.disorder)
        self.held = []
        if told:
            out = self.operator.process(batch_of(told))
            found = [] if out is None else list(zip(out.values, out.timestamps, out.stamps, strict=True))
            # repr() tells 1 from True.
            assert repr(found) == repr(expected)
            set_aside = self.operator.late
            found = [] if set_aside is None else list(zip(set_aside.values, set_aside.timestamps, strict=True))
            assert repr(found) == repr(late)

    def fire(self, watermark):
        assert self.operator.on_watermark(watermark) is None
        assert self.operator.next_due() > watermark

    def step(self, step):
        self.feed()
        match step:
            case "fire":
                self.fire(min(self.sources))
            case "write back":
                self.operator.write_back()
                assert self.operator.unwritten == 0
            case "restart":
                self.operator.write_back()
                self.operator = self.make()
            case "undo":
                undone = batch_of([(id, at, MIN_TIMESTAMP) for id in IDS for at in (0, 7, 90)])
                take_back(self, undone, min(self.sources))


messages = st.tuples(st.sampled_from((0, 1)), st.sampled_from(IDS), st.integers(-50, 300))


@given(
    st.lists(messages | st.sampled_from(STEPS), max_size=50),
    st.sampled_from((MemoryStore, durable)),
    st.integers(1, 90),
    st.integers(0, 60),
    st.sampled_from((0, 2, 100)),
)
@settings(max_examples=examples(200, 10_000))
def test_whatever_happens_in_between_the_first_goes_on_and_all_is_forgotten(events, kind, within, disorder, most_held):
    story = Story(kind(), within, disorder, most_held)
    go_through(story, events)
    story.operator.write_back()
    assert list(story.store.range()) == [] and story.operator.next_due() > MAX_TIMESTAMP


@given(st.lists(st.tuples(st.sampled_from(IDS), st.integers(0, 200)), max_size=30), st.integers(1, 90))
def test_what_versions_before_have_stored_is_heeded_and_forgotten(told, within):
    story, keys = Story(durable(), within, 1_000, 100), KeySerde(Evolving())
    times = {}
    for id, at in told:
        data = keys.serde.encode(id)
        times.setdefault(data, {})[at] = id
        story.store.put(EXPIRY + ordered(at + within) + data, True)
    for data, known in times.items():
        story.store.put(ID + data, tuple(known))
    story.operator = story.make()
    story.gone_on = [(id, at) for known in times.values() for at, id in known.items()]
    for id, at in told:
        story.held = [(0, id, at), (0, id, at + within), (0, id, at + within // 2)]
        story.step("fire")
    story.fire(MAX_TIMESTAMP)
    assert list(story.store.range()) == []


def test_ids_that_expire_later_than_they_did_are_forgotten_then():
    store = durable()
    once = operator(store, 10)
    once.process(batch_of([(n, n, MIN_TIMESTAMP) for n in range(100)]))
    once.write_back()
    once = operator(store, 1_000)
    once.on_watermark(500)
    once.write_back()
    assert once.process(batch_of([(7, 600, 500)])) is None
    once.on_watermark(1_300)
    assert list(store.range()) == []


def test_a_durable_one_holds_no_more_ids_than_it_may():
    once = operator(durable(), 10_000, most_held=10)
    for at in range(100):
        once.process(batch_of([(at, at, MIN_TIMESTAMP)]))
        assert once.unwritten <= 11 and len(once.newest(100)) == once.unwritten
    assert once.process(batch_of([(n, n, MIN_TIMESTAMP) for n in range(100)])) is None
