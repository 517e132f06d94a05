"""How cost, memory and time change with what a pipeline has to do: curves, where workloads are points."""

from __future__ import annotations

from benchmarks.shapes.counters import Counters
from benchmarks.shapes.elasticity import SplitBlocked, SplitBusy, SplitPause, Unsplit
from benchmarks.shapes.flat_memory import FlatMemory
from benchmarks.shapes.join_state import IntervalState, TemporalState
from benchmarks.shapes.kafka_idle import IdleContainers
from benchmarks.shapes.kafka_recovery import ColdRestore, WarmRestart
from benchmarks.shapes.kafka_stages import StagesOnKafka
from benchmarks.shapes.kafka_transactions import TransactionsOfTasks
from benchmarks.shapes.latency import Latency
from benchmarks.shapes.levers import LeftOut
from benchmarks.shapes.local_join import LocalJoin
from benchmarks.shapes.long_chain import LongChain
from benchmarks.shapes.low_rate import LowRate
from benchmarks.shapes.micro_batch import MicroBatchFloor
from benchmarks.shapes.partitions import ManyPartitions, ManyStreams
from benchmarks.shapes.pyspark_by_hand import PySparkByHand
from benchmarks.shapes.shape import Shape
from benchmarks.shapes.sliding_sum import SlidingSum
from benchmarks.shapes.split_costs import (
    CheckpointMigration,
    KeyHash,
    KeyHashOnKafka,
    MemoryOfAll,
    PausesByOperator,
    SplitStore,
)
from benchmarks.shapes.split_on_hosts import SplitOnHosts
from benchmarks.shapes.start_up import StartUp
from benchmarks.shapes.two_containers import TwoReadWrite4, TwoReadWrite5, TwoReadWrite6, TwoWordCount
from benchmarks.shapes.watched import ChainWithMetrics, LogWithMetrics, Queries
from benchmarks.shapes.window_state import Disorder, ManyKeys

KINDS: tuple[type[Shape], ...] = (
    LocalJoin,
    LeftOut,
    TwoReadWrite4,
    TwoReadWrite5,
    TwoReadWrite6,
    TwoWordCount,
    FlatMemory,
    ManyPartitions,
    ManyStreams,
    LongChain,
    StartUp,
    Latency,
    LowRate,
    SlidingSum,
    ManyKeys,
    Disorder,
    IntervalState,
    TemporalState,
    MicroBatchFloor,
    ColdRestore,
    WarmRestart,
    IdleContainers,
    TransactionsOfTasks,
    StagesOnKafka,
    Counters,
    PySparkByHand,
    Unsplit,
    SplitBusy,
    SplitBlocked,
    SplitPause,
    KeyHash,
    KeyHashOnKafka,
    CheckpointMigration,
    MemoryOfAll,
    SplitStore,
    PausesByOperator,
    SplitOnHosts,
    ChainWithMetrics,
    LogWithMetrics,
    Queries,
)

SHAPES: dict[str, type[Shape]] = {kind.description.name: kind for kind in KINDS}
"""All shapes by the name that the tables give them."""

QUICK_WITHOUT = frozenset(name for name, kind in SHAPES.items() if kind.description.begins_slowly)
"""What a quick run leaves out, as it takes long to begin."""
