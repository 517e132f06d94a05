"""The suite of environments that give their streams more partitions when they are asked to."""

import pytest

from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import EnvironmentFault, Grown
from runtime.ports.commits import Commit
from runtime.ports.streams import Append, StreamConfig
from tests.conformance import test_environment
from tests.conformance.test_environment import batch, values

clock, environment = test_environment.clock, test_environment.environment


def test_a_stream_gets_more_partitions_and_tells_where_it_was_then(environment):
    environment.create_stream("s", StreamConfig(partitions=2))
    environment.append([Append("s", 0, batch(b"a", b"b"))])
    grown = environment.grow_stream("s", 3)
    assert grown == environment.streams()["s"] == StreamConfig(partitions=3, grown=((2, 0),))
    assert environment.grow_stream("s", 3) == grown, "as many as there are"
    environment.append([Append("s", 2, batch(b"c"))], {"s": 3})
    assert environment.grow_stream("s", 6).grown == ((2, 0), (2, 0, 1))
    assert [values(environment, partition=number)[0] for number in (0, 2, 5)] == [
        [(0, b"a"), (1, b"b")],
        [(0, b"c")],
        [],
    ]


def test_whoever_chose_among_fewer_partitions_writes_nothing(environment):
    environment.create_stream("s", StreamConfig(partitions=1))
    generation = environment.own("app")
    environment.grow_stream("s", 2)
    append = Append("s", 0, batch(b"a"))
    with pytest.raises(Grown, match="has 2 partitions now, and had 1"):
        environment.append([append], {"s": 1})
    with pytest.raises(Grown, match="has 2 partitions now, and had 1"):
        environment.commit(Commit("app", generation, [append], [], {"0": Checkpoint(generation)}, among={"s": 1}))
    assert (values(environment), environment.checkpoints("app")) == (([], []), {})


@pytest.mark.parametrize(
    ("config", "partitions", "why"),
    [
        (StreamConfig(partitions=3), 2, "can't have 2"),
        (StreamConfig(compacted=True), 2, "is compacted"),
        (StreamConfig(intermediate=True), 2, "lies between the stages"),
    ],
)
def test_what_would_lose_records_or_their_keys_does_not_grow(environment, config, partitions, why):
    environment.create_stream("s", config)
    with pytest.raises(EnvironmentFault, match=why):
        environment.grow_stream("s", partitions)
    assert environment.streams()["s"] == config


def test_a_stream_that_has_ended_does_not_grow(environment):
    environment.create_stream("s", StreamConfig())
    environment.end_stream("s")
    with pytest.raises(EnvironmentFault, match="has ended"):
        environment.grow_stream("s", 2)
