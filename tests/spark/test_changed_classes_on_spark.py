"""Records that an older class has written into a topic: what a run on Spark reads of them is what a live one reads."""

import msgspec
import pytest

from samza_dsl import App, Json, MessagePack, Spark, dead_letter
from tests.kafka import topics as kafka
from tests.kafka.topics import create
from tests.spark.changed import KINDS, OLD

FORMATS = {"json": (msgspec.json.encode, Json), "msgpack": (msgspec.msgpack.encode, MessagePack)}


@pytest.mark.timeout(900)
def test_records_of_an_older_class_are_read_on_spark_as_live(session, broker, topics, tmp_path):
    app, bind = App(f"{topics}-read"), {}
    for name, (encode, serde) in FORMATS.items():
        create(broker, f"{topics}-{name}", 2)
        rows = ((at % 2, str(at).encode(), encode(row)) for at, row in enumerate(OLD))
        kafka.produce(broker, f"{topics}-{name}", *rows)
        for kind in KINDS:
            old, new, bad = (f"{one}-{kind.__name__}-{name}" for one in ("old", "new", "bad"))
            app.input(old, value=serde(kind), on_error=dead_letter(bad)).map(repr).send_to(app.output(new))
            bind[old] = f"kafka://{broker.bootstrap}/{topics}-{name}"
    live = app.run(tmp_path / "live", bind=bind, until_now=True)
    spark = app.run(tmp_path / "spark", bind=bind, on=Spark(session))
    for old in bind:
        there, here = (
            {new: sorted(run.received(old.replace("old", new))) for new in ("new", "bad")} for run in (spark, live)
        )
        assert there == here
        assert (len(here["new"]), len(here["bad"])) in {(8, 0), (7, 1), (6, 2)}
