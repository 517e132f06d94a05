"""Limits that a system sets a process, and how many tasks with state fit into them."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.errors import EnvironmentFault
from runtime.systems.kafka.state.process_limits import (
    ADDRESS_SPACE_BYTES,
    DESCRIPTORS_BESIDE,
    DESCRIPTORS_EACH,
    LEAST_MAP_BYTES,
    MAPS_BESIDE,
    MAPS_EACH,
    Limits,
    Room,
    limits,
)
from tests.source import ROOT


def test_what_is_lacking_is_told_with_what_to_type():
    tight = Limits(descriptors=200, hard_descriptors=500, maps=1_010, address_bytes=1 << 28)
    room = Room(lambda: tight, lambda more: None)
    with pytest.raises(EnvironmentFault) as told:
        room.want("orders", 0, 200)
    for word in ("'orders'", "200", "room for 2", "ulimit -Hn", "vm.max_map_count", "ulimit -v", "--containers"):
        assert word in str(told.value)


def test_the_soft_limit_of_open_files_is_raised_where_it_is_too_low():
    lifted = []
    room = Room(lambda: Limits(descriptors=1_000, hard_descriptors=100_000), lifted.append)
    room.want("orders", 0, 100)
    room.want("orders", 0, 90)
    assert lifted == []
    room.want("orders", 100, 1_000)
    assert lifted == [900 * DESCRIPTORS_EACH + DESCRIPTORS_BESIDE]


@given(
    st.lists(st.integers(1, 3_000), min_size=1, max_size=20),
    st.integers(0, 100_000),
    st.integers(0, 100_000),
    st.integers(0, 1 << 42),
)
def test_whoever_has_room_stays_within_all_limits(wanted, descriptors, maps, address_bytes):
    opened = taken_bytes = 0

    def look() -> Limits:
        left = descriptors - opened * DESCRIPTORS_EACH
        return Limits(left, left, maps - opened * MAPS_EACH, address_bytes - taken_bytes)

    room = Room(look, lambda more: None)
    for more in wanted:
        try:
            room.want("orders", opened, opened + more)
        except EnvironmentFault:
            return
        assert room.map_bytes() >= LEAST_MAP_BYTES
        taken_bytes += more * room.map_bytes()
        opened += more
        assert opened * DESCRIPTORS_EACH + DESCRIPTORS_BESIDE <= descriptors
        assert opened * MAPS_EACH + MAPS_BESIDE <= maps
        assert taken_bytes <= address_bytes


def test_a_thousand_environments_take_a_part_of_the_address_space():
    taken, room = 0, Room(lambda: Limits(), lambda more: None)
    for opened in range(1_000):
        room.want("orders", opened, opened + 1)
        taken += 1 << (room.map_bytes().bit_length() - 1)
    assert taken < 4 * ADDRESS_SPACE_BYTES


def test_a_process_has_limits_that_are_its_own():
    found = limits()
    assert 0 < found.descriptors <= found.hard_descriptors


@pytest.mark.ci
def test_a_low_soft_limit_is_no_hindrance_and_a_low_hard_one_is_told(tmp_path):
    program = """
import resource, sys
from pathlib import Path
from types import SimpleNamespace
from planner.model.virtual_tasks import VirtualTask
from runtime.model.errors import EnvironmentFault
from runtime.systems.kafka.state.task_state import KafkaState
from runtime.systems.log.environment import LogEnvironment
resource.setrlimit(resource.RLIMIT_NOFILE, (100, int(sys.argv[2])))
state = KafkaState(SimpleNamespace(where=""), Path(sys.argv[1]))
try:
    for task in range(300):
        state.copy("orders", VirtualTask(task))
    print(len(state.copies("orders")))
except EnvironmentFault as error:
    print(error)
state.close()
"""
    for hard, said in ((640, "300\n"), (180, "300\n"), (130, "ulimit -Hn")):
        run = [sys.executable, "-c", program, str(tmp_path / f"{hard}"), f"{hard}"]
        assert said in subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT).stdout
