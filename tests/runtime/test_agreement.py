"""Several who have started containers of one run end it together, and never while anything is left to do."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.model.assignment import JobModel
from runtime.opening.agreement import QuietReport, all_quiet
from runtime.opening.opening import Share
from runtime.opening.shared_run import GONE_MS, NEVER_CAME_MS, SharedRun, Sharing

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


class NotedRuns:
    """The notes of one run, as its starters see them."""

    def __init__(self):
        self.living, self.run, self.noted, self.told = set(), 0, None, {}

    def model(self):
        return JobModel(self.run, containers=tuple(f"{name}.0.0" for name in sorted(self.living)))

    def is_alive(self):
        return bool(self.living)

    def generation(self):
        return self.run

    def begun(self):
        return self.noted

    def begin(self, said):
        self.noted = said

    def say(self, starter, said):
        self.told[starter] = said

    def said(self):
        return dict(self.told)


@given(
    at_first=st.booleans(),
    living=st.lists(st.sets(st.integers(0, 2)), min_size=1, max_size=12),
    pauses_ms=st.lists(st.sampled_from([1_000.0, GONE_MS, NEVER_CAME_MS]), min_size=12, max_size=12),
)
def test_a_run_is_led_by_the_first_of_those_who_live_once_its_leader_is_gone(at_first, living, pauses_ms):
    notes = NotedRuns()
    starters = [Sharing(notes) for _ in range(3)]
    leader = starters[0]
    notes.run = 7
    leader.begin(SharedRun(Share(container="", generation=7), "digest", until_now=False))
    notes.living = {one.name for one in starters if at_first or one is not leader}
    assert leader.leads and all(one.found() is not None and not one.leads for one in starters[1:])
    now_ms, came, missed_ms = 1.0, dict.fromkeys(starters, at_first), dict.fromkeys(starters)
    for numbers, pause_ms in zip(living, pauses_ms, strict=False):
        notes.living = {starters[number].name for number in numbers}
        now_ms += pause_ms
        for one in starters[1:]:
            is_deserted = one.is_deserted(now_ms)
            if one.name not in notes.living:
                assert not is_deserted
                continue
            if leader.name in notes.living:
                came[one], missed_ms[one] = True, None
            elif missed_ms[one] is None:
                missed_ms[one] = now_ms
            waited_ms = 0.0 if missed_ms[one] is None else now_ms - missed_ms[one]
            long_enough = waited_ms >= (GONE_MS if came[one] else NEVER_CAME_MS)
            assert is_deserted == (long_enough and leader.name not in notes.living and one.name == min(notes.living))


def test_a_run_is_over_once_its_leader_has_said_so():
    notes = NotedRuns()
    leader, other = Sharing(notes), Sharing(notes)
    for run in (7, 8):
        notes.run = run
        leader.begin(SharedRun(Share(container="", generation=run), "digest", until_now=True))
        notes.living = {leader.name, other.name}
        assert other.found() is not None
        other.agree([0], "other 1", {}, 2)
        assert not other.is_over()
        leader.end()
        assert other.is_over()
