"""Which other libraries run the same workloads, in which versions, and what they need beside Python."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """A library: the module here that drives it, what pip installs for it, and the programs that must be there."""

    name: str
    module: str
    requirements: tuple[str, ...]
    programs: tuple[str, ...] = ()


KINDS = (
    Peer("bytewax", "dataflows_of_bytewax", ("bytewax==0.21.1",)),
    Peer("quixstreams", "dataframes_of_quix", ("quixstreams==3.28.1",)),
    Peer("faust-streaming", "agents_of_faust", ("faust-streaming==0.15.3",)),
    Peer("apache-beam", "pipelines_of_beam", ("apache-beam==2.77.0",)),
    Peer("pyspark", "rdds_of_spark", ("pyspark==4.3.0",), ("java",)),
    Peer("pyflink", "streams_of_flink", ("apache-flink==2.3.0",), ("java",)),
    Peer("pathway", "tables_of_pathway", ("pathway==0.33.0",)),
    Peer("streamz", "streams_of_streamz", ("streamz==0.6.6",)),
    Peer("reactivex", "observables_of_reactivex", ("reactivex==6.1.0",)),
)

PEERS: dict[str, Peer] = {peer.name: peer for peer in KINDS}
"""All peers by the name that the tables give them."""
