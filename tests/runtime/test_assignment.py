"""The laws of sharing tasks out: every task has one container, none has two more than another, and few move."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.assignment import JobModel, Placing, assign, placed, round_robin, sticky
from runtime.model.errors import SamzaError
from runtime.model.host_affinity import MOST_FAILURES, Homes

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


HOSTS = "xyz"


@st.composite
def placings(draw, most=12, before=True):
    """What is known at some moment: containers on hosts, some tasks of theirs, some of those gone, some state."""
    tasks = draw(st.integers(0, most))
    hosts = draw(st.dictionaries(st.sampled_from("abcd"), st.sampled_from(HOSTS), min_size=1))
    had = st.lists(st.sampled_from(["", *"abcdef"]), max_size=tasks) if before else st.just([])
    homes = st.lists(st.lists(st.sampled_from([*HOSTS, "gone"]), max_size=3, unique=True), max_size=tasks)
    return Placing(tasks, hosts, draw(had), draw(homes))


def is_balanced(names, found):
    counts = [found.count(name) for name in names]
    return max(counts) - min(counts) <= 1


def at_home(placing, found):
    """How many of the tasks that nobody has come to the first host with their state that is there."""
    first = [next((home for home in homes if home in placing.hosts.values()), None) for homes in placing.homes]
    free = [task >= len(placing.before) or placing.before[task] not in placing.hosts for task in range(placing.tasks)]
    return sum(free[task] and placing.hosts[found[task]] == home for task, home in enumerate(first))


def of_living(placing, found):
    """How many tasks are taken from containers that live."""
    return sum(was in placing.hosts and was != now for was, now in zip(placing.before, found, strict=False))


@given(placings())
def test_where_state_is_makes_nothing_less_balanced_and_moves_nothing_more(placing):
    found = sticky(placing)
    assert len(found) == placing.tasks
    assert is_balanced(sorted(placing.hosts), found)
    assert of_living(placing, found) == of_living(placing, round_robin(placing))
    assert sticky(placing._replace(before=found)) == found


@given(placings(most=5))
def test_no_balanced_assignment_that_moves_as_little_brings_more_tasks_to_their_state(placing):
    found = sticky(placing)
    names = sorted(placing.hosts)
    others = (other for other in product(names, repeat=placing.tasks) if is_balanced(names, other))
    best = max(at_home(placing, other) for other in others if of_living(placing, other) == of_living(placing, found))
    assert at_home(placing, found) == best


@given(placings(before=False), st.randoms())
def test_a_restart_brings_all_tasks_back_to_where_they_were_whatever_containers_are_called(placing, chance):
    was = sticky(placing)
    homes = [[placing.hosts[name]] for name in was]
    hosts = [*placing.hosts.values()]
    chance.shuffle(hosts)
    renamed = {f"{number}": host for number, host in enumerate(hosts)}
    again = sticky(Placing(placing.tasks, renamed, (), homes))
    assert [renamed[name] for name in again] == [placing.hosts[name] for name in was]


@given(st.integers(2, 12), st.data())
def test_who_comes_back_is_given_what_it_has_a_copy_of(tasks, data):
    """Two hosts have had the tasks, one was gone for a while, and has older copies of its own."""
    both = {"a": "x", "b": "y"}
    was = sticky(Placing(tasks, both))
    homes = [["x"] if name == "a" else ["x", "y"] for name in was]
    found = sticky(Placing(tasks, {"a": "x", "c": "y"}, ["a"] * tasks, homes))
    theirs = [task for task, name in enumerate(was) if name == "b"]
    assert all(found[task] == "c" for task in theirs)


@given(placings(), st.sampled_from([sticky, round_robin]))
def test_a_placement_gives_every_task_a_container(placing, placement):
    assert placed(placing, placement) == placement(placing)


@pytest.mark.parametrize(
    ("placement", "wrong"),
    [
        (lambda placing: ["a"], "gives 1 tasks a container, and there are 2"),
        (lambda placing: ["a", "z"], "gives task 1 to 'z', and the containers are a, b"),
        (lambda placing: 1 / 0, "has failed: ZeroDivisionError"),
    ],
)
def test_a_placement_of_ones_own_may_only_say_what_can_be(placement, wrong):
    with pytest.raises(SamzaError, match=wrong):
        placed(Placing(2, {"a": "x", "b": "x"}), placement)


def test_a_host_that_has_lost_a_task_again_and_again_is_as_good_as_any_other():
    homes, progress = Homes(), 0
    for _ in range(MOST_FAILURES):
        assert homes.trusted() in ([], ["a"])
        homes = homes.taken("a", progress, was_given=False)
    assert homes.taken("a", progress, was_given=False).trusted() == []
    assert homes.taken("b", progress, was_given=False).trusted() == ["b"]
    assert homes.taken("b", progress + 1, was_given=False).trusted() == ["b", "a"], "it has got on with it"
    assert homes.taken("b", progress, was_given=True).trusted() == ["b", "a"], "it has given it up"


def test_a_container_finds_its_tasks_in_the_model():
    model = JobModel(run=1, generation=2, containers=("a", "b"), tasks=("a", "b", "a"))
    assert model.of("a") == {0, 2}
    assert model.of("c") == set()
