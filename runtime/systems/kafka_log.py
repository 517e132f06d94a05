"""What aiokafka says in its log: no secrets, nothing over and over, and why brokers can't be reached."""

from __future__ import annotations

import logging

from runtime.clock import monotonic_ms

AGAIN_MS = 10_000
"""After how long the same is told again."""
_CLIENT, _CONNECTION = "aiokafka", "aiokafka.conn"
_TRYING = _CLIENT, "aiokafka.consumer.fetcher", "aiokafka.producer.sender"
"""Who tells each try, of which there are a hundred in a second where a broker is gone."""
_reasons: dict[str, str] = {}
"""By broker, as host:port, why it could not be reached the last time; aiokafka tells nobody else."""
_told_ms: dict[str, float] = {}
"""When each of what was told lately was told."""


def reason_of(bootstrap: str) -> str | None:
    """Return why none of the brokers of an address could be reached, as far as that is known, and forget it."""
    found = {broker: _reasons.pop(broker) for broker in bootstrap.split(",") if broker in _reasons}
    return "; ".join(f"{broker}: {reason}" for broker, reason in found.items()) or None


def _note(record: logging.LogRecord) -> bool:
    """Note why a broker was not reached."""
    if str(record.msg).startswith("Unable ") and isinstance(record.args, tuple) and len(record.args) == 3:
        host, port, error = record.args
        _reasons[f"{host}:{port}"] = str(error) or type(error).__name__
    return True


def _is_new(record: logging.LogRecord) -> bool:
    """Whether a warning, or what is worse, was not told lately."""
    if record.levelno < logging.WARNING:
        return True
    now_ms, told = monotonic_ms(), record.getMessage()
    for old in [one for one, told_ms in _told_ms.items() if now_ms - told_ms >= AGAIN_MS]:
        del _told_ms[old]
    if told in _told_ms:
        return False
    _told_ms[told] = now_ms
    return True


def _hold_back(record: logging.LogRecord) -> bool:
    """Keep from the log what is said to prove who one is: with PLAIN that is the password itself."""
    said = record.args if isinstance(record.args, tuple) else ()
    return not any(type(one).__name__.startswith("SaslAuthenticate") for one in said)


logging.getLogger(_CLIENT).addFilter(_note)
for _name in _TRYING:
    logging.getLogger(_name).addFilter(_is_new)
logging.getLogger(_CONNECTION).addFilter(_hold_back)
