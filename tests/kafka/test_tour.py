"""What docs/kafka.md says to try: flights in two containers, one of which is killed."""

import os
import re
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

from runtime.systems.kafka.broker.broker import Broker
from tests.faults.processes import wait_until
from tests.flights.streams import OUTPUTS, example, records
from tests.kafka.topics import consume, group_offsets
from tests.source import ROOT

MOST = 80_000
SECTION = re.compile(r"### A year of flights.*?```console\n(.*?)```", re.DOTALL)


def test_flights_in_two_containers_of_which_one_is_killed(tmp_path):
    port = free_port()
    commands = [line[2:] for line in SECTION.search((ROOT / "docs/kafka.md").read_text())[1].splitlines()]
    *tour, stop = [one.replace("9092", str(port)).replace("examples/", f"{ROOT}/examples/") for one in commands]
    tour[tour.index("sleep 12")] = "read < begun"  # a part of the year may be over by then
    os.mkfifo(tmp_path / "begun")
    tour = [f"{one} --most {MOST}" if "flights_data" in one else one for one in tour]
    try:
        for_path = f"PATH={Path(sys.executable).parent}:$PATH"
        broker, shell = Broker(port, 0, 0), ["bash", "-ec", "\n".join([for_path, *tour])]
        with (tmp_path / "said").open("w") as said:
            process = subprocess.Popen(shell, cwd=tmp_path, stdout=said, stderr=said)
        told = (tmp_path / "said").read_text
        wait_until(lambda: process.poll() is not None or ("flights: running" in told() and has_read(broker)))
        with open(tmp_path / "begun", "r+b", buffering=0) as begun:
            begun.write(b"\n")
            assert process.wait(600) == 0, told()
        found = {stream: values(consume(broker, stream)) for stream in OUTPUTS}
    finally:
        subprocess.run([Path(sys.executable).parent / stop.split()[0], *stop.split()[1:]], cwd=tmp_path, check=False)
    assert found == on_the_embedded_log(tmp_path / "embedded")


def on_the_embedded_log(data: Path) -> dict[str, Counter[bytes]]:
    """Return what the same flights come to there."""
    example("flights_data").load(data, MOST)
    example("flights").pipeline().run(data)
    return {stream: Counter(record.value for record in records(data, stream)) for stream in OUTPUTS}


def values(found) -> Counter[bytes]:
    """Return the values of all partitions, without what is said of their ends."""
    return Counter(record.value for partition in found.values() for record in partition if not is_said(record))


def has_read(broker) -> bool:
    """Whether any flight was read, as committed."""
    return any(offset for (topic, _), offset in group_offsets(broker, "flights").items() if topic == "flights")


def is_said(record) -> bool:
    return any(name == "samza-control" for name, _ in record.headers)


def free_port() -> int:
    """Return a port that nobody has just now."""
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]
