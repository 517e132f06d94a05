"""Several who have started containers of one run end it together, and never while anything is left to do."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.opening.agreement import QuietReport, all_quiet

STARTERS = "abc"
steps = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.sampled_from(STARTERS), st.sets(st.sampled_from(STARTERS))),
        st.tuples(st.sampled_from(["look", "say"]), st.sampled_from(STARTERS)),
    ),
    max_size=60,
)


class Hosts:
    """Hosts that read what others have committed, and commit what others then read."""

    def __init__(self):
        self.unread = dict.fromkeys(STARTERS, 1)
        self.commits = dict.fromkeys(STARTERS, 0)
        self.said, self.before = {}, {name: {} for name in STARTERS}

    def work(self, name, to):
        if self.unread[name]:
            self.unread[name] -= 1
            self.commits[name] += 1
            for other in to:
                self.unread[other] += 1

    def look(self, name):
        self.before[name] = {other: quiet.commits for other, quiet in self.said.items() if other != name}

    def say(self, name):
        if not self.unread[name]:
            task = STARTERS.index(name)
            self.said[name] = QuietReport(1, (task,), f"{name} {self.commits[name]}", self.before[name])

    def are_said_to_be_done(self):
        return all_quiet(self.said, STARTERS, len(STARTERS))


@given(steps)
def test_while_anything_is_left_to_do_nobody_ends(steps):
    hosts = Hosts()
    for step, *how in steps:
        getattr(hosts, step)(*how)
        assert not (hosts.are_said_to_be_done() and any(hosts.unread.values()))


@given(steps)
def test_when_nothing_is_left_to_do_two_looks_find_that_out(steps):
    hosts = Hosts()
    for step, *how in steps:
        getattr(hosts, step)(*how)
    for name in STARTERS:
        while hosts.unread[name]:
            hosts.work(name, ())
    for _ in range(2):
        for name in STARTERS:
            hosts.look(name)
            hosts.say(name)
    assert hosts.are_said_to_be_done()


def test_who_is_gone_is_not_waited_for_and_whose_tasks_nobody_has_are():
    quiet = {"a": QuietReport(1, (0,), "a1", {"b": "b1"}), "b": QuietReport(1, (1,), "b1", {})}
    assert not all_quiet(quiet, ["a"], 2)
    assert all_quiet({**quiet, "a": QuietReport(1, (0, 1), "a2")}, ["a"], 2)
    assert not all_quiet(quiet, ["a", "c"], 2)
