"""A task for each partition of each stream, on a real broker: shared by containers of which one is killed."""

import os
import signal
from collections import Counter
from contextlib import closing, suppress

import msgspec

from operators.core.base import Batch
from runtime.job.job_model import job_of
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import KafkaCluster
from tests.faults.processes import wait_until
from tests.kafka.test_containers import containers_of, ended, has_committed, has_containers, start
from tests.kafka.topics import consume

ROWS, PARTITIONS, STREAMS = 5_000, 2, ("clicks", "views")

PROGRAM = """
import asyncio

from samza_dsl import App, Json, Options

async def looked_up(number):
    await asyncio.sleep(0.001)
    return [number]

app = App("{name}", Options(group_by="stream_partition", commit_interval_ms=100, max_in_flight=20))
for stream in ("clicks", "views"):
    found = app.input(f"{name}-{{stream}}", value=int).async_flat_map(looked_up, op_id=f"look-up-{{stream}}")
    totals = found.map(lambda number: [number, -number])
    totals.send_to(app.output(f"{name}-{{stream}}-out", value=Json(list)))
"""


def test_each_record_comes_once_where_one_of_two_containers_is_killed(broker, topics, tmp_path):
    (tmp_path / "app.py").write_text(PROGRAM.format(name=topics))
    cluster = KafkaCluster(f"kafka://{broker.bootstrap}")
    with closing(KafkaEnvironment(cluster, tmp_path / "writer")) as environment:
        for stream in STREAMS:
            environment.create_stream(f"{topics}-{stream}", StreamConfig(partitions=PARTITIONS))
            parts = [[b"%d" % number for number in range(part, ROWS, PARTITIONS)] for part in range(PARTITIONS)]
            environment.append([Append(f"{topics}-{stream}", part, Batch(rows)) for part, rows in enumerate(parts)])
        host = start(broker, tmp_path, "here", "--until-now")
        wait_until(lambda: has_containers(host) and has_committed(broker, topics))
        job = job_of(environment, topics)
        assert [task.reads for task in job.tasks] == [
            ((f"{topics}-{stream}", part),) for part in range(PARTITIONS) for stream in STREAMS
        ]
        with suppress(ProcessLookupError, IndexError, FileNotFoundError):
            os.kill(containers_of(host)[0], signal.SIGKILL)
        ended(host)
    for stream in STREAMS:
        found = consume(broker, f"{topics}-{stream}-out")
        told = Counter(tuple(msgspec.json.decode(record.value)) for records in found.values() for record in records)
        assert told == Counter((number, -number) for number in range(ROWS))
