"""A right that is taken away in the midst of a run ends it with what allows it, and the next run goes on."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime.model.errors import EnvironmentFault
from samza_dsl import App, Json, KafkaCluster, KafkaTopic, String, produce
from tests.kafka.topics import consume
from tests.real_time import until

PATIENCE_S = 60.0


def counting(name):
    app = App(name)
    words = app.input(f"{name}-words", value=String(), key=str)
    counts = words.scan(lambda total, word: (total or 0) + 1, op_id="count")
    counts.send_to(app.output(f"{name}-counts", value=Json(int), partitions=1))
    return app


async def until_revoked(app, counts, revoke, more, **how):
    """Run until a right is taken away while more is read and written; raises what the run ends with."""
    async with app.running(**how) as run, asyncio.timeout(PATIENCE_S):
        # Each has an event loop of its own.
        with ThreadPoolExecutor(1) as thread:
            await until(lambda: run.over or len(thread.submit(counts).result()) >= 20)
            thread.submit(revoke).result()
            for _ in range(20):
                await asyncio.wrap_future(thread.submit(more))
        await until(lambda: run.over)


REVOKED = {"input": ("-words", "read", "Read"), "output": ("-counts", "write", "Write")}


@pytest.mark.parametrize("place", ["cluster", "bound"])
@pytest.mark.parametrize("what", REVOKED)
def test_a_right_that_is_taken_away_in_the_midst_ends_the_run(what, place, guard, topics, tmp_path):
    behind, how, told = REVOKED[what]
    words, counts = f"{topics}-words", f"{topics}-counts"
    produce(words, ["x"] * 20, value=String(), key=str, environment=guard.open)
    produce(counts, [0], value=Json(int), key=str, environment=guard.open)
    options, free = guard.user(), guard.user()

    def run_by(options):
        if place == "cluster":
            return {"environment": KafkaCluster(guard.address, options=options), "data": tmp_path}
        return {
            "data": tmp_path,
            "bind": {one: KafkaTopic(f"{guard.address}/{one}", options=options) for one in (words, counts)},
        }

    def counted():
        return [int(record.value) for record in consume(guard.brokers, counts)[0]][1:]

    def revoke():
        guard.deny(options, ("topic", f"{topics}{behind}", how))

    def more():
        produce(words, ["x"], value=String(), key=str, environment=guard.open)

    with pytest.raises(EnvironmentFault, match=rf"the topic '{topics}{behind}'.*--operation ({told}|All)"):
        asyncio.run(until_revoked(counting(topics), counted, revoke, more, **run_by(options)))
    counting(topics).run(**run_by(free), until_now=True)
    assert sorted({*counted()}) == [*range(1, 41)]
    assert place == "bound" or len(counted()) == 40
