"""What aiokafka says in its log: no secrets, and why brokers can't be reached, which it tells nobody else."""

from __future__ import annotations

import logging

_CLIENT, _CONNECTION = "aiokafka", "aiokafka.conn"
_reasons: dict[str, str] = {}
"""By broker, as host:port, why it could not be reached the last time."""


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


def _hold_back(record: logging.LogRecord) -> bool:
    """Keep from the log what is said to prove who one is: with PLAIN that is the password itself."""
    said = record.args if isinstance(record.args, tuple) else ()
    return not any(type(one).__name__.startswith("SaslAuthenticate") for one in said)


logging.getLogger(_CLIENT).addFilter(_note)
logging.getLogger(_CONNECTION).addFilter(_hold_back)
