"""A fork goes on as the application does that it was made of, whatever lies between stages, whenever it is killed."""

from hypothesis import given, note, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from planner.model.levers import Levers
from runtime.assembly.history import beside
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import LoopClock
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, StreamConfig
from runtime.reprocessing.fork import FORK, difference, fork_now, forked, is_forked, starts_of
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from samza_dsl import Options
from tests.runtime.test_backfill import APP, Programs, add, build, drawn_records, environment_of
from tests.runtime.test_laws import crash_points
from tests.scale import examples
from tests.simulation.crash import NOW_MS, Crash, Watched, memory, run_through
from tests.simulation.loop import simulate

NAME = "trial"


def outputs(app):
    return {out.stream for spec in app.graph().specs.values() for out in spec.outputs}


def run_fork(environment, app, seed):
    pipeline = app.pipeline()
    bind = {stream: f"stream:{forked(NAME, stream)}" for stream in outputs(app)}

    async def main():
        run = Run(
            pipeline.of(beside(pipeline.graph, NAME)),
            environment,
            RunSettings(clock=LoopClock(NOW_MS), bind=bind),
        )
        await run.drive()

    simulate(main, seed)


@given(st.randoms(use_true_random=False), st.lists(crash_points, max_size=2), st.lists(crash_points, max_size=2))
@settings(max_examples=examples(40, 20_000))
def test_a_fork_writes_what_the_application_writes_from_then_on(chance, crashes, killed):
    programs, partitions, seed = Programs(chance), chance.randint(1, 3), chance.randint(0, 999)
    ops = programs.first()
    options = Options(
        elasticity=chance.choice((1, 2)) if all(one.kind != "once" for one in ops) else 1,
        batch_records=chance.choice((1, 3, 2_000)),
        max_uncommitted=chance.choice((1, 5, 100_000)),
        commit_interval_ms=chance.choice((5, 1_000)),
    )
    records = drawn_records(chance, partitions)
    note(f"{ops} {options.elasticity} {records}")
    environment = environment_of(records, partitions)

    def app():
        return build(ops, options=options)

    # Where it is cut off, records may lie between stages.
    levers = Levers(relays=chance.choice((True, False)))
    for crash in crashes or [None]:
        run_through(app, Watched(environment, crash), [], seed, until_now=True, levers=levers)
    if not any(name.partition("-")[0].isdecimal() for name in environment.checkpoints(APP)):
        return
    for crash in [*killed, None]:
        try:
            fork_now(Watched(environment, crash), APP, f"{APP}.{NAME}", outputs(app()))
        except Crash:
            continue
        break
    assert is_forked(environment, f"{APP}.{NAME}")
    add(environment, {place: events[cut:] for place, (events, cut) in records.items()})
    for stream in ("events", "others"):
        environment.end_stream(stream)
    run_through(app, environment, [], seed)
    run_fork(environment, app(), seed + 1)
    for stream in outputs(app()):
        pair = stream, forked(NAME, stream)
        if stream in environment.streams():
            found = difference(environment, pair, starts_of(environment, pair))
            assert not found.only[0] and not found.only[1], stream


def test_what_changes_no_checkpoint_while_it_is_cut_is_in_a_fork_whole_or_not_at_all():
    environment, own = memory(), f"{APP}.{NAME}"
    environment.create_stream("out", StreamConfig())
    generation = environment.own(APP)
    held = [StateWrites("waits", 0, [(b"alarm", b"1"), (b"other", b"2")])]
    environment.commit(Commit(APP, generation, [], held, {"0": Checkpoint(generation)}))
    # The alarm goes off, and says so: the cut that is under way has its state, and would have what it says as well.
    gone, said = held[0]._replace(items=[(b"alarm", None)]), Append("out", 0, Batch([b"it is time"]))
    fired = [Commit(APP, generation, [said], [gone], {})]

    class Firing(Watched):
        def settled_snapshot(self, app):
            found = environment.settled_snapshot(app)
            if fired:
                environment.commit(fired.pop())
            return found

    fork_now(Firing(environment), APP, own, ["out"])
    assert environment.checkpoints(own)[FORK].outputs == {"out:0": 1}
    assert [*environment.state_range(own, "waits", 0)] == [(b"other", b"2")]
