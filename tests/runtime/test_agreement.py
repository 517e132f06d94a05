"""Several who have started containers of one run end it together, and never while anything is left to do."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from runtime.containers.leadership import ANNOUNCED_MS, CUT_LOOK_MS, READY_LOOK_MS, READY_MS, Leadership
from runtime.model.assignment import JobModel
from runtime.model.clock import LoopClock
from runtime.model.errors import EnvironmentFault, Fenced
from runtime.opening.agreement import StarterReport, all_quiet
from runtime.opening.opening import Share
from runtime.opening.shared_run import GONE_MS, NEVER_CAME_MS, SharedRun, Sharing
from samza_dsl.testing.virtual_loop import VirtualLoop

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
            self.said[name] = StarterReport(1, (task,), f"{name} {self.commits[name]}", self.before[name])

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
    quiet = {"a": StarterReport(1, (0,), "a1", {"b": "b1"}), "b": StarterReport(1, (1,), "b1", {})}
    assert not all_quiet(quiet, ["a"], 2)
    assert all_quiet({**quiet, "a": StarterReport(1, (0, 1), "a2")}, ["a"], 2)
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


def shared():
    """Return the notes of a run, who leads it, who shares it, and what is said of it."""
    notes, run = NotedRuns(), SharedRun(Share(container="", generation=7), "digest", until_now=False)
    leader, other = Sharing(notes), Sharing(notes)
    notes.run, notes.living = 7, {leader.name, other.name}
    leader.begin(run)
    assert other.found() is not None
    return notes, leader, other, run


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


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ready"), st.integers(1, 2), st.integers(1, 3)),
            st.tuples(st.just("agree"), st.integers(1, 2), st.just(0)),
            st.tuples(st.just("begin"), st.just(0), st.just(0)),
            st.tuples(st.sampled_from(["die", "live"]), st.integers(0, 2), st.just(0)),
        ),
        max_size=25,
    )
)
def test_who_leads_waits_for_state_to_lie_ready_with_all_who_live_in_the_run(steps):
    notes = NotedRuns()
    starters = [Sharing(notes) for _ in range(3)]
    leader = starters[0]

    def begin() -> None:
        notes.run += 1
        leader.begin(SharedRun(Share(container="", generation=notes.run), "digest", until_now=False))
        notes.living |= {leader.name}
        assert all(one.found() is not None for one in starters[1:])

    begin()
    ready = dict.fromkeys(starters, 0)
    for step, number, request in steps:
        one = starters[number]
        if step == "ready":
            one.say_ready(request)
            ready[one] = request
        elif step == "agree":  # what else is said does not take it back
            one.agree([number], f"{number} {len(notes.told)}", {}, 3)
        elif step == "begin":
            begin()
            ready = dict.fromkeys(starters, 0)
        elif step == "die":
            notes.living -= {one.name}
        else:
            notes.living |= {one.name}
        for asked in (1, 2, 3):
            others = [one for one in starters[1:] if one.name in notes.living]
            # Where nobody is known to live, tasks are just being shared out.
            expected = leader.name in notes.living and all(ready[one] >= asked for one in others)
            assert leader.are_others_ready(asked) == expected


@given(at_ms=st.none() | st.floats(0, 2 * READY_MS), ends_at_ms=st.none() | st.floats(0, 2 * READY_MS))
def test_a_cut_waits_for_others_but_not_for_ever(at_ms, ends_at_ms):
    _, leader, other, _ = shared()
    clock, loop, waited_ms = LoopClock(), VirtualLoop(), []

    async def wait() -> None:
        leadership = Leadership("app", leader, lambda: None, clock)
        await leadership.others_ready(3, lambda: ends_at_ms is None or clock.elapsed_ms() < ends_at_ms)
        waited_ms.append(clock.elapsed_ms())

    if at_ms is not None:
        loop.call_later(at_ms / 1_000, other.say_ready, 3)
    waiting = loop.create_task(wait())
    loop.proceed(until_s=3 * READY_MS / 1_000)
    assert waiting.done()
    loop.close()
    until_ms = min(READY_MS, *(ms for ms in (at_ms, ends_at_ms) if ms is not None), READY_MS)
    assert len(waited_ms) == 1 and until_ms <= waited_ms[0] + 0.01 and waited_ms[0] <= until_ms + READY_LOOK_MS + 0.01


@given(
    begins_ms=st.none() | st.floats(0, 10_000),
    announced_ms=st.floats(0, 2 * ANNOUNCED_MS),
    is_cut_to_come=st.booleans(),
    fails=st.booleans(),
)
def test_who_is_ready_for_a_cut_hears_of_the_run_behind_it_at_once(begins_ms, announced_ms, is_cut_to_come, fails):
    """It need not be fenced: a host whose containers have no task would notice it late."""
    notes, leader, other, run = shared()
    clock, loop = LoopClock(), VirtualLoop()
    leadership, heard = Leadership("app", other, lambda: None, clock), {}

    def begin():
        notes.run = 8
        loop.call_later(announced_ms / 1_000, leader.begin, msgspec.structs.replace(run, share=share))

    async def follow():
        try:
            await leadership.rest(3_000, is_cut_to_come)
            heard["nothing"] = clock.elapsed_ms()
        except Fenced as fenced:
            heard["outrun"] = clock.elapsed_ms()
            heard["next"] = (await leadership.next_run(fenced, lambda: False)).share

    if fails:  # brokers that do not answer are asked again
        looks = iter([EnvironmentFault("no broker answers"), None] * 100)
        notes.begun = lambda: raised(next(looks), notes.noted)
    share = Share(container="", generation=8)
    if begins_ms is not None:
        loop.call_later(begins_ms / 1_000, begin)
    following = loop.create_task(follow())
    loop.proceed(until_s=30)
    assert following.done() and following.exception() is None
    loop.close()
    at_ms = None if begins_ms is None else begins_ms + announced_ms
    if is_cut_to_come and at_ms is not None and at_ms <= 3_000 - 2 * CUT_LOOK_MS:
        assert at_ms <= heard["outrun"] + 0.01 and heard["outrun"] <= at_ms + 2 * CUT_LOOK_MS + 0.01
        assert heard["next"] == share
    elif not is_cut_to_come or at_ms is None or at_ms > 3_000:
        assert heard["nothing"] + 0.01 >= 3_000 and heard["nothing"] <= 3_000 + CUT_LOOK_MS + 0.01


@given(announced_ms=st.none() | st.floats(0, 2 * ANNOUNCED_MS))
def test_who_is_fenced_shares_the_next_run_if_that_is_announced_in_time(announced_ms):
    notes, leader, other, run = shared()
    clock, loop, notes.run = LoopClock(), VirtualLoop(), 8
    following = loop.create_task(Leadership("app", other, lambda: None, clock).next_run(Fenced("8"), lambda: False))
    share = Share(container="", generation=8)
    if announced_ms is not None:
        loop.call_later(announced_ms / 1_000, leader.begin, msgspec.structs.replace(run, share=share))
    loop.proceed(until_s=30)
    assert following.done()
    loop.close()
    if announced_ms is not None and announced_ms <= ANNOUNCED_MS:
        assert following.result().share == share
    elif announced_ms is None or announced_ms > ANNOUNCED_MS + CUT_LOOK_MS:
        assert isinstance(following.exception(), Fenced)


def raised(error, otherwise):
    if error is not None:
        raise error
    return otherwise
