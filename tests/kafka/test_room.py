"""The control room on a real broker: what the cluster knows of an application, and a dead letter that goes back."""

import json

import pytest

from runtime.systems.kafka.client.topic import cluster_of
from samza_dsl import App, dead_letter, produce
from samza_dsl.room.recorder import recorded
from samza_dsl.room.runs import NotedRuns, Place


def third(order):
    return {"third": 3 // order["n"]}


@pytest.fixture
def address(broker):
    return f"kafka://127.0.0.1:{broker.port}"


@pytest.fixture
def runs(address, tmp_path):
    found = NotedRuns([Place(tmp_path, cluster_of(address))])
    yield found
    found.close()


def test_a_dead_letter_of_a_topic_is_mended_and_sent_again(address, topics, tmp_path, runs):
    name, orders, bad, out = f"{topics}thirds", f"{topics}orders", f"{topics}bad", f"{topics}out"
    app = App(name)
    read = app.input(orders, value=dict, key=lambda order: order["who"])
    read.map(third, op_id="third", on_error=dead_letter(bad)).send_to(app.output(out, value=dict))
    said = [{"n": n, "who": who} for n, who in ((1, "a"), (0, "b"), (3, "c"))]
    produce(orders, said, environment=address, key=lambda order: order["who"], partitions=3)

    def run():
        with recorded(tmp_path, name, address) as recorder:
            return app.run(tmp_path, environment=address, watch=recorder.watch, until_now=True)

    run()
    (noted,) = [one for one in runs.all() if one.app == name]
    job = runs.job(noted)
    assert job["generation"] >= 1 and {one["stream"] for one in job["positions"]} == {orders}
    (letter,) = runs.letters(noted)["letters"]
    assert letter.operator == "third" and json.loads(letter.value) == {"n": 0, "who": "b"} and letter.to == orders
    place = {"stream": bad, "partition": letter.partition, "offset": letter.offset, "to": orders}
    told = runs.act(noted, "redrive", {**place, "value": '{"n": 2, "who": "b"}'})
    assert "mended and sent again" in told and runs.letters(noted)["letters"][0].sent
    assert sorted(run().received(out), key=str) == [{"third": 1}] * 2 + [{"third": 3}]
