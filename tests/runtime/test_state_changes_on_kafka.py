"""A change of stored state that is struck on a simulated Kafka: afterwards it is done, or it was never begun."""

from collections.abc import Callable
from pathlib import Path

import pytest

from operators.core.base import Batch
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import SamzaError
from runtime.opening.stored_state import CHANGING, finish
from runtime.ports.environment import own_whole
from runtime.ports.streams import Append, StreamConfig
from runtime.reprocessing.backfill import drop_backfill
from runtime.systems.kafka.environment import KafkaEnvironment
from tests.faults.kill_state import APP, MAKES, app, evolve
from tests.runtime.test_backfill import runner
from tests.scale import scale
from tests.simulation.crash import Watched, run_once
from tests.simulation.kafka import die, opened, simulated
from tests.simulation.kafka_brokers import TROUBLES, Cluster, Died, Trouble

KEYS = 40
LAST_CHANGE = 60
"""The number of changes on the brokers that a change of state makes, and more."""
State = dict[str, list[tuple[bytes, bytes]]]


def evolve_in_virtual_time(environment: KafkaEnvironment) -> None:
    evolve(environment, runner(Watched(environment), 1))


CHANGES: dict[str, Callable[[KafkaEnvironment], None]] = {
    **{name: MAKES[name] for name in ("forget", "move", "convert", "import")},
    "evolve": evolve_in_virtual_time,
}


def begun(cluster: Cluster, directory: Path) -> None:
    """Run the application, whose state is changed."""
    environment = opened(directory)
    environment.create_stream("numbers", StreamConfig(partitions=1))
    environment.append([Append("numbers", 0, Batch([b"%d" % number for number in range(KEYS)]))])
    run_once(app(), environment, until_now=True)
    environment.close()


def change(cluster: Cluster, directory: Path, make: Callable[[KafkaEnvironment], None]) -> bool:
    """Whether a process has made a change, and was not struck."""
    environment = opened(directory)
    try:
        own_whole(environment, APP)
        finish(environment, APP)
        make(environment)
        environment.close()
    except (Died, SamzaError):
        die(cluster, environment)
        return False
    return True


def completed(directory: Path) -> tuple[State, bool]:
    """Complete what was left, as whoever owns the application next does, and return what is kept then."""
    environment = opened(directory)
    own_whole(environment, APP)
    was_begun = bool(environment.checkpoints(APP).get(CHANGING, Checkpoint(0)).meanings)
    finish(environment, APP)
    drop_backfill(environment, APP)
    assert not [one for one in environment.streams() if one.startswith(f"{APP}.")], "a back-fill leaves no stream"
    found = {store: [*environment.state_range(APP, store, 0)] for store in environment.stores(APP)}
    environment.close()
    return found, was_begun


@pytest.mark.parametrize("what", CHANGES)
def test_wherever_it_is_struck_a_change_is_done_or_was_not_begun(what, tmp_path):
    def tried(at: int, troubles: list[Trouble], make: Callable[[KafkaEnvironment], None]) -> tuple[State, bool, bool]:
        folder, cluster = tmp_path / str(at), Cluster(at)
        with simulated(cluster):
            begun(cluster, folder / "here")
            cluster.changes, cluster.troubles = 0, troubles
            is_done = change(cluster, folder / "here", make)
            cluster.troubles = []
            # On another machine, which has what changelogs say, or on the same.
            return *completed(folder / ("here" if at % 2 else "there")), is_done

    before, after = (
        tried(-number, [], make)[0] for number, make in enumerate((lambda environment: None, CHANGES[what]))
    )
    assert before != after
    struck = done = 0
    for at in range(1, LAST_CHANGE, scale(13, 7, 1)):
        found, was_begun, is_done = tried(at, [Trouble(at, TROUBLES[at % len(TROUBLES)])], CHANGES[what])
        assert found in (before, after), f"struck at {at} it was done in part"
        assert not (was_begun or is_done) or found == after, f"struck at {at} it had begun, and was not completed"
        struck += not is_done
        done += found == after
    assert struck and done
