"""Filters on aiokafka's log: no secrets, nothing over and over, and the reasons why brokers can't be reached."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from aiokafka.errors import KafkaError, StaleMetadata

from runtime.model.clock import monotonic_ms

PORT = 9092
"""The port of an address that says none."""
NAMED = "broker "
"""The prefix of a broker's number, where only that is known."""
AGAIN_MS = 10_000
"""The ms after which the same is told again."""
_CLIENT, _CONNECTION = "aiokafka", "aiokafka.conn"
_TRYING = _CLIENT, "aiokafka.consumer.fetcher", "aiokafka.producer.sender"
"""The loggers that tell each try, of which there are a hundred in a second where a broker is gone."""
_reasons: dict[str, str] = {}
"""By broker, as host:port, the reason why it could not be reached the last time; aiokafka tells nobody else."""
_told_ms: dict[str, float] = {}
"""The time at which each of the late messages was told."""
_told_once: set[str] = set()
"""The warnings of connections, which are few: none has anything of the one connection in it."""
_CONNECTED = re.compile(r": <AIOKafkaConnection [^>]*>")
"""The place of a connection, which is told beside it."""


def reason_of(bootstrap: str) -> str | None:
    """Return why none of the brokers of an address could be reached, as far as that is known, and forget it.

    Where it is not, that may be for those that brokers have named as themselves, which is where clients go then.
    """
    asked = map(_placed, bootstrap.split(","))
    found = {broker: _reasons.pop(broker) for broker in asked if broker in _reasons}
    named = {broker: _reasons.pop(broker) for broker in [*_reasons] if broker.startswith(NAMED)}
    return "; ".join(f"{broker}: {reason}" for broker, reason in (found or named).items()) or None


def _placed(broker: str) -> str:
    """Return a broker as host:port, as aiokafka says it: IPv6 without its brackets.

    >>> _placed("one"), _placed("one:9093"), _placed("[::1]:9093"), _placed("[::1]")
    ('one:9092', 'one:9093', '::1:9093', '::1:9092')
    """
    if broker.startswith("["):
        host, _, port = broker[1:].partition("]")
        return f"{host}:{port.removeprefix(':') or PORT}"
    return broker if ":" in broker else f"{broker}:{PORT}"


def _note(record: logging.LogRecord) -> bool:
    """Note why a broker was not reached; where a client begins that is held back, as it raises it or tells it."""
    if str(record.msg).startswith("Unable ") and isinstance(record.args, tuple):
        *where, error = record.args
        if len(where) == 2 or (len(where) == 1 and not isinstance(error, StaleMetadata)):
            place = ":".join(map(str, where)) if len(where) == 2 else f"{NAMED}{where[0]}"
            _reasons[place] = _CONNECTED.sub("", str(error)) or type(error).__name__
            return len(where) == 1
    return True


def tell_unreached(hosts: Iterable[tuple[str, int, object]]) -> None:
    """Warn of brokers of an address that could not be reached, where another one of it has answered."""
    for host, port, _ in hosts:
        if (reason := _reasons.pop(f"{host}:{port}", None)) is not None:
            logging.getLogger(_CLIENT).warning("%s:%s is not reached, and another broker is: %s", host, port, reason)


def _is_new(record: logging.LogRecord) -> bool:
    """Whether a warning, or what is worse, was not told lately."""
    if record.levelno < logging.WARNING:
        return True
    now_ms, told = monotonic_ms(), record.getMessage()
    # Swept at each warning, so that what is remembered does not grow.
    for old in [one for one, told_ms in _told_ms.items() if now_ms - told_ms >= AGAIN_MS]:
        del _told_ms[old]
    if told in _told_ms:
        return False
    _told_ms[told] = now_ms
    return True


def _is_first(record: logging.LogRecord) -> bool:
    """Whether a warning was not told before in this process: what it says of connections each of them would say."""
    if record.levelno != logging.WARNING:
        return True
    told = record.getMessage()
    is_first = told not in _told_once
    _told_once.add(told)
    return is_first


def _is_not_raised(record: logging.LogRecord) -> bool:
    """Whether an error of a sender is none that it raises to who waits for what is sent, where it is told."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, KafkaError) or str(record.msg).startswith("Could not commit offset"))


def _hold_back(record: logging.LogRecord) -> bool:
    """Keep from the log what is said to prove who one is: with PLAIN that is the password itself."""
    said = record.args if isinstance(record.args, tuple) else ()
    return not any(type(one).__name__.startswith("SaslAuthenticate") for one in said)


logging.getLogger(_CLIENT).addFilter(_note)
for _name in _TRYING:
    logging.getLogger(_name).addFilter(_is_new)
logging.getLogger("aiokafka.producer.sender").addFilter(_is_not_raised)
logging.getLogger(_CONNECTION).addFilter(_hold_back)
logging.getLogger(_CONNECTION).addFilter(_is_first)
