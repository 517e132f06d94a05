"""Queries of an application's committed state from any process, by key and by range, while it runs or not."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.model.errors import SamzaError
from samza_dsl.fluent.checks import DATA

if TYPE_CHECKING:
    from runtime.queries.state_query import StateQuery
    from runtime.run.settings import Cluster
    from samza_dsl.application.app import App


def query(app: App, data: str | Path = DATA, *, environment: Cluster = None) -> StateQuery:
    """Open the committed state of an application in the data directory `data`, for queries from any process.

    Raises SamzaError where there is no such directory. In an `environment` on Kafka state lies with the containers that
    have its tasks, and is asked for there, by `run.state(...)` or over HTTP at the port of a run's `metrics`: the error
    says which containers there are.

    >>> from samza_dsl import App, query
    >>> app = App("counting")
    >>> words = app.input("words", value=str, key=lambda word: word).partition_by(lambda word: word, partitions=2)
    >>> words.scan(lambda count, word: count + 1, init=int, op_id="count").send_to(app.output("counts"))
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = app.run(folder, bind={"words": ["so", "it", "so"]})
    ...     with query(app, folder) as found:
    ...         found.state("count").get("so"), found.state("count").get("no", 0)
    (2, 0)
    """
    # Imported late: who only writes a pipeline needs nothing that opens a log.
    from runtime.queries.state_query import StateQuery
    from runtime.systems.log.environment import LogEnvironment
    from runtime.systems.log.recovery import DATA_FILE

    if environment is not None:
        raise _elsewhere_error(app.name, environment, data)
    path = Path(data)
    if not (path / DATA_FILE).is_file():
        raise SamzaError(
            f"there is no data directory at {path}: a run of {app.name!r} makes one; say data= where it is"
        )
    log = LogEnvironment(path)
    return StateQuery(app.graph(), lambda: nullcontext(log), log.close)


def _elsewhere_error(app: str, environment: Cluster, data: str | Path) -> SamzaError:
    """Return the error that says which containers have the state of an application on a cluster."""
    from runtime.run.run import open_environment

    with closing(open_environment(data, environment)) as opened:
        model = opened.job_model(app)
        where = ", ".join(f"{name} on {host}" for name, host in zip(model.containers, model.hosts, strict=False))
        return SamzaError(
            f"state of {app!r} on {opened} lies with the containers that have its tasks ({where or 'none runs now'}); "
            "write instead: run.state(...) in the process that runs it, or run it with metrics=':9464' and ask "
            "http://HOST:9464/state/OPERATOR?key=..."
        )
