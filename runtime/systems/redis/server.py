"""A server of Redis as a URL says it: how it is connected to, and which of its errors pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from runtime.model.errors import SamzaError, Unavailable
from runtime.model.urls import shown_url

_DATABASE = re.compile(r"/?[0-9]*")
"""The path of a URL of Redis."""
ANSWER_S = 30.0
"""How long an answer is waited for: a transaction of thousands of commands takes milliseconds."""


class RedisServer:
    """A connection to one database of a server, opened by the first call. One thread at a time calls it.

    Nothing is sent twice by the client itself: what was lost with a connection is found out by who sends it again.
    """

    def __init__(self, url: str) -> None:
        try:
            import redis
        except ImportError as error:
            raise SamzaError("Redis needs its client: pip install 'samza-dsl[redis]'") from error
        self._redis, self._url = redis, url
        # What is no URL may be a secret as a whole.
        self.where = shown_url(url) if isinstance(url, str) and "://" in url else "redis"
        self._client: Any = None
        try:
            self._connected().close()
            # Of what is no number the client makes one, or takes the first database.
            if url.startswith("redis") and not _DATABASE.fullmatch(urlsplit(url).path):
                raise ValueError("no number of a database")
        except (ValueError, TypeError, redis.RedisError) as error:
            # Without the words of the error, which has the URL, and with it what may be a secret.
            raise SamzaError(
                f'{self.where}: this is no URL of Redis: write "redis://host:6379/0", or rediss:// for TLS'
            ) from error

    @property
    def client(self) -> Any:
        """Return the client; whoever uses it does so within `told`."""
        if self._client is None:
            self._client = self._connected()
        return self._client

    @contextmanager
    def told(self, where: str) -> Iterator[None]:
        """Close the connection where a block fails; raises `Unavailable` for what passes, else SamzaError."""
        errors = self._redis
        try:
            yield
        except BaseException as error:
            self.close()
            refused = isinstance(error, errors.AuthenticationError | errors.exceptions.AuthorizationError)
            passing = (
                *(errors.ConnectionError, errors.TimeoutError, errors.WatchError),
                *(errors.exceptions.ReadOnlyError, errors.exceptions.TryAgainError),
                *(errors.exceptions.ClusterDownError, errors.exceptions.MasterDownError),
            )
            if isinstance(error, passing) and not refused:
                raise Unavailable(f"{where}: {error}") from error
            if isinstance(error, errors.RedisError | UnicodeEncodeError):
                raise SamzaError(f"{where}: {error}") from error
            raise

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._client is not None:
            client, self._client = self._client, None
            with suppress(self._redis.RedisError, OSError):
                client.close()

    def _connected(self) -> Any:
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return self._redis.Redis.from_url(
            self._url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=ANSWER_S,
            socket_connect_timeout=10.0,
            client_name="samza-dsl",
            decode_responses=False,
        )
