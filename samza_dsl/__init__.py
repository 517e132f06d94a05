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
from operators.distinct import approximate_distinct, distinct
from operators.keyed_state import KeyContext
from operators.partition_by import hash_, ranges
from operators.policies import dead_letter, fail, retry, skip
from operators.process import ProcessContext
from operators.quantiles import quantile, quantiles
from operators.task import Envelope, TaskContext, every
from operators.window import Pane
from operators.window_types import daily, duration_ms, hopping, session, tumbling
from planner.errors import PlanError
from planner.plan import Options, Plan
from runtime.errors import SamzaError
from runtime.serdes import Bytes, Json, MessagePack, String
from samza_dsl.app import App
from samza_dsl.ends import OutputStream, Table
from samza_dsl.stream import MessageStream
from samza_dsl.streams import StreamSummary, list_streams, produce

__all__ = [
    "Aggregation",
    "App",
    "Bytes",
    "Context",
    "Envelope",
    "Json",
    "KeyContext",
    "MessagePack",
    "MessageStream",
    "Options",
    "OutputStream",
    "Pane",
    "Plan",
    "PlanError",
    "ProcessContext",
    "SamzaError",
    "StreamSummary",
    "String",
    "Table",
    "TaskContext",
    "aggregate",
    "approximate_distinct",
    "collect",
    "count",
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
    "produce",
    "quantile",
    "quantiles",
    "ranges",
    "reduce",
    "retry",
    "session",
    "skip",
    "top_k",
    "total",
    "tumbling",
]
