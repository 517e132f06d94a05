"""The recomputation of an application over history on Spark, and its handover."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from planner.model.graph import Graph
from planner.model.plan import whole
from runtime.assembly.history import HISTORY, beside
from runtime.job.pipeline import Pipeline
from runtime.model.checkpoint import Checkpoint
from runtime.model.history import prefer_live
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment
from runtime.reprocessing.backfill import Backfill, Undrained
from runtime.reprocessing.handover import check_can_be_handed_over
from runtime.reprocessing.merge import Merges, merge_all
from runtime.reprocessing.recomputation import Recomputation
from runtime.reprocessing.takeover import take_over
from runtime.run.driver import Watch
from runtime.run.settings import RunSettings, open_environment
from runtime.spark.batch import run_batch
from runtime.spark.session import Spark
from runtime.spark.table_outputs import KeptOutputs
from runtime.systems.kafka.environment import KafkaEnvironment
from runtime.units.driver.application import intent_of
from runtime.units.driver.engine import BatchRun
from runtime.units.publication.handover_parts import StagedHandover
from runtime.units.publication.intent import noted
from runtime.units.publication.staged_topics import place_of, unpublished_in


def recompute_on_spark(
    pipeline: Pipeline,
    data: str | Path | Environment,
    on: Spark,
    asked: Recomputation,
    bind: Mapping[str, object] | None,
    watch: Watch | None = None,
) -> BatchRun:
    """Run over history to its end, or until it is handed over: all of it is visible then, or nothing."""
    graph = pipeline.graph
    own, handover = beside(graph, asked.name), asked.handover
    mergings = asked.merges.of(graph, own.app)
    goes_on = isinstance(data, str | Path) and unpublished_in(place_of(Path(data), own.app)) is not None
    kept = KeptOutputs(on, own, bind or {}, data, False)
    left = noted(intent_of(own, kept.bound(bind or {}), data))
    # Or where only tables are to be written, of a run that has all else in its place.
    goes_on = goes_on or (left is None and kept.left is not None)
    # Not where an earlier run is through and has only to publish: what it recomputed is what is merged.
    if mergings and not goes_on and left is None:
        with _opened(data) as environment:
            for merging in mergings:  # what another run has left before all of it was merged
                environment.delete_stream(merging.recomputed)
                environment.reset(merging.app)
    is_there = goes_on or (left is not None and handover is not None and left.has_put(Path(handover)))
    staged = staged_handover(graph, handover) if not is_there else None
    span = replace(asked.span, hands_over=staged is not None)
    settings = RunSettings(bind={**(bind or {}), **asked.merges.bind(own.app)}, span=span)
    done = run_batch(pipeline.of(own), data, on, settings, staged, watch)
    if mergings:
        with _opened(data) as environment:
            merge_all(environment, mergings)
    return done


def backfill_on_spark(environment: Environment, backfill: Backfill, on: Spark) -> bool:
    """Compute a back-fill on Spark up to its cut, and let a run under its name go on from there.

    Return False where it is stopped.
    """
    if backfill.left:
        raise Undrained(
            f"the program that has run was ended before {backfill.left[0]!r} had written all that was due, and on "
            "Spark all of it would count as written: compute history here, without --on spark, or drain it first"
        )
    part = backfill.part
    with TemporaryDirectory() as scratch:
        asked = Recomputation("", backfill.span, Path(scratch) / "handover", Merges({}, prefer_live))
        data, bound = _read_by_workers(environment, backfill, Path(scratch) / "log")
        done = recompute_on_spark(part, data, on, asked, bound)
        if not done.stopping:
            # On Spark tasks are whole; the run that goes on splits them where the live ones are split.
            how = part.graph, whole(part.options), Path(scratch) / "handover"
            take_over(environment, *how, wrapped=part.wrapped, at={}, bind=backfill.bound)
            generation = environment.own(backfill.app)
            noted = {HISTORY: Checkpoint(generation, outputs=backfill.ends)}
            environment.commit(Commit(backfill.app, generation, [], [], noted))
    return not done.stopping


def _read_by_workers(
    environment: Environment, backfill: Backfill, scratch: Path
) -> tuple[Environment | Path, Mapping[str, object]]:
    """Return where a back-fill's results and streams between stages lie on Spark, and what workers read and write.

    Of a cluster they read topics, and nothing is written there: results are of before the cut, and nobody's.
    """
    if not isinstance(environment, KafkaEnvironment):
        return environment, backfill.bound
    topics = {stream: environment.cluster.topic(stream) for stream, _ in backfill.until}
    return scratch, {**topics, **backfill.bound}


def _opened(data: str | Path | Environment) -> AbstractContextManager[Environment]:
    environment = open_environment(data)
    return closing(environment) if isinstance(data, str | Path) else nullcontext(environment)


def staged_handover(graph: Graph, handover: str | Path | None) -> StagedHandover | None:
    """Return where a handover is written first; raises SamzaError where it can't be made."""
    if handover is None:
        return None
    check_can_be_handed_over(graph, Path(handover))
    return StagedHandover(Path(handover), graph.app)
