"""Every kind of window between async operators, where a value fails, and in a memory of its own: the same panes."""

from dataclasses import dataclass

import pytest

from samza_dsl import (
    App,
    Options,
    after_count,
    after_delay,
    any_of,
    collect,
    counted,
    daily,
    dead_letter,
    fold,
    hopping,
    session,
    sliding,
    tumbling,
    whole,
    windows_by,
)
from samza_dsl.testing import CrashPoint, Record, Schedule, run, unordered
from tests.sample import crossed

PANES = ["accumulating", "discarding"]


@dataclass(frozen=True)
class Twice:
    """Two windows from each value on."""

    def assign(self, key: str, timestamp: int, value: int) -> list[tuple[int, int]]:
        return [(timestamp, timestamp + 5), (timestamp, timestamp + 20)]


@dataclass(frozen=True)
class Lasting:
    """A window as long as the value says, which may become one with others."""

    merges = True

    def assign(self, key: str, timestamp: int, value: int) -> list[tuple[int, int]]:
        return [(timestamp, timestamp + 1 + value % 7)]


KINDS = {
    "tumbling": lambda table: tumbling(milliseconds=10),
    "hopping": lambda table: hopping(milliseconds=10, every_ms=4),
    "daily": lambda table: daily(),
    "session": lambda table: session(milliseconds=5),
    "sliding": lambda table: sliding(milliseconds=9),
    "counted": lambda table: counted(3, every=2),
    "whole": lambda table: whole(),
    "own": lambda table: Twice(),
    "merging": lambda table: Lasting(),
    "by rows": lambda table: windows_by(table, lambda row: tumbling(milliseconds=row or 7)),
}
GIVEN = [Record(n, "abc"[n * 7 % 3], n * 5 // 3 - (n * 11 % 4)) for n in range(40)]
LENGTHS = [Record(10, "a", 0), Record(4, "b", 0)]


async def same(value):
    return [value]


def app_of(kind, awaits=False, store="lmdb", poisoned=(), aggregation=None, disorder=4, **fires):
    app = App("kinds", Options(batch_records=7))
    lengths = app.table("lengths", key=str, value=int) if kind == "by rows" else None
    values = app.input("in", key=str, value=int, max_disorder_ms=disorder)

    def picky(value):
        if value in poisoned:
            raise ValueError("poisoned")
        return value

    values = values.map(picky, on_error=dead_letter("bad"))
    if awaits:
        values = values.async_flat_map(same, op_id="above")
    how = {"store": store, "on_error": dead_letter("bad"), "op_id": "windows", **fires}
    panes = values.window(KINDS[kind](lengths), aggregation or collect(), **how)
    if awaits:
        panes = panes.async_flat_map(same, op_id="below")
    panes.map(lambda pane: (pane.key, pane.start, pane.end, pane.value)).send_to(app.output("out", value=list))
    return app


def given(kind):
    return {"in": GIVEN, "lengths": LENGTHS} if kind == "by rows" else {"in": GIVEN}


@pytest.mark.parametrize("kind", KINDS)
def test_panes_are_the_same_between_async_operators_and_after_crashes(kind):
    expected = unordered(run(app_of(kind), given(kind)))
    assert expected["out"]
    for seed in range(8):
        found = run(app_of(kind, awaits=True), given(kind), Schedule(seed, (CrashPoint("turn", 5 + 3 * seed),)))
        assert unordered(found) == expected


@pytest.mark.parametrize(("kind", "panes"), crossed(sorted(KINDS.keys() - {"sliding"}), PANES))
def test_early_panes_are_the_same_between_async_operators_and_after_crashes(kind, panes):
    how = {"early": any_of(after_count(2), after_delay(milliseconds=3)), "panes": panes}
    expected = unordered(run(app_of(kind, **how), given(kind)))
    on_time = unordered(run(app_of(kind, panes=panes), given(kind)))
    assert expected["out"] and (expected != on_time or panes == "discarding"), "there are early ones"
    for seed in range(4):
        found = run(app_of(kind, awaits=True, **how), given(kind), Schedule(seed, (CrashPoint("turn", 5 + 3 * seed),)))
        assert unordered(found) == expected


@pytest.mark.parametrize(("kind", "panes"), crossed(sorted(KINDS.keys() - {"counted", "whole"}), reversed(PANES)))
def test_late_panes_are_the_same_between_async_operators_and_after_crashes(kind, panes):
    how = {"allowed_lateness_ms": 20, "panes": panes, "disorder": 0}
    some = {**given(kind), "in": [*GIVEN[:20], Record(50, "a", 15), Record(51, "b", 17), *GIVEN[20:]]}
    expected = unordered(run(app_of(kind, **how), some))
    assert expected["out"] != unordered(run(app_of(kind, disorder=0), some))["out"], "there are late ones"
    for seed in range(4):
        found = run(app_of(kind, awaits=True, **how), some, Schedule(seed, (CrashPoint("turn", 5 + 3 * seed),)))
        assert unordered(found) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_panes_are_the_same_with_state_in_memory(kind):
    assert unordered(run(app_of(kind, store="memory"), given(kind))) == unordered(run(app_of(kind), given(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_fails_leaves_the_panes_as_if_it_had_never_come(kind):
    poisoned = {3, 17, 18, 39}
    healthy = {**given(kind), "in": [one for one in GIVEN if one.value not in poisoned]}
    found = run(app_of(kind, poisoned=poisoned), given(kind))
    expected = run(app_of(kind), healthy)
    assert sorted(found["out"]) == sorted(expected["out"])
    assert len(found["bad"]) == len(poisoned)


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_can_not_be_added_is_in_no_pane(kind):
    def added(values, value):
        if value in (3, 17, 18, 39):
            raise ValueError("poisoned")
        return (*values, value)

    folded = fold(tuple, added, merge=lambda a, b: a + b, remove=lambda values, value: values[1:], finish=list)
    healthy = {**given(kind), "in": [one for one in GIVEN if one.value not in (3, 17, 18, 39)]}
    found = run(app_of(kind, aggregation=folded), given(kind))
    assert sorted(found["out"]) == sorted(run(app_of(kind), healthy)["out"])
    assert len(found["bad"]) == 4
