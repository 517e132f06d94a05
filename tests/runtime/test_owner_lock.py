"""The lock of an application's owner: who only looks at it is waited for, and one alone has it."""

import fcntl
import os
from types import SimpleNamespace

import pytest

from runtime.model.errors import Owned
from runtime.systems.host import locks


def test_who_only_looks_is_waited_for(tmp_path, monkeypatch):
    os.close(locks.owner_lock(tmp_path, "counting"))
    looks = os.open(tmp_path / "owners" / "counting.lock", os.O_RDONLY)
    fcntl.flock(looks, fcntl.LOCK_SH)
    # The look ends while it is waited for.
    monkeypatch.setattr(locks, "SystemClock", lambda: SimpleNamespace(pause_ms=lambda ms: os.close(looks)))
    os.close(locks.owner_lock(tmp_path, "counting"))


def test_one_alone_has_it(tmp_path):
    held = locks.owner_lock(tmp_path, "counting")
    with pytest.raises(Owned, match=rf"Process {os.getpid()} runs application 'counting'"):
        locks.owner_lock(tmp_path, "counting")
    os.close(held)
    os.close(locks.owner_lock(tmp_path, "counting"))
