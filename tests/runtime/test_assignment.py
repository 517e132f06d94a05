"""The laws of sharing tasks out: every task has one container, none has two more than another, and few move."""

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from runtime.assignment import JobModel, assign

NAMES = st.lists(st.sampled_from("abcdef"), min_size=1, unique=True)
HELD = st.lists(st.sampled_from(["", *"abcdefgh"]), max_size=30)
TASKS = st.integers(0, 30)


def moved(before, after):
    return sum(was != now for was, now in zip(before, after, strict=False))


@given(TASKS, NAMES, HELD)
def test_each_task_has_one_container_and_all_have_as_many_or_one_more(tasks, names, held):
    found = assign(tasks, names, held)
    assert len(found) == tasks
    counts = Counter(found)
    assert counts.keys() <= set(names)
    numbers = [counts[name] for name in names]
    assert max(numbers) - min(numbers) <= 1


@given(TASKS, NAMES, HELD, st.randoms())
def test_it_depends_on_nothing_else(tasks, names, held, chance):
    shuffled = chance.sample(names, len(names))
    assert assign(tasks, names, held) == assign(tasks, shuffled, tuple(held))


@given(TASKS, NAMES, HELD)
def test_what_is_balanced_stays(tasks, names, held):
    found = assign(tasks, names, held)
    assert assign(tasks, names, found) == found


@given(st.integers(0, 5), st.lists(st.sampled_from("abc"), min_size=1, unique=True), st.data())
def test_no_balanced_assignment_moves_less(tasks, names, data):
    held = data.draw(st.lists(st.sampled_from("abcd"), min_size=tasks, max_size=tasks))
    fewest = min(
        moved(held, other)
        for other in product(names, repeat=tasks)
        if max(counts := [other.count(name) for name in names]) - min(counts) <= 1
    )
    assert moved(held, assign(tasks, names, held)) == fewest


@given(TASKS, NAMES, st.data())
def test_one_that_is_gone_moves_only_what_it_had(tasks, names, data):
    before = assign(tasks, names)
    gone = data.draw(st.sampled_from(names))
    left = [name for name in names if name != gone]
    after = assign(tasks, left, before)
    if left:
        assert moved(before, after) == before.count(gone)
    else:
        assert after == ()


def test_a_container_finds_its_tasks_in_the_model():
    model = JobModel(run=1, generation=2, containers=("a", "b"), tasks=("a", "b", "a"))
    assert model.of("a") == {0, 2}
    assert model.of("c") == set()
