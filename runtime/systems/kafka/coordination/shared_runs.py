"""The run of an application that several starters of containers share: what it is, who lives in it, what each says."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import GroupCoordinatorNotAvailableError

from operators.core.base import Batch
from runtime.model.assignment import JobModel
from runtime.systems.kafka.client.admin import administering
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.coordination.group import Awaited, Joining, KafkaGroup, Standing, group_of
from runtime.systems.kafka.state.ledger import RUN, SAID, Ledger, ledger_of
from runtime.systems.kafka.streams.streams import KafkaStreams

JOINED_S = 10.0
"""The s for which who spans two runs waits to be a member: others hear of it soon, unless one has just died."""


class KafkaRuns:
    """The newest run of one application on a cluster, as its group and the `entries` of its ledger have it."""

    def __init__(
        self,
        streams: KafkaStreams,
        app: str,
        entries: Callable[[], Mapping[bytes, bytes]],
        say_as_owner: Callable[[Batch], None],
    ) -> None:
        self._streams = streams
        self._app = app
        self._entries = entries
        self._say_as_owner = say_as_owner

    def model(self) -> JobModel:
        """Return who runs what now, as all containers were told; no containers where none lives."""
        found: JobModel = self._streams.call(ledger_of(self._app), self._model())
        return found

    def is_alive(self) -> bool:
        """Whether any container lives that shares tasks, or has died so recently that nobody knows."""
        members = self._streams.call(ledger_of(self._app), self._members())
        said = [ConsumerProtocolMemberMetadata.decode(one[3]) for one in members if one[3]]
        alone = [one for one in said if not msgspec.msgpack.decode(one.user_data, type=Joining).tasks]
        return len(members) > len(alone)

    def is_run(self) -> bool:
        """Whether any process lives that runs it, alone or in containers."""
        return bool(self._streams.call(ledger_of(self._app), self._members()))

    def generation(self) -> int:
        """Return the generation of the newest run; 0 where there was none."""
        return Ledger(self._entries()).generation

    def begun(self) -> bytes | None:
        """Return what was said of the newest run when it began, where it is shared."""
        return Ledger(self._entries()).run

    def begin(self, said: bytes) -> None:
        """Say what others need to know who come to share the run."""
        self._say_as_owner(Batch([said], [RUN]))

    def say(self, starter: str, said: bytes) -> None:
        """Say how far one's containers are."""
        self._streams.write(ledger_of(self._app), Batch([said], [SAID + starter.encode()]))

    def said(self) -> Mapping[str, bytes]:
        """Return what each has said last, in any run."""
        return Ledger(self._entries()).said

    async def _model(self) -> JobModel:
        assigned = [ConsumerProtocolMemberAssignment.decode(one[4]) for one in await self._members() if one[4]]
        models = [msgspec.msgpack.decode(one.user_data, type=JobModel) for one in assigned]
        return max(models, key=lambda model: (model.run, model.generation), default=JobModel())

    async def _members(self) -> list[tuple[object, ...]]:
        try:
            async with administering(self._streams.topic(ledger_of(self._app))) as client:
                answers = await client.describe_consumer_groups([group_of(self._app)])
        except GroupCoordinatorNotAvailableError:  # the brokers make the topic of groups when it is asked for first
            return []
        return [member for answer in answers for group in answer.groups for member in group[5]]


class Announced:
    """The group member of a process that has an application to itself: where it can't join, others do not see it.

    Or, without a `run`, of one that waits until the containers of one run have gone and those `awaited` of the next
    have come, by their host.
    """

    def __init__(
        self,
        streams: KafkaStreams,
        thread: KafkaThread,
        app: str,
        run: int,
        place: Standing,
        awaited: Awaited | None = None,
    ) -> None:
        said = Joining(
            f"process {os.getpid()}", run, 0, JobModel(), host=place.host, address=place.address, awaited=awaited
        )
        self._group = KafkaGroup(app, streams.topic(ledger_of(app)), said)
        self._awaited = Counter(awaited.hosts if awaited is not None else {})
        self._thread = thread
        self._joining: asyncio.Task[None] = thread.call(self._begin())
        if awaited is not None:
            thread.call(asyncio.wait([self._joining], timeout=JOINED_S))

    def have_all_come(self, run: int) -> bool:
        """Whether all who were awaited belong to a run."""
        model = self._group.model
        return model.run == run and Counter(model.hosts) >= self._awaited

    def leave(self) -> None:
        """Be a member no more; a second call does nothing."""
        self._thread.call(self._end())

    async def _begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._join())

    async def _end(self) -> None:
        self._joining.cancel()
        await asyncio.wait([self._joining])
        await self._group.leave()

    async def _join(self) -> None:
        with suppress(Exception):
            await self._group.join()
