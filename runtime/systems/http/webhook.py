"""A sink that posts each row to a URL, with an id by which whoever takes it can tell rows that come again."""

from __future__ import annotations

import http.client
import logging
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from operators.core.durations import Duration
from runtime.encoding.serdes import to_json
from runtime.model.errors import SamzaError, Unavailable
from runtime.ports.connectors import AtLeastOnceSink, SinkRow, length_ms
from runtime.systems.http.tokens import Token, token_said

PASSING = {408, 425, 429, *range(500, 600)}
"""The statuses of answers after which a row is posted again."""
MOST_ANSWER_BYTES = 1 << 16
_log = logging.getLogger("samza_dsl")


def webhook(
    url: str,
    *,
    token: str | None = None,
    token_file: str | Path | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    at_once: int = 8,
    timeout_ms: Duration = 10_000,
) -> AtLeastOnceSink:
    """Post each row as JSON: `bind={"alerts": connectors.webhook("https://example.com/alerts", token_file="token")}`.

    The header `Idempotency-Key` has the row's id, the same whenever it is posted again: after a crash, or where an
    answer was lost. Rows of one key are posted in order, one at a time, and those of other keys beside them, `at_once`
    at most; rows without a key are posted one by one. No answer, or one of 408, 425, 429 or 5xx, is waited for and
    tried again, no sooner than a `Retry-After` of seconds says; any other than 2xx ends the run with its words, and the
    row waits for the next run. A row without a value is posted as null. Raises SamzaError for malformed arguments.

    >>> from samza_dsl import connectors
    >>> connectors.webhook("https://me:secret@example.com/alerts?key=secret").name
    'https://example.com/alerts'
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SamzaError('webhook(url): write the URL that rows are posted to: webhook("https://example.com/alerts")')
    if parts.username is not None and (token is not None or token_file is not None):
        raise SamzaError("webhook(url, token=...): say who posts by the URL or by a token, and not by both")
    if type(at_once) is not int or not 1 <= at_once <= 256:
        raise SamzaError(f"webhook(at_once={at_once!r}): write a whole number up to 256: at_once=8")
    found = token_said("webhook", token, token_file)
    hook = _Webhook(url, found, headers, at_once, length_ms("webhook(timeout_ms", timeout_ms) / 1_000)
    return AtLeastOnceSink(hook.name, hook.write, hook.close)


class _Webhook:
    """Posts rows by several connections that stay open. One thread at a time calls it; lanes have threads of their own.

    Invariants: a key's rows are of one lane, which posts the next once the one before was answered; what was answered
    is not posted again where a delivery is tried again.
    """

    def __init__(self, url: str, token: Token, headers: Mapping[str, str], at_once: int, timeout_s: float) -> None:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = f":{parts.port}" if parts.port is not None else ""
        self.name = f"{parts.scheme}://{host}{port}{parts.path}"
        self._parts, self._token, self._timeout_s = parts, token, timeout_s
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Content-Type": "application/json", "User-Agent": "samza-dsl", **headers}
        if parts.username is not None:
            self._headers["Authorization"] = _basic(parts.username, parts.password or "")
        self._lanes: list[http.client.HTTPConnection | None] = [None] * at_once
        self._pool: ThreadPoolExecutor | None = None
        self._answered: set[int] = set()
        """The places of the rows of a delivery that were answered, in case that it is tried again."""
        self._trying: list[str] = []

    def write(self, rows: Sequence[SinkRow]) -> None:
        """Post rows; raises `Unavailable` and OSError for what passes, and SamzaError for what does not."""
        rows = [*rows]
        ids = [row.id for row in rows]
        if ids != self._trying:
            self._trying, self._answered = ids, set()
        lanes: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            if place not in self._answered:
                lanes.setdefault(self._lane_of(row), []).append(place)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self._lanes), "samza-dsl-webhook")
        answered = len(self._answered)
        running = [self._pool.submit(self._post_all, lane, rows, places) for lane, places in lanes.items()]
        failures = [failure for one in running if (failure := one.exception()) is not None]
        # What will not pass is told first.
        for failure in sorted(failures, key=lambda one: isinstance(one, OSError | Unavailable)):
            if len(self._answered) > answered and isinstance(failure, OSError | Unavailable):
                after_s = failure.after_s if isinstance(failure, Unavailable) else 0.0
                raise Unavailable(str(failure), after_s, goes_on=True) from failure
            raise failure
        self._trying, self._answered = [], set()

    def close(self) -> None:
        """Close all connections; the next call opens others."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        for lane in range(len(self._lanes)):
            self._drop(lane)

    def _lane_of(self, row: SinkRow) -> int:
        return 0 if row.key is None else zlib.crc32(repr(row.key).encode()) % len(self._lanes)

    def _post_all(self, lane: int, rows: Sequence[SinkRow], places: Sequence[int]) -> None:
        for place in places:
            self._post(lane, rows[place])
            self._answered.add(place)

    def _post(self, lane: int, row: SinkRow) -> None:
        headers = dict(self._headers)
        if row.id:
            headers["Idempotency-Key"] = row.id
        if (token := self._token()) is not None:
            headers["Authorization"] = f"Bearer {token}"
        try:
            status, answer, after_s = self._asked(lane, to_json(row.value), headers)
        except http.client.HTTPException as error:
            raise Unavailable(f"{self.name}: {error!r}") from error
        if 200 <= status < 300:
            return
        words = answer[:300].decode(errors="replace").strip()
        told = f"{self.name} answered {status} to row {row.id or row.key!r}{': ' if words else ''}{words}"
        if status in PASSING:
            raise Unavailable(told, after_s)
        raise SamzaError(f"{told}. The row waits, and is posted when the application is run again")

    def _asked(self, lane: int, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes, float]:
        """Post a body; return the status, what was answered, and the seconds after which to come again."""
        is_kept = self._lanes[lane] is not None
        connection = self._lanes[lane] or self._connected()
        self._lanes[lane] = connection
        try:
            connection.request("POST", self._path, body, dict(headers))
            response = connection.getresponse()
            answer = response.read(MOST_ANSWER_BYTES)
            if response.will_close or len(answer) == MOST_ANSWER_BYTES:
                self._drop(lane)
            # A date in its place, which is rare, needs a clock that both share: the pauses of our own do for that.
            after = response.headers.get("Retry-After", "")
            return response.status, answer, float(after) if after.isascii() and after.isdigit() else 0.0
        except (OSError, http.client.HTTPException) as error:
            self._drop(lane)
            # A connection that was kept may have been closed meanwhile, which is no failure of who answers.
            if is_kept and isinstance(error, ConnectionError | http.client.RemoteDisconnected):
                return self._asked(lane, body, headers)
            raise

    def _connected(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname is not None, "looked at when the sink was made"
        return kind(self._parts.hostname, self._parts.port, timeout=self._timeout_s)

    def _drop(self, lane: int) -> None:
        connection, self._lanes[lane] = self._lanes[lane], None
        if connection is not None:
            with suppress(OSError):
                connection.close()


def _basic(user: str, password: str) -> str:
    from base64 import b64encode
    from urllib.parse import unquote

    return f"Basic {b64encode(f'{unquote(user)}:{unquote(password)}'.encode()).decode()}"
