"""Stream processing in fluent, typed Python: write a pipeline once, plan it, draw it, test it, and run it."""

import operators as _operators

if _operators.__path__[0].removesuffix("operators") != __path__[0].removesuffix("samza_dsl"):
    raise ImportError(
        f"samza_dsl needs its own package 'operators', and {_operators.__path__[0]} is found before it: rename that "
        "folder, or start the program with `samza-dsl run`"
    )

from operators.aggregations import (
    Aggregation,
    aggregate,
    collect,
    count,
    first,
    fold,
    last,
    maximum,
    mean,
    minimum,
    reduce,
    top_k,
    total,
)
from operators.base import Context
from operators.changes import Change
from operators.distinct import approximate_distinct, distinct
from operators.keyed_state import KeyContext
from operators.partition_by import hash_, ranges
from operators.policies import dead_letter, fail, retry, skip
from operators.process import ProcessContext
from operators.quantiles import quantile, quantiles
from operators.revisions import Revision
from operators.task import Envelope, TaskContext, every
from operators.triggers import Trigger, after_count, after_delay, all_of, any_of
from operators.window import Pane
from operators.window_types import (
    Assigner,
    by_clock,
    counted,
    daily,
    duration_ms,
    hopping,
    session,
    sliding,
    tumbling,
    whole,
)
from planner.errors import PlanError
from planner.plan import Options, Plan
from runtime.assignment import Placing
from runtime.errors import SamzaError
from runtime.merging import prefer_live
from runtime.serdes import Bytes, Json, MessagePack, String
from runtime.spark.session import Spark
from runtime.systems.kafka_topic import KafkaCluster, KafkaTopic
from samza_dsl.app import App
from samza_dsl.ends import OutputStream, Table
from samza_dsl.remote import RemoteTable, remote_table
from samza_dsl.stream import MessageStream
from samza_dsl.streams import StreamSummary, archive, list_streams, produce
from samza_dsl.table_joining import JoinedTable
from samza_dsl.windows_by import windows_by

__all__ = [
    "Aggregation",
    "App",
    "Assigner",
    "Bytes",
    "Change",
    "Context",
    "Envelope",
    "JoinedTable",
    "Json",
    "KafkaCluster",
    "KafkaTopic",
    "KeyContext",
    "MessagePack",
    "MessageStream",
    "Options",
    "OutputStream",
    "Pane",
    "Placing",
    "Plan",
    "PlanError",
    "ProcessContext",
    "RemoteTable",
    "Revision",
    "SamzaError",
    "Spark",
    "StreamSummary",
    "String",
    "Table",
    "TaskContext",
    "Trigger",
    "after_count",
    "after_delay",
    "aggregate",
    "all_of",
    "any_of",
    "approximate_distinct",
    "archive",
    "by_clock",
    "collect",
    "count",
    "counted",
    "daily",
    "dead_letter",
    "distinct",
    "duration_ms",
    "every",
    "fail",
    "first",
    "fold",
    "hash_",
    "hopping",
    "last",
    "list_streams",
    "maximum",
    "mean",
    "minimum",
    "prefer_live",
    "produce",
    "quantile",
    "quantiles",
    "ranges",
    "reduce",
    "remote_table",
    "retry",
    "session",
    "skip",
    "sliding",
    "top_k",
    "total",
    "tumbling",
    "whole",
    "windows_by",
]
