"""Keys of a kind that no run before has had: state under the others is not found, which is said, and only then."""

import re
import sys
from dataclasses import dataclass, make_dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, defstruct

from operators.core.base import Batch
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Json, Tagged
from runtime.job.key_kinds import FIRST_LOOKS, MOST_EQUAL, EqualInTasks, EqualKeys, KeptKeys, KeyKinds, kept_kind
from runtime.model.errors import UnreadState
from runtime.opening.stored_state import forget, move
from runtime.ports.streams import Append, StreamConfig
from samza_dsl import App, count, counted, produce, session, sliding, tumbling
from samza_dsl.view.progress import Progress
from tests.runtime.test_parameters import on_kafka, on_log, on_memory
from tests.simulation.crash import memory, run_once
from tests.spark.shuffling import run_here
from tests.specs import specs


def whole(n):
    return n


def text(n):
    return str(n)


def real(n):
    return float(n)


AGAIN = tumbling(milliseconds=1_000)


def app_of(step, key, **how):
    app = App("keyed")
    numbers = app.input("numbers", value=int, key=key, timestamp=lambda n: n)
    step(numbers, **how).map(str).send_to(app.output("out", value=str))
    return app


def scanned(key, op_id="it", **how):
    return app_of(lambda n: n.scan(lambda total, one: (total or 0) + one, op_id=op_id, **how), key)


async def awaited(n, context):
    context.state = n
    return [n]


def looked_into(key):
    app = App("keyed")
    table = app.table("numbers", value=int, key=key)
    app.input("others", value=int, key=whole).join(table, lambda n, row: n).send_to(app.output("out"))
    return app


def of_tables(key, on=None):
    app = App("keyed")
    one, other = (app.table(name, value=int, key=key) for name in ("numbers", "others"))
    one.join(other, lambda a, b: 1, on=on, op_id="it").changes().send_to(app.output("out"))
    return app


def as_of(key):
    app = App("keyed")
    numbers = app.input("others", value=int, key=key, timestamp=lambda n: n)
    table = app.table("numbers", value=int, key=key, timestamp=lambda n: n, retention_ms=10_000)
    numbers.join(table, lambda n, row: n, op_id="it").send_to(app.output("out"))
    return app


STEPS = {
    "scan": scanned,
    "process": lambda key: app_of(lambda n: n.process(keep, op_id="it"), key),
    "timers": lambda key: app_of(lambda n: n.process(remind, on_timer=lambda at, context: [], op_id="it"), key),
    "awaited": lambda key: app_of(lambda n: n.async_flat_map(awaited, op_id="it"), key),
    "window": lambda key: app_of(lambda n: n.window(AGAIN, count(), op_id="it"), key),
    "late panes": lambda key: app_of(
        lambda n: n.window(AGAIN, count(), allowed_lateness_ms=5, panes="discarding", op_id="it"), key
    ),
    "session": lambda key: app_of(lambda n: n.window(session(seconds=1), count(), op_id="it"), key),
    "sliding": lambda key: app_of(lambda n: n.window(sliding(seconds=1), count(), op_id="it"), key),
    "counted": lambda key: app_of(lambda n: n.window(counted(100), count(), op_id="it"), key),
    "deduplicate": lambda key: app_of(lambda n: n.deduplicate(key, within_ms=1_000, op_id="it"), lambda n: 1),
    "join": lambda key: app_of(lambda n: n.join(n, max, within=(-1_000, 1_000), op_id="it"), key),
    "windows' join": lambda key: app_of(lambda n: n.join_windows(n, AGAIN, max, op_id="it"), key),
    "as of then": as_of,
    "nearest": lambda key: app_of(lambda n: n.join_asof(n, max, op_id="it"), key),
    "nearest within": lambda key: app_of(lambda n: n.join_asof(n, max, tolerance=1_000, op_id="it"), key),
    "tables": of_tables,
    "own table": lambda key: app_of(lambda n: n.to_table("it").changes(), key),
    "own table's join": lambda key: app_of(lambda n: n.join(n.to_table("rows", store="memory"), max, op_id="it"), key),
    "foreign key": lambda key: of_tables(key, on=lambda n: n),
    "behind another key": lambda key: app_of(
        lambda n: n.partition_by(key, partitions=3, op_id="by").scan(lambda a, b: b, op_id="it"), lambda n: n
    ),
}


def keep(n, context):
    context.state = n
    return [n]


def remind(n, context):
    context.set_timer(n + 1_000)
    return [n]


def run_on(environment, app, values=(1, 2, 3)):
    for name in ("numbers", "others"):
        if name not in environment.streams():
            environment.create_stream(name, StreamConfig())
        data = [b"%d" % value for value in values]
        environment.append([Append(name, 0, Batch(data, data, [*values]))])
    return run_once(app, environment, until_now=True)


@pytest.mark.parametrize("step", STEPS)
def test_a_kind_that_no_run_before_has_had_is_told_once_with_place_and_what_to_type(step, caplog):
    environment = memory()
    run_on(environment, STEPS[step](whole))
    assert not environment_warnings(caplog)
    run = run_on(environment, STEPS[step](text), (4, 5, 6))
    (told,) = environment_warnings(caplog)
    assert re.search(r"'it' at .*test_key_kinds.py:\d+: its keys were int in the runs before, and one is str now", told)
    assert "samza-dsl state forget keyed it; or compute all again: samza-dsl reset keyed" in told
    assert {f"keyed: {one}" for one in run.metrics().warnings} == {told}
    progress = Progress(run.plan)
    progress.take(run.metrics())
    assert [f"keyed: {one}" for one in progress.warnings] == [told]
    caplog.clear()
    assert not run_on(environment, STEPS[step](text), (7,)).metrics().warnings
    assert not environment_warnings(caplog)


def environment_warnings(caplog):
    return [message for message in caplog.messages if "its keys were" in message]


def test_each_kind_of_operator_with_state_by_key_is_tried():
    tried = {spec.kind for step in STEPS.values() for spec in step(text).graph().specs.values()}
    kinds = {one.kind for one in specs() if one.keyed is not False}
    assert kinds - tried <= {"remote_join", "table_join", "task"}, (
        "which keep nothing, or not by keys unless they say so"
    )


def test_rows_of_a_table_are_told_as_well(caplog):
    environment = memory()
    run_on(environment, looked_into(whole))
    run_on(environment, looked_into(text), (4,))
    assert re.search(r"table 'numbers' at .*its keys were int", "\n".join(environment_warnings(caplog)))


KEYS = {
    "int": whole,
    "str": text,
    "both": lambda n: n if n % 2 else str(n),
    "float": real,
    "tuple": lambda n: (n, "a"),
    "another tuple": lambda n: (str(n), "a"),
    "with none": lambda n: (None, n),
}
KINDS = {
    "int": {"int"},
    "str": {"str"},
    "both": {"int", "str"},
    "float": {"float"},
    "tuple": {"(int, str)"},
    "another tuple": {"(str, str)"},
    "with none": {"(None, int)"},
}


@given(st.lists(st.sampled_from([*KEYS]), min_size=1, max_size=5), st.sampled_from(["scan", "deduplicate", "window"]))
def test_told_are_the_kinds_that_none_of_the_runs_before_has_had(runs, step):
    environment, before = memory(), set()
    for number, keys in enumerate(runs):
        warnings = run_on(environment, STEPS[step](KEYS[keys]), (2 * number, 2 * number + 1)).metrics().warnings
        new = {kind for kind in KINDS[keys] - before if before and "None" not in kind}
        assert bool(new) == bool(warnings), (runs, keys)
        assert all(any(f"and one is {kind} now" in one for kind in new) for one in warnings)
        before |= KINDS[keys]


@pytest.mark.parametrize("where", [on_memory, on_log, on_kafka])
def test_it_is_told_wherever_streams_and_state_lie(where, tmp_path):
    with where(tmp_path) as environment:
        run_on(environment, STEPS["behind another key"](KEYS["both"]))
        assert not run_on(environment, STEPS["behind another key"](text), (4, 5)).metrics().warnings
        (told,) = set(run_on(environment, STEPS["behind another key"](real), (6, 7, 8, 9)).metrics().warnings)
        assert "its keys were int and str in the runs before, and one is float now" in told


@pytest.mark.parametrize("where", [on_memory, on_log, on_kafka])
def test_what_to_type_makes_it_well(where, tmp_path):
    with where(tmp_path) as environment:
        run_on(environment, scanned(whole))
        forget(environment, "keyed", ["it"])
        assert not run_on(environment, scanned(text), (4,)).metrics().warnings
        environment.reset("keyed")
        assert not run_on(environment, scanned(real), (5,)).metrics().warnings


def test_state_that_was_moved_takes_its_kinds_along():
    environment = memory()
    run_on(environment, scanned(whole))
    run_on(environment, scanned(whole))
    move(environment, "keyed", "it", "that")
    (told,) = run_on(environment, scanned(text, op_id="that"), (4,)).metrics().warnings
    assert "scan 'that' at" in told


def test_windows_that_have_all_fired_keep_nothing_that_could_not_be_found():
    environment = memory()
    run_on(environment, STEPS["window"](whole), (1, 5_000))
    environment.end_stream("numbers")
    run_once(STEPS["window"](whole), environment)
    assert not environment.stores("keyed")
    environment.reset("keyed", [])
    environment.delete_stream("numbers")
    assert not run_on(environment, STEPS["window"](text), (9_000,)).metrics().warnings


def test_state_in_memory_has_no_kinds():
    environment = memory()
    run_on(environment, scanned(whole, store="memory"))
    assert not run_on(environment, scanned(text, store="memory"), (4,)).metrics().warnings


def test_a_key_that_is_looked_for_is_encoded_as_ever():
    spec = scanned(text).graph().specs["it"]
    kept, plain = KeptKeys(Tagged(), KeyKinds(spec, "keyed", memory(), set())), KeySerde(Tagged())
    keys = plain.hold([1, "a", None, (1, "a"), 1.5, True, b"x"])
    assert kept.encode_all(keys) == plain.encode_all(keys)
    assert [kept.encode(key) for key in keys if key is not None] == [
        plain.encode(key) for key in keys if key is not None
    ]


def defined_again(*fields):
    """Define the class of keys of this module as a deployment does, and return it."""
    made = defstruct("Spot", fields, frozen=True, module=__name__)
    sys.modules[__name__].Spot = made
    return made


CHANGING = {
    "scan": lambda n: n.scan(lambda total, one: (total or 0) + one, op_id="it"),
    "window": lambda n: n.window(AGAIN, count(), op_id="it").map(lambda pane: pane.value),
    "session": lambda n: n.window(session(milliseconds=1_000), count(), op_id="it").map(lambda pane: pane.value),
    "deduplicate": lambda n: n.deduplicate(lambda one: sys.modules[__name__].Spot(1), within_ms=1_000, op_id="it"),
}
ROW, SEAT = ("row", int), ("seat", int, 0)


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("step", CHANGING)
@pytest.mark.parametrize(
    ("then", "now", "is_told"),
    [([ROW], [ROW, SEAT], True), ([("row", int, 0), SEAT], [SEAT, ("row", int, 0)], True), ([ROW], [ROW], False)],
    ids=["a field more", "in another order", "as it was"],
)
def test_a_class_of_keys_that_has_changed_is_told(tmp_path, caplog, step, declared, then, now, is_told):
    for number, fields in enumerate((then, then, now)):
        made = defined_again(*fields)
        how = {"key_type": made} if declared else {}
        app = App("keyed")
        numbers = app.input("numbers", value=int, timestamp=lambda n: n)
        keyed = numbers.partition_by(lambda n, made=made: made(1), partitions=1, op_id="by", **how)
        CHANGING[step](keyed).map(str).send_to(app.output("out", value=str))
        assert "its keys were" not in caplog.text
        produce("numbers", [number], data=tmp_path)
        app.run(tmp_path, until_now=True)
    assert ("its keys were Spot<" in caplog.text) == is_told


@pytest.mark.parametrize("shape", [lambda spot: spot, lambda spot: (spot, 1), lambda spot: frozenset([spot])])
@pytest.mark.parametrize("then", [[ROW], [("row", int, 0), SEAT]], ids=["a field more", "in another order"])
def test_keys_of_maps_whose_class_has_changed_are_told_and_never_missing(tmp_path, caplog, then, shape):
    def looking(n, context):
        seen = context.map("seen")
        if n == 3:
            return [list(seen.items())]
        known = shape(sys.modules[__name__].Spot(1)) in seen
        seen[shape(sys.modules[__name__].Spot(1))] = n
        return [known]

    found = []
    for number, fields in enumerate((then, then, [SEAT, ("row", int, 0)], [SEAT, ("row", int, 0)])):
        defined_again(*fields)
        app = App("keyed")
        app.input("numbers", value=int, key=lambda n: "k").process(looking, op_id="it").sink(found.append)
        is_told = "keys of its entries were" in caplog.text
        assert not is_told or number > 2
        produce("numbers", [number], data=tmp_path)
        if number == 3:
            with pytest.raises(UnreadState, match=r"(?s)process 'it' at .*an entry lies under .*Spot"):
                app.run(tmp_path, until_now=True)
        else:
            app.run(tmp_path, until_now=True)
    assert found == [False, True, False]
    if shape(1) != frozenset([1]):  # of what is in a set no kind is told
        assert is_told and re.search(r"process 'it' at .*: keys of its entries were .*Spot<row", caplog.text)


ENUM_CHANGES = {
    "exchanged": ({"UP": 1, "DOWN": 2}, {"DOWN": 1, "UP": 2}, True),
    "another value": ({"UP": 1}, {"UP": 2, "LEFT": 1}, True),
    "of objects exchanged": ({"UP": (1, "a"), "DOWN": None}, {"UP": None, "DOWN": (1, "a")}, True),
    "a member more": ({"UP": 1}, {"UP": 1, "DOWN": 2}, False),
    "a member less": ({"UP": 1, "DOWN": 2}, {"UP": 1}, False),
    "another name": ({"UP": 1, "DOWN": 2}, {"HIGH": 1, "DOWN": 2}, False),
    "as it was": ({"UP": 1}, {"UP": 1}, False),
}


@pytest.mark.parametrize("change", ENUM_CHANGES)
@pytest.mark.parametrize("where", ["key", "declared", "in a tuple", "in a record", "map"])
def test_members_of_keys_that_have_other_values_are_told(tmp_path, caplog, change, where):
    def looking(n, context):
        context.map("seen")[next(iter(sys.modules[__name__].Way))] = n
        return []

    def key_of(n):
        way = next(iter(sys.modules[__name__].Way))
        return {"in a tuple": (way, 1), "in a record": sys.modules[__name__].Spot(way)}.get(where, way)

    before, now, is_told = ENUM_CHANGES[change]
    if where == "declared" and change == "of objects exchanged":
        return  # which JSON does not have
    for number, members in enumerate((before, before, now)):
        way = sys.modules[__name__].Way = Enum("Way", members, module=__name__)
        defined_again(("way", way))
        app = App("keyed")
        numbers = app.input("numbers", value=int, key=lambda n: "k")
        if where == "map":
            of_key = numbers.process(looking, op_id="it")
        else:
            how = {"key_type": way} if where == "declared" else {}
            by = numbers.partition_by(key_of, partitions=1, op_id="by", **how)
            of_key = by.scan(lambda total, one: 1, op_id="it")
        of_key.map(str).send_to(app.output("out", value=str))
        assert "in the runs before" not in caplog.text
        produce("numbers", [number], data=tmp_path)
        app.run(tmp_path, until_now=True)
    assert ("in the runs before, and one is" in caplog.text) == is_told
    assert not is_told or "members of the former may be read as others" in caplog.text


@pytest.mark.parametrize("then", [[ROW], [("row", int, 0), SEAT]], ids=["a field more", "in another order"])
def test_keys_of_a_task_whose_class_has_changed_are_told_and_never_missing(tmp_path, caplog, then):
    found = []

    def looking(message, context):
        if message.value == 3:
            found.append([*context.items()])
        key = sys.modules[__name__].Spot(1)
        found.append(context.get(key))
        context.put(key, message.value)

    for number, fields in enumerate((then, then, [SEAT, ("row", int, 0)], [SEAT, ("row", int, 0)])):
        defined_again(*fields)
        app = App("keyed")
        app.task(app.input("numbers", value=int), looking, op_id="it")
        produce("numbers", [number], data=tmp_path)
        if number == 3:
            with pytest.raises(UnreadState, match=r"(?s)task 'it' at .*an entry lies under Spot"):
                app.run(tmp_path, until_now=True)
        else:
            app.run(tmp_path, until_now=True)
        assert ("keys of its entries were Spot<row" in caplog.text) == (number > 1)
    assert found == [None, 0, None]


@pytest.mark.parametrize("is_exchanged", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_tags_of_keys_that_were_exchanged_are_told(tmp_path, caplog, is_exchanged, alone):
    module = sys.modules[__name__]
    for number, (one, other) in enumerate([("a", "b"), ("a", "b"), ("b", "a") if is_exchanged else ("a", "b")]):
        module.Here = defstruct("Here", [("n", int)], tag=one, frozen=True, module=__name__)
        module.There = defstruct("There", [("n", int)], tag=other, frozen=True, module=__name__)
        defined_again(("of", module.Here | module.There))
        key = module.Here(1) if alone else module.Spot(module.Here(1))
        app = App("keyed")
        numbers = app.input("numbers", value=int).partition_by(lambda n, key=key: key, partitions=1, op_id="by")
        numbers.scan(lambda total, n: n, op_id="it").map(str).send_to(app.output("out", value=str))
        assert "in the runs before" not in caplog.text
        produce("numbers", [number], data=tmp_path)
        app.run(tmp_path, until_now=True)
    assert ("in the runs before, and one is" in caplog.text) == is_exchanged


def test_kinds_of_tagged_keys_that_a_former_version_noted_are_no_others():
    union = defstruct("Here", [("n", int)], tag="a") | defstruct("There", [("n", int)], tag="b")
    spot = defstruct("Spot", [("of", union), ("way", Enum("Way", {"UP": 1}))])
    kinds = KeyKinds(scanned(whole).graph().specs["it"], "keyed", memory(), set())
    kinds.before = frozenset({"Spot<of: Here<n>: There<n>, way>"})
    kinds.note(kept_kind(spot(None, None)))
    assert not kinds.warning and "<type='a'>" in kept_kind(spot(None, None))


def test_maps_with_keys_of_several_kinds_are_none_that_have_changed(tmp_path, caplog):
    def looking(n, context):
        for key in ((n,) if n % 2 else str(n), n, Left()):
            context.map("seen")[key] = n
        return [sorted(map(str, context.map("seen")))]

    for number in range(4):
        app = App("keyed")
        app.input("numbers", value=int, key=lambda n: "k").process(looking, op_id="it").sink(lambda keys: None)
        produce("numbers", [number], data=tmp_path)
        app.run(tmp_path, until_now=True)
    assert not caplog.text


def test_kinds_that_a_former_version_noted_have_no_fields_and_are_no_others():
    spec = scanned(whole).graph().specs["it"]
    for kind, before, warns in (
        ("Spot<row>", {"Spot"}, False),
        ("(Spot<row>, int)", {"(Spot, int)"}, False),
        ("Spot<row>", {"Spot", "Spot<seat>"}, True),
        ("Spot<row: Place<x, y>>", {"Spot"}, False),
        ("Spot<row>", {"int"}, True),
    ):
        kinds = KeyKinds(spec, "keyed", memory(), set())
        kinds.before = frozenset(before)
        kinds.note(kind)
        assert bool(kinds.warning) == warns and kinds.new == {kind}


class Left(Struct, frozen=True):
    right: "Right | None" = None


class Right(Struct, frozen=True):
    left: Left | None = None


def test_classes_of_keys_may_name_each_other():
    assert kept_kind((Left(), [Right()])) == "(Left<right: Right<left: Left>>, [Right<left: Left<right: Right>>])"


def test_a_declared_class_of_keys_is_looked_at_once(monkeypatch):
    looked = []
    kinds = KeyKinds(scanned(whole).graph().specs["it"], "keyed", memory(), set())
    keys = KeptKeys(Json(Left), kinds)
    monkeypatch.setattr(KeptKeys, "_kind_of_bytes", lambda self, data: looked.append(data) or "Left")
    keys._kind_of = keys._kind_of_bytes
    for row in (Left(), Left(Right()), Left()):
        keys.encode(keys.hold_one(row))
        keys.encode_all([keys.hold_one(row)])
    assert len(looked) == 1


class Pair(NamedTuple):
    row: int
    seat: int


@dataclass(frozen=True)
class Place:
    row: int
    seat: int


def in_another_order(kind):
    """Define a class anew with its fields in another order, as a deployment does."""
    fields = [("seat", int), ("row", int)]
    made = (
        NamedTuple(kind.__name__, fields)
        if issubclass(kind, tuple)
        else make_dataclass(kind.__name__, fields, frozen=True)
    )
    made.__module__ = __name__
    return made


@pytest.mark.parametrize("step", ["scan", "window"])
@pytest.mark.parametrize("kind", [Pair, Place])
def test_each_run_tells_of_state_that_lies_under_a_former_class_unless_that_goes_with_time(
    tmp_path, monkeypatch, caplog, step, kind
):
    told = []
    for made in (kind, kind, in_another_order(kind), in_another_order(kind), kind):
        monkeypatch.setattr(sys.modules[__name__], kind.__name__, made)
        app = App("keyed")
        numbers = app.input("numbers", value=int, timestamp=lambda n: n)
        CHANGING[step](numbers.partition_by(lambda n, made=made: made(1, 2), partitions=1, op_id="by")).map(
            str
        ).send_to(app.output("out", value=str))
        caplog.clear()
        produce("numbers", [len(told)], data=tmp_path)
        app.run(tmp_path, until_now=True)
        told.append("its keys were" in caplog.text)
    assert told == [False, False, True, *([True, True] if step == "scan" else [False, False])]


def at(n, zone=None):
    return datetime(2025, 6, 15, tzinfo=zone) + timedelta(days=n)


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        (at, lambda n: at(n, UTC), "were datetime without a zone in the runs before, and one is datetime with a zone"),
        (lambda n: (1, at(n, UTC)), lambda n: (1, at(n)), r"were \(int, datetime with a zone\) in"),
        (lambda n: at(n, UTC), lambda n: at(n, timezone(timedelta(hours=2))), ""),
    ],
)
def test_times_that_have_a_zone_now_are_keys_of_another_kind(then, now, told):
    environment = memory()
    run_on(environment, scanned(then))
    warnings = run_on(environment, scanned(now), (4,)).metrics().warnings
    assert bool(warnings) == bool(told) and (not told or re.search(told, warnings[0]))


def test_zones_that_a_former_version_did_not_note_are_no_others():
    kinds = KeyKinds(scanned(whole).graph().specs["it"], "keyed", memory(), set())
    kinds.before = frozenset({"datetime", "(datetime, int)"})
    kinds.note(kept_kind(at(0, UTC)))
    kinds.note(kept_kind((at(0), 1)))
    assert not kinds.warning


class Shelf(Struct, frozen=True):
    at: dict[str, int]


class Price(NamedTuple):
    amount: Decimal
    of: tuple[str, ...] = ()


class Cell(Struct, frozen=True):
    latitude: float


class Mixed(Struct, frozen=True):
    of: Any


class Seven(IntEnum):
    SEVEN = 7


class Named(StrEnum):
    SEVEN = "seven"


EQUAL = {
    "dicts": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "dicts in a tuple": ((1, [{"a": {"c": 1, "d": 2}}]), (1, [{"a": {"d": 2, "c": 1}}])),
    "dicts in a record": (Shelf({"a": 1, "b": 2}), Shelf({"b": 2, "a": 1})),
    "decimals in a record": (Price(Decimal("1.0")), Price(Decimal("1.00"))),
    "decimals": (Decimal("1.0"), Decimal("1.00")),
    "in a tuple": (("a", Decimal("1")), ("a", Decimal("1.0"))),
    "zones": (at(0, UTC), at(0, UTC).astimezone(timezone(timedelta(hours=2)))),
    "zeros": (0.0, -0.0),
    "zeros in a tuple": ((48.1, round(-0.04, 1)), (48.1, round(0.04, 1))),
    "zeros in a record": (Cell(0.0), Cell(-0.0)),
    "numbers": (7, 7.0),
    "numbers in a tuple": (("a", 7), ("a", 7.0)),
    "numbers in a record": (Mixed(7), Mixed(7.0)),
    "numbers in a set": (frozenset([7]), frozenset([7.0])),
    "number and truth": (1, True),
    "number and decimal": (7, Decimal(7)),
    "number and fraction": (7, Fraction(7)),
    "number and member": (7, Seven.SEVEN),
    "text and member": ("seven", Named.SEVEN),
    "hours that come twice": (datetime(2020, 10, 25, 2), datetime(2020, 10, 25, 2, fold=1)),
}


@pytest.mark.parametrize("step", ["scan", "window", "behind"])
@pytest.mark.parametrize("name", EQUAL)
def test_keys_that_are_equal_in_python_and_two_here_are_told(name, step, caplog):
    one, other = EQUAL[name]
    steps = {**CHANGING, "behind": lambda n: n.scan(lambda total, one: 1, op_id="it")}
    app = App("keyed")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n)
    keyed = numbers.partition_by(lambda n: one if n % 2 else other, partitions=5 if step == "behind" else 1, op_id="by")
    steps[step](keyed).map(str).send_to(app.output("out", value=str))
    run = run_on(memory(), app)
    (told,) = run.metrics().warnings
    assert re.search(
        r"'it' at .*test_key_kinds.py:\d+: two of its keys, .* are equal in Python and two keys here", told
    )
    caplog.clear()
    for keys in ((one,), (other,)):
        again = App("keyed")
        numbers = again.input("numbers", value=int, timestamp=lambda n: n)
        by = numbers.partition_by(lambda n, keys=keys: keys[n % len(keys)], partitions=1, op_id="by")
        steps[step](by).map(str).send_to(again.output("out", value=str))
        assert not run_on(memory(), again).metrics().warnings


@pytest.mark.parametrize("step", [step for step in STEPS if step != "timers"])
def test_equal_keys_are_told_of_units_that_never_store_a_state(step, caplog):
    environment = memory()
    for name in ("numbers", "others"):
        environment.create_stream(name, StreamConfig())
        data = [b"%d" % value for value in range(4)]
        environment.append([Append(name, 0, Batch(data, data, [*range(4)]))])
    (told,) = run_here(STEPS[step](lambda n: (7, 7.0)[n % 2]), environment).metrics().warnings
    assert re.search(r"'it' at .*: two of its (keys|ids), .* are equal in Python", told)
    assert f"keyed: {told}" in caplog.messages


@given(st.dictionaries(st.integers(0, 999), st.sampled_from(["int", "float", "both"]), min_size=1), st.integers(1, 5))
def test_equal_keys_in_several_tasks_are_told_where_there_are_some(kinds, tasks):
    spec = scanned(whole).graph().specs["it"]
    seen = [EqualKeys() for _ in range(tasks)]
    for key, how in kinds.items():
        for one in (key,) * (how != "float") + (float(key),) * (how != "int"):
            data = Tagged().encode(one)
            seen[sum(data) % tasks].note(spec, one, data, "keys")
    across = EqualInTasks("keyed", {"it": spec})
    across.take([{"it": one.sample(MOST_EQUAL)} for one in seen], [])
    alone = any(how == "both" for how in kinds.values()) and any(
        sum(Tagged().encode(key)) % tasks == sum(Tagged().encode(float(key))) % tasks
        for key, how in kinds.items()
        if how == "both"
    )
    assert (len(across.warnings) == 1 or alone) == ("both" in kinds.values())


@given(st.sets(st.integers(0, 2**53), min_size=20, max_size=60), st.integers(1, 20))
def test_samples_of_tasks_have_the_same_keys(keys, most):
    spec = scanned(whole).graph().specs["it"]
    one, other = EqualKeys(), EqualKeys()
    for key in keys:
        one.note(spec, key, b"%d" % key, "keys")
        other.note(spec, float(key), b"%d.0" % key, "keys")
    samples = [{Tagged().decode(key) for key, _ in some.sample(most)} for some in (one, other)]
    assert samples[0] == samples[1] and len(samples[0]) == min(most, len(keys))


@pytest.mark.parametrize("name", EQUAL)
def test_ids_that_are_equal_in_python_and_two_here_are_told(name):
    one, other = EQUAL[name]
    app = App("keyed")
    numbers = app.input("numbers", value=int, key=lambda n: 1, timestamp=lambda n: n)
    unlike = numbers.deduplicate(lambda n: one if n % 2 else other, within_ms=100, op_id="it")
    unlike.map(str).send_to(app.output("out", value=str))
    (told,) = run_on(memory(), app).metrics().warnings
    assert re.search(r"'it' at .*test_key_kinds.py:\d+: two of its ids, .* are equal in Python and two ids here", told)


def test_a_key_is_looked_at_for_equal_ones_once():
    looked = []

    class Kinds(KeyKinds):
        def note_equal(self, key, data, what="keys"):
            looked.append(key)

    def kept():
        return KeptKeys(Tagged(), Kinds(scanned(whole).graph().specs["it"], "keyed", memory(), set()))

    keys = kept()
    held = keys.hold([Decimal(1), (Decimal(2), "a"), ("b", 3), at(0, UTC)])
    for _ in range(3):
        keys.encode_all(held)
        keys.seek(held[0])
    assert looked == [Decimal(1), (Decimal(2), "a"), ("b", 3), at(0, UTC)]
    for make, most in ((lambda n: ("b", n), FIRST_LOOKS), (lambda n: ("b", n) if n else 7.0, MOST_EQUAL)):
        looked.clear()
        keys = kept()
        keys.encode_all(keys.hold([*map(make, range(2 * MOST_EQUAL))]))
        assert most <= len(looked) < most + FIRST_LOOKS + 2


def test_keys_that_are_only_brought_in_order_are_looked_at():
    """As those of windows that open and fire between two commits."""
    kinds = KeyKinds(scanned(whole).graph().specs["it"], "keyed", memory(), set())
    keys = KeptKeys(Tagged(), kinds)
    assert [keys.in_order(held) for held in ([7], [9, 8, 3], [8.0])] == [[7], [3, 8, 9], [8.0]]
    assert "two of its keys, 8 and 8.0, are equal in Python" in kinds.warning
