"""Which hosts have the state of a task, and whether they can be trusted with it again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MOST_HOMES = 3
"""How many hosts are remembered for each task."""
MOST_FAILURES = 3
"""How often in a row a host may lose a task without having got on with it, until others are as good as it is."""


class Home(msgspec.Struct, frozen=True, array_like=True):
    """A host that has had a task, and how often in a row it has lost that without having got on."""

    host: str
    failures: int = 0


class Homes(msgspec.Struct, frozen=True, array_like=True):
    """The hosts that have had a task, the last one first, and how far the task was when that one took it."""

    hosts: tuple[Home, ...] = ()
    progress: int = 0

    def taken(self, host: str, progress: int, was_given: bool) -> Homes:
        """Return what holds when a host takes the task, which the last one has given up, or lost.

        >>> Homes((Home("a"),), progress=5).taken("b", progress=5, was_given=False)
        Homes(hosts=(Home(host='b', failures=0), Home(host='a', failures=1)), progress=5)
        """
        known = {home.host: home for home in self.hosts}
        if self.hosts:
            last = self.hosts[0]
            has_failed = not was_given and progress <= self.progress
            known[last.host] = Home(last.host, last.failures + 1 if has_failed else 0)
        first = known.pop(host, Home(host))
        return Homes((first, *known.values())[:MOST_HOMES], progress)

    def copied(self, host: str) -> Homes:
        """Return what holds when a host has a copy of the state, which may be followed by another one's.

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
