"""Drivers that die while outputs of a bounded run become visible."""

import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from runtime.systems.host.locks import lock
from runtime.units.driver.application import Application
from runtime.units.publication import intent, staged_topics
from tests.spark.test_streaming import Died


@contextmanager
def death():
    """Have a driver end as it does when it is killed: it removes nothing, and its locks are let go."""
    locks = []

    def locked(path, *, wait):
        descriptor = lock(path, wait=wait)
        if descriptor is not None:
            locks.append(os.dup(descriptor))  # the other one may be closed, and be something else, by the end
        return descriptor

    def killed(application):
        if isinstance(application._data, Path):
            application._environment.close()

    with (
        suppress(Died),
        patch.object(intent, "lock", locked),
        patch.object(staged_topics, "lock", locked),
        patch.object(Application, "close", killed),
    ):
        yield
    for descriptor in locks:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
