"""The tracker of messages in flight against a model: the low watermark never passes what is not complete."""

from itertools import accumulate

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from operators.core.base import MIN_TIMESTAMP
from runtime.reading.completion import InFlight
from tests.scale import examples


class Model(RuleBasedStateMachine):
    """Messages as [next offset, watermark, holds], in offset order, none ever forgotten.

    Those that are tracked as rows of one entry are as many messages here, with the entry and their row.
    """

    def __init__(self):
        super().__init__()
        self.tracker = InFlight(100, -7)
        self.model = []
        self.entries = []

    @rule(gap=st.integers(1, 5), watermark=st.integers(-100, 100))
    def add(self, gap, watermark):
        following = (self.model[-1][0] if self.model else 100) + gap
        self.model.append([following, watermark, 1])
        self.entries.append(self.tracker.add(following, watermark))

    @precondition(lambda self: any(holds for _, _, holds in self.model))
    @rule(choice=st.integers(0), more=st.booleans())
    def hold_or_release(self, choice, more):
        alive = [place for place, (_, _, holds) in enumerate(self.model) if holds]
        place = alive[choice % len(alive)]
        entry = self.entries[place]
        if isinstance(entry, tuple):
            rows, row = entry
            rows.release_rows([row])
            self.model[place][2] = 0
        elif more:
            entry.hold()
            self.model[place][2] += 1
        else:
            entry.release()
            self.model[place][2] -= 1

    @rule(
        gaps=st.lists(st.integers(1, 5), min_size=1, max_size=5),
        watermarks=st.lists(st.integers(-100, 100), min_size=6, max_size=6),
    )
    def add_rows(self, gaps, watermarks):
        start = self.model[-1][0] if self.model else 100
        ends = [*accumulate(gaps, initial=start)][1:]
        offsets = [start + gaps[0] - 1, *ends[:-1]]
        before = self.model[-1][1] if self.model else -7
        marks = [before, *watermarks[: len(gaps) - 1]]
        entry = self.tracker.add_rows(ends[-1], watermarks[-1], offsets, marks)
        for row, (end, mark) in enumerate(zip(ends, [*marks[1:], watermarks[-1]], strict=True)):
            self.model.append([end, mark, 1])
            self.entries.append((entry, row))

    @invariant()
    def the_low_watermark_is_just_before_the_first_that_is_not_complete(self):
        complete = 0
        while complete < len(self.model) and not self.model[complete][2]:
            complete += 1
        expected = tuple(self.model[complete - 1][:2]) if complete else (100, -7)
        offset, watermark = self.tracker.reached()
        if complete < len(self.model) and isinstance(self.entries[complete], tuple):
            entry, row = self.entries[complete]
            assert entry.outstanding >= {row}
            assert expected[0] <= offset < self.model[complete][0], "of what was filtered out nothing is left to do"
            assert watermark == expected[1]
        else:
            assert (offset, watermark) == expected


def test_a_message_is_complete_when_all_that_hold_it_have_let_go():
    tracker = InFlight(0)
    entry = tracker.add(1)
    entry.hold(2)
    entry.hold()
    for _ in range(3):
        entry.release()
        assert (tracker.low_watermark, len(tracker)) == (0, 1)
    entry.release()
    assert (tracker.low_watermark, len(tracker)) == (1, 0)
    with pytest.raises(AssertionError, match=r"^released more often than held$"):
        entry.release()


def test_without_event_time_the_watermark_is_the_least():
    tracker = InFlight(5)
    assert tracker.watermark == MIN_TIMESTAMP
    tracker.add(6, 3).release()
    assert tracker.watermark == 3
    tracker.add(7).release()
    assert tracker.watermark == MIN_TIMESTAMP


TestInFlight = Model.TestCase
TestInFlight.settings = settings(max_examples=examples(80, 10_000), stateful_step_count=40, deadline=None)
