"""Keys that are equal in Python and two here, which no worker alone has seen, are told as a live run tells them."""

import json
import re
from decimal import Decimal

import msgspec
import pytest

from samza_dsl import App, Spark, count, produce, tumbling


class Priced(msgspec.Struct, frozen=True):
    key: Decimal
    at: int


class Measured(msgspec.Struct, frozen=True):
    key: float
    at: int


KEYS = {
    "numbers": (dict, [7, 7.0]),
    "number and truth": (dict, [1, True]),
    "zeros": (Measured, [0.0, -0.0]),
    "decimals": (Priced, ["1.0", "1.00", "1.000"]),
    "in a list": (dict, [["a", 7], ["a", 7.0]]),
}
TOLD = r"eq: \w+ 'it' at .*test_equal_keys_on_spark.py:\d+: two of its keys, .* are equal in Python and two keys here"


def key_of(value):
    key = value["key"] if isinstance(value, dict) else value.key
    return tuple(key) if isinstance(key, list) else key


def at_of(value):
    return value["at"] if isinstance(value, dict) else value.at


def added(total, value):
    return (total or 0) + 1


STEPS = {
    "scan": lambda keyed: keyed.scan(added, op_id="it").map(str),
    "window": lambda keyed: keyed.window(tumbling(seconds=1), count(), op_id="it").map(lambda pane: str(pane.value)),
}


def app_of(kind, step):
    app = App("eq")
    values = app.input("values", value=kind, timestamp=at_of)
    STEPS[step](values.partition_by(key_of, partitions=8, op_id="by")).send_to(app.output("out", value=str))
    return app


def written(directory, keys):
    path = directory / "values.jsonl"
    rows = [{"key": key, "at": number} for number, key in enumerate(keys * 3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.ci
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", KEYS)
def test_equal_keys_of_several_workers_are_told(name, step, session, tmp_path, caplog):
    kind, keys = KEYS[name]
    bind = {"values": written(tmp_path, keys), "out": tmp_path / "out.jsonl"}
    run = app_of(kind, step).run(tmp_path / "data", on=Spark(session), bind=bind)
    (told,) = [message for message in caplog.messages if "two of its keys" in message]
    assert re.match(TOLD, told)
    assert [f"eq: {one}" for one in run.metrics().warnings] == [told]


@pytest.mark.ci
def test_equal_keys_of_several_micro_batches_are_told_once(session, tmp_path, caplog):
    data, keys = tmp_path / "data", [7, 7.0, 8, 8.0]
    produce("values", [{"key": key, "at": number} for number, key in enumerate(keys)], value=dict, data=data)
    on = Spark(session, checkpoint=tmp_path / "checkpoint", max_records=1)
    run = app_of(dict, "scan").run(data, on=on, until_now=True)
    assert run.metrics().commits == len(keys)
    (told,) = [message for message in caplog.messages if "two of its keys" in message]
    assert re.match(TOLD, told)
    assert [f"eq: {one}" for one in run.metrics().warnings] == [told]


@pytest.mark.ci
def test_the_kinds_of_keys_of_a_join_are_those_of_all_micro_batches(session, tmp_path, caplog):
    data = tmp_path / "data"
    app = App("meeting")
    sides = [app.input(name, value=dict, key=key_of, timestamp=at_of) for name in ("left", "right")]
    sides[0].join(sides[1], lambda left, right: [left, right], within=(-1_000, 1_000), op_id="it").send_to(
        app.output("out")
    )
    produce("left", [{"key": 7, "at": number} for number in range(2)], value=dict, key=key_of, data=data)
    produce("right", [{"key": "7", "at": 0}], value=dict, key=key_of, data=data)
    on = Spark(session, checkpoint=tmp_path / "checkpoint", max_records=1)
    app.run(data, on=on, until_now=True)
    (told,) = [message for message in caplog.messages if "have met something" in message]
    assert "2 keys of left are int, and none of right, 1 key of right is str, and none of left" in told
