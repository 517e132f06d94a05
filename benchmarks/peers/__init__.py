"""Which other libraries run the same workloads, in which versions, and what they need beside Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Peer:
    """A library: the module here that drives it, what pip installs for it, and the programs that must be there.

    `cannot` says of workloads why they are not run. A library that is not Python's has a folder here with a pom and
    Java sources instead, and says its own version.
    """

    name: str
    module: str
    requirements: tuple[str, ...]
    programs: tuple[str, ...] = ()
    sources: str = ""
    release: str = ""
    cannot: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        return self.release or self.requirements[0].partition("==")[2]


NO_EVENT_TIME = "it has no windows of event time"
NOT_DURABLE = "it keeps no state"
NO_AWAITING = "its functions can't await"

KINDS = (
    Peer("bytewax", "dataflows_of_bytewax", ("bytewax==0.21.1",)),
    Peer(
        "quixstreams",
        "dataframes_of_quix",
        ("quixstreams==3.28.1",),
        cannot={"B4": NO_AWAITING, "B5": "needs a broker: what is grouped anew goes through a topic"},
    ),
    Peer(
        "faust-streaming",
        "agents_of_faust",
        ("faust-streaming==0.15.3",),
        cannot={
            "B2": "needs a broker: windows are tables, which have a changelog topic",
            "B3d": "needs a broker: tables have a changelog topic",
            "B4": "an agent awaits one message after the other; many agents need a topic, and so a broker",
        },
    ),
    Peer(
        "apache-beam",
        "pipelines_of_beam",
        ("apache-beam==2.77.0",),
        cannot={"B3d": "its runner in this process keeps no state"},
    ),
    Peer(
        "pyspark",
        "rdds_of_spark",
        ("pyspark==4.3.0",),
        ("java",),
        cannot={"B3d": "RDDs keep no state", "B4": NO_AWAITING},
    ),
    Peer("pyflink", "streams_of_flink", ("apache-flink==2.3.0",), ("java",)),
    Peer("pathway", "tables_of_pathway", ("pathway==0.33.0",)),
    Peer(
        "apache-samza",
        "jobs_of_samza",
        (),
        ("java", "javac", "mvn"),
        sources="samza",
        release="1.8.0",
        cannot={"B2": "its windows are of processing time"},
    ),
    Peer("streamz", "streams_of_streamz", ("streamz==0.6.6",), cannot={"B2": NO_EVENT_TIME, "B3d": NOT_DURABLE}),
    Peer(
        "reactivex",
        "observables_of_reactivex",
        ("reactivex==6.1.0",),
        cannot={"B2": NO_EVENT_TIME, "B3d": NOT_DURABLE},
    ),
)

PEERS: dict[str, Peer] = {peer.name: peer for peer in KINDS}
"""All peers by the name that the tables give them."""
