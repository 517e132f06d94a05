"""The lock of an application's owner: who only looks at it is waited for, and one alone has it."""

import fcntl
import os
from types import SimpleNamespace

import pytest

from runtime.model.errors import Owned
from runtime.systems.host import locks
from tests.faults.processes import apart


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


@pytest.fixture
def left(tmp_path):
    """Return a descriptor by which a container still holds the lock of a process that has died."""
    held = locks.owner_lock(tmp_path, "counting")
    # Forked processes share it, so it is held by this one when the other is gone, which has written its number.
    died = apart(lambda: [os.truncate(held, 0), os.pwrite(held, b"%d\n" % os.getpid(), 0), os.getpid()][-1])
    return held, died


def test_containers_of_one_that_has_died_are_waited_for(tmp_path, monkeypatch, left):
    pauses = []

    def pause(ms):
        pauses.append(ms)
        if len(pauses) == 3:
            os.close(left[0])  # the last container ends

    monkeypatch.setattr(locks, "SystemClock", lambda: SimpleNamespace(pause_ms=pause))
    os.close(locks.owner_lock(tmp_path, "counting"))
    assert len(pauses) == 3


def test_containers_that_do_not_end_are_told(tmp_path, monkeypatch, left):
    monkeypatch.setattr(locks, "SystemClock", lambda: SimpleNamespace(pause_ms=lambda ms: None))
    with pytest.raises(Owned, match=f"Process {left[1]} that ran application 'counting' on .* has died"):
        locks.owner_lock(tmp_path, "counting")
    os.close(left[0])
