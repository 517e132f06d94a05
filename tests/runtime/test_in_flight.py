"""The tracker of messages in flight against a model: the low watermark never passes what is not complete."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from operators.base import MIN_TIMESTAMP
from runtime.in_flight import InFlight
from tests.scale import scale


class Model(RuleBasedStateMachine):
    """Messages as [next offset, watermark, holds], in offset order, none ever forgotten."""

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
        if more:
            self.entries[place].hold()
        else:
            self.entries[place].release()
        self.model[place][2] += 1 if more else -1

    @invariant()
    def the_low_watermark_is_just_before_the_first_that_is_not_complete(self):
        complete = 0
        while complete < len(self.model) and not self.model[complete][2]:
            complete += 1
        expected = tuple(self.model[complete - 1][:2]) if complete else (100, -7)
        assert (self.tracker.low_watermark, self.tracker.watermark) == expected
        assert len(self.tracker) == len(self.model) - complete


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
TestInFlight.settings = settings(max_examples=scale(40, 500, 10_000), stateful_step_count=40, deadline=None)
