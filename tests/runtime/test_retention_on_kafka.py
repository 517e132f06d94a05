"""Rows that brokers remove by their times: whether a topic loses them is told once, and brokers are asked once."""

import asyncio
import logging
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.systems.kafka.client import retention as kafka_retention
from runtime.systems.kafka.client.retention import OLD_MS, Retention
from tests.scale import examples

HOUR_MS = 3_600_000
NOW_MS = 500_000 * HOUR_MS
"""The time of the clock, which stands still."""
LIMITS_MS = st.sampled_from([None, -1, HOUR_MS // 2, 24 * HOUR_MS + HOUR_MS // 2, 10**9 * HOUR_MS])
AGES_MS = st.none() | st.integers(-5, 10).map(lambda hours: hours * HOUR_MS) | st.just(400_000 * HOUR_MS + NOW_MS)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "cleanup.policy": st.sampled_from(["compact", "delete", "compact,delete", "delete,compact"]),
        "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
    },
)
TOPICS = st.lists(st.tuples(LIMITS_MS, CONFIGS, st.booleans()), min_size=1, max_size=3)
COMMITS = st.lists(
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 1)), st.none() | st.lists(AGES_MS, max_size=4)),
    max_size=5,
)


def removes(limit_ms: int | None, configs: dict[str, str], age_ms: int) -> bool:
    """Whether a topic removes a row of that age by its own time, as Kafka's documentation has it."""
    if limit_ms is None or limit_ms < 0 or configs.get("cleanup.policy") == "compact":
        return False
    return configs.get("message.timestamp.type") != "LogAppendTime" and age_ms > limit_ms


@given(TOPICS, COMMITS)
@settings(max_examples=examples(200, 5_000))
def test_each_topic_that_removes_a_row_that_is_written_is_told_once_and_no_other(topics, commits):
    asked, told = [], []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.args[0])
    known = {f"topic-{number}": one for number, one in enumerate(topics)}

    async def configs(name):
        asked.append(name)
        limit_ms, others, is_told = known[name]
        return others | ({} if limit_ms is None else {"retention.ms": str(limit_ms)}) if is_told else {}

    async def main():
        retention = Retention(configs)
        for commit in commits:
            await retention.look(
                {
                    (f"topic-{number}", partition): Batch(
                        [b""] * len(ages or [None]),
                        timestamps=None if ages is None else [None if age is None else NOW_MS - age for age in ages],
                    )
                    for (number, partition), ages in commit.items()
                    if number < len(topics)
                }
            )

    logger = logging.getLogger("samza_dsl")
    logger.addHandler(handler)
    try:
        with patch.object(kafka_retention, "wall_clock_ms", lambda: NOW_MS):
            asyncio.run(main())
    finally:
        logger.removeHandler(handler)
    ages = {name: [] for name in known}
    for commit in commits:
        for (number, _), some in commit.items():
            if number < len(topics):
                ages[f"topic-{number}"] += [age for age in some or () if age is not None]
    expected = {
        name
        for name, (limit_ms, others, is_told) in known.items()
        if is_told and any(removes(limit_ms, others, age) for age in ages[name])
    }
    assert sorted(told) == sorted(expected)
    assert sorted(asked) == sorted(name for name in known if any(age > OLD_MS for age in ages[name]))
