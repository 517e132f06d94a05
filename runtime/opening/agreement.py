"""The agreement, among all who have started containers of one run, that nothing is left to do anywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec


class StarterReport(msgspec.Struct, frozen=True, array_like=True):
    """Says that the containers of one starter, which have `tasks`, had nothing to do after these `commits`.

    `seen` has the commits of each other starter, as it had said them before these containers looked again. The one that
    has begun the run says at last that this `is_over`: also what it has to deliver was delivered. State lies `ready`
    with a starter for the requests of another size up to that number, also where its containers were never idle.
    """

    run: int
    tasks: tuple[int, ...]
    commits: str
    seen: dict[str, str] = {}
    is_over: bool = False
    ready: int = 0


def all_quiet(said: Mapping[str, StarterReport], alive: Collection[str], tasks: int) -> bool:
    """Whether nothing can come any more: all who live have looked again at all that all others have committed.

    >>> first, second = StarterReport(1, (0,), "a3", {"b": "b5"}), StarterReport(1, (1,), "b5", {"a": "a2"})
    >>> all_quiet({"a": first, "b": second}, ["a", "b"], 2)
    False
    >>> all_quiet({"a": first, "b": StarterReport(1, (1,), "b5", {"a": "a3"})}, ["a", "b"], 2)
    True
    """
    found = {name: said[name] for name in alive if name in said}
    if len(found) < len(alive) or {task for one in found.values() for task in one.tasks} != {*range(tasks)}:
        return False
    # What anybody had committed last was then read by everybody, and nobody had anything to do with it.
    return all(
        one.seen.get(other) == found[other].commits for name, one in found.items() for other in found if other != name
    )
