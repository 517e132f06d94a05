"""The beginning and end of aiokafka's clients: none leaves a connection behind, whatever brokers do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from runtime.model.clock import sleep_ms
from runtime.systems.kafka.client.client_log import tell_unreached
from runtime.systems.kafka.client.private_names import connections, use_connections

if TYPE_CHECKING:
    from aiokafka import AIOKafkaClient, AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.structs import OffsetAndMetadata, OffsetAndTimestamp, RecordMetadata

C = TypeVar("C", bound="Client")
R = TypeVar("R")
Begun: TypeAlias = "AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient"
BEGIN_S = 120.0
"""The s within which a client has begun: aiokafka asks on and on, and what it waits for may never come."""
STOP_S = 5.0
"""The s that a client may take for each step of its end."""
ASK_AGAIN_MS = 100
"""The ms until brokers that know of none yet are asked again."""
SHARED = 8
"""The clients, each with its own connections, over which a process's producers of tasks are spread."""


class Client(Protocol):
    """A producer, consumer or administrator that can begin; aiokafka says no types itself."""

    async def start(self) -> None:
        """Open its connections."""


class Building(Protocol):
    """A batch that a producer builds, to which nothing is appended any more once that returns None."""

    def append(
        self, *, key: bytes | None, value: bytes | None, timestamp: int | None, headers: list[tuple[str, bytes | None]]
    ) -> object:
        """Add a record."""

    def record_count(self) -> int:
        """Return how many records it has."""


class Producer(Client, Protocol):
    """The part of aiokafka's producer that is used here."""

    client: AIOKafkaClient

    def create_batch(self) -> Building:
        """Return an empty batch."""

    async def send_batch(self, batch: Building, topic: str, *, partition: int) -> asyncio.Future[RecordMetadata]:
        """Begin to send a batch; return what comes to be its place."""

    async def begin_transaction(self) -> None:
        """Begin a transaction."""

    async def commit_transaction(self) -> None:
        """Commit what was sent since it began."""

    async def abort_transaction(self) -> None:
        """Roll back what was sent since it began."""

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_id: str
    ) -> None:
        """Commit a group's offsets with the transaction."""

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """Return a block that is one transaction."""


class Fetched(Protocol):
    """A record as a consumer gives it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]]


class Consumer(Client, Protocol):
    """The part of aiokafka's consumer that is used here."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Share partitions of topics with the group."""

    def unsubscribe(self) -> None:
        """Read nothing any more."""

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions, and no others."""

    def assignment(self) -> Collection[TopicPartition]:
        """Return the partitions that it reads."""

    def pause(self, *partitions: TopicPartition) -> None:
        """Fetch nothing of partitions for now."""

    def resume(self, *partitions: TopicPartition) -> None:
        """Fetch of partitions that were paused again."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition on from an offset."""

    async def seek_to_beginning(self, *partitions: TopicPartition) -> object:
        """Read partitions from their starts."""

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record."""

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int) -> Mapping[TopicPartition, Sequence[Fetched]]:
        """Return records by partition, once there are any or that time is over."""

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where partitions begin."""

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where partitions end."""

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return where the records since a time (ms) begin."""

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the offset behind all that was written, as last heard."""

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset behind all that is decided, as last heard."""

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        """Return when a broker was last heard of (ms)."""


async def begun(client: C, *topics: str, within_s: float = BEGIN_S) -> C:
    """Return a producer, consumer or administrator once it can be used; raises what keeps it from that.

    It knows `topics` then: one that is asked for what it does not know pauses for 100 ms, for each of them. Raises
    TimeoutError where it has not begun in time.
    """
    _wait_for_brokers(connections(client))
    beginning, answered = asyncio.ensure_future(client.start()), asyncio.Event()
    cluster = connections(client).cluster

    def hear(_: object) -> None:
        answered.set()

    cluster.add_listener(hear)
    try:
        # Shielded, since a beginning that is cancelled in its midst leaves a connection open; `_given_up` ends it in
        # its own time.
        async with asyncio.timeout(within_s):
            await asyncio.shield(beginning)
            if topics:
                await connections(client).set_topics(topics)
    except BaseException:
        await _to_its_end(_given_up(client, beginning, answered))
        raise
    finally:
        cluster.remove_listener(hear)  # of connections that are shared, which stay
    return client


async def ended(client: Begun) -> None:
    """End a client, whatever it still waits for, also for who is cancelled; its errors tell nothing any more."""
    await _to_its_end(_close(client))


async def side_by_side(work: Iterable[Awaitable[R]]) -> list[R]:
    """Wait until each has succeeded or failed, and return what they have; raises what the first one to fail does."""
    done = await asyncio.gather(*work, return_exceptions=True)
    found: list[R] = []
    for one in done:
        if isinstance(one, BaseException):
            raise one
        found.append(one)
    return found


def _wait_for_brokers(connections: AIOKafkaClient) -> None:
    """Let connections have found a broker once they are open.

    A broker that has just started may answer before it is in its own list: aiokafka goes on with an empty one, and
    ends in an AssertionError.
    """
    bootstrap = connections.bootstrap

    async def bootstrap_until_known() -> None:
        await bootstrap()
        tell_unreached(connections.hosts)
        while not connections.cluster.brokers():
            await sleep_ms(ASK_AGAIN_MS)
            await connections.force_metadata_update()

    # It has no public way: `start` opens the connections, and needs brokers at once.
    connections.bootstrap = bootstrap_until_known


async def _close(client: Begun) -> None:
    # A stop closes connections last: not where it fails before, nor where what it cancels goes on all the same.
    for ending in (client.stop if hasattr(client, "stop") else client.close, connections(client).close):
        await _awaited(ending())


async def _given_up(client: Begun, beginning: asyncio.Future[Any], answered: asyncio.Event) -> None:
    """End a client that begins; before brokers have answered a cancelled one would lose its first connection."""
    hearing = asyncio.ensure_future(answered.wait())
    await asyncio.wait([beginning, hearing], timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
    hearing.cancel()
    beginning.cancel()
    await _awaited(beginning)
    await _close(client)


async def _to_its_end(work: Coroutine[object, object, None]) -> None:
    """Do work to its end, and raise a cancel that comes meanwhile behind it: cut off, it would leave things open."""
    ending, cancelled = asyncio.ensure_future(work), None
    while not ending.done():
        try:
            await asyncio.wait([ending])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    await ending


async def _awaited(ending: Awaitable[object]) -> None:
    """Wait for an end, though not for ever."""
    task = asyncio.ensure_future(ending)
    try:
        await asyncio.wait([task], timeout=STOP_S)
    finally:
        task.cancel()
    if task.done() and not task.cancelled():
        task.exception()  # else it is told that nobody has looked


@asynccontextmanager
async def during(client: C, *topics: str) -> AsyncIterator[C]:
    """Begin a client, which knows `topics`, and end it after a block."""
    await begun(client, *topics)
    try:
        yield client
    finally:
        await ended(client)


class Patience:
    """The wait of a loop for brokers, which ends where nothing comes for too long: a fetch itself never gives up.

    It is used on Kafka's thread alone.
    """

    def __init__(self, within_s: float = BEGIN_S) -> None:
        self._within_s, self._clock = within_s, asyncio.get_running_loop().time
        self._since, self._seen = self._clock(), object()

    def spend(self, seen: object) -> None:
        """Begin anew where it is another thing that is `seen`; raises TimeoutError where it was the same for long."""
        now = self._clock()
        if seen != self._seen:
            self._since, self._seen = now, seen
        elif now - self._since > self._within_s:
            raise TimeoutError(f"nothing came of the brokers for {self._within_s:.0f} s")


class SharedClients:
    """The clients whose connections producers share: brokers answer what comes over one of them in its order.

    The first `most` producers have one each, as if nothing were shared. It is used on Kafka's thread alone.
    """

    def __init__(self, most: int = SHARED) -> None:
        self._most = most
        self._shared: list[_Shared] = []

    def share(self, producer: AIOKafkaProducer) -> None:
        """Let a producer that has not begun use the client with the fewest users."""
        if len(self._shared) < self._most:
            self._shared.append(_Shared(producer.client, self._shared))
        lease = _Lease(min(self._shared, key=lambda one: one.users))
        use_connections(producer, lease)


class _Shared:
    """A client that several use: the first to begin opens it, the last to end closes it."""

    def __init__(self, client: AIOKafkaClient, among: list[_Shared]) -> None:
        self.client = client
        self.users = 0
        self._among = among
        self._has_begun = False
        self._one_begins = asyncio.Lock()

    async def begin(self) -> None:
        # Two producers of one client may begin at once, and it must be opened only once.
        async with self._one_begins:
            if not self._has_begun:
                await self.client.bootstrap()
                self._has_begun = True

    async def leave(self) -> None:
        assert self.users > 0, "a client is left as often as it is shared"
        self.users -= 1
        if not self.users:
            self._among.remove(self)
            await self.client.close()


class _Lease:
    """A client as one of those has it that share it: once it has closed it, others go on."""

    def __init__(self, shared: _Shared) -> None:
        self._shared: _Shared | None = shared
        self._client = shared.client
        shared.users += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def bootstrap(self) -> None:
        if self._shared is not None:
            await self._shared.begin()

    async def ready(self, *args: object, **how: object) -> bool:
        """Return whether a broker can be asked: for who has ended, none can."""
        return self._shared is not None and await self._client.ready(*args, **how)

    async def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.leave()
