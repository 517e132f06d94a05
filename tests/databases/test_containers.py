"""Tables as inputs and outputs of several containers: their starter pulls and delivers, and each row is there once."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.connectors.programs import run_program, write_program

PROGRAM = """
    import msgspec

    from samza_dsl import App, Options, connectors
    from tests.connectors.programs import dying_once_each


    class Row(msgspec.Struct):
        id: int
        note: str | None = None


    app = App("moving", Options(batch_records=10, max_uncommitted=20))


    rows = app.input("rows", value=Row, key=int).partition_by(lambda row: row.id, op_id="by", partitions=3)
    done = rows.process(dying_once_each(100), op_id="dying")
    done.send_to(app.output("copies", value=Row, partitions=2))
    done.send_to(app.output("newest", value=Row, key=int))

    if __name__ == "__main__":
        bind = {
            "rows": "sqlite:///rows.db?table=rows",
            "copies": "sqlite:///copies.db?table=copies",
            "newest": connectors.sqlite("copies.db", "newest", key="id"),
        }
        app.run("data", containers=2, bind=bind, until_now=True)
"""


@pytest.mark.ci
def test_rows_go_from_a_table_to_tables_once_whoever_dies(tmp_path: Path) -> None:
    write_program(tmp_path, "moving", PROGRAM)
    with closing(sqlite3.connect(tmp_path / "rows.db", isolation_level=None)) as writer:
        writer.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, note TEXT)")
        for begun in (0, 100):
            rows = [(n, f"note {n}") for n in range(begun, begun + 100)]
            writer.executemany("INSERT INTO rows VALUES (?, ?)", rows)
            done = run_program(tmp_path, "moving")
            assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "copies.db")) as found:
        wanted = [(n, f"note {n}") for n in range(200)]
        assert found.execute("SELECT * FROM copies ORDER BY id").fetchall() == wanted
        assert found.execute("SELECT * FROM newest ORDER BY id").fetchall() == wanted
    assert len([*tmp_path.glob("died-*")]) == 2


PUSHED = """
    import os, signal
    from pathlib import Path

    import msgspec

    from samza_dsl import App, Options, connectors
    from samza_dsl.connectors import PushedRecord, PushedSource
    from tests.connectors.programs import dying_once_each

    MOST = int(os.environ["MOST"])


    class Row(msgspec.Struct):
        id: int


    def push(intake):
        for n in range(int(intake.noted.get("next", b"0")), MOST):
            intake.push([PushedRecord(Row(n), b"%d" % n)], {"next": b"%d" % (n + 1)})
            if n % 100 == 70 and not Path(f"starter-{n}").exists():
                Path(f"starter-{n}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if MOST > 150:
            intake.end()


    app = App("pushing", Options(batch_records=10, max_uncommitted=20))
    rows = app.input("rows", value=Row, partitions=2)
    done = rows.partition_by(lambda row: row.id, op_id="by", partitions=3).process(dying_once_each(100), op_id="dying")
    done.send_to(app.output("copies", value=Row))

    if __name__ == "__main__":
        bind = {"rows": PushedSource("rows from somewhere", push), "copies": connectors.sqlite("copies.db", "copies")}
        app.run("data", containers=2, bind=bind, until_now=MOST < 150)
"""


@pytest.mark.ci
def test_what_a_source_pushes_is_taken_in_once_by_who_starts_the_containers(tmp_path: Path) -> None:
    write_program(tmp_path, "pushing", PUSHED)
    ended = []
    for most in (100, 100, 200, 200):
        done = run_program(tmp_path, "pushing", MOST=str(most))
        ended.append(done.returncode)
    # The starter itself died twice, and each time went on where it was.
    assert ended == [-9, 0, -9, 0], done.stderr
    with closing(sqlite3.connect(tmp_path / "copies.db")) as found:
        assert found.execute("SELECT id FROM copies ORDER BY id").fetchall() == [(n,) for n in range(200)]
    assert len([*tmp_path.glob("died-*")]) == 2
