"""What type checkers know of a test: mypy and pyright read this file, and pytest runs what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, assert_type

from hypothesis import strategies as st

from samza_dsl import App, MessageStream, Pane, Table, count, laws, testing, tumbling

app = App("types-of-tests")
app.input("numbers", value=int, key=str).send_to(app.output("out", value=int))


def test_a_run_on_lists_has_lists_by_stream() -> None:
    assert_type(testing.run(app, {"numbers": [("a", 1)]}, testing.schedule(3)), dict[str, list[Any]])
    assert_type(testing.unordered({"out": [1]}), dict[str, list[Any]])


def test_an_operator_emits_what_its_stream_carries() -> None:
    def lengths(words: MessageStream[str, str]) -> MessageStream[str, int]:
        return words.map(len)

    def panes(words: MessageStream[str, str]) -> MessageStream[str, Pane[str, int]]:
        return words.window(tumbling(seconds=1), count())

    assert_type(testing.drive(lengths, ["a", testing.Record("b", key="k")]), list[int])
    assert_type(testing.drive(panes, [testing.Watermark(5)]), list[Pane[str, int]])


def test_several_streams_are_lists_by_name() -> None:
    def halves(words: MessageStream[str, str]) -> Mapping[str, MessageStream[str, str]]:
        return words.branch(lambda word: "short" if len(word) < 5 else "long", into=("short", "long"))

    def known(words: MessageStream[str, str], dictionary: Table[str, int]) -> MessageStream[str, int]:
        return words.join(dictionary, lambda word, number: number)

    seen: list[str] = []

    def sink(words: MessageStream[str, str]) -> None:
        words.sink(seen.append)

    assert_type(testing.drive(halves, ["a"]), dict[str, list[Any]])
    assert_type(testing.drive(sink, ["a", testing.AdvanceTime(5)]), dict[str, list[Any]])
    assert_type(testing.drive(known, [testing.Record("a", "k")], tables={"dictionary": {"k": 1}}), list[int])
    assert seen == ["a"]


def test_a_run_is_taken_step_by_step() -> None:
    with testing.running(app) as run:
        assert_type(run, testing.TestRun)
        assert_type(run.send("numbers", 1, 2, key="a"), None)
        assert_type(run.read("out"), list[Any])
        assert_type(run.records("out"), list[testing.Record])
        assert_type(run.position("numbers"), int)
        assert_type(run.watermark("numbers"), int | None)
        calls: Callable[[str], list[testing.Call]] = run.calls
        letters: Callable[[str], list[testing.DeadLetter]] = run.dead_letters
    assert callable(calls)
    assert callable(letters)


def test_strategies_draw_what_is_made() -> None:
    assert_type(laws.keys(), st.SearchStrategy[str])
    assert_type(laws.events(lambda key, at: (str(key), at)), st.SearchStrategy[list[tuple[str, int]]])
    assert_type(laws.records(st.integers()), st.SearchStrategy[list[testing.Record]])
    assert_type(laws.partitioned(st.just([1]), 2), st.SearchStrategy[list[list[int]]])
    assert_type(laws.schedules(), st.SearchStrategy[testing.Schedule])
