"""An input is idle when nothing comes of it, and not when nobody says whether something does."""

import asyncio
import math

import pytest

from runtime.ports.streams import Offsets
from runtime.systems.memory.lists import ListSource
from samza_dsl import App, collect, tumbling
from tests.simulation.crash import memory, run_once

IDLE_MS, SILENCE_S = 100, 5.0


class Distant(ListSource):
    """A topic of two partitions: of the second one nothing is heard for a while, and then all that lay there."""

    def __init__(self, values, is_answered):
        super().__init__(values, partitions=2)
        self._is_answered, self._begun_s = is_answered, None

    def _is_heard(self, partition):
        now_s = asyncio.get_running_loop().time()
        self._begun_s = self._begun_s or now_s
        return partition == 0 or now_s >= self._begun_s + SILENCE_S

    def offsets(self, partition):
        start, end, _ = super().offsets(partition)
        return Offsets(start, end, ended=self._is_heard(1))

    def read(self, partition, offset, max_records=10_000):
        return super().read(partition, offset, max_records) if self._is_heard(partition) else None

    def version(self, partition):
        return int(self._is_heard(1))

    def unheard_ms(self, partition, offset):
        return 0.0 if self._is_heard(partition) or self._is_answered else math.inf

    def listen(self, tell):
        """Tell nobody: it is looked often enough."""


@pytest.mark.parametrize(("is_answered", "in_time"), [(True, [[1, 2]]), (False, [[1, 2, 3]])])
def test_what_brokers_say_nothing_of_is_not_idle(is_answered, in_time):
    app = App("distant")
    numbers = app.input("in", value=int, timestamp=lambda n: n, key=lambda n: 0, idle_after_ms=IDLE_MS)
    keyed = numbers.partition_by(lambda n: 0, partitions=1, op_id="gathered")
    panes = keyed.window(tumbling(milliseconds=50), collect(), op_id="panes")
    panes.map(lambda pane: sorted(pane.value)).send_to(app.output("out", value=list))
    run = run_once(app, memory(), bind={"in": Distant([[1, 2, 70], [3]], is_answered)})
    assert run.received("out")[:1] == in_time
