"""Sources that can't be read again, taken into topics of a real broker: each record takes effect once."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.model.errors import Fenced, SamzaError
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import App
from samza_dsl.connectors import Intake, Pulled, PulledRecord, PulledSource, PushedRecord, PushedSource
from tests.connectors.programs import run_program, write_program
from tests.faults.processes import wait_until
from tests.kafka.topics import consume

MOST = 12


class PlayedDeathError(Exception):
    """The death of a process, as a source plays it."""


def copying(name: str) -> App:
    app = App(name)
    numbers = app.input(f"{name}-numbers", value=int, key=str, partitions=2)
    numbers.send_to(app.output(f"{name}-copies", value=int, partitions=1))
    return app


def pushing(dies_at: int, is_behind: bool, intakes: list[Intake]) -> PushedSource:
    """Return a source of some numbers, which dies as it pushes one, before or behind that."""

    def push(intake: Intake) -> None:
        intakes.append(intake)
        for n in range(int(intake.noted.get("next", b"0")), MOST):
            if n == dies_at and not is_behind:
                raise PlayedDeathError
            intake.push([PushedRecord(n, b"%d" % (n % 3))], {"next": b"%d" % (n + 1)})
            if n == dies_at:
                raise PlayedDeathError

    return PushedSource("numbers from somewhere", push)


def pulling(dies_at: int, is_behind: bool, confirmed: list[int]) -> PulledSource:
    """Return a source of some numbers, which dies as it is asked for one, or has that confirmed."""

    def pull(reader: str, position: bytes) -> Pulled:
        number = int(position or 0)
        assert number >= max(confirmed, default=0), "what was confirmed is there no more"
        if number == dies_at and not is_behind:
            raise PlayedDeathError
        found = [PulledRecord(number, key=str(number % 3))] if number < MOST else []
        return Pulled(found, b"%d" % min(number + 1, MOST), number < MOST)

    def confirm(reader: str, position: bytes) -> None:
        if int(position) - 1 == dies_at and is_behind:
            raise PlayedDeathError
        confirmed.append(int(position))

    return PulledSource("numbers of a queue", pull, confirm)


def copied(broker: Any, name: str) -> list[int]:
    return sorted(int(record.value) for records in consume(broker, f"{name}-copies").values() for record in records)


@pytest.mark.parametrize("kind", [pushing, pulling])
def test_each_record_takes_effect_once_through_deaths(kind: Any, broker: Any, topics: str, tmp_path: Path) -> None:
    noted: list[Any] = []
    deaths = (0, False), (0, True), (5, False), (5, True), (8, False), (-1, True)
    for number, (dies_at, is_behind) in enumerate(deaths):
        bind = {f"{topics}-numbers": kind(dies_at, is_behind, noted)}
        # Another machine each time, which has nothing of the ones before.
        cluster = KafkaCluster(f"kafka://{broker.bootstrap}")
        with closing(KafkaEnvironment(cluster, tmp_path / f"data-{number}")) as environment:
            if dies_at < 0:
                copying(topics).run(environment, bind=bind, until_now=True)
                continue
            with pytest.raises(SamzaError, match="PlayedDeath"):
                copying(topics).run(environment, bind=bind, until_now=True)
    assert copied(broker, topics) == [*range(MOST)]


def test_who_was_taken_over_pushes_nothing(broker: Any, topics: str, tmp_path: Path) -> None:
    intakes: list[Intake] = []
    refused: list[type[Exception]] = []
    cluster = KafkaCluster(f"kafka://{broker.bootstrap}")

    def push(intake: Intake) -> None:
        intake.push([PushedRecord(0)], {"next": b"1"})
        with closing(KafkaEnvironment(cluster, tmp_path / "newer")) as newer:
            copying(topics).run(newer, bind={f"{topics}-numbers": pushing(-1, False, intakes)}, until_now=True)
        for _ in range(2):
            try:
                intake.push([PushedRecord(99)], {"next": b"99"})
            except SamzaError as error:
                refused.append(type(error))

    bind = {f"{topics}-numbers": PushedSource("numbers from somewhere", push)}
    with closing(KafkaEnvironment(cluster, tmp_path / "older")) as older, pytest.raises(SamzaError):
        copying(topics).run(older, bind=bind, until_now=True)
    assert refused == [Fenced, Fenced]
    assert copied(broker, topics) == [*range(MOST)]


PROGRAM = """
    import os

    import msgspec

    from samza_dsl import App, Options, connectors, dead_letter
    from samza_dsl.connectors import PushedRecord, PushedSource
    from runtime.systems.kafka.client.topic import KafkaCluster
    from tests.connectors.programs import dying_once_each

    NAME, MOST = os.environ["NAME"], int(os.environ["MOST"])


    class Row(msgspec.Struct):
        id: int


    def push(intake):
        for n in range(int(intake.noted.get("next", b"0")), MOST):
            intake.push([PushedRecord(Row(n), b"%d" % n)], {"next": b"%d" % (n + 1)})


    app = App(NAME, Options(batch_records=10, max_uncommitted=20))
    rows = app.input(f"{NAME}-rows", value=Row, partitions=2)
    old = app.input(f"{NAME}-table", value=Row, key=int).partition_by(lambda row: row.id, op_id="old", partitions=2)
    by = rows.partition_by(lambda row: row.id, op_id="by", partitions=2)
    done = by.merge(old).process(dying_once_each(50), op_id="dying")
    copies = app.output(f"{NAME}-copies", value=Row, partitions=2)
    done.send_to(copies, on_error=dead_letter(f"{NAME}-refused"))

    if __name__ == "__main__":
        bind = {
            f"{NAME}-rows": PushedSource("rows from somewhere", push),
            f"{NAME}-table": "sqlite:///rows.db?table=rows",
            f"{NAME}-copies": connectors.sqlite("copies.db", "copies"),
        }
        cluster = KafkaCluster(os.environ["CLUSTER"])
        app.run("data", environment=cluster, containers=2, bind=bind, until_now=True)
"""


def test_containers_read_what_their_starter_takes_in_and_it_delivers(broker: Any, topics: str, tmp_path: Path) -> None:
    write_program(tmp_path, "moving", PROGRAM)
    with closing(sqlite3.connect(tmp_path / "copies.db")) as copies:
        copies.execute("CREATE TABLE copies (id BIGINT CHECK (id % 40 <> 7))")
    with closing(sqlite3.connect(tmp_path / "rows.db", isolation_level=None)) as writer:
        writer.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY)")
        for most in (50, 100):
            writer.executemany("INSERT INTO rows VALUES (?)", [(1_000 + n,) for n in range(most - 50, most)])
            cluster = f"kafka://{broker.bootstrap}"
            done = run_program(tmp_path, "moving", NAME=topics, MOST=str(most), CLUSTER=cluster)
            assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "copies.db")) as found:
        wanted = [*range(100), *range(1_000, 1_100)]
        ids = [id for (id,) in found.execute("SELECT id FROM copies ORDER BY id")]
        assert ids == [id for id in wanted if id % 40 != 7]
    letters = [one for records in consume(broker, f"{topics}-refused").values() for one in records]
    refused = [id for id in wanted if id % 40 == 7]
    assert sorted(msgspec.json.decode(one.value)["id"] for one in letters) == refused
    assert all("CHECK constraint" in dict(one.headers)["error"].decode() for one in letters)
    assert [*tmp_path.glob("died-*")]


SHARED = """
    import os, signal
    from pathlib import Path

    import msgspec

    from samza_dsl import App, Options, connectors
    from samza_dsl.connectors import PushedRecord, PushedSource
    from runtime.systems.kafka.client.topic import KafkaCluster

    NAME = os.environ["NAME"]


    class Row(msgspec.Struct):
        id: int


    def push(intake):
        n, killed = int(intake.noted.get("next", b"0")), Path("killed")
        while not (killed.exists() and n >= int(killed.read_text()) + 60):
            if not killed.exists() and len([*Path().glob("worked-*")]) > 1:
                killed.write_text(str(n))
                os.kill(os.getpid(), signal.SIGKILL)
            intake.push([PushedRecord(Row(n), b"%d" % n)], {"next": b"%d" % (n + 1)})
            n += 1
            if not killed.exists() and intake.wait(0.05):
                return
        intake.end()


    def work(row):
        Path(f"worked-{os.getppid()}").touch()
        return row


    app = App(NAME, Options(batch_records=10, max_uncommitted=20))
    rows = app.input(f"{NAME}-rows", value=Row, partitions=4)
    rows.map(work).send_to(app.output(f"{NAME}-copies", value=Row))

    if __name__ == "__main__":
        bind = {
            f"{NAME}-rows": PushedSource("rows from somewhere", push),
            f"{NAME}-copies": connectors.sqlite("copies.db", "copies"),
        }
        app.run(os.environ["DATA"], environment=KafkaCluster(os.environ["CLUSTER"]), containers=2, bind=bind)
"""


def test_who_is_left_takes_in_and_delivers_where_who_led_the_run_is_gone(
    broker: Any, topics: str, tmp_path: Path
) -> None:
    write_program(tmp_path, "sharing", SHARED)
    said = {"NAME": topics, "CLUSTER": f"kafka://{broker.bootstrap}"}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run_program, tmp_path, "sharing", DATA="data-1", **said)
        wait_until(lambda: [*tmp_path.glob("worked-*")] or first.done())
        second = pool.submit(run_program, tmp_path, "sharing", DATA="data-2", **said)
        assert first.result().returncode == -9, first.result().stderr
        assert second.result().returncode == 0, second.result().stderr
    assert "who has led the run is gone" in second.result().stderr
    with closing(sqlite3.connect(tmp_path / "copies.db")) as found:
        assert [id for (id,) in found.execute("SELECT id FROM copies ORDER BY id")] == [
            *range(int((tmp_path / "killed").read_text()) + 60)
        ]
