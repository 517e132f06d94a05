"""A law of what aiokafka logs: the same is told once in a while, however often it is said."""

import logging
from unittest.mock import patch

from aiokafka.errors import UnsupportedSaslMechanismError
from hypothesis import given
from hypothesis import strategies as st

from runtime.systems.kafka.client import client_log as kafka_log
from runtime.systems.kafka.client.client_log import AGAIN_MS, reason_of, tell_unreached

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


def heard_of(name, say):
    """Return what is logged, by the name of a logger, while something is said."""
    logger, told, heard = logging.getLogger(name), logging.Handler(), []
    told.emit = lambda record: heard.append(record.getMessage())
    logger.addHandler(told)
    try:
        say(logger)
    finally:
        logger.removeHandler(told)
    return heard


def test_a_warning_of_connections_is_told_by_the_first_alone():
    def say(logger):
        for _ in range(3):
            logger.warning("Sending username and password in the clear")
            logger.error("it broke")

    with patch.object(kafka_log, "_told_once", set()):
        assert heard_of("aiokafka.conn", say) == ["Sending username and password in the clear", *["it broke"] * 3]


@given(st.lists(st.booleans(), min_size=1, max_size=4))
def test_brokers_of_an_address_are_told_once_with_the_reason_be_it_by_the_error_or_beside_one_that_answers(answers):
    places = [("one", 9092 + number, 0) for number in range(len(answers))]

    def begin(logger):
        for (host, port, _), answered in zip(places, answers, strict=True):
            if not answered:
                why = UnsupportedSaslMechanismError("<AIOKafkaConnection host=one port=9092>")
                logger.error('Unable connect to "%s:%s": %s', host, port, why)
        if any(answers):
            tell_unreached(places)

    with patch.dict(kafka_log._reasons, clear=True), patch.dict(kafka_log._told_ms, clear=True):
        heard = heard_of("aiokafka", begin)
        reason = reason_of(",".join(f"{host}:{port}" for host, port, _ in places))
    lost = [f"one:{port}" for (_, port, _), answered in zip(places, answers, strict=True) if not answered]
    why = "[Error 33] UnsupportedSaslMechanismError"
    if any(answers):
        assert heard == [f"{one} is not reached, and another broker is: {why}" for one in lost] and reason is None
    else:
        assert heard == [] and reason == "; ".join(f"{one}: {why}" for one in lost)
