"""A sink that posts each row to a URL, with an id by which whoever takes it can tell rows that come again."""

from __future__ import annotations

import http.client
import ssl
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from string import printable
from types import MappingProxyType
from urllib.parse import SplitResult, quote, urljoin

from operators.core.durations import Duration
from runtime.encoding.json_text import to_json
from runtime.model.clock import SystemClock
from runtime.model.errors import RowRefused, SamzaError, Unavailable
from runtime.model.urls import shown_url
from runtime.model.whole_answers import WholeAnswersConnection, WholeAnswersTls
from runtime.ports.connectors import AtLeastOnceSink, SinkRow, length_ms
from runtime.systems.http.request_parts import Token, headers_said, token_said, url_said

PASSING = {408, 425, 429, *range(500, 600)}
"""The statuses of answers after which a row is posted again."""
OF_NO_ROW = {401, 403, 405, 407}
"""The statuses that say that whoever posts may not, or not so, whatever the row."""
BATCH_ROWS = 1_000
"""The rows that are posted before it is noted how far that has come."""
MOST_ANSWER_BYTES = 1 << 16
_HEADERS = {"Content-Type": "application/json", "User-Agent": "samza-dsl"}
_OWN = "it follows from the row"


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
    tried again, no sooner than `Retry-After` says. Any other 4xx refuses the row, which goes where the `on_error=` of
    the `send_to` says, or ends the run; 401, 403, 405, 407 and redirections end it whatever that says. A row without a
    value is posted as null. Raises SamzaError for malformed arguments.

    >>> from samza_dsl import connectors
    >>> connectors.webhook("https://me:secret@example.com/alerts?key=secret").name
    'https://example.com/alerts'
    """
    written = 'write the URL that rows are posted to: webhook("https://example.com/alerts")'
    parts = url_said("webhook", url, ("http", "https"), written)
    if parts.username is not None and (token is not None or token_file is not None):
        raise SamzaError("webhook(url, token=...): say who posts by the URL or by a token, and not by both")
    if type(at_once) is not int or not 1 <= at_once <= 256:
        raise SamzaError(f"webhook(at_once={at_once!r}): write a whole number up to 256: at_once=8")
    found = token_said("webhook", token, token_file)
    own = {"Idempotency-Key": "it is the row's id", "Content-Length": _OWN, "Transfer-Encoding": _OWN}
    if found() is not None or parts.username is not None:
        own["Authorization"] = "the URL or the token says who posts"
    said = headers_said("webhook", headers, own)
    hook = _Webhook(parts, found, said, at_once, length_ms("webhook(timeout_ms", timeout_ms) / 1_000)
    return AtLeastOnceSink(hook.name, hook.write, hook.close, batch_rows=BATCH_ROWS)


class _Webhook:
    """Posts rows by several connections that stay open. One thread at a time calls it; lanes have threads of their own.

    Invariants: a key's rows are of one lane, which posts the next once the one before was answered, and none behind one
    that was not taken; what was answered, or refused, is not posted again where a delivery is tried again, or without
    the rows that were refused. What asks for a pause gets it, whatever was refused beside it.
    """

    def __init__(
        self, parts: SplitResult, token: Token, headers: Mapping[str, str], at_once: int, timeout_s: float
    ) -> None:
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = f":{parts.port}" if parts.port is not None else ""
        self.name = f"{parts.scheme}://{host}{port}{parts.path}"
        self._parts, self._token, self._timeout_s = parts, token, timeout_s
        # As browsers do; a URL that is written in ASCII is sent as it is.
        self._path = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=printable)
        said = {name.lower() for name in headers}
        self._headers = {name: value for name, value in _HEADERS.items() if name.lower() not in said} | {**headers}
        if parts.username is not None:
            self._headers["Authorization"] = _basic(parts.username, parts.password or "")
        self._lanes: list[http.client.HTTPConnection | None] = [None] * at_once
        self._pool: ThreadPoolExecutor | None = None
        self._answered: set[str] = set()
        """The ids of the rows that were answered, and that may be given again."""
        self._refused: dict[str, str] = {}
        """By id, the words for rows that were refused, until these are told."""

    def write(self, rows: Sequence[SinkRow]) -> None:
        """Post rows; raises `Unavailable` and OSError for what passes, `RowRefused`, and SamzaError for what is wrong.

        Of several rows that are refused, each of another lane, the others are named as well.
        """
        # Only a test of its own gives rows without ids; they are told apart by their places.
        ids = [row.id or f" {place}" for place, row in enumerate(rows)]
        lanes: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            if ids[place] not in self._answered:
                lanes.setdefault(self._lane_of(row), []).append(place)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self._lanes), "samza-dsl-webhook")
        before = len(self._answered) + len(self._refused)
        running = [self._pool.submit(self._post_all, lane, rows, ids, places) for lane, places in lanes.items()]
        failures = [failure for one in running if (failure := one.exception()) is not None]
        # What no other try mends is told first, and what is for a policy once nothing else is to be tried again.
        for failure in sorted(failures, key=lambda one: isinstance(one, OSError | Unavailable)):
            if not isinstance(failure, OSError | Unavailable):
                raise failure
            after_s = max(one.after_s if isinstance(one, Unavailable) else 0.0 for one in failures)
            goes_on = len(self._answered) + len(self._refused) > before
            raise Unavailable(str(failure), after_s, goes_on=goes_on) from failure
        refused = [RowRefused(self._refused.pop(id), place) for place, id in enumerate(ids) if id in self._refused]
        if refused:
            first, *first.also = refused
            raise first
        self._answered.difference_update(ids)

    def close(self) -> None:
        """Close all connections; the next call opens others."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        for lane in range(len(self._lanes)):
            self._drop(lane)
        self._answered.clear()
        self._refused.clear()

    def _lane_of(self, row: SinkRow) -> int:
        return 0 if row.key is None else zlib.crc32(repr(row.key).encode()) % len(self._lanes)

    def _post_all(self, lane: int, rows: Sequence[SinkRow], ids: Sequence[str], places: Sequence[int]) -> None:
        for place in places:
            told = self._refused.get(ids[place]) or self._post(lane, rows[place])
            if told is not None:
                self._refused[ids[place]] = told
                return
            self._answered.add(ids[place])

    def _post(self, lane: int, row: SinkRow) -> str | None:
        """Post a row; return the words for its refusal, where it is refused for good."""
        headers = dict(self._headers)
        if row.id:
            headers["Idempotency-Key"] = row.id
        if (token := self._token()) is not None:
            headers["Authorization"] = f"Bearer {token}"
        try:
            status, answer, said = self._asked(lane, to_json(row.value), headers)
        except http.client.HTTPException as error:
            raise Unavailable(f"{self.name}: {error!r}") from error
        except ssl.SSLCertVerificationError as error:
            # To come again would show the same one.
            wrong = f"{self.name} is not trusted: {error.verify_message}"
            raise SamzaError(f"{wrong}. The row waits, and is posted when the application is run again") from error
        if 200 <= status < 300:
            return None
        words = answer[:300].decode(errors="replace").strip()
        told = f"{self.name} answered {status} to row {row.id or row.key!r}{': ' if words else ''}{words}"
        if status in PASSING:
            raise Unavailable(told, _seconds_asked(said))
        if 400 <= status < 500 and status not in OF_NO_ROW:
            return told
        if 300 <= status < 400 and (other := said.get("Location")):
            told = f"{told}, and names {_shown_beside(self.name, other)}: write that as the URL"
        raise SamzaError(f"{told}. The row waits, and is posted when the application is run again")

    def _asked(self, lane: int, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes, Message]:
        """Post a body; return the status, what was answered, and the headers of that."""
        is_kept = self._lanes[lane] is not None
        connection = self._lanes[lane] or self._connected()
        self._lanes[lane] = connection
        try:
            connection.request("POST", self._path, body, dict(headers))
            response = connection.getresponse()
            answer = response.read(MOST_ANSWER_BYTES)
            if response.will_close or len(answer) == MOST_ANSWER_BYTES:
                self._drop(lane)
            return response.status, answer, response.headers
        except (OSError, http.client.HTTPException) as error:
            self._drop(lane)
            # A connection that was kept may have been closed meanwhile, which is no failure of who answers.
            if is_kept and isinstance(error, ConnectionError | http.client.RemoteDisconnected):
                return self._asked(lane, body, headers)
            raise

    def _connected(self) -> http.client.HTTPConnection:
        kind = WholeAnswersTls if self._parts.scheme == "https" else WholeAnswersConnection
        assert self._parts.hostname is not None, "looked at when the sink was made"
        return kind(self._parts.hostname, self._parts.port, timeout=self._timeout_s)

    def _drop(self, lane: int) -> None:
        connection, self._lanes[lane] = self._lanes[lane], None
        if connection is not None:
            with suppress(OSError):
                connection.close()


def _seconds_asked(said: Message) -> float:
    r"""Return after how many seconds an answer asks to come again; 0 where it does not say that, or nothing readable.

    >>> from email import message_from_string
    >>> date, later = "Wed, 21 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 2026 07:28:09 GMT"
    >>> _seconds_asked(message_from_string(f"Date: {date}\nRetry-After: {later}\n\n"))
    9.0
    """
    after = said.get("Retry-After", "").strip()
    if after.isascii() and after.isdigit():
        return float(after)
    # By the clock of who has answered, which need not be ours, where it says that.
    with suppress(ValueError, OverflowError):
        now_s = _seconds(date) if (date := said.get("Date")) else SystemClock().now_ms() / 1_000
        return max(0.0, _seconds(after) - now_s)
    return 0.0


def _seconds(date: str) -> float:
    found = parsedate_to_datetime(date)
    return (found.replace(tzinfo=UTC) if found.tzinfo is None else found).timestamp()


def _shown_beside(url: str, other: str) -> str:
    """Return the URL that another one names, which may be a path alone, without secrets.

    >>> _shown_beside("https://shop/hook", "/new?key=secret"), _shown_beside("http://shop/hook", "https://[x/")
    ('https://shop/new', 'https://[x/')
    """
    with suppress(ValueError):
        other = urljoin(url, other)
    return shown_url(other)


def _basic(user: str, password: str) -> str:
    from base64 import b64encode
    from urllib.parse import unquote

    return f"Basic {b64encode(f'{unquote(user)}:{unquote(password)}'.encode()).decode()}"
