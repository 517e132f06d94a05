"""The connection to a session of Spark: through its JVM or through Spark Connect, of each version that is supported."""

from __future__ import annotations

import logging
import socket
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlparse

import pyarrow as pa

from runtime.spark.session import is_of_connect
from runtime.units.shuffle_rows import SCHEMA

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("samza_dsl")

PLAIN_PLANS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""The settings by which Spark plans our units: the number of tasks is given, and it moves few rows, which are long.

To plan a stage anew when the one before it is through, and to write and compile Java for it, takes longer.
"""
GROUP, DESCRIPTION, CALL_SITE = "spark.jobGroup.id", "spark.job.description", "callSite.short"
"""The properties of a thread of Spark's by which its UI names jobs, and stages by the last one."""
MANY = 1_000_000
"""The count of numbers that Spark divides among all its cores."""
ZIPS = (".zip", ".egg", ".jar")
"""The ends of the names of files that Spark puts on the path of its workers."""


class SparkConnection(Protocol):
    """A session as a run asks it, however it is reached; one thread uses it."""

    session: SparkSession

    @property
    @abstractmethod
    def at_once(self) -> int:
        """The number of tasks that the session runs at the same time."""

    @property
    @abstractmethod
    def heard_at(self) -> tuple[str, str | None]:
        """The name of this machine among the workers, and the address to listen at where that is another one."""

    @property
    @abstractmethod
    def imported(self) -> Sequence[str]:
        """The folders and zips here whose modules workers import by themselves, as of `--py-files`."""

    @abstractmethod
    def numbers(self, count: int, tasks: int) -> DataFrame:
        """Return the numbers from 0 on as rows of so many tasks; what follows is planned without looking back.

        It is planned by a copy of the session, with all that is set and known there, so that this one stays as it is.
        """

    @abstractmethod
    def named(self, group: str, description: str) -> AbstractContextManager[None]:
        """Give the jobs that begin in a block a group and a description, for the UI and for who wants to cancel."""

    @abstractmethod
    def name_stages(self, frame: DataFrame, names: Sequence[str]) -> None:
        """Let Spark's UI call the stages of a frame so; where it can't, they stay as they are."""

    @abstractmethod
    def add_zip(self, path: Path) -> None:
        """Put a zip of modules on the path of all workers that begin from now on."""


def connected(session: SparkSession) -> SparkConnection:
    """Return the connection of a session."""
    return ThroughConnect(session) if is_of_connect(session) else ThroughJvm(session)


def arrow_of(frame: DataFrame) -> pa.Table:
    """Return all rows of a frame."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    # PySpark 3.5 has this, without a name for it that is public.
    return pa.Table.from_batches(cast("Any", frame)._collect_as_arrow(), SCHEMA)


class ThroughJvm:
    """The connection to a session whose JVM this process talks to."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._context: SparkContext = session.sparkContext

    @property
    def at_once(self) -> int:
        """The number of cores that Spark has, or what it was told to take for it."""
        return int(self._context.defaultParallelism)

    @property
    def heard_at(self) -> tuple[str, str | None]:
        """The address at which workers reach the driver, which this process is."""
        settings = self._context.getConf()
        return settings.get("spark.driver.host") or "127.0.0.1", settings.get("spark.driver.bindAddress")

    @property
    def imported(self) -> Sequence[str]:
        """The places of `spark.submit.pyFiles`, and where Spark keeps copies of what was added since."""
        from pyspark import SparkFiles

        said = (self._context.getConf().get("spark.submit.pyFiles") or "").split(",")
        places = [urlparse(one).path for one in said if one.endswith((*ZIPS, ".py"))]
        return [*places, SparkFiles.getRootDirectory()]

    def numbers(self, count: int, tasks: int) -> DataFrame:
        """Plan it in a copy: these settings are good for our plans and bad for the user's own."""
        own = self.session.range(0, count, 1, tasks)
        if self._copy is None:
            return own
        kind: Any = type(own)
        frame: DataFrame = kind(self._copy.range(0, count, 1, tasks), self.session)
        return frame

    @cached_property
    def _copy(self) -> Any:
        try:
            copy = cast("Any", self.session)._jsparkSession.cloneSession()
        except Exception:  # it is one of Spark's own, which need not stay; then it is planned as all else
            return None
        for name, value in PLAIN_PLANS.items():
            copy.conf().set(name, value)
        return copy

    @contextmanager
    def named(self, group: str, description: str) -> Iterator[None]:
        """Set the properties of this thread, and set them back: a group of the user's own stays."""
        from pyspark.traceback_utils import SCCallSiteSync

        before = {name: self._context.getLocalProperty(name) for name in (GROUP, DESCRIPTION, CALL_SITE)}
        self._say({GROUP: before[GROUP] or group, DESCRIPTION: description})
        # Within such a block of PySpark's it does not name stages for its own functions.
        block = cast("Any", SCCallSiteSync)(self._context)
        block.__enter__()
        try:
            yield
        finally:
            with suppress(Exception):  # the session may be gone, and then the run tells why
                block.__exit__(None, None, None)
                self._say(before)

    def name_stages(self, frame: DataFrame, names: Sequence[str]) -> None:
        """Let Spark make what it runs of each shuffle while this thread says the name of what comes before it.

        A stage is called by what a thread said as the last of its RDDs was made, which for all of a frame is at once.
        """
        shuffles = []
        try:
            node = cast("Any", frame)._jdf.queryExecution().executedPlan()
            while not node.children().isEmpty():
                if node.nodeName() == "Exchange":
                    shuffles.append(node)
                node = node.children().head()
            # The first level lies deepest, and what is made of it is kept for the levels above.
            for name, shuffle in zip(names, reversed(shuffles), strict=False):
                self.name_stage(name)
                shuffle.shuffleDependency()
        except Exception:
            _log.debug("stages of Spark could not be named", exc_info=True)
        self.name_stage(names[-1])

    def name_stage(self, name: str) -> None:
        """Let Spark's UI call what this thread begins so."""
        self._say({CALL_SITE: name})

    def add_zip(self, path: Path) -> None:
        """Add it to the context, for all of its sessions."""
        self._context.addPyFile(str(path))

    def _say(self, properties: Mapping[str, str | None]) -> None:
        for name, value in properties.items():
            self._context.setLocalProperty(name, cast("str", value))


class ThroughConnect:
    """The connection to a session of Spark Connect, which knows frames alone, and no context."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    @cached_property
    def at_once(self) -> int:
        """The number of parts that Spark divides numbers into, which is that of its cores."""
        from pyspark.sql import functions

        # As one aggregate: what groups is planned by the copy as spark.sql.shuffle.partitions tasks, 200 of them.
        parts = self._copy.range(MANY).select(functions.spark_partition_id().alias("part"))
        (row,) = parts.agg(functions.max("part")).collect()
        return int(row[0]) + 1

    @property
    def heard_at(self) -> tuple[str, str | None]:
        """The address of this machine on the way to the server; nothing is sent."""
        host = cast("Any", self.session).client.host
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect((host, 9))
            return str(asked.getsockname()[0]), None
        return "127.0.0.1", None

    @property
    def imported(self) -> Sequence[str]:
        """None: the session does not tell which artifacts it has."""
        return ()

    def numbers(self, count: int, tasks: int) -> DataFrame:
        """Plan it in a copy, where PySpark has that (4.1)."""
        return self._copy.range(0, count, 1, tasks)

    @cached_property
    def _copy(self) -> SparkSession:
        made = getattr(self.session, "cloneSession", None)
        if made is None:
            return self.session
        assert self.session.version, "a session is there once it has asked something"
        copy: SparkSession = made()
        for name, value in PLAIN_PLANS.items():
            with suppress(Exception):  # one that only the server may set
                copy.conf.set(name, value)
        return copy

    @contextmanager
    def named(self, group: str, description: str) -> Iterator[None]:
        """Tag what is run with the group: a server describes jobs by itself."""
        tag = group.replace(",", " ")
        self._copy.addTag(tag)
        try:
            yield
        finally:
            self._copy.removeTag(tag)

    def name_stages(self, frame: DataFrame, names: Sequence[str]) -> None:
        """Do nothing: the server names them."""

    def add_zip(self, path: Path) -> None:
        """Add it to the session and its copy, for their workers alone: frames of the user's run in the session."""
        for one in dict.fromkeys((self.session, self._copy)):
            one.addArtifacts(str(path), pyfile=True)
