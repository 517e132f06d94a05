"""Choosing what to read next: the highest priority first, in turn among equals, and nobody starves."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from runtime.loop.chooser import PATIENCE, Chooser

priorities = st.lists(st.integers(-3, 3), min_size=1, max_size=8)


@given(priorities)
def test_nobody_starves_while_all_are_ready(priorities):
    chooser = Chooser([(priority, place) for place, priority in enumerate(priorities)])
    chosen = Counter(chooser.choose(lambda what: True) for _ in range(4 * PATIENCE * len(priorities) ** 2))
    assert set(chosen) == set(range(len(priorities)))


@given(priorities, st.data())
def test_what_is_chosen_is_ready_and_equals_take_turns(priorities, data):
    chooser = Chooser([(priority, place) for place, priority in enumerate(priorities)])
    turns = {place: [] for place in range(len(priorities))}
    for turn in range(30):
        ready = data.draw(st.sets(st.sampled_from(range(len(priorities)))))
        chosen = chooser.choose(ready.__contains__)
        assert chosen in ready if ready else chosen is None
        if chosen is not None:
            turns[chosen].append(turn)
    assert sum(map(len, turns.values())) <= 30


@given(st.integers(1, 6))
def test_equals_go_round(number):
    chooser = Chooser([(0, place) for place in range(number)])
    assert [chooser.choose(lambda what: True) for _ in range(3 * number)] == list(range(number)) * 3


def test_the_higher_priority_has_the_most_turns():
    chooser = Chooser([(0, "low"), (1, "middle"), (2, "high")])
    chosen = Counter(chooser.choose(lambda what: True) for _ in range(100 * PATIENCE))
    assert chosen["high"] > 4 * max(chosen["low"], chosen["middle"])


@given(priorities, st.data())
def test_lower_ones_wait_for_what_is_awaited_but_for_their_own_turns(priorities, data):
    chooser = Chooser([(priority, place) for place, priority in enumerate(priorities)])
    awaited = data.draw(st.sampled_from(range(len(priorities))))
    for turn in range(5 * PATIENCE):
        chosen = chooser.choose(lambda what: what != awaited, lambda what: what == awaited)
        if chosen is None:
            assert all(priority <= priorities[awaited] for priority in priorities)
            break
        if turn % PATIENCE != PATIENCE - 1:
            assert priorities[chosen] >= priorities[awaited]
