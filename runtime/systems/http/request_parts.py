"""The URL, headers and token of a request, looked at as they are said: a request would fail on them, or be another."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from operators.core.wording import shown
from runtime.model.errors import SamzaError
from runtime.model.urls import shown_url

LEAST_TOKEN = 16
"""The characters that a token of a server has at least: a shorter one can be guessed."""
Token = Callable[[], str | None]
"""Returns the token as it is now; it is no part of what a connector shows of itself."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def url_said(of: str, url: str, schemes: tuple[str, str], written: str) -> SplitResult:
    """Return the parts of a URL; raises SamzaError, with how it is written, for what is none of these schemes.

    >>> url_said("webhook", "https://example.com/alerts", ("http", "https"), "").hostname
    'example.com'
    """
    try:
        parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
        is_right = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # of a port that is none, or an address that is none
        is_right = False
    if not is_right:
        raise SamzaError(f"{of}(url): {written}")
    if any(character <= " " or character == "\x7f" for character in url):
        raise SamzaError(f"{of}({shown_url(url)!r}): a URL has no spaces or lines in it: write %20 for a space")
    return parts


def headers_said(of: str, headers: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return headers; raises SamzaError for what is none, and for those that are our `own`, by name with the reason.

    >>> headers_said("webhook", {"X-Shop": "7"}, {"Idempotency-Key": "it is the row's id"})
    {'X-Shop': '7'}
    """
    if not isinstance(headers, Mapping):
        given = type(headers).__name__
        raise SamzaError(f'{of}(headers=...) is a {given}: write names and their text: headers={{"X-Shop": "7"}}')
    reasons = {name.lower(): reason for name, reason in own.items()}
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SamzaError(f"{of}(headers=...): {shown(name)} is no name of a header: write letters, digits and -")
        if name.lower() in reasons:
            raise SamzaError(f"{of}(headers=...): leave {name} out: {reasons[name.lower()]}")
        if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
            # Without the value, which may be a secret.
            raise SamzaError(f"{of}(headers=...): {name} is no line of printable ASCII text, which a header is")
    return dict(headers)


def token_said(of: str, token: str | None, token_file: str | Path | None) -> Token:
    """Return the function that returns the token; a file is read at each call, so that it may change.

    >>> token_said("webhook", "secret", None)()
    'secret'
    """
    if token is not None and token_file is not None:
        raise SamzaError(f"{of}(token=..., token_file=...): say one of the two")
    if token == "":
        raise SamzaError(f'{of}(token=""): write a token that nobody guesses, or leave token= out')
    if token_file is None:
        if token is not None and not _is_token(token):
            raise SamzaError(f"{of}(token=...): a token is a line of printable ASCII characters, as text")
        return lambda: token
    path = Path(token_file)

    def read() -> str:
        try:
            found = path.read_text().strip()
        except OSError as error:
            raise SamzaError(f"{of}: the token in {path} can't be read: {error.strerror}") from error
        except UnicodeDecodeError:
            found = "\n"  # no token either; without the words of the error, which has some of the file
        if not found:
            raise SamzaError(f"{of}: {path} is empty: write a token into it")
        if not _is_token(found):
            raise SamzaError(f"{of}: {path} holds no token: write one line of printable ASCII characters into it")
        return found

    read()
    return read


def token_in(file: str | Path | None) -> str | None:
    """Return the token that a file has; raises SamzaError for one that keeps nobody out."""
    if file is None:
        return None
    try:
        token = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SamzaError(f"metrics: the token in {str(file)!r} can't be read: {error}") from None
    if len(token) < LEAST_TOKEN or not _is_token(token):
        raise SamzaError(
            f"metrics: the token in {str(file)!r} is none: write at least {LEAST_TOKEN} printable characters, as "
            "`openssl rand -hex 32` does"
        )
    return token


def _is_token(said: object) -> bool:
    return isinstance(said, str) and said.isascii() and said.isprintable()
