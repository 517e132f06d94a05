"""Answers that are remembered: whenever a process dies, only calls without an answer are made again."""

import functools
import random
from collections import Counter
from contextlib import closing, nullcontext
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, defstruct

from operators.async_flat_map import NOWHERE_STORED, AnswerPlace
from planner.model.errors import PlanError
from planner.model.virtual_tasks import VirtualTask
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.functions import calls
from runtime.functions.answers import Answers, asking_of
from runtime.model.errors import EnvironmentFault, OperatorFailure, SerdeError
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, Options, count, retry, skip, tumbling
from tests.scale import examples
from tests.simulation.crash import CrashPoint, fill, memory, rows_of, run_once, run_through
from tests.simulation.loop import rest

APP = "remembered"
MOST = 3
moments = st.builds(CrashPoint, st.sampled_from(("before_commit", "after_commit", "turn")), st.integers(1, 40))
parts = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=12), min_size=1, max_size=2)
SHAPES = (
    "one call",
    "many calls",
    "call behind call",
    "behind a window",
    "behind state",
    "behind keys",
    "two branches",
)


class Apart(MemoryEnvironment):
    """An environment that keeps answers apart, where they are kept at once; that outlives a process."""

    def __init__(self, kind=MemoryEnvironment):
        super().__init__(now_ms=lambda: 0)
        self._kept = kind(now_ms=lambda: 0)

    def answers(self):
        return self._kept


class Service:
    """A service that counts what it is asked, by the answers that it gave."""

    def __init__(self, seed, fails):
        self.pace, self.fails = random.Random(seed), fails
        self.given = Counter()
        self.tries = Counter()

    async def answer(self, word, value):
        await rest(self.pace.choice((0, 1, 1, 30)))
        asked = word, repr(value)
        self.tries[asked] += 1
        if self.fails and self.tries[asked] == 1:
            raise ValueError(value)
        self.given[asked] += 1
        return [[word, value]]


class Job:
    """An application that asks a service, in one of several shapes."""

    def __init__(self, shape, order, options, remember, fails):
        self.shape, self.order, self.options, self.remember = shape, order, options, remember
        self.policy = retry(2) if fails else skip
        self.service = Service(len(shape), fails)

    def ask(self, stream, word="a"):
        async def asked(value):
            return await self.service.answer(word, value)

        how = {"order": self.order, "max_in_flight": MOST, "on_error": self.policy}
        return stream.async_flat_map(asked, remember=self.remember, op_id=word, **how)

    def app(self):
        app = App(APP, options=self.options)
        keyed = app.input(
            "in", value=list, key=lambda row: row[0], timestamp=lambda row: row[1], partitioned_by_key=True
        )
        out, ask = app.output("out", value=list), self.ask
        if self.shape == "one call":
            found = ask(keyed)
        elif self.shape == "many calls":
            found = ask(keyed.flat_map(lambda row: [row, row, [*row, 1]]))
        elif self.shape == "call behind call":
            found = ask(ask(keyed), "b")
        elif self.shape == "behind a window":
            counted = keyed.window(tumbling(milliseconds=3), count(), op_id="counted")
            found = ask(counted.map(lambda pane: [pane.key, pane.start, pane.value]))
        elif self.shape == "behind state":
            found = ask(keyed.scan(lambda total, row: (total or 0) + row[1], op_id="sum").map(lambda n: [n]))
        elif self.shape == "behind keys":
            found = ask(keyed.partition_by(lambda row: row[1] % 2, partitions=2, op_id="odd"))
        else:
            ask(keyed, "b").send_to(app.output("others", value=list))
            found = ask(keyed)
        found.send_to(out)
        return app

    def run(self, given, crashes, seed, environment):
        """Run to the end, whatever happens; return the answers that were given, and what the outputs have."""
        rows = [[(None, f"[{key},{n}]".encode(), 0) for key, n in part] for part in given]
        fill(environment, "in", rows, random.Random(seed))
        died = run_through(self.app, environment, crashes, seed)
        kept = environment.answers() if isinstance(environment, Apart) else environment
        left = [store for store, _ in kept.state_stats(APP) if store in ("a", "b")]
        # Kept apart it is dropped right behind a commit: who dies in between leaves it to the next one.
        assert left == [] or (died and kept is not environment), "what is committed is remembered no more"
        outputs = [sorted(value for part in rows_of(environment, name) for _, value, _ in part) for name in OUTPUTS]
        return died, Counter(self.service.given), outputs


OUTPUTS = ("out", "others")


def by_key(part):
    return [row for row in part if row[0] % 2 == 0], [row for row in part if row[0] % 2]


@given(
    st.sampled_from(SHAPES),
    st.sampled_from(("key", "none", "partition")),
    st.sampled_from(("exactly_once", "at_least_once")),
    parts,
    st.lists(moments, min_size=1, max_size=3),
    st.sampled_from((5, 40, 10_000)),
    st.booleans(),
    st.sampled_from((0, 2)),
    st.integers(0, 99),
    st.sampled_from((None, 2, 64)),
)
@settings(max_examples=examples(100, 1_000), deadline=None)
def test_a_crash_costs_no_more_calls_than_were_in_the_air(
    shape, order, guarantee, given, crashes, interval_ms, fails, threads, seed, together
):
    if len(given) == 2:
        given = by_key([*given[0], *given[1]])
    if shape in ("behind a window", "behind state"):
        guarantee = "exactly_once"  # at least once state has some twice, and what is asked is another thing
    options = Options(
        commit_interval_ms=interval_ms, guarantee=guarantee, threads=0 if order == "partition" else threads
    )
    how = shape, order, options
    _, expected, outputs = Job(*how, False, fails).run(given, (), seed, memory())
    with nullcontext() if together is None else patch.object(calls, "TOGETHER", together):
        kept = memory() if together is None else Apart()
        died, found, written = Job(*how, True, fails).run(given, crashes, seed, kept)
    operators = 1 + (shape in ("call behind call", "two branches"))
    in_the_air = MOST * operators * max(len(given), 2)
    assert found.keys() == expected.keys()
    assert found.total() <= expected.total() + died * in_the_air
    if guarantee == "exactly_once":
        assert written == outputs
    else:
        assert {*written[0]} == {*outputs[0]}


def numbered(environment, number=20):
    fill(environment, "in", [[(None, str(n).encode(), n) for n in range(number)]])
    return environment


def asks(function, remember, **how):
    app = App(APP, options=Options(commit_interval_ms=60_000, **how))
    stream = app.input("in", value=int).async_flat_map(function, remember=remember, max_in_flight=4, op_id="ask")
    stream.send_to(app.output("out", value=int))
    return app


def runs(first, then, words=(True, True), number=20):
    """Run with a function until it dies, and then with another one to the end; return what is written."""
    environment = numbered(memory(), number)
    run_through(lambda: asks(first, words[0]), environment, [])
    return environment


def test_a_changed_function_asks_anew_and_so_does_another_word():
    def after_a_crash(word, change):
        asked = []

        async def ask(n):
            asked.append(n)
            await rest(10)
            return [n]

        async def changed(n):
            asked.append(n)
            await rest(10)
            return [n + 0]

        environment = numbered(memory())
        functions = iter((ask, changed if change else ask))
        words = iter((True, word))
        assert run_through(lambda: asks(next(functions), next(words)), environment, [CrashPoint("turn", 60)]) == 1
        assert sorted(int(value) for _, value, _ in rows_of(environment, "out")[0]) == [*range(20)]
        return len(asked)

    remembered = after_a_crash(True, False)
    assert remembered <= 24
    assert after_a_crash(True, True) > 24
    assert after_a_crash("another", False) > 24


def test_a_question_or_an_answer_without_bytes_is_a_failure_of_its_record():
    async def ask(n):
        return [n]

    async def opaque(n):
        return [object()]

    for wrong, function in (("what it is asked", ask), ("its answer", opaque)):
        app = App(APP)
        stream = app.input("in", value=int)
        stream = stream if function is opaque else stream.map(lambda n: print)
        stream.async_flat_map(function, remember=True).map(lambda value: 1).send_to(app.output("out", value=int))
        with pytest.raises(OperatorFailure, match=f"{wrong} has no bytes"):
            run_once(app, numbered(memory(), 2))


@pytest.mark.parametrize("together", [None, 2, 4, 64])
def test_calls_wait_for_answers_to_be_kept(monkeypatch, together):
    """Whenever a process dies, no more calls have begun than were kept, and may be in flight."""
    begun, kept = [], []

    async def ask(n):
        begun.append(n)
        assert len(begun) - len(kept) <= 4
        await rest(n % 3)
        return [n]

    class Counting(MemoryEnvironment):
        def commit(self, commit):
            kept.extend(key for writes in commit.state for key, value in writes.items if value is not None)
            super().commit(commit)

    monkeypatch.setattr(calls, "TOGETHER", together or 64)
    environment = numbered(Counting(now_ms=lambda: 0) if together is None else Apart(Counting), 60)
    run_once(asks(ask, True), environment)
    assert sorted(begun) == [*range(60)]
    assert len(kept) > 40


@pytest.mark.parametrize("remember", [True, False])
def test_a_place_for_answers_is_made_only_where_some_are_kept(tmp_path, remember):
    async def ask(n):
        return [n]

    with closing(LogEnvironment(tmp_path)) as log:
        run_once(asks(ask, remember), numbered(log, 3))
    assert (tmp_path / "answers").is_dir() is remember


def test_answers_that_can_not_be_kept_at_once_end_the_run():
    class Full(MemoryEnvironment):
        def commit(self, commit):
            raise EnvironmentFault("the disk is full")

    async def ask(n):
        await rest(n % 3)
        return [n]

    with pytest.raises(EnvironmentFault, match="the disk is full"):
        run_once(asks(ask, True), numbered(Apart(Full), 60))


def test_what_can_not_be_remembered_is_refused():
    async def total(n, context):
        return [n]

    numbers = App(APP).input("in", value=int, key=str)
    with pytest.raises(PlanError, match="goes by a key's state"):
        numbers.async_flat_map(total, init=int, remember=True)  # type: ignore[call-overload]
    with pytest.raises(PlanError, match="neither True nor a word"):
        numbers.async_flat_map(total, remember=7)  # type: ignore[call-overload]


def answers(found=(), ends=None, word=""):
    return Answers("ask", VirtualTask(0), KeySerde(Tagged()), b"f", found, ends or {}, word)


@given(st.lists(st.integers(-(2**62), 2**62), min_size=4, max_size=4), st.binary(max_size=9))
def test_a_place_comes_back_as_it_was(numbers, stream):
    place = AnswerPlace(*numbers, stream)
    assert AnswerPlace.of(place.encoded()) == place


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", (1, "c")])), max_size=12), st.booleans())
def test_equal_questions_have_places_of_their_own_which_another_run_finds_again(asked, is_stored):
    where = ("in", 0) if is_stored else ("window", NOWHERE_STORED)
    offsets, values = [at for at, _ in asked], [value for _, value in asked]
    first, then = answers(), answers()
    places = first.questions(where, offsets, None, values)
    assert len({*places}) == len(places)
    assert then.questions(where, offsets, None, values) == places
    # In another order of what is asked about different records.
    in_order = sorted(range(len(asked)), key=lambda at: offsets[at])
    other = answers().questions(where, [offsets[at] for at in in_order], None, [values[at] for at in in_order])
    assert {*other} == {*places}


@given(st.lists(st.integers(0, 30), unique=True, max_size=12), st.lists(st.integers(0, 31), max_size=4))
def test_what_an_earlier_run_left_is_there_until_a_commit_is_behind_it(offsets, cuts):
    before = answers()
    places = dict(zip(offsets, before.questions(("in", 0), offsets, None, offsets), strict=True))
    for n, place in places.items():
        before.keep(place, [n])
    left = before.to_write().items
    now, last = answers(left, ends={("in", 0): 31}), 0
    for cut in sorted([*cuts, 31]):
        gone = {place for place, _ in now.to_forget({("in", 0): cut}, is_drained=True).items}
        now.committed()
        assert gone == {place for n, place in places.items() if last <= n < cut}
        last = cut
        behind = [n for n in offsets if n >= cut]
        again = answers([one for one in left if one[0] not in gone], ends={("in", 0): 31})
        assert [again.recall(place) for place in again.questions(("in", 0), behind, None, behind)] == [
            [n] for n in behind
        ]


PROMPT = "Say it"


def ending_in_prompt(text):
    return text + PROMPT


async def with_prompt(text):
    return [ending_in_prompt(text)]


def test_the_texts_and_functions_that_a_function_names_are_part_of_it(monkeypatch):
    before = asking_of(with_prompt, "")
    assert asking_of(functools.partial(with_prompt), "") == before
    monkeypatch.setattr(__import__(__name__, fromlist=["PROMPT"]), "PROMPT", "Say it again")
    assert asking_of(with_prompt, "") != before


def test_an_answer_that_can_not_be_kept_says_so():
    one = answers()
    (place,) = one.questions(("in", 0), [0], None, [1])
    with pytest.raises(SerdeError, match="its answer has no bytes"):
        one.keep(place, [print])


class Spoken(Struct):
    text: str


@pytest.mark.parametrize(("word", "other"), [("", "2"), ("2", "3"), ("prompt", "prompt-2"), ("v9", "v10")])
def test_an_answer_of_a_class_that_has_changed_says_how_to_ask_anew(word, other, monkeypatch):
    left = answers()
    (place,) = left.questions(("in", 0), [0], None, [1])
    left.keep(place, [Spoken("yes")])
    monkeypatch.setitem(globals(), "Spoken", defstruct("Spoken", [("text", int)], module=__name__))
    with pytest.raises(
        SerdeError, match=rf"earlier run has kept can't be read: .*text.*another word: remember='{other}'"
    ):
        answers(left.fresh.items(), word=word).recall(place)
