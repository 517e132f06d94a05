"""The limits that a system sets a process, and whether as many tasks with state as it has fit into them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from runtime.model.errors import EnvironmentFault

DESCRIPTORS_EACH = 5
"""The descriptors of an open environment: two for its data, one for its readers, its marker and its owner's lock."""
MAPS_EACH = 2
DESCRIPTORS_BESIDE, MAPS_BESIDE = 128, 1_000
"""The descriptors and mappings left for connections, threads, the user's own files and libraries."""
ADDRESS_SPACE_BYTES = 1 << 45
"""The address space that environments take together, of the 128 TiB that a process has."""
LEAST_MAP_BYTES = 1 << 26
_MAX_MAPS = Path("/proc/sys/vm/max_map_count")
_UNKNOWN = 1 << 62


class Limits(NamedTuple):
    """The room that a process has left: descriptors, mappings, and bytes of address space."""

    descriptors: int = _UNKNOWN
    hard_descriptors: int = _UNKNOWN
    """As `descriptors`, once the soft limit is raised to the hard one."""
    maps: int = _UNKNOWN
    address_bytes: int = _UNKNOWN


def limits() -> Limits:
    """Return what this process may still take; what can't be known is taken for plenty."""
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        soft, hard = (
            _UNKNOWN if one == resource.RLIM_INFINITY else one for one in resource.getrlimit(resource.RLIMIT_NOFILE)
        )
        opened = len(os.listdir("/dev/fd"))
        found = Limits(soft - opened, hard - opened)
        with suppress(OSError, ValueError):
            maps = Path("/proc/self/maps").read_bytes().count(b"\n")
            found = found._replace(maps=int(_MAX_MAPS.read_text()) - maps)
        most_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most_bytes != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found = found._replace(address_bytes=most_bytes - pages * resource.getpagesize())
        return found
    return Limits()


def raise_descriptors(more: int) -> None:
    """Raise the soft limit of open files so that there is room for so many more, as far as the hard one allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(os.listdir("/dev/fd")) + more
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if wanted > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Room:
    """Room for the state of tasks in this process, which is asked for before any of them is opened."""

    FIRST = 16
    """The number of tasks that room is looked for at first; then twice as many, each time."""

    def __init__(self, look: Callable[[], Limits] = limits, lift: Callable[[int], None] = raise_descriptors) -> None:
        self._look, self._lift = look, lift
        self._tasks = 0
        self._each_bytes = ADDRESS_SPACE_BYTES

    def map_bytes(self) -> int:
        """Return how much address space each environment may take."""
        return min(ADDRESS_SPACE_BYTES // max(self._tasks, 1), self._each_bytes)

    def want(self, app: str, opened: int, tasks: int) -> None:
        """Ensure room for `tasks` with state, of which so many are open; raises `EnvironmentFault` where there is none.

        The soft limit of open files is raised by that, as far as it takes and as is allowed.
        """
        if tasks <= self._tasks:
            return
        found = self._look()
        fitting = opened + min(
            (found.hard_descriptors - DESCRIPTORS_BESIDE) // DESCRIPTORS_EACH,
            (found.maps - MAPS_BESIDE) // MAPS_EACH,
            found.address_bytes // 2 // LEAST_MAP_BYTES,
        )
        if tasks > fitting:
            raise _does_not_fit(app, tasks, max(fitting, 0), opened, found)
        # Asked for ahead and doubled: to look costs reading all mappings of the process.
        self._tasks = min(max(tasks, 2 * self._tasks, self.FIRST), fitting)
        more = self._tasks - opened
        self._each_bytes = found.address_bytes // 2 // max(more, 1)
        needed = more * DESCRIPTORS_EACH + DESCRIPTORS_BESIDE
        if found.descriptors < needed:
            self._lift(needed)


def _does_not_fit(app: str, tasks: int, fitting: int, opened: int, found: Limits) -> EnvironmentFault:
    """Return the error that says which limit is too low for the tasks, and what to type."""
    more = tasks - opened
    lacking = []
    if found.hard_descriptors < (needed := more * DESCRIPTORS_EACH + DESCRIPTORS_BESIDE):
        total = needed - found.hard_descriptors
        lacking.append(
            f"it lacks {total:,} open files: raise the hard limit that `ulimit -Hn` tells by as many (in a container: "
            "`docker run --ulimit nofile=...`; in a unit of systemd: LimitNOFILE=...)"
        )
    if found.maps < (needed := more * MAPS_EACH + MAPS_BESIDE):
        lacking.append(f"it lacks {needed - found.maps:,} mappings: raise vm.max_map_count (`sysctl -w`) by as many")
    if found.address_bytes < (needed := 2 * more * LEAST_MAP_BYTES):
        lacking.append(f"it lacks {(needed - found.address_bytes) >> 20:,} MiB of address space: `ulimit -v unlimited`")
    return EnvironmentFault(
        f"Application {app!r} has {tasks:,} task{'s' * (tasks > 1)} with state or more in this process, which has room "
        f"for {fitting:,}: "
        f"{'; '.join(lacking)}. Or run it in more containers (--containers), or with fewer partitions."
    )
