"""The job model, the placement of tasks on containers, and the port to the other containers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

import msgspec

from operators.core.wording import shown
from runtime.model.errors import SamzaError


class JobModel(msgspec.Struct, frozen=True, array_like=True):
    """The job model of one run of an application: the containers that are alive, and for each task its container.

    Each change of it has a `generation` of its own, larger than all before. `hosts` has the containers' hosts,
    `standbys` for each task the containers that keep a copy of its state, and `addresses` where each container's state
    is asked for: "" where nowhere, and with the machine behind it where only this machine can ask there.
    """

    run: int = 0
    generation: int = 0
    containers: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    standbys: tuple[tuple[str, ...], ...] = ()
    addresses: tuple[str, ...] = ()

    def of(self, container: str) -> frozenset[int]:
        """Return the tasks of a container."""
        return frozenset(task for task, runs_it in enumerate(self.tasks) if runs_it == container)

    def whereabouts(self, container: str) -> str:
        """Return in words where a container is, "" for one that is not known to live.

        >>> JobModel(containers=("a.0",), hosts=("north",), addresses=("10.0.0.1:9464",)).whereabouts("a.0")
        'a.0 on north at 10.0.0.1:9464'
        """
        if container not in self.containers:
            return ""
        at = self.containers.index(container)
        host, address = ([*said, ""][at] if at < len(said) else "" for said in (self.hosts, self.addresses))
        return container + (f" on {host}" if host else "") + (f" at {address.partition(' ')[0]}" if address else "")

    def kept_by(self, container: str) -> frozenset[int]:
        """Return the tasks of others of whose state a container keeps a copy."""
        return frozenset(task for task, names in enumerate(self.standbys) if container in names)


REFUSED = "refused"
"""The beginning of why an application keeps its size, as it can't have the one that was asked for."""


class Scale(msgspec.Struct, frozen=True, array_like=True):
    """The size that was asked for of an application: what each task is split into, the number of containers, and why.

    None stands for what it is already. Its `number` tells it from those before, which may have asked for the same. As
    it is noted, it has the newest word on either: `factor_by` and `containers_by` are the numbers of the requests that
    have said so.

    >>> noted = Scale(containers=3).behind(Scale(factor=4).behind(Scale()))
    >>> (noted.factor, noted.containers), (noted.since(1).factor, noted.since(1).containers)
    ((4, 3), (None, 3))
    """

    factor: int | None = None
    containers: int | None = None
    why: str = "asked for"
    number: int = 0
    factor_by: int = 0
    containers_by: int = 0

    def behind(self, former: Scale) -> Scale:
        """Return this request as it is noted behind the last one, whose word on what it says nothing of still holds."""
        number = former.number + 1
        factor = (former.factor, former.factor_by) if self.factor is None else (self.factor, number)
        containers = (former.containers, former.containers_by) if self.containers is None else (self.containers, number)
        return Scale(factor[0], containers[0], self.why, number, factor[1], containers[1])

    def since(self, number: int) -> Scale:
        """Return what was asked behind the request of a number, None where that is nothing."""
        factor = self.factor if self.factor_by > number else None
        return Scale(factor, self.containers if self.containers_by > number else None, self.why, self.number)

    @property
    def wrong(self) -> str:
        """The reason for which the size that was asked for was refused; "" where it was not.

        >>> Scale(1, why=f"{REFUSED}: one task can't be split").wrong
        "one task can't be split"
        """
        # A version before says no more than that.
        return self.why.removeprefix(REFUSED).removeprefix(": ") if self.why.startswith(REFUSED) else ""

    def refused(self, refusal: Scale) -> Scale:
        """Return this with the words up to the request that was refused in the place of which another size is kept.

        The `number` of the refusal is that of the request. What was asked behind it stays: it may have come while the
        refusal was noted, which therefore is no request itself.

        >>> asked = Scale(containers=3).behind(Scale(factor=4).behind(Scale()))
        >>> kept = asked.refused(Scale(1, 2, REFUSED, number=1))
        >>> (kept.factor, kept.containers, kept.number, kept.why)
        (1, 3, 2, 'asked for')
        """
        factor = refusal.factor if 0 < self.factor_by <= refusal.number else None
        containers = refusal.containers if 0 < self.containers_by <= refusal.number else None
        return msgspec.structs.replace(
            self,
            factor=self.factor if factor is None else factor,
            containers=self.containers if containers is None else containers,
            why=refusal.why if self.number <= refusal.number else self.why,
        )


class Placing(NamedTuple):
    """The facts by which tasks are shared out: their number, and the host of each container that is alive.

    `before` has the containers that the tasks had, of which some may be gone, `homes` for each task the hosts that have
    its state, the newest first, and `standbys` the containers that have a copy of it; all may be shorter than there are
    tasks.

    >>> Placing(2, {"a.0": "here", "b.0": "there"}, homes=[["there"], []]).hosts["b.0"]
    'there'
    """

    tasks: int
    hosts: Mapping[str, str]
    before: Sequence[str] = ()
    homes: Sequence[Sequence[str]] = ()
    standbys: Sequence[Sequence[str]] = ()


Placement = Callable[[Placing], Sequence[str]]
"""Returns the container of each task. A pure function: any member may compute it, and all must come to the same."""


def assign(tasks: int, containers: Iterable[str], before: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the container of each task, wherever state is: as `sticky`, where nobody knows of any.

    >>> assign(4, ["a", "b"])
    ('a', 'b', 'a', 'b')
    >>> assign(4, ["a"], ("a", "b", "a", "b"))
    ('a', 'a', 'a', 'a')
    >>> assign(4, ["a", "c"], ("a", "b", "a", "b"))
    ('a', 'c', 'a', 'c')
    """
    return sticky(Placing(tasks, dict.fromkeys(containers, ""), before))


def round_robin(placing: Placing) -> tuple[str, ...]:
    """Share tasks out in turn, and move as few as can be, without a look at who has their state.

    >>> round_robin(Placing(3, {"a": "here", "b": "there"}, homes=[["there"], ["there"], ["here"]]))
    ('a', 'a', 'b')
    """
    return sticky(placing._replace(homes=(), standbys=()))


def sticky(placing: Placing) -> tuple[str, ...]:
    """Give each container as many tasks as any other, or one more; move as few as can be, and those to their state.

    >>> sticky(Placing(3, {"a": "here", "b": "there"}, homes=[["there"], ["there"], ["here"]]))
    ('b', 'b', 'a')
    """
    tasks, hosts, before, *_ = placing
    names = sorted(hosts)
    if not names:
        return ()
    found = [name if name in hosts else "" for name in (*before[:tasks], *[""] * (tasks - len(before)))]
    room = _rooms(placing, names, found)
    needy = {hosts[name] for name in names if room[name] > 0}
    # In one pass: to look through all tasks for each container was most of the time that a job model took.
    by_container: dict[str, list[int]] = {name: [] for name in ("", *names)}
    for task, name in enumerate(found):
        by_container[name].append(task)
    for name in names:
        held = by_container[name]
        # Those go whose state is on another host that has room: they cost least to move.
        held.sort(key=lambda task: any(home in needy for home in _homes(placing, task) if home != hosts[name]))
        for task in held[len(held) + min(room[name], 0) :]:
            found[task] = ""
        room[name] = max(room[name], 0)
    for task, name in _at_home(placing, names, [task for task in range(tasks) if not found[task]], room):
        found[task] = name
    # The first of those with the most room is next: names are in order, so all members come to the same.
    free = [(-room[name], name) for name in names]
    heapify(free)
    for task in range(tasks):
        if not found[task]:
            taken, name = free[0]
            found[task] = name
            heapreplace(free, (taken + 1, name))
    assert not any(taken for taken, _ in free), "none has two tasks more than another"
    return tuple(found)


def placed(placing: Placing, placement: Placement) -> tuple[str, ...]:
    """Return the container of each task as a placement says; raises SamzaError where it says what can't be.

    >>> placed(Placing(2, {"a": "here"}), lambda placing: ["a", "b"])
    Traceback (most recent call last):
        ...
    runtime.model.errors.SamzaError: the placement ... gives task 1 to 'b', and the containers are a; ...
    """
    if not placing.hosts:
        return ()
    name = getattr(placement, "__qualname__", repr(placement))
    try:
        found = tuple(placement(placing))
    except Exception as error:
        raise SamzaError(f"the placement {name} has failed: {shown(error)}") from error
    if len(found) != placing.tasks:
        raise SamzaError(f"the placement {name} gives {len(found)} tasks a container, and there are {placing.tasks}")
    for task, container in enumerate(found):
        if container not in placing.hosts:
            raise SamzaError(
                f"the placement {name} gives task {task} to {container!r}, and the containers are "
                f"{', '.join(sorted(placing.hosts))}; return for each task one of placing.hosts"
            )
    return found


def standbys(placing: Placing, tasks: Sequence[str], count: int) -> tuple[tuple[str, ...], ...]:
    """Return, for each of the tasks that containers now have, those that shall keep a copy of its state.

    They are at most so many, each on another host, since what has the task's own host has its state anyway. Who has a
    copy keeps it, but that none has many more than others.

    >>> standbys(Placing(2, {"a": "x", "b": "y", "c": "z"}, standbys=[["c"], []]), ["a", "b"], 1)
    (('c',), ('a',))
    """
    hosts, names = placing.hosts, sorted(placing.hosts)
    most = -(-len(tasks) * count // len(names)) if names else 0
    kept = dict.fromkeys(names, 0)
    found: list[list[str]] = [[] for _ in tasks]

    def choose(task: int, among: Collection[str]) -> bool:
        # A copy on the task's own host would go down with it, and that host has the state anyway.
        taken = {hosts[tasks[task]], *(hosts[name] for name in found[task])}
        free = [name for name in names if name in among and hosts[name] not in taken]
        if free:
            homes = _homes(placing, task)
            found[task].append(min(free, key=lambda name: (kept[name], hosts[name] not in homes, name)))
            kept[found[task][-1]] += 1
        return bool(free)

    def relieve(name: str, task: int) -> bool:
        """Give a copy that one container has too many to one that has too few; return whether there was one."""
        others = [other for other in names if kept[other] < most]
        if kept[name] <= most or name not in found[task]:
            return False
        found[task].remove(name)
        if has_moved := choose(task, others):
            kept[name] -= 1
        else:
            found[task].append(name)
        return has_moved

    # Whoever has a copy keeps it: to make another reads a whole changelog. Only then new ones are given out.
    for among in (placing.standbys, [names] * len(tasks)):
        for turn in range(count):
            for task in range(min(len(tasks), len(among))):
                if len(found[task]) <= turn:
                    choose(task, among[task])
    while any(relieve(name, task) for name in names for task in range(len(tasks))):
        pass
    assert all(hosts[tasks[task]] != hosts[name] for task, copies in enumerate(found) for name in copies)
    return tuple(tuple(sorted(copies)) for copies in found)


def _homes(placing: Placing, task: int) -> Sequence[str]:
    """Return the hosts that have a task's state: who had it last, those of its copies, and who had it before."""
    homes = placing.homes[task] if task < len(placing.homes) else ()
    copies = placing.standbys[task] if task < len(placing.standbys) else ()
    # A copy may be behind the state of who had the task last, and is newer than that of anybody before.
    return [*homes[:1], *(placing.hosts[name] for name in copies if name in placing.hosts), *homes[1:]]


def _rooms(placing: Placing, names: Sequence[str], found: Sequence[str]) -> dict[str, int]:
    """Return how many tasks each container shall have beyond those that it has; below 0, how many too many it has.

    Where some shall have one more than others, it is those that have, and then those whose host has state for it.
    """
    held = {name: found.count(name) for name in names}
    least, ones_more = divmod(placing.tasks, len(names))
    wanted = dict.fromkeys(placing.hosts.values(), 0)
    for task, name in enumerate(found):
        homes = () if name else _homes(placing, task)
        home = next((home for home in homes if home in wanted), None)
        if home is not None:
            wanted[home] += 1
    for name in names:
        wanted[placing.hosts[name]] -= max(least - held[name], 0)
    room = {name: least - held[name] for name in names}
    more: list[str] = []
    while len(more) < ones_more:
        left = [name for name in names if name not in more]
        more.append(max(left, key=lambda name: (held[name] > least, wanted[placing.hosts[name]] > 0, held[name])))
        room[more[-1]] += 1
        wanted[placing.hosts[more[-1]]] -= held[more[-1]] <= least
    return room


def _at_home(
    placing: Placing, names: Sequence[str], tasks: Sequence[int], room: dict[str, int]
) -> Iterable[tuple[int, str]]:
    """Yield tasks that a host with their state has room for, the newest state first, and take the room."""
    left = [*tasks]
    for rank in range(max((len(_homes(placing, task)) for task in tasks), default=0)):
        for task in [*left]:
            home = _homes(placing, task)[rank : rank + 1]
            there = [name for name in names if placing.hosts[name] in home and room[name] > 0]
            if there:
                copies = placing.standbys[task] if task < len(placing.standbys) else ()
                name = max(there, key=lambda name: (name in copies, room[name]))
                room[name] -= 1
                left.remove(task)
                yield task, name
