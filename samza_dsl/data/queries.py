"""Queries of an application's committed state from any process, by key and by range, while it runs or not."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from operators.core.sites import here
from runtime.model.errors import SamzaError
from runtime.ports.environment import directory_of
from samza_dsl.fluent.checks import DATA, check_type

if TYPE_CHECKING:
    from runtime.queries.state_query import StateQuery
    from runtime.run.settings import Cluster
    from samza_dsl.application.app import App


def query(
    app: App, data: str | Path = DATA, *, environment: Cluster = None, token_file: str | Path | None = None
) -> StateQuery:
    """Open the committed state of an application in the data directory `data`, for queries from any process.

    What it has opened is closed by `close()`, or at the end of a `with`.

    Raises SamzaError where there is no such directory. On Kafka, as `environment` says, `data` means nothing: a key is
    fetched from the container that has its task, at the port of its run's `metrics`, with the token in `token_file`
    where that asks for one; an answer is a second old at most. Tasks that move, or whose container is down, are waited
    for, ten seconds at most. Where containers serve no state that can be reached from here, or none runs, changelogs
    are read: all of an operator's, which takes longer, and is told in the log.

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
    from runtime.systems.kafka.client.topic import cluster_of
    from runtime.systems.log.environment import LogEnvironment
    from runtime.systems.log.recovery import DATA_FILE
    from samza_dsl.application.app import App

    check_type(here(), "query(...)", app, App, 'the application, as query(app, "data")')
    cluster = cluster_of(environment)
    if cluster is not None:
        from runtime.queries.far_state import far_query

        return far_query(app.graph(), cluster, token_file)
    if token_file is not None:
        raise SamzaError("query(token_file=...) is for containers on Kafka; add environment=, or leave it out")
    path = directory_of(data, here())
    if not (path / DATA_FILE).is_file():
        raise SamzaError(
            f"there is no data directory at {path}: a run of {app.name!r} makes one; say data= where it is"
        )
    log = LogEnvironment(path)
    return StateQuery(app.graph(), lambda: nullcontext(log), log.close)
