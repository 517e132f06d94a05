"""A look at where the first keys of streams lie, which have to meet: not all writers go by Kafka's own hash."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from operators.core.base import Spec
from operators.partition_by import murmur2
from planner.model.errors import PlanError, refuse

SAMPLE = 1_000
"""The records of a partition that are looked at in a run."""
SURE = 20
"""The keys that all have to lie where a hash says until that is no chance: in two partitions, one in a million."""
_log = logging.getLogger("samza_dsl")


@dataclass
class KeysSeen:
    """The keys that were seen of a stream, each once, and how many of them lie where each hash puts them."""

    by_hash: bool = True
    """Whether its writers are supposed to go by a hash."""
    keys: dict[bytes, int] = field(default_factory=dict)
    """The partition in which each was seen first."""
    split: int = 0
    """The keys that were seen in another partition since."""
    murmur2: int = 0
    crc32: int = 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether some key does not lie where Kafka's own hash says."""
        return self.murmur2 < len(self.keys)

    @property
    def is_sure(self) -> bool:
        """Whether enough keys lie where Kafka's own hash says, and none elsewhere."""
        return len(self.keys) >= SURE and not self.is_elsewhere

    @property
    def is_odd(self) -> bool:
        """Whether too many keys lie neither where Kafka's own hash says nor where librdkafka's does."""
        return self.by_hash and len(self.keys) >= SURE and self.is_elsewhere and not self.is_by_crc32

    @property
    def is_by_crc32(self) -> bool:
        """Whether all keys lie where librdkafka's default partitioner puts them."""
        return self.crc32 == len(self.keys)


@dataclass(frozen=True)
class Meeting:
    """An operator at which equal keys have to meet, of one stream or of several, some of which may be `by_hash`."""

    spec: Spec
    streams: frozenset[str]
    by_hash: bool


class KeyPlaces:
    """The places of the first keys of streams that have to meet, as far as readers of one process have seen them.

    Counts only grow, and a reader that has looked at a sample looks no more. One thread at a time notes the keys of a
    partition; two threads that note of one stream at once may lose a count, which makes a sample smaller.
    """

    def __init__(self, meetings: Iterable[Meeting]) -> None:
        self._meetings = [*meetings]
        self._seen: dict[str, KeysSeen] = {}
        self._told: set[str] = set()

    def concerns(self, stream: str) -> bool:
        """Whether keys of a stream have to meet others."""
        return any(stream in meeting.streams for meeting in self._meetings)

    def note(
        self, stream: str, partition: int, partitions: int, keys: Sequence[bytes | None], by_hash: bool = True
    ) -> None:
        """Look at stored keys of a partition; raises PlanError where equal keys of two streams can't meet.

        Where its writers do not go `by_hash`, as those of a source with partitions of its own, keys lie as they will.
        """
        seen = self._seen.setdefault(stream, KeysSeen(by_hash))
        before = seen.is_elsewhere, seen.is_sure, seen.split > 0, seen.is_odd
        for key in keys:
            if key is None:
                continue
            if (first := seen.keys.setdefault(key, -1)) >= 0:
                seen.split += first != partition
            else:
                seen.keys[key] = partition
                seen.murmur2 += murmur2(key) % partitions == partition
                seen.crc32 += zlib.crc32(key) % partitions == partition
        assert seen.murmur2 <= len(seen.keys), "a key is counted once"
        if (seen.is_elsewhere, seen.is_sure, seen.split > 0, seen.is_odd) != before:
            for meeting in self._meetings:
                if stream in meeting.streams:
                    self._judge(meeting)

    def _judge(self, meeting: Meeting) -> None:
        found = {stream: self._seen[stream] for stream in sorted(meeting.streams) if stream in self._seen}
        self._tell_split(meeting, found)
        elsewhere = [stream for stream, seen in found.items() if seen.is_elsewhere]
        if not elsewhere or (len(meeting.streams) == 1 and not meeting.by_hash):
            return
        others = [stream for stream in found if found[stream].is_sure]
        if meeting.by_hash or others:
            raise self._error(meeting.spec, elsewhere[0], found[elsewhere[0]], others)
        alike = all(found[stream].is_by_crc32 for stream in elsewhere)
        if len(elsewhere) > 1 and not alike and meeting.spec.op_id not in self._told:
            self._told.add(meeting.spec.op_id or "")
            _log.warning(
                "%s %r at %s: keys of %s do not lie where Kafka's hash (murmur2) says, and whether equal keys meet "
                "can't be seen; if their writers share no partitioner, write .partition_by(...) before it on each",
                *(meeting.spec.kind, meeting.spec.op_id, meeting.spec.site, " and ".join(map(repr, elsewhere))),
            )

    def _tell_split(self, meeting: Meeting, found: Mapping[str, KeysSeen]) -> None:
        """Tell once of each stream whose equal keys do not lie together, or that may be such a one.

        It is no error: a stream that was given more partitions has such keys, and a writer may go by a partitioner of
        its own. Of the partitions that other processes read nothing is known here.
        """
        spec = meeting.spec
        for stream, seen in found.items():
            if seen.split:
                words = "equal keys of %r lie in several of its partitions, so each has state of its own for them there"
            elif seen.is_odd and len(meeting.streams) == 1:
                words = (
                    "keys of %r lie where neither Kafka's hash (murmur2) nor librdkafka's (CRC32) says, as those of a "
                    "writer that goes by turns do: equal keys may have several states"
                )
            else:
                continue
            place = f"{spec.op_id}:{stream}:{'split' if seen.split else 'odd'}"
            if place not in self._told:
                self._told.add(place)
                _log.warning(
                    f"%s %r at %s: {words}; if its writer does not put all records of a key into one partition, write "
                    ".partition_by(...) before it",
                    *(spec.kind, spec.op_id, spec.site, stream),
                )

    def _error(self, spec: Spec, stream: str, seen: KeysSeen, others: Sequence[str]) -> PlanError:
        by = "CRC32, as librdkafka does by default" if seen.is_by_crc32 else "something else, or had fewer partitions"
        away, met = len(seen.keys) - seen.murmur2, repr(others[0]) if others else "what a partition_by writes"
        wrong = (
            f"{away:,} of the first {len(seen.keys):,} keys of {stream!r} do not lie in the partition that Kafka's "
            f"hash (murmur2) says, as those of {met} do: its writer goes by "
            f"{by}; so equal keys do not meet"
        )
        instead = f".partition_by(...) on {stream!r} before it, or broadcast=True and on= where that is a table"
        return refuse(spec, wrong, instead)
