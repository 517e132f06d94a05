"""The generated code of a stage: one for tasks that call the same functions, one for each that has its own."""

import pytest

from runtime.stage.chain import StageCode
from samza_dsl import App, count, testing, tumbling


class Doubling:
    """A function of which each task has an instance of its own."""

    def open(self, context):
        self.task = context.task

    def __call__(self, number):
        return [number * 2, self.task]


@pytest.mark.parametrize(("own", "made"), [(False, 2), (True, 5)])
def test_tasks_share_the_code_of_a_stage_that_calls_nothing_of_their_own(monkeypatch, own, made):
    found, make = [], StageCode.__init__

    def noted(self, *parts, **named):
        found.append(self)
        make(self, *parts, **named)

    monkeypatch.setattr(StageCode, "__init__", noted)
    app = App("shared")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n, partitions=4)
    doubled = numbers.map(Doubling()) if own else numbers.map(lambda n: [n * 2, n % 4])
    counted = doubled.partition_by(lambda pair: pair[1], partitions=4).window(tumbling(milliseconds=100), count())
    counted.map(lambda pane: [pane.key, pane.value]).send_to(app.output("out", value=list))
    out = testing.run(app, {"numbers": [list(range(part, 80, 4)) for part in range(4)]})["out"]
    assert sorted(out) == [[key, 20] for key in range(4)]
    assert len(found) == made
