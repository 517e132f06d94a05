"""What one thread changes while another reads it: whoever reads finds one state or the other, and never half of one."""

from runtime.model.clock import Clock, Stopwatch
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.streams.fetcher import KafkaFetcher, _FetchedRows


class Interrupting(Clock):
    """A clock at which another thread comes in between, whenever somebody asks for the time."""

    def __init__(self, between):
        self.between, self.now = between, 0.0

    def elapsed_ms(self):
        self.now += 1.0
        now, between, self.between = self.now, self.between, lambda: None
        between()
        return now


def test_a_stopwatch_is_read_while_it_is_stopped():
    clock = Interrupting(lambda: None)
    watch = Stopwatch(clock)
    watch.start()
    clock.between = watch.stop
    assert (watch.ms, watch.ms, watch.ms) == (1.0, 2.0, 2.0), "it was stopped as it was read first"


def test_a_transaction_that_ends_while_somebody_looks_is_told_as_it_was(monkeypatch):
    fetched = _FetchedRows(0, 0, stable=3, written=9, held_since_ms=1.0)
    fetcher = object.__new__(KafkaFetcher)  # which asks brokers as it is made
    fetcher._topic, fetcher._fetched = KafkaTopic("kafka://localhost/numbers"), {0: fetched}

    def now():
        fetched.held_since_ms = None
        return 8.0

    monkeypatch.setattr("runtime.systems.kafka.streams.fetcher.monotonic_ms", now)
    monkeypatch.setattr(fetcher, "_ending_of", lambda partition, first: "")
    held = fetcher.held(0)
    assert held is not None and held.for_ms == 7.0
    assert fetcher.held(0) is None
