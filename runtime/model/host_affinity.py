"""The hosts that have the state of a task, and whether they can be trusted with it again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MOST_HOMES = 3
"""The number of hosts that are remembered for each task."""
MOST_FAILURES = 3
"""The losses of a task in a row, each without progress, after which a host is no better than others."""


class Home(msgspec.Struct, frozen=True, array_like=True):
    """A host that has had a task, and how often in a row it has lost the task without progress."""

    host: str
    failures: int = 0


class Homes(msgspec.Struct, frozen=True, array_like=True):
    """The hosts that have had a task, the last one first, and how far the task was when that one took it."""

    hosts: tuple[Home, ...] = ()
    progress: int = 0

    def taken(self, host: str, progress: int, was_given: bool) -> Homes:
        """Return the homes after a host has taken the task, which the last one has given up, or lost.

        >>> Homes((Home("a"),), progress=5).taken("b", progress=5, was_given=False)
        Homes(hosts=(Home(host='b', failures=0), Home(host='a', failures=1)), progress=5)
        """
        known = {home.host: home for home in self.hosts}
        if self.hosts:
            last = self.hosts[0]
            # A host whose state kills its task would get it again and again, just because the state is there.
            has_failed = not was_given and progress <= self.progress
            known[last.host] = Home(last.host, last.failures + 1 if has_failed else 0)
        first = known.pop(host, Home(host))
        found = Homes((first, *known.values())[:MOST_HOMES], progress)
        assert len({home.host for home in found.hosts}) == len(found.hosts), "a host is named once"
        return found

    def copied(self, host: str) -> Homes:
        """Return the homes after a host has got a copy of the state: it is second, behind that of the task itself.

        >>> [home.host for home in Homes((Home("a"), Home("b"))).copied("c").hosts]
        ['a', 'c', 'b']
        """
        known = {home.host: home for home in self.hosts}
        others = [home for home in self.hosts[1:] if home.host != host]
        return Homes((*self.hosts[:1], known.get(host, Home(host)), *others)[:MOST_HOMES], self.progress)

    def trusted(self) -> Sequence[str]:
        """Return the hosts that a task should go to, the best first.

        >>> Homes((Home("a", failures=3), Home("b"))).trusted()
        ['b']
        """
        return [home.host for home in self.hosts if home.failures < MOST_FAILURES]
