"""Tokens that requests carry: said, or in a file that only its owner can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runtime.model.errors import SamzaError

LEAST_TOKEN = 16
"""The characters that a token of a server has at least: a shorter one can be guessed."""
Token = Callable[[], str | None]
"""Returns the token as it is now; it is no part of what a connector shows of itself."""


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
        return lambda: token
    path = Path(token_file)

    def read() -> str:
        try:
            found = path.read_text().strip()
        except OSError as error:
            raise SamzaError(f"{of}: the token in {path} can't be read: {error.strerror}") from error
        if not found:
            raise SamzaError(f"{of}: {path} is empty: write a token into it")
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
    if len(token) < LEAST_TOKEN or not (token.isascii() and token.isprintable()):
        raise SamzaError(
            f"metrics: the token in {str(file)!r} is none: write at least {LEAST_TOKEN} printable characters, as "
            "`openssl rand -hex 32` does"
        )
    return token
