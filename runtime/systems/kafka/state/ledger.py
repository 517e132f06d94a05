"""The ledger of an application, the topic of what is committed: its generation, checkpoints, and who has which task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from operators.core.base import Batch
from planner.model.virtual_tasks import WHOLE as TASKS_OWN
from planner.model.virtual_tasks import VirtualTask, is_task
from runtime.model.assignment import Scale
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import sleep_ms
from runtime.model.host_affinity import Homes
from runtime.ports.state import SettledCommits
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.client.clients import ended, side_by_side
from runtime.systems.kafka.state.changelog import Changelog, ChangelogEnd, Committed
from runtime.systems.kafka.streams.streams import KafkaStreams

TABLE = StreamConfig(compacted=True)
"""The configuration that its topic is made with."""
GENERATION, CHANGELOG, KEPT, CLAIM, GIVEN = b"generation", b"changelog:", b"kept:", b"claim:", b"given:"
HOMES, REACHED = b"homes:", b"reached:"
SCALE = b"scale:"
"""The prefixes of keys that are no checkpoint's: all but the first contain what no checkpoint's name has."""
ASKED = "asked"
"""The word, in a checkpoint as versions before see it, that says which size is asked for."""
REFUSAL = "refused"
"""The checkpoint, as versions before see it, that says which size is kept in the place of one that was asked for."""
WHOLE = b"whole:"
"""The key of the offset from which on the topic has all that was committed."""
RUN, SAID = b"run:", b"said:"
"""The keys of what a run is that several share, and of what each of those has said."""
LOOK_MS = 20.0
"""The ms before the next look whether a transaction has ended."""
_encode = msgspec.msgpack.Encoder().encode


class Whole(msgspec.Struct, frozen=True, array_like=True):
    """The offset from which on the ledger's topic, of such an id, has all that was committed; and what is `lost` of it.

    What is known to be lost stays so until the application begins anew.
    """

    topic_id: int
    start: int
    lost: str = ""


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """The claim of a container of a run to a task; `model` is the newest job model that it knew.

    Who claims a generation of a task first has it: the order of the topic decides. A run that has all tasks is its own
    only container, without a name. Where the task commits `alone`, it does so under a transactional id of its own.
    """

    task: int
    generation: int
    container: str
    run: int
    model: int
    alone: bool = False

    @property
    def key(self) -> bytes:
        """Its key; nobody writes there twice, so that compaction does not change the order."""
        return CLAIM + f"{self.task}:{self.generation}:{self.container or f'run {self.run}'}".encode()

    def writer(self, app: str) -> str:
        """Return the transactional id under which it commits for the task."""
        return writer_of(app, self.run, self.container, self.task if self.alone else None)


class Ledger:
    """The content of the topic at one moment.

    Generations of the application and of each task only grow. It is a value of the thread that has looked, but for an
    owner's, which the environment changes under its lock.
    """

    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self.generation: int = msgspec.msgpack.decode(entries[GENERATION], type=int) if GENERATION in entries else 0
        self.checkpoints: dict[str, Checkpoint] = {}
        self.changelogs: dict[str, Changelog] = {}
        self.kept: dict[VirtualTask, frozenset[str]] = {}
        """By task, the stores that it has ever written to."""
        self.reached: dict[VirtualTask, dict[str, ChangelogEnd]] = {}
        """By task and place of a changelog, how much the task has committed there."""
        self.claims: dict[int, Claim] = {}
        """By the number of a task, which each run gives to tasks as it splits them, the claim that is in force."""
        self.given: dict[int, int] = {}
        """By the number of a task, the last generation of it that was given up."""
        self.homes: dict[VirtualTask, Homes] = {}
        """By task, the hosts that have its state."""
        self.run: bytes | None = entries.get(RUN)
        self.whole = msgspec.msgpack.decode(entries[WHOLE], type=Whole) if WHOLE in entries else None
        """None where only earlier versions have written."""
        self.said: dict[str, bytes] = {}
        self.changelog_keys: list[bytes] = []
        self.end = 0
        """The offset up to which the topic was read, where it was waited until all was settled."""
        self.outlived: dict[int, list[bytes]] = {}
        """By task, the keys of claims that are no more in force."""
        for key, said in entries.items():
            self._take_in(key, said)

    def _take_in(self, key: bytes, said: bytes) -> None:
        if key in (GENERATION, RUN, WHOLE, SCALE, REFUSAL.encode()):
            return
        if key.startswith(CHANGELOG):
            # The first one in the topic's order is the store's: several may have made one at once.
            self.changelogs.setdefault(store_of(key), msgspec.msgpack.decode(said, type=Changelog))
            self.changelog_keys.append(key)
        elif key.startswith(KEPT):
            self.kept[_task_of(key)] = msgspec.msgpack.decode(said, type=frozenset[str])
        elif key.startswith(GIVEN):
            self.given[int(key.removeprefix(GIVEN))] = msgspec.msgpack.decode(said, type=int)
        elif key.startswith(HOMES):
            self.homes[_task_of(key)] = msgspec.msgpack.decode(said, type=Homes)
        elif key.startswith(REACHED):
            self.reached[_task_of(key)] = msgspec.msgpack.decode(said, type=dict[str, ChangelogEnd])
        elif key.startswith(SAID):
            self.said[key.removeprefix(SAID).decode()] = said
        elif key.startswith(CLAIM):
            self._hear(msgspec.msgpack.decode(said, type=Claim))
        else:
            self.checkpoints[key.decode()] = msgspec.msgpack.decode(said, type=Checkpoint)

    def _hear(self, claim: Claim) -> None:
        loser: Claim | None = self.claims.get(claim.task)
        # Entries come in the order of the topic: of two claims to a generation the first is in force.
        if loser is not None and claim.generation <= loser.generation:
            loser = claim
        else:
            self.claims[claim.task] = claim
        if loser is not None:
            self.outlived.setdefault(claim.task, []).append(loser.key)

    def keys_of(self, store: str) -> set[bytes]:
        """Return where it is said which changelog a store has."""
        said = {key for key in self.changelog_keys if key.rpartition(b":")[0] == CHANGELOG + store.encode()}
        known = self.changelogs.get(store)
        return said | ({_changelog_key(store, known)} if known is not None else set())

    def without(self, stores: Collection[str]) -> None:
        """Forget stores whose changelogs and entries are gone."""
        keys = {key for store in stores for key in self.keys_of(store)}
        self.changelog_keys = [key for key in self.changelog_keys if key not in keys]
        self.kept = {task: names.difference(stores) for task, names in self.kept.items()}
        for store in stores:
            self.changelogs.pop(store, None)

    def take_over(self, later: Ledger, tasks: Collection[VirtualTask]) -> None:
        """Take over what a later look says of tasks."""
        for store, changelog in later.changelogs.items():
            self.changelogs.setdefault(store, changelog)
        committed = later.committed
        for task in tasks:
            self.kept[task] = committed.stores(task)
            self.reached[task] = committed.ends(task)
            if task.name in later.checkpoints:
                self.checkpoints[task.name] = later.checkpoints[task.name]

    def follow(self, later: Ledger) -> None:
        """Take over what another look says of tasks that have come further since; it may be the older one of others."""
        for name, one in later.checkpoints.items():
            known = self.checkpoints.get(name)
            if is_task(name) and (known is None or _is_further(one, known)):
                self.checkpoints[name] = one

    @property
    def settled(self) -> SettledCommits:
        """The commits of the application, where it was waited for them; each writes to the topic."""
        return SettledCommits(self.checkpoints, self.end)

    @property
    def committed(self) -> Committed:
        """The ledger's word on state."""
        return Committed(self.changelogs, self.kept, self.reached)

    def said_of_parts(self) -> list[bytes]:
        """Return the keys under which anything is said of virtual tasks, but for their checkpoints."""
        by_prefix = ((KEPT, [*self.kept]), (REACHED, [*self.reached]), (HOMES, [*self.homes]))
        return [key_of(prefix, task) for prefix, tasks in by_prefix for task in tasks if task.factor > 1]

    def merged_whole(self, now: Collection[str], gone: Collection[str]) -> Committed | None:
        """Return what is committed of whole tasks where a commit leaves these alone, and virtual ones were told of.

        There may have been a run of virtual tasks that has never committed. Else, and of what is no task, it is None.
        """
        # In this order: each commit asks, and nearly all end before the names of all tasks are looked at.
        factors = {VirtualTask.of(name).factor for name in now if is_task(name)}
        if not (gone or factors) or factors - {1} or not self.said_of_parts():
            return None
        if factors | {VirtualTask.of(name).factor for name in self.checkpoints.keys() - gone if is_task(name)} != {1}:
            return None
        committed = self.committed
        whole = {VirtualTask(task.base) for task in (*self.kept, *self.reached) if task.factor > 1}
        kept = {task: committed.stores(task) for task in whole}
        return Committed(self.changelogs, kept, {task: committed.ends(task) for task in whole})

    def follow_merge(self, merged: Committed) -> None:
        """Say nothing of virtual tasks any more, which are whole ones now."""
        self.homes = {task: homes for task, homes in self.homes.items() if task.factor == 1}
        self.kept = {task: stores for task, stores in self.kept.items() if task.factor == 1}
        self.reached = {task: ends for task, ends in self.reached.items() if task.factor == 1}
        self.kept.update({task: frozenset(stores) for task, stores in merged.kept.items()})
        self.reached.update({task: dict(ends) for task, ends in merged.reached.items()})

    @property
    def newest(self) -> int:
        """The generation of the newest job model that anybody knew who has claimed a task."""
        return max((claim.model for claim in self.claims.values()), default=0)

    def newest_of(self, task: int) -> int:
        """Return the newest generation of a task that anybody has claimed; 0 where nobody has."""
        return self.claims[task].generation if task in self.claims else 0

    def homes_of(self, task: VirtualTask) -> Homes:
        """Return the hosts that have a task's state, or that of the smallest one that it is a part of."""
        factors = [task.factor >> by for by in range(task.factor.bit_length())]
        parents = (VirtualTask(task.base, task.bucket % factor, factor) for factor in factors)
        known = next((one for one in parents if one in self.homes), task)
        found = self.homes.get(known, Homes())
        # How far others were who had more keys, or fewer, says nothing of how far this one is.
        return found if known == task else Homes(found.hosts, progress=-1)

    def progress(self, task: VirtualTask) -> int:
        """Return a number that grows as a task gets on, as far as that was committed."""
        checkpoint = self.checkpoints.get(task.name)
        return sum(position.offset for position in checkpoint.positions) if checkpoint is not None else 0

    def held(self, task: int) -> Claim | None:
        """Return the claim of who has a task, and has not given it up."""
        claim = self.claims.get(task)
        return claim if claim is not None and self.given.get(task) != claim.generation else None


def _is_further(one: Checkpoint, known: Checkpoint) -> bool:
    """Whether a checkpoint is a newer one of the same task; where no offset has grown, nobody can tell."""
    offsets = {(at.stream, at.partition): at.offset for at in one.positions if at.bucket == TASKS_OWN}
    before = {(at.stream, at.partition): at.offset for at in known.positions if at.bucket == TASKS_OWN}
    return all(offsets.get(place, -1) >= at for place, at in before.items()) and offsets != before


def store_of(key: bytes) -> str:
    """Return the store whose changelog a record says."""
    return key.removeprefix(CHANGELOG).decode().rpartition(":")[0]


def ledger_of(app: str) -> str:
    """Return the name of an application's ledger."""
    return f"{app}-checkpoints"


def writer_of(app: str, run: int, container: str, task: int | None = None) -> str:
    """Return the transactional id of a container, or of one of its tasks that commits by itself."""
    return f"{app}-{run}-{container}" if task is None else f"{app}-{run}-{container}-task-{task}"


def said_of_generation(generation: int) -> Batch:
    """Return the record of a generation."""
    return Batch([_encode(generation)], [GENERATION])


def said_of_scale(scale: Scale) -> Batch:
    """Return the record of the size that is asked for."""
    return Batch([_encode(Checkpoint(0, meanings={ASKED: msgspec.json.encode(scale).decode()}))], [SCALE])


def said_of_refusal(refusal: Scale) -> Batch:
    """Return the record of the size that is kept in the place of one that was asked for.

    It has a key of its own: nobody overwrites what is asked meanwhile.
    """
    said = Checkpoint(0, meanings={REFUSAL: msgspec.json.encode(refusal).decode()})
    return Batch([_encode(said)], [REFUSAL.encode()])


def scale_in(entries: Mapping[bytes, bytes]) -> Scale:
    """Return the size that was asked for last, or is kept in its place."""
    asked = _asked(entries[SCALE]) if SCALE in entries else Scale()
    said = entries.get(REFUSAL.encode())
    if said is None:
        return asked
    checkpoint = msgspec.msgpack.decode(said, type=Checkpoint)
    return asked.refused(msgspec.json.decode(checkpoint.meanings[REFUSAL], type=Scale))


def _asked(said: bytes) -> Scale:
    try:
        noted = msgspec.msgpack.decode(said, type=Checkpoint)
    except msgspec.ValidationError:
        # The first versions that split tasks have said it as it is, which those before them can't read.
        return msgspec.msgpack.decode(said, type=Scale)
    return msgspec.json.decode(noted.meanings[ASKED], type=Scale)


def said_of_whole(whole: Whole) -> Batch:
    """Return the record of from where on the ledger has all."""
    return Batch([_encode(whole)], [WHOLE])


def said_of_changelog(store: str, changelog: Changelog) -> Batch:
    """Return the record of a store's changelog; where several say one, it is the first."""
    return Batch([_encode(changelog)], [_changelog_key(store, changelog)])


def _changelog_key(store: str, changelog: Changelog) -> bytes:
    return CHANGELOG + f"{store}:{changelog.identity}".encode()


def said_of_checkpoints(checkpoints: Mapping[str, Checkpoint]) -> Batch:
    """Return the records of tasks' checkpoints."""
    return Batch([_encode(one) for one in checkpoints.values()], [name.encode() for name in checkpoints])


def _task_of(key: bytes) -> VirtualTask:
    return VirtualTask.of(key.partition(b":")[2].decode())


def key_of(prefix: bytes, task: VirtualTask) -> bytes:
    """Return the key under which something is said of a task."""
    return prefix + task.name.encode()


def said_of_stores(kept: Mapping[VirtualTask, Collection[str]]) -> Batch:
    """Return the records of which stores tasks have written to."""
    return Batch([_encode(sorted(names)) for names in kept.values()], [key_of(KEPT, task) for task in kept])


def said_of_reached(reached: Mapping[VirtualTask, Mapping[str, ChangelogEnd]]) -> Batch:
    """Return the records of how much tasks have committed to changelogs."""
    return Batch([_encode(one) for one in reached.values()], [key_of(REACHED, task) for task in reached])


def said_of_claims(claims: Collection[Claim]) -> Batch:
    """Return the records of claims."""
    return Batch([_encode(claim) for claim in claims], [claim.key for claim in claims])


def said_of_given(generations: Mapping[int, int]) -> Batch:
    """Return the records of tasks that are given up."""
    return Batch([_encode(one) for one in generations.values()], [GIVEN + b"%d" % task for task in generations])


def said_of_homes(homes: Mapping[VirtualTask, Homes]) -> Batch:
    """Return the records of which hosts have the state of tasks."""
    return Batch([_encode(one) for one in homes.values()], [key_of(HOMES, task) for task in homes])


def forgotten(keys: Collection[bytes]) -> Batch:
    """Return the records that remove what lies under keys."""
    return Batch([None] * len(keys), [*keys])


def say_moved(
    streams: KafkaStreams, app: str, ledger: Ledger, host: str, were_given: Mapping[VirtualTask, bool]
) -> None:
    """Say that the state of tasks is on a host now, and of each whether who had it has given it up."""
    homes = {
        task: ledger.homes_of(task).taken(host, ledger.progress(task), was_given=was_given)
        for task, was_given in were_given.items()
    }
    streams.write(ledger_of(app), said_of_homes(homes))
    ledger.homes |= homes


async def look(streams: KafkaStreams, app: str) -> Ledger:
    """Return what is committed now, as far as no transaction is open."""
    table = streams.table(ledger_of(app))
    ledger = Ledger(await table.now())
    ledger.end = table.known_to or 0
    return ledger


async def settle(
    streams: KafkaStreams, app: str, is_gone: Callable[[Claim], bool], fenced: set[str] | None = None
) -> Ledger:
    """Return all that was committed, when who is gone can't commit any more and what it had begun is rolled back.

    A transaction that is open keeps what comes after it from being read. Those who live end theirs; those who are gone
    are `fenced`, each known by a claim that lies before what it has written.
    """
    fenced, table = set() if fenced is None else fenced, streams.table(ledger_of(app))
    while True:
        # Before the look: all that lies below it must be readable for the look to count.
        end = await table.end_of_all()
        ledger = await look(streams, app)
        held = [claim for task in ledger.claims if (claim := ledger.held(task)) is not None and is_gone(claim)]
        gone = {claim.writer(app) for claim in held} - fenced
        if gone:
            await side_by_side(fence(streams, writer) for writer in gone)
            # Then it is looked again: what the fenced had left open is rolled back, and no longer hides what lies
            # behind.
            fenced |= gone
        elif ledger.end >= end:
            return ledger
        else:
            await sleep_ms(LOOK_MS)


async def fence(streams: KafkaStreams, writer: str) -> None:
    """Take a transactional id for a moment: its last user can't commit any more, and what it began is rolled back."""
    await ended(await streams.producer(writer))
