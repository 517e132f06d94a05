"""The one clear error where an optional library is absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from runtime.model.errors import SamzaError


@contextmanager
def needs_extra(what: str, library: str, extra: str) -> Iterator[None]:
    """Say what to install where a block can't import a library.

    >>> with needs_extra("Avro", "no_such_library", "avro"):
    ...     import no_such_library
    Traceback (most recent call last):
    runtime.model.errors.SamzaError: Avro needs no_such_library, which is not installed: pip install 'samza-dsl[avro]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library.partition(".")[0]:
            raise
        raise SamzaError(f"{what} needs {library}, which is not installed: pip install 'samza-dsl[{extra}]'") from error
