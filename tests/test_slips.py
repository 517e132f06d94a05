"""A text, None or a class in the place of a session, an application or a directory: the error says what to write."""

from pathlib import Path

import pytest

from samza_dsl import (
    App,
    KafkaCluster,
    KafkaTopic,
    Metrics,
    PlanError,
    SamzaError,
    Spark,
    archive,
    list_streams,
    produce,
    query,
    testing,
)
from samza_dsl.cli.data import opened

FAR = "kafka://far:9092"
OTHERS = [None, 3, dict, ["a"], 2j]


def app():
    found = App("slips")
    found.input("numbers", value=int).map(lambda n: n).send_to(found.output("out", value=int))
    return found


SLIPS = {
    "a master as a session": (lambda _: Spark("local[2]"), r"write instead: Spark\(master='local\[2\]'\)"),
    "an address as a session": (lambda _: Spark("sc://host"), r"Spark\(SparkSession.builder.remote\('sc://host'\)"),
    **{f"session {one}": (lambda _, one=one: Spark(one), "is no session; write instead") for one in OTHERS[1:]},
    **{f"master {one}": (lambda _, one=one: Spark(master=one), "names no cluster; write") for one in OTHERS[1:]},
    **{f"options {one}": (lambda _, one=one: Spark(options=one), "are no options of Spark") for one in [None, 3, "a"]},
    **{f"kept {one}": (lambda _, one=one: Spark(checkpoint=one), "is no directory; write") for one in OTHERS[1:]},
    **{f"most {one}": (lambda _, one=one: Spark(max_records=one), "is no whole number") for one in ["5", None, True]},
    **{f"cluster {one}": (lambda _, one=one: KafkaCluster(one), "has no address; write instead") for one in OTHERS},
    **{f"topic {one}": (lambda _, one=one: KafkaTopic(one), "has no address; write instead") for one in OTHERS},
    **{f"metrics {one}": (lambda _, one=one: Metrics(address=one), 'instead: metrics=":9464"') for one in OTHERS[1:]},
    "metrics of a run": (lambda at: app().run(at, bind={"numbers": [1]}, metrics=9464), 'instead: metrics=":9464"'),
    **{f"data {one}": (lambda _, one=one: app().run(one), "is no data directory; write instead") for one in OTHERS},
    **{
        f"{name} {one}": (lambda _, one=one, call=call: call(one), "is no data directory; write instead")
        for one in OTHERS
        for name, call in {
            "produce": lambda data: produce("numbers", [1], value=int, data=data),
            "list_streams": list_streams,
            "archive": lambda data: archive("numbers", "archive.parquet", data=data),
            "query": lambda data: query(app(), data),
        }.items()
    },
    **{
        f"{name} at a URL": (lambda _, call=call: call(FAR), r"is a URL.*write instead: environment='kafka://far:9092'")
        for name, call in {
            "produce": lambda data: produce("numbers", [1], value=int, data=data),
            "list_streams": list_streams,
            "archive": lambda data: archive("numbers", "archive.parquet", data=data),
            "query": lambda data: query(app(), data),
            "run": lambda data: app().run(data, bind={"numbers": [1]}),
            "run on a path": lambda data: app().run(Path(data), bind={"numbers": [1]}),
            "reprocess": lambda data: app().reprocess(data, bind={"numbers": [1]}),
            "take_over": lambda data: app().take_over("handover", data),
            "a command": lambda data: opened(Path(data), may_be_new=True).__enter__(),
        }.items()
    },
    **{
        f"query of {one}": (lambda at, one=one: query(one, at), "which is no App; write instead")
        for one in [*OTHERS, "slips", App]
    },
    **{
        f"values {one}": (lambda at, one=one: produce("words", one, data=at), "are no list of values; write instead")
        for one in [None, 3, "text", b"bytes", {"a": 1}]
    },
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_ends_in_an_error_that_says_what_to_write(slip, tmp_path):
    call, words = SLIPS[slip]
    with pytest.raises((SamzaError, PlanError), match=words):
        call(tmp_path / "data")
    assert not Path("archive.parquet").exists()
    assert not Path("kafka:").exists()


@pytest.mark.parametrize("given", [*OTHERS, "slips", App])
def test_a_test_of_no_app_says_what_to_write(given):
    with pytest.raises(ValueError, match="which is no App; write instead"):
        testing.run(given, {"numbers": [1]})
    with pytest.raises(ValueError, match="which is no App; write instead"), testing.running(given):
        pass


@pytest.mark.parametrize("given", ["numbers", [1, 2], 3])
def test_a_test_whose_inputs_are_no_dict_says_what_to_write(given):
    with pytest.raises(ValueError, match="names no streams; write instead"):
        testing.run(app(), given)
