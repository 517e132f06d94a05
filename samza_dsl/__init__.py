"""Stream processing in fluent, typed Python: write a pipeline once, plan it, draw it, test it, and run it."""

import operators as _operators

if _operators.__path__[0].removesuffix("operators") != __path__[0].removesuffix("samza_dsl"):
    raise ImportError(
        f"samza_dsl needs its own package 'operators', and {_operators.__path__[0]} is found before it: rename that "
        "folder, or start the program with `samza-dsl run`"
    )

from operators.aggregations.aggregation import (
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
from operators.aggregations.distinct import approximate_distinct, distinct
from operators.aggregations.quantiles import quantile, quantiles
from operators.core.base import Context
from operators.core.entry_keys import StateEntry
from operators.core.policies import dead_letter, fail, retry, skip
from operators.joins.changes import Change
from operators.partition_by import hash_, ranges
from operators.process import ProcessContext
from operators.retractions import Revision
from operators.state.keyed_state import KeyContext
from operators.task import Envelope, TaskContext, every
from operators.windows.triggers import Trigger, after_count, after_delay, all_of, any_of
from operators.windows.window import Pane
from operators.windows.window_types import (
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
from planner.model.errors import PlanError
from planner.model.plan import Options, Plan
from runtime.encoding.serdes import Bytes, Json, MessagePack, String
from runtime.model.assignment import Placing
from runtime.model.errors import SamzaError
from runtime.model.history import prefer_live
from runtime.model.metrics import Metrics
from runtime.model.sizing import ByLoad, Load, Sized
from runtime.model.state_choice import Forget
from runtime.queries.state_query import QueriedState, StateQuery
from runtime.spark.session import Spark
from runtime.systems.files.places.tables import IntoTable, SparkTable
from runtime.systems.kafka.client.topic import KafkaCluster, KafkaTopic
from samza_dsl.application.app import App
from samza_dsl.data.queries import query
from samza_dsl.data.streams import StreamSummary, archive, list_streams, produce
from samza_dsl.fluent.remote_table import RemoteTable, remote_table
from samza_dsl.fluent.state_types import StateTypes
from samza_dsl.fluent.stream import MessageStream, OutputStream
from samza_dsl.fluent.table import JoinedTable, Table
from samza_dsl.fluent.windows import windows_by

__all__ = [
    "Aggregation",
    "App",
    "Assigner",
    "ByLoad",
    "Bytes",
    "Change",
    "Context",
    "Envelope",
    "Forget",
    "IntoTable",
    "JoinedTable",
    "Json",
    "KafkaCluster",
    "KafkaTopic",
    "KeyContext",
    "Load",
    "MessagePack",
    "MessageStream",
    "Metrics",
    "Options",
    "OutputStream",
    "Pane",
    "Placing",
    "Plan",
    "PlanError",
    "ProcessContext",
    "QueriedState",
    "RemoteTable",
    "Revision",
    "SamzaError",
    "Sized",
    "Spark",
    "SparkTable",
    "StateEntry",
    "StateQuery",
    "StateTypes",
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
    "query",
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
