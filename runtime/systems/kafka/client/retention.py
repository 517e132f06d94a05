"""The retention of topics to which rows of long ago are written: brokers go by the time of a record."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta

from aiokafka.errors import KafkaError

from operators.core.base import Batch
from runtime.model.clock import utc, wall_clock_ms
from runtime.systems.kafka.client.topic_configs import APPENDED, POLICY, RETENTION, STAMPS

_log = logging.getLogger("samza_dsl")
OLD_MS = 60_000
"""The age of a row in ms at which brokers are asked how long its topic keeps it: a live run need not ask."""
Configs = Callable[[str], Awaitable[Mapping[str, str]]]
"""Returns how a topic is configured, in Kafka's words; nothing of one of which brokers do not tell this client."""


class Retention:
    """The retention of topics as rows are written, told once of each that loses some by it.

    History that is computed anew has rows of years ago: a topic that keeps a week, as brokers say by default, loses
    them some minutes behind their commit, and nobody would hear of it. Only the thread of Kafka's clients uses it.
    """

    def __init__(self, configs: Configs) -> None:
        self._configs = configs
        self._kept_ms: dict[str, int | None] = {}
        """The age in ms at which each topic removes a row, None where it does not, or where that was told."""

    async def look(self, pending: Mapping[tuple[str, int], Batch]) -> None:
        """Warn of rows that are about to be written, and that brokers will remove at once."""
        now_ms = wall_clock_ms()
        for (topic, _), batch in pending.items():
            least_ms = self._kept_ms.get(topic, OLD_MS)
            if batch.timestamps is None or least_ms is None:
                continue
            oldest = min((at for at in batch.timestamps if at is not None), default=now_ms)
            if now_ms - oldest < least_ms:
                continue
            if topic not in self._kept_ms:
                with suppress(KafkaError, OSError, TimeoutError):  # then they are asked with the next rows
                    self._kept_ms[topic] = kept_ms(await self._configs(topic))
            limit = self._kept_ms.get(topic)
            if limit is not None and now_ms - oldest > limit:
                self._kept_ms[topic] = None
                _tell(topic, oldest, limit)


def kept_ms(configs: Mapping[str, str]) -> int | None:
    """Return the age in ms at which brokers remove a row by its own time; None where they never do.

    >>> kept_ms({"cleanup.policy": "delete", "retention.ms": "604800000"})
    604800000
    >>> kept_ms({"cleanup.policy": "compact", "retention.ms": "604800000"}) is kept_ms({"retention.ms": "-1"}) is None
    True
    """
    limit = int(configs.get(RETENTION, "-1"))
    is_by_time = "delete" in configs.get(POLICY, "delete").split(",") and configs.get(STAMPS) != APPENDED
    return limit if is_by_time and limit >= 0 else None


def _tell(topic: str, oldest: int, limit: int) -> None:
    _log.warning(
        "topic %r: it has retention.ms=%d (%s), which goes by the times of records, and rows as old as %s are written "
        "to it: brokers remove them some minutes from now. Let the topic keep them (kafka-configs.sh --alter "
        "--entity-type topics --entity-name %s --add-config retention.ms=-1), or write to another one",
        *(topic, limit, timedelta(milliseconds=limit), utc(oldest), topic),
    )
