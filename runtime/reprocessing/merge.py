"""Merges recomputed results into the stream of live ones, and chooses where both have one of the same key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast
from uuid import uuid4

from operators.core.base import Batch, Output, Serde, Spec
from operators.core.wording import class_name, shown, words_of
from operators.io import SendTo
from operators.partition_by import murmur2
from planner.model.graph import Graph
from runtime.assembly.distinct_places import ANOTHER
from runtime.encoding.serdes import Natural
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.errors import OperatorFailure, SamzaError
from runtime.model.history import Merge, prefer_live
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, own_whole
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append

HEADER = "recomputed"
"""The header of a record that was merged in, with the mark of the merging: so it is no live result."""
STORE, TASK = "live", 0
"""The store, and its task, with the newest live result of each key and window."""
RUN, LIVE, DONE = "run", "live", "recomputed"
"""The checkpoints of a merging: its mark, and its positions in the live and in the recomputed stream."""
ROWS_AT_ONCE = 10_000


class Merging(NamedTuple):
    """One merging, as the application `app`: the recomputed stream, the live one, their serdes, and the choice.

    Where it `is_windowed`, results of one key are told from each other by their time.
    """

    app: str
    recomputed: str
    live: str
    value: Serde
    key: Serde
    is_windowed: bool
    merge: Merge


def merging_of(graph: Graph, output: str, live: str, app: str, recomputed: str, merge: Merge) -> Merging:
    """Return the merging of an output; raises SamzaError where the application has none of that name."""
    for id, spec in graph.of(SendTo).items():
        if spec.output.stream == output:
            key = spec.output.key or graph.key_serde(graph.parents(id)[0]) or Natural()
            found = (app, recomputed, live, spec.output.value, key)
            return Merging(*found, _is_windowed(graph, id), merge)
    known = ", ".join(sorted(one.stream for one in _outputs(graph)))
    raise SamzaError(f"the app sends nothing to {output!r}, so nothing can be merged; it sends to {known or 'nothing'}")


@dataclass(frozen=True)
class Merges:
    """The live streams into which outputs are merged, by output, and the choice between two results."""

    into: Mapping[str, str] = field(default_factory=dict)
    merge: Merge = prefer_live

    def bind(self, app: str) -> dict[str, str]:
        """Return the bindings by which the application `app` writes its outputs beside, before they are merged."""
        return {output: f"{ANOTHER}{app}-{output}" for output in self.into}

    def of(self, graph: Graph, app: str) -> list[Merging]:
        """Return the merging of each output; raises SamzaError where the application has no such output."""
        return [
            merging_of(graph, output, live, f"{app}-{output}", f"{app}-{output}", self.merge)
            for output, live in self.into.items()
        ]


def merge_all(environment: Environment, mergings: Iterable[Merging]) -> None:
    """Merge what was recomputed, and drop what was written for it alone."""
    for merging in mergings:
        if merging.recomputed in environment.streams([merging.recomputed]):
            merge_into(environment, merging)
            environment.delete_stream(merging.recomputed)
        environment.reset(merging.app)


def merge_into(environment: Environment, merging: Merging) -> int:
    """Append recomputed results that hold to the live stream, each once whatever happens; return how many.

    The live job may go on meanwhile: the newest result of a key and window is the one that holds. A merging that was
    stopped goes on where it was.
    """
    return _Merger(environment, merging).run()


class _Merger:
    """One merging under way, in one thread; `_live` and `_done` are the next offsets of the two streams, by partition.

    Invariants: the live stream is read to its end before a result is chosen, and again after each commit; whatever is
    appended is committed with both positions, so it is appended once; positions never go back.
    """

    def __init__(self, environment: Environment, merging: Merging) -> None:
        self._environment, self._merging = environment, merging
        streams = environment.streams()
        if merging.live not in streams:
            raise SamzaError(f"there is no stream {merging.live!r} to merge into: it is made by the live run")
        self._generation = own_whole(environment, merging.app)
        known = environment.checkpoints(merging.app)
        self._mark = known[RUN].meanings[HEADER].encode() if RUN in known else uuid4().hex.encode()
        self._partitions = streams[merging.live].partitions
        self._has_begun = DONE in known
        self._live = self._positions(known.get(LIVE), merging.live, self._partitions)
        self._done = self._positions(known.get(DONE), merging.recomputed, streams[merging.recomputed].partitions)

    def run(self) -> int:
        if not self._has_begun:
            self._look()
        # A run that was stopped has appended what it may not have looked behind.
        appended = self._mend()
        for partition in range(len(self._done)):
            while (rows := self._next(partition)) is not None:
                appended += self._append(rows)
                appended += self._mend()
        # What was appended just now may have been chosen too early as well.
        while mended := self._mend():
            appended += mended
        return appended

    def _positions(self, known: Checkpoint | None, stream: str, partitions: int) -> list[int]:
        starts = {one.partition: one.offset for one in known.positions} if known is not None else {}
        return [starts.get(number, self._environment.offsets(stream, number).start) for number in range(partitions)]

    def _next(self, partition: int) -> Batch | None:
        """Return the next recomputed results of a partition, and move on behind them."""
        read = self._environment.read(self._merging.recomputed, partition, self._done[partition], ROWS_AT_ONCE)
        if read is None:
            return None
        assert read.next_offset > self._done[partition], "a position never goes back"
        self._done[partition] = read.next_offset
        return read.batch

    def _append(self, rows: Batch) -> int:
        """Append the results that hold, in one commit with both positions."""
        batches: dict[int, list[int]] = {}
        values = [*rows.values]
        reader = self._environment.state_reader(self._merging.app, STORE, TASK)
        for row, (identity, key) in enumerate(self._identities(rows)):
            if (kept := reader.get(identity)) is not None:
                live = kept[1:] if kept else None
                if (chosen := self._chosen(key, live, values[row])) == live:
                    continue
                values[row] = chosen
            batches.setdefault(0 if key is None else murmur2(key) % self._partitions, []).append(row)
        reader.release()
        whole = Batch(values, rows.keys, rows.timestamps)
        return self._commit({place: whole.take(found) for place, found in batches.items()}, {}, begun=True)

    def _look(self) -> None:
        """Take in the live results that are there before anything is appended."""
        for partition in range(self._partitions):
            for rows, following in self._live_rows(partition):
                self._live[partition] = following
                self._commit({}, {identity: value for (identity, _), value, mark in self._marked(rows) if not mark})

    def _mend(self) -> int:
        """Read on in the live stream, and choose anew where a live result came before one that we appended."""
        appended = 0
        for partition in range(self._partitions):
            fresh: dict[bytes, bytes | None] = {}
            unseen: dict[bytes, Batch] = {}
            """Our rows that are the newest of their identity, and were chosen before a live one was seen."""
            for rows, following in self._live_rows(partition):
                self._live[partition] = following
                for row, ((identity, _), value, mark) in enumerate(self._marked(rows)):
                    if not mark:
                        fresh[identity] = value
                        unseen.pop(identity, None)
                    elif mark == self._mark and identity in fresh:
                        unseen[identity] = rows.row(row)
            again = []
            for identity, one in unseen.items():
                chosen = self._chosen(None if one.keys is None else one.keys[0], fresh[identity], one.values[0])
                if chosen != one.values[0]:
                    one.values = [chosen]
                    again.append((one, 0, 1))
            if fresh or again:
                appended += self._commit({partition: Batch.gather(again)} if again else {}, fresh, begun=True)
        return appended

    def _live_rows(self, partition: int) -> Iterator[tuple[Batch, int]]:
        """Yield the rows of the live stream from its position on, batch by batch, each with the next offset."""
        offset, end = self._live[partition], self._environment.offsets(self._merging.live, partition).end
        while offset < end:
            read = self._environment.read(self._merging.live, partition, offset, min(ROWS_AT_ONCE, end - offset))
            if read is None:
                return
            assert read.next_offset > offset, "a position never goes back"
            offset = read.next_offset
            yield read.batch, offset

    def _marked(self, rows: Batch) -> Iterator[tuple[tuple[bytes, bytes | None], bytes | None, bytes]]:
        marks = [(one or {}).get(HEADER) or b"" for one in rows.headers or [None] * len(rows)]
        return zip(self._identities(rows), rows.values, marks, strict=True)

    def _identities(self, rows: Batch) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the identity of each result, and its key; raises SamzaError for a result without either."""
        none = [None] * len(rows)
        times = cast("list[int]", rows.timestamps or none)  # a window's result has one
        for key, at in zip(rows.keys or none, times, strict=True):
            if key is None and not self._merging.is_windowed:
                raise SamzaError(
                    f"a result in {self._merging.recomputed!r} has no key, by which it could be merged with a live "
                    "one: send it from a stream with a key, as behind .partition_by(...)"
                )
            # Time first, and moved to be positive: the store is in the order of bytes.
            time = (at + (1 << 63)).to_bytes(8, "big") if self._merging.is_windowed else b""
            yield time + (key or b""), key

    def _chosen(self, key: bytes | None, live: bytes | None, recomputed: bytes | None) -> bytes | None:
        """Return the one of two stored results that holds."""
        merging = self._merging
        # The usual choice looks at neither: it needs no decoding.
        if merging.merge is prefer_live:
            return live
        named = None if key is None else merging.key.decode(key)
        pair = (None if one is None else merging.value.decode(one) for one in (live, recomputed))
        try:
            found = merging.merge(named, *pair)
        except Exception as error:
            raise OperatorFailure(
                f"merge= raised {class_name(error)} for the key {shown(named)}: {words_of(error)}"
            ) from error
        return live if found is None else merging.value.encode(found)

    def _commit(self, batches: Mapping[int, Batch], live: Mapping[bytes, bytes | None], *, begun: bool = False) -> int:
        """Commit what is appended, what is known of live results, and both positions together; return the count."""
        app, appends = self._merging.app, []
        for place, batch in batches.items():
            batch.headers = [{HEADER: self._mark}] * len(batch)
            appends.append(Append(self._merging.live, place, batch))
        # A store has no None: a byte before it tells a value from none.
        kept = sorted((identity, b"" if value is None else b"+" + value) for identity, value in live.items())
        found = {LIVE: (self._merging.live, self._live)}
        if begun:
            found[DONE] = self._merging.recomputed, self._done
        checkpoints = {
            name: Checkpoint(
                self._generation,
                tuple(Position("log", stream, number, offset) for number, offset in enumerate(offsets)),
            )
            for name, (stream, offsets) in found.items()
        }
        checkpoints[RUN] = Checkpoint(self._generation, meanings={HEADER: self._mark.decode()})
        state = [StateWrites(STORE, TASK, [*kept])] if kept else []
        self._environment.commit(Commit(app, self._generation, appends, state, checkpoints))
        return sum(map(len, batches.values()))


def _outputs(graph: Graph) -> list[Output]:
    return [spec.output for spec in graph.of(SendTo).values()]


def _is_windowed(graph: Graph, id: str) -> bool:
    """Whether all that comes to an operator was emitted by windows, and has their times."""
    above = [graph.specs[parent] for parent in graph.streams_into(id)]
    return bool(above) and all(
        spec.windowed or (_passes_on(spec) and _is_windowed(graph, spec.op_id or "")) for spec in above
    )


def _passes_on(spec: Spec) -> bool:
    return not (spec.source or spec.stateful)
