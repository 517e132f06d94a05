"""What a pipeline costs, as a multiple of the plain loop that does the same work."""

from __future__ import annotations

from benchmarks.async_calls import AsyncCalls, CallsByKey, TimedCalls
from benchmarks.avro_with_registry import AvroOneByOne, AvroWithRegistry
from benchmarks.embedded_log import EmbeddedLog
from benchmarks.event_windows import HoppingCount, SessionCount, TopTen
from benchmarks.interval_join import IntervalJoin
from benchmarks.into_parquet import (
    CalledIntoParquet,
    DataclassesIntoParquet,
    DictsIntoParquet,
    PartsIntoParquet,
    StructsIntoParquet,
    UntimedIntoParquet,
)
from benchmarks.into_postgres import IntoPostgres, IntoPostgresByKey
from benchmarks.json_lines import JsonLines
from benchmarks.keyed_count import KeyedCount
from benchmarks.members_per_country import MembersPerCountry
from benchmarks.on_kafka import ExactlyOnceOnKafka, OnKafka
from benchmarks.on_spark import (
    KeyedOnSpark,
    NativeOnSpark,
    OwnFoldOnSpark,
    ParquetOnSpark,
    StatelessOnSpark,
    UnfoldedOnSpark,
)
from benchmarks.on_spark_calls import CallsOnSpark
from benchmarks.on_spark_join import JoinOnSpark
from benchmarks.on_spark_streaming import KeyedStream, StatelessStream
from benchmarks.read_write import ReadWrite4, ReadWrite5, ReadWrite6
from benchmarks.read_write_on_kafka import ReadWriteOnKafka5, ReadWriteOnKafka6
from benchmarks.running_count import DurableCount, RunningCount
from benchmarks.slow_service import RememberedAnswers, SlowService
from benchmarks.stateless_chain import InlinedChain, StatelessChain
from benchmarks.word_count import WordCount
from benchmarks.workload import Workload

KINDS: tuple[type[Workload], ...] = (
    StatelessChain,
    InlinedChain,
    KeyedCount,
    RunningCount,
    DurableCount,
    AsyncCalls,
    TimedCalls,
    CallsByKey,
    SlowService,
    RememberedAnswers,
    WordCount,
    EmbeddedLog,
    JsonLines,
    AvroWithRegistry,
    AvroOneByOne,
    ReadWrite4,
    ReadWrite5,
    ReadWrite6,
    HoppingCount,
    SessionCount,
    TopTen,
    IntervalJoin,
    OnKafka,
    ExactlyOnceOnKafka,
    ReadWriteOnKafka5,
    ReadWriteOnKafka6,
    IntoPostgres,
    IntoPostgresByKey,
    StructsIntoParquet,
    UntimedIntoParquet,
    DictsIntoParquet,
    DataclassesIntoParquet,
    CalledIntoParquet,
    PartsIntoParquet,
    StatelessOnSpark,
    ParquetOnSpark,
    KeyedOnSpark,
    UnfoldedOnSpark,
    OwnFoldOnSpark,
    NativeOnSpark,
    JoinOnSpark,
    CallsOnSpark,
    StatelessStream,
    KeyedStream,
    MembersPerCountry,
)

WORKLOADS: dict[str, type[Workload]] = {kind.description.name: kind for kind in KINDS}
"""All workloads by the name that the tables give them."""

QUICK_WITHOUT = frozenset(name for name, kind in WORKLOADS.items() if kind.description.on_spark)
"""What a quick run leaves out, as it takes long to begin."""
