"""The offer of the inputs of a run on Spark that goes on: what there is to read, and the end of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from operators.io import Input
from runtime.assembly.bindings import Bindings
from runtime.model.clock import Clock
from runtime.model.errors import EnvironmentFault, SamzaError, command
from runtime.ports.source import Source
from runtime.ports.streams import Offsets
from runtime.systems.files.files import KIND_OF_SUFFIX, open_source
from runtime.systems.files.places.locations import files_of, is_remote
from runtime.systems.files.places.tables import only_on_spark
from runtime.systems.kafka.client.topic import topic_of
from runtime.systems.memory.lists import ListSource
from runtime.units.growing import GrowingLines, LandedLines, Piece
from runtime.units.micro_batch import IdleTime, Place
from runtime.units.splits import Splits

if TYPE_CHECKING:
    from runtime.units.topics import GrowingTopic

MOST_BYTES = 64 << 20
"""The most bytes of one file that a micro-batch reads."""

Ends = Mapping[str, Sequence[tuple[int, bool]]]
"""By stream, the offset up to which each partition was read, and whether it had ended there."""
Pieces = dict[str, list[list[Piece]]]


@dataclass(frozen=True)
class Landing:
    """An input that the engine lays down batch by batch in folders of `place`; `check` raises where it has failed."""

    place: Path
    partitions: int
    check: Callable[[], None]


class Offered:
    """The partitions of all inputs: what there is of them, and what of it comes next.

    Messages wait until tables are read as far as they were when the run began. Raises SamzaError for what isn't there.

    A micro-batch begins in each partition where the last committed one has ended, and never ends before it begins. The
    driver's thread uses it.
    """

    def __init__(
        self, reads: Sequence[Input], bind: Mapping[str, object], pieces: Pieces, clock: Clock, most_records: int
    ) -> None:
        self._reads, self._clock, self._most_records = reads, clock, most_records
        self._paths = {
            spec.stream: what
            for spec in reads
            if isinstance(what := bind.get(spec.stream), str | Path) and topic_of(what) is None
        }
        self._landings = {name: what for name, what in bind.items() if isinstance(what, Landing)}
        self._topics: dict[str, GrowingTopic] = {}
        try:
            self.sources = {spec.stream: self._source(spec, bind, pieces) for spec in reads if spec.stream in bind}
        except BaseException:
            self.close()
            raise
        self._bindings: Bindings | None = None
        self._tables: dict[Place, int] = {}
        self._targets: dict[Place, int] | None = None
        self._counts: dict[str, int] = {}
        """The partitions that streams of the environment had as they were first looked at, by which tasks are."""
        self._changed_at: dict[Place, tuple[float, tuple[int, bool]]] = {}
        self._looked_at = clock.elapsed_ms()

    def begin(self, bindings: Bindings, until_now: bool) -> None:
        """Note where everything ends as the run begins; `until_now` no more than that is read."""
        self._bindings = bindings
        now = {place: found.end for place, found in self.all().items()}
        tables = {spec.stream for spec in self._reads if spec.looked_into}
        self._tables = {place: end for place, end in now.items() if place[0] in tables}
        self._targets = now if until_now else None

    def all(self) -> dict[Place, Offsets]:
        """Return what can be read now, of each partition of each input."""
        assert self._bindings is not None
        environment = self._bindings.environment
        streams = environment.streams() if any(spec.stream not in self.sources for spec in self._reads) else {}
        found: dict[Place, Offsets] = {}
        for spec in self._reads:
            for stream in self._bindings.streams_of(spec):
                source, config = self.sources.get(stream), streams.get(stream)
                if source is not None:
                    found |= {(stream, number): source.offsets(number) for number in range(source.partitions)}
                elif config is not None:
                    self._check_count(stream, config.partitions)
                    places = range(config.partitions)
                    found |= {(stream, number): environment.offsets(stream, number) for number in places}
                else:
                    raise SamzaError(
                        f"there is no stream {stream!r} to read: bind it to a file, or write to it first "
                        f"({command(f'streams produce {stream}')})"
                    )
        return found

    def _check_count(self, stream: str, partitions: int) -> None:
        began = self._counts.setdefault(stream, partitions)
        if partitions != began:
            raise EnvironmentFault(
                f"Stream {stream!r} has {partitions} partitions now, and had {began} as this run began, by which its "
                "tasks and their state are: begin anew from another checkpoint"
            )

    def next(self, read: Ends) -> dict[Place, Offsets]:
        """Return the range of each partition as far as the next micro-batch goes, given how far others have come."""
        offered, ends = self.all(), {}
        waits = any(_start(read, place, found) < self._tables.get(place, 0) for place, found in offered.items())
        for place, found in offered.items():
            start = _start(read, place, found)
            end = self._end(place, start, found)
            if self._targets is not None:
                end = min(end, max(self._targets.get(place, 0), start))
            # Until tables are read up to there messages get an empty range: a lookup finds what was there when the run
            # began.
            if waits and place not in self._tables:
                end = start
            begin = found.start if place in self._tables else start  # broadcast tables are read anew
            ends[place] = Offsets(begin, end, found.ended and end == found.end)
        self._note(ends)
        return ends

    def is_read(self, read: Ends) -> bool:
        """Whether there is nothing that was not read."""
        targets = self._targets or {}
        return all(
            _start(read, place, found) >= min(found.end, targets.get(place, found.end))
            for place, found in self.all().items()
        )

    def have_ended(self, ends: Mapping[Place, Offsets]) -> bool:
        """Whether nothing comes behind these ends any more."""
        return bool(ends) and all(found.ended for place, found in ends.items() if place not in self._tables)

    def is_quiet(self, ends: Mapping[Place, Offsets]) -> bool:
        """Whether an input has been quiet for so long that event time may go on without it."""
        elapsed_ms = self._clock.elapsed_ms()
        for spec in self._reads:
            for (stream, number), found in ends.items():
                after_ms = spec.idle_after_ms
                if after_ms is None or found.ended or not spec.matches(stream):
                    continue
                since, _ = self._changed_at.get((stream, number), (elapsed_ms, None))
                if elapsed_ms - since >= after_ms and (spec.close_on_idle or since + after_ms > self._looked_at):
                    return True
        return False

    def quiet(self, ends: Mapping[Place, Offsets]) -> dict[Place, IdleTime]:
        """Return for how long nothing has come of each partition, as a micro-batch begins."""
        looked_at, self._looked_at = self._looked_at, self._clock.elapsed_ms()
        return {
            place: IdleTime(self._looked_at - self._changed_at[place][0], self._looked_at - looked_at) for place in ends
        }

    def close(self) -> None:
        """Look no more."""
        for topic in self._topics.values():
            topic.close()

    def _note(self, ends: Mapping[Place, Offsets]) -> None:
        """Note which partitions something has come of."""
        elapsed_ms = self._clock.elapsed_ms()
        for place, found in ends.items():
            now = found.end, found.ended
            if place not in self._changed_at or self._changed_at[place][1] != now:
                self._changed_at[place] = elapsed_ms, now

    def look(self, read: Ends) -> None:
        """Look for what has come to topics, and for files that have come, given how far others were `read`."""
        for topic in self._topics.values():
            topic.look()
        for name, source in self.growing.items():
            if isinstance(source, LandedLines):
                self._landings[name].check()
                self.sources[name] = source.behind(read.get(name, [(0, False)] * source.partitions)).look(
                    self._landings[name].place
                )
            else:
                self.sources[name] = source.look(self._paths[name])

    def sweep(self) -> None:
        """Remove files that were read, once it is committed that nobody will read them again."""
        for name, landing in self._landings.items():
            source = self.sources[name]
            assert isinstance(source, LandedLines), "what lands is read as that"
            source.sweep(landing.place)

    @property
    def growing(self) -> dict[str, GrowingLines]:
        """The inputs that are files that grow."""
        return {name: source for name, source in self.sources.items() if isinstance(source, GrowingLines)}

    @property
    def pieces(self) -> Pieces:
        """The files that partitions consist of, where these grow."""
        return {name: [*map(list, source.pieces)] for name, source in self.growing.items()}

    def to_read(self) -> dict[str, Source]:
        """Return the inputs that are bound as workers read them: who opens a file is who reads it."""
        whole = {
            name: Splits.at(path)
            for name, path in self._paths.items()
            if not isinstance(self.sources[name], GrowingLines)
        }
        splits = {name: topic.splits for name, topic in self._topics.items()}
        return {**self.sources, **whole, **splits}

    def _source(self, spec: Input, bind: Mapping[str, object], pieces: Pieces) -> Source:
        """Return an input that is bound: files of JSON lines grow, others are what they are."""
        what = bind[spec.stream]
        if isinstance(what, Landing):
            return LandedLines(pieces.get(spec.stream) or [()] * what.partitions).look(what.place)
        if (topic := topic_of(what)) is not None:
            from runtime.units.topics import GrowingTopic

            self._topics[spec.stream] = GrowingTopic(topic)
            return self._topics[spec.stream]
        if (kind := only_on_spark(what)) is not None or (isinstance(what, str | Path) and is_remote(what)):
            raise SamzaError(
                f"bind={{{spec.stream!r}: ...}}: {kind or 'a URL'} is read by a run on Spark that ends. One with a "
                "checkpoint reads what grows: files of JSON lines, a topic (kafka://HOST:9092/TOPIC), or the log"
            )
        if spec.stream not in self._paths:
            return ListSource(what) if isinstance(what, list) else cast(Source, what)
        path = self._paths[spec.stream]
        if spec.stream in pieces:
            return GrowingLines(pieces[spec.stream]).look(path)
        if all(KIND_OF_SUFFIX.get(file.path.suffix.lower()) == "jsonl" for file in files_of(path)):
            return GrowingLines.at(path, spec.partitions)
        return open_source(path)

    def _end(self, place: Place, start: int, found: Offsets) -> int:
        """Return where a micro-batch ends in a partition, as far as it is for its size."""
        source = self.sources.get(place[0])
        if isinstance(source, GrowingLines):
            return source.end_within(place[1], start, MOST_BYTES)
        return min(found.end, start + self._most_records)


def _start(read: Ends, place: Place, found: Offsets) -> int:
    """Return from where on a partition is to be read."""
    known = read.get(place[0], ())
    return known[place[1]][0] if place[1] < len(known) else found.start
