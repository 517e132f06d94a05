"""A join of two sides at work in a test: its rows, its results, and the story of what befalls it."""

from collections import Counter

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.reading.watermarks import SourceWatermark
from runtime.stores.cache import CachedStore
from runtime.systems.memory.environment import MemoryEnvironment

KEYS = ("a", "b", 3, (4, "d"))
STEPS = ("batch", "batch", "fire", "fire one", "write back", "restart", "undo")


def pair(left, right):
    return (left, right)


def durable():
    return CachedStore(MemoryEnvironment(), "app", "join", 0, Tagged())


def rows(*told):
    """Return a batch of (side, value, key, time), or with a stamp after these; without one nothing is late."""
    told = [(*one, MIN_TIMESTAMP)[:5] for one in told]
    sides, values, keys, times, stamps = map(list, zip(*told, strict=True))
    return Batch(list(zip(sides, values, strict=True)), KeySerde(Tagged()).hold(keys), times, stamps)


def results(batch):
    """Return what was emitted as (value, key, timestamp, stamp)."""
    if batch is None:
        return []
    keys = map(KeySerde(Tagged()).decode, batch.keys)
    return list(zip(batch.values, keys, batch.timestamps, batch.stamps, strict=True))


def go_through(story, events):
    """Give a story its steps, which are texts, and its records, up to the end of event time."""
    for event in events:
        if isinstance(event, str):
            story.step(event)
        else:
            story.held.append(event)
    story.feed()
    story.fire(MAX_TIMESTAMP)


def take_back(story, batch, watermark):
    """Have the operator of a story process rows, and fire, and then forget that they ever came."""
    story.operator.write_back()
    story.store.savepoint()
    story.operator.process(batch)
    story.operator.on_watermark(watermark)
    story.store.rollback()
    story.operator.forget()


class JoinStory:
    """Drives an operator with records and steps; a subclass knows by its own simple means what it must have emitted.

    What is `held` comes with the next batch; `undone` is what comes and is taken back.
    """

    def __init__(self, make, disorder_ms, store, undone):
        self.make, self.store, self.undone = make, store, undone
        self.operator = make()
        self.sources = (SourceWatermark(disorder_ms), SourceWatermark(disorder_ms))
        self.held, self.late = [], Counter()
        self.emitted, self.late_found = Counter(), Counter()

    @property
    def watermark(self):
        return min(source.value for source in self.sources)

    def feed(self):
        """Have the operator process what is held."""
        told = []
        for value, side, key, at in self.held:
            stamp, self.sources[side].value = self.sources[side].stamp([at])
            told.append((side, value, key, at, stamp))
            if self.is_late(side, at, stamp):
                self.late[value] += 1
            else:
                self.note(value, side, key, at, stamp)
        self.held = []
        if told:
            self.emitted.update(results(self.operator.process(rows(*told))))
            if self.operator.late is not None:
                self.late_found.update(self.operator.late.values)

    def is_late(self, side, at, stamp):
        return at < stamp

    def step(self, step):
        match step:
            case "batch":
                self.feed()
            case "fire":
                self.feed()
                self.fire(self.watermark)
            case "fire one":
                self.feed()
                self.fire(self.watermark, 1)
            case "write back":
                self.operator.write_back()
            case "restart":
                self.operator.write_back()
                self.operator = self.make()
            case "undo":
                take_back(self, rows(*self.undone), self.watermark)

    def play(self, events):
        """Go through all steps and records, (value, side, key, time), to the end of event time."""
        go_through(self, events)
        assert self.late_found == self.late
        assert self.operator.unwritten == 0


class WaitingStory(JoinStory):
    """Drives a join whose records of one side wait, and come out by their own times."""

    def __init__(self, make, disorder_ms, store, undone):
        super().__init__(make, disorder_ms, store, undone)
        self.waiting = []
        """The records that wait, as (value, key, time, stamp)."""

    wait = 0

    def fire(self, watermark, most=None):
        fired = results(self.operator.on_watermark(watermark, most))
        assert [at for _, _, at, _ in fired] == sorted(at for _, _, at, _ in fired)
        assert most is None or len(fired) <= most
        self.emitted.update(fired)
        if most is None:
            assert self.operator.next_due() > watermark
            assert self.emitted == self.expected(watermark)
            stamps = [stamp for _, _, at, stamp in self.waiting if at + self.wait >= watermark]
            assert self.operator.lowest_stamp() == min(stamps, default=MAX_TIMESTAMP + 1)
