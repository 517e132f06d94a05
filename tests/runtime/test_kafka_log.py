"""A law of what aiokafka logs: the same is told once in a while, however often it is said."""

import logging
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from runtime.systems.kafka.client import client_log as kafka_log
from runtime.systems.kafka.client.client_log import AGAIN_MS

SAYS = ["Unable connect to node %s", "Failed fetch messages from %s"]
sayings = st.tuples(st.sampled_from(SAYS), st.integers(1, 2), st.integers(0, AGAIN_MS))


@given(st.lists(sayings, max_size=20), st.sampled_from(["aiokafka", "aiokafka.consumer.fetcher"]))
def test_the_same_is_told_once_in_a_while(sayings, name):
    now_ms, due_ms, due, heard = 0, {}, [], []
    logger, told = logging.getLogger(name), logging.Handler()
    told.emit = heard.append
    logger.addHandler(told)
    try:
        with patch.object(kafka_log, "monotonic_ms", lambda: now_ms), patch.dict(kafka_log._told_ms, clear=True):
            for words, node, passed_ms in sayings:
                now_ms += passed_ms
                logger.error(words, node)
                if now_ms >= due_ms.get((words, node), 0):
                    due.append(words % node)
                    due_ms[words, node] = now_ms + AGAIN_MS
    finally:
        logger.removeHandler(told)
    assert [record.getMessage() for record in heard] == due
