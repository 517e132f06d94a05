"""Calls of a system that is not ours, made again after a pause where that may help."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from runtime.model.errors import SamzaError, Unavailable

R = TypeVar("R")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
LONGEST_ASKED_S = 60.0
"""The longest pause that a system may ask for."""
TRIES = 8
"""How often a system that fails is called, in about twenty seconds, before the run ends with that."""
_log = logging.getLogger("samza_dsl")


class Words(NamedTuple):
    """The words for what goes wrong with a system: that its code failed, that it can't be used, and what follows."""

    where: str
    failed: str
    unusable: str
    then: str = ""


def tried(function: Callable[[], R], words: Words, wait: Callable[[float], bool]) -> R:
    """Return what a function returns, called again where it raises `Unavailable` or OSError; else SamzaError.

    What goes on, though it fails again and again, is called for as long as it does. `wait` takes the seconds of a
    pause, and returns whether the run ends meanwhile. A pause is as long as the system has asked for, to a
    minute.

    >>> tried(lambda: 3, Words("shop", "shop failed", "shop can't be read"), lambda pause_s: False)
    3
    """
    pause_s, number = FIRST_PAUSE_S, 0
    while True:
        number += 1
        try:
            return function()
        except (Unavailable, OSError) as error:
            failure = error
        except SamzaError:
            raise
        except Exception as error:
            raise SamzaError(f"{words.failed}: {error!r}") from error
        if isinstance(failure, Unavailable) and failure.goes_on:
            pause_s, number = FIRST_PAUSE_S, 1
        _log.warning("%s failed, try %d of %d: %s", words.where, number, TRIES, failure)
        asked_s = failure.after_s if isinstance(failure, Unavailable) else 0.0
        if number == TRIES or wait(max(pause_s, min(asked_s, LONGEST_ASKED_S))):
            break
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    raise Unavailable(f"{words.unusable}: {failure}{words.then}") from failure
