"""Sinks of users as outputs: those that are cut back, and the outbox, in which rows lie until a sink has them."""

from __future__ import annotations

import logging
import math
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from operators.core.base import Batch, Output, Serde, Spec, has_none
from operators.core.policies import DeadLetterPolicy, Fail, Skip, fail, final
from runtime.encoding.formats.rows import type_of_values
from runtime.encoding.serdes import decoded
from runtime.encoding.storable import ReadBack
from runtime.functions.at_work import tells
from runtime.model.clock import monotonic_ms
from runtime.model.errors import Damaged, EnvironmentFault, RowRefused, SamzaError, SerdeError, command
from runtime.model.metrics import OperatorMetrics
from runtime.ports.connectors import (
    MOST_REFUSED,
    Batching,
    DeliveredSink,
    IdempotentSink,
    PositionedSink,
    SinkOwner,
    SinkRow,
    TransactionalSink,
)
from runtime.ports.environment import Environment, LiveEnvironment
from runtime.ports.sink import Sink
from runtime.ports.streams import NO_SIZES, Append
from runtime.systems.connectors.tries import LONGEST_ASKED_S, Words, tried

R = TypeVar("R")
FEWEST = 64
"""The rows that are handed over at first behind one that was refused: others may be near."""
_log = logging.getLogger("samza_dsl")


@dataclass(frozen=True)
class Refusals:
    """The policy for rows of an output that its sink refuses: that of the operator that writes it.

    `keep` makes dead letters durable for a generation, in one transaction with how far sinks have come.
    """

    operator: str
    policy: Fail | Skip | DeadLetterPolicy
    keep: Callable[[int, list[Append]], None]


def refusals_of(writers: Mapping[str, Spec], keep: Callable[[int, list[Append]], None]) -> Refusals | None:
    """Return what becomes of rows that a sink refuses, by who writes the output; None where these don't agree."""
    policies = {id: final(spec.on_error or fail) for id, spec in writers.items()}
    first, policy = next(iter(policies.items()))
    return Refusals(first, policy, keep) if {*policies.values()} == {policy} else None


class Outbox:
    """Delivers what commits have put into a stream of the application's own to a sink, in order.

    Invariants: only what is committed is delivered, and the next commit removes it; the position of a partition never
    goes back while this is open. A sink with positions says where it goes on, so that no row comes twice; for others
    our checkpoint says it, which is behind by what was delivered last. A row that the sink refuses is passed over once
    its dead letter is committed, with the offset of the row, so that it has one, wherever a run dies. `open` and
    `deliver` are called by one thread at a time.
    """

    def __init__(
        self,
        environment: Environment,
        app: str,
        output: Output,
        sink: DeliveredSink,
        refusals: Refusals | None = None,
    ) -> None:
        self.stream = outbox_of(app, output.stream, sink.name)
        self.name = output.stream
        self.sink = sink
        self.positions: dict[int, int] = {}
        """By partition, the offset behind what the sink has."""
        self.refused = 0
        """The rows that were passed over in this run."""
        self.stream_id = 0
        """The identity of the stream in which rows wait, once it is open."""
        self._refusals = refusals
        self._environment = environment
        self._app = app
        self._output = output
        self._owners: dict[int, SinkOwner] = {}
        self._passed: dict[int, frozenset[int]] = {}
        """By partition, the offsets of rows that are dead letters, and that the sink was not led past yet."""
        self._since_ms: dict[int, float] = {}
        """By partition, since when rows have waited for others."""
        self._turn_at_ms = -math.inf
        """When more rows may be handed over, where the sink is given them at a pace."""
        self._closing, self._is_to_end = threading.Event(), threading.Event()

    @property
    def operator(self) -> str:
        """The operator whose rows it delivers, as lines of the log name it; of several, their output."""
        return self.name if self._refusals is None else self._refusals.operator

    @property
    def is_open(self) -> bool:
        """Whether it has claimed the sink, and so knows how far that is and which rows it is yet to be led past."""
        return bool(self._owners)

    @property
    def passed(self) -> dict[str, int]:
        """The rows that are dead letters and that the sink was not led past yet, as checkpoints note them.

        By the application's identity, the partition and the first offset of each run of rows, the one behind the last.
        """
        found: dict[str, int] = {}
        for partition, offsets in self._passed.items():
            start = None
            for offset in sorted(offsets):
                if start is None or found[start] != offset:
                    start = f"{self._owners[partition].identity:x}-{partition}+{offset}"
                found[start] = offset + 1
        return found

    @property
    def where(self) -> str:
        """The place, as a person knows it."""
        return self.sink.name

    def check(self, encoded: Batch) -> None:
        """Raise SerdeError for encoded rows without a value, or a key, that the sink could do nothing about."""
        if isinstance(self.sink, PositionedSink) and not self.sink.deletes and None in encoded.values:
            raise SerdeError(
                f"a record without a value deletes the row of its key, and rows are appended to {self.where}: filter "
                'such records out, or name the key of a row there: key="id"'
            )
        if self._replaces and (encoded.keys is None or None in encoded.keys):
            raise SerdeError(self._keyless)

    @property
    def is_noted(self) -> bool:
        """Whether our checkpoint has to say how far the sink has come, which does not know it."""
        return not self._is_known

    def open(
        self,
        generation: int,
        identity: int,
        recorded: dict[int, int],
        passed: Mapping[str, int] = NO_SIZES,
        is_known: bool = False,
    ) -> None:
        """Claim the sink for a generation, and deliver what an earlier run has left.

        `recorded` has the positions of our checkpoint, and `passed` the rows that it has as dead letters; an identity
        that `is_known` is noted there, and so has claimed the sink before. Raises
        `Fenced` where a later generation has the sink, and `Damaged` where the sink has rows that are not known here,
        or lacks rows that are here no more.
        """
        self.stream_id = self._environment.stream_id(self.stream)
        kind = type_of_values(self._output.value)
        self._passed = _offsets_noted(passed, identity)
        for partition in range(self._environment.streams([self.stream])[self.stream].partitions):
            start, end, _ = self._environment.offsets(self.stream, partition)
            owner = SinkOwner(self._app, self.name, partition, generation, identity, kind, end, start, is_known)
            position = recorded.get(partition, 0)
            if isinstance(self.sink, PositionedSink):
                position = self._tried(self.sink.claim, owner)
            owner.check_known(position, self.where)
            self._owners[partition], self.positions[partition] = owner, position
        self.deliver()

    def check_kept(self, stream_id: int, positions: Mapping[int, int]) -> None:
        """Raise `Damaged` where the stream is another one than was noted: what waited there is gone, however much."""
        if stream_id and self._environment.stream_id(self.stream) not in (0, stream_id):
            reached = ", ".join(f"{at:,} of partition {partition}" for partition, at in sorted(positions.items()))
            raise Damaged(
                f"The stream {self.stream!r} was deleted and made anew. In it rows of the output {self.name!r} at "
                f"{self._output.site} waited for {self.where}, and what lay behind offset {reached or 0} is lost. Put "
                f"it back as it was. Or begin anew, which writes all of it again: {command(f'reset {self._app}')}. Or "
                "bind another place, as another table: that goes on with what is written from now on"
            )

    def forget(self) -> None:
        """Drop what waits for the sink though no commit knows of that: the application began anew, bound elsewhere."""
        config = self._environment.streams([self.stream])[self.stream]
        ends = [self._environment.offsets(self.stream, partition).end for partition in range(config.partitions)]
        if any(ends):
            self._environment.delete_stream(self.stream)
            self._environment.create_stream(self.stream, config)

    @property
    def batching(self) -> Batching | None:
        """The rows that are to wait for the sink, where it is not given those of each commit."""
        return self.sink.batching if isinstance(self.sink, PositionedSink) else None

    @tells(lambda known: known["self"].operator, rests=True)
    def deliver(self, whole: bool = False) -> None:
        """Hand the sink what is committed and that it has not; raises `Unavailable` where it fails for long.

        Where it takes them in batches, or at a pace, some may go on waiting, but for a delivery that is `whole`. Where
        it is paced, and the run is to end, the rest waits for the next run. Raises `HeldBack` where it is `whole`, and
        somebody's open transaction keeps rows from being read.
        """
        is_to_end = self._is_to_end.is_set()
        if self.sink.rows_per_second is not None and (is_to_end or (self.turn_ms > 0 and not whole)):
            return
        if whole and isinstance(self._environment, LiveEnvironment) and not is_to_end:
            # Brokers answer a commit before all of it can be read, and what was killed may have left a transaction
            # open: an end as it can be read now would leave rows behind without a word.
            self._environment.settled(self.stream)
        for partition in [*self._owners]:
            for rows, offsets in self._rows(partition, self._least(partition, whole)):
                if not self._has_turn(whole):
                    return
                assert offsets[-1] > self.positions[partition], "a delivery leads on"
                # Partitions take turns: where one always has rows, and these are paced, others would wait for ever.
                self._owners[partition] = self._owners.pop(partition)
                self._hand_over(partition, rows, offsets)

    def _hand_over(self, partition: int, rows: list[SinkRow], offsets: list[int]) -> None:
        """Give the sink rows at offsets, which end with the one behind them; raises where it refuses one for good."""
        # Their dead letters were committed, and then the run has died.
        self._leave_out(rows, offsets, [n for n, at in enumerate(offsets[:-1]) if at in self._passed_in(partition)])
        start, most, then = 0, len(rows), FEWEST
        while True:
            part = rows[start : start + most]
            try:
                self._give(partition, part, offsets[start + len(part)])
            except EnvironmentFault:
                raise
            except (RowRefused, SerdeError) as error:
                if self._refusals is None or isinstance(self._refusals.policy, Fail):
                    raise self._held_up(error) from error
                if not isinstance(error, RowRefused) and len(part) > 1:
                    # One of them can't be put as the sink has rows, of which nothing was taken: fewer show which.
                    most = then = len(part) // 2
                    continue
                refused = error if isinstance(error, RowRefused) else RowRefused(str(error))
                found = [refused, *(refused.also or ())]
                places = [one.row for one in found]
                if not _are_places(places, len(part)):
                    wrong = f"{error}: the sink refuses the rows {places} of {len(part)}: name each once, in order"
                    raise self._held_up(SamzaError(wrong)) from error
                self._pass_over(
                    self._refusals, partition, [(part[one.row], offsets[start + one.row], one) for one in found]
                )
                self._leave_out(rows, offsets, [start + place for place in places])
                # Together, as they were tried: a row may refer to one behind it. Where others may be refused, those in
                # front of the last one, which is led past with them.
                is_tried = refused.also is not None and len(places) < MOST_REFUSED
                most = (len(part) if is_tried else places[-1] + 1) - len(places)
                then = FEWEST if refused.also is None else 2 * len(part)
            except SamzaError as error:
                raise self._held_up(error) from error
            else:
                start += len(part)
                if start == len(rows):
                    return
                most, then = then, 2 * then

    @property
    def _replaces(self) -> bool:
        """Whether rows without a key would replace each other."""
        return isinstance(self.sink, IdempotentSink) and not self.sink.keyless

    @property
    def _keyless(self) -> str:
        return (
            f"a record without a key has no row of its own in {self.where}, where a row replaces that of its key: give "
            "records one, by key= of the input or partition_by, or filter such out; a sink that goes by the value, or "
            "the id, of a row is IdempotentSink(..., keyless=True)"
        )

    def _give(self, partition: int, rows: list[SinkRow], following: int) -> None:
        # Those of containers and of Spark were written where nothing is known of the sink.
        if self._replaces and (without := [place for place, row in enumerate(rows) if row.key is None]):
            also = [RowRefused(self._keyless, place) for place in without[1:MOST_REFUSED]]
            raise RowRefused(self._keyless, without[0], also)
        if isinstance(self.sink, PositionedSink):
            owner, position = self._owners[partition], self.positions[partition]
            self._tried(self._paced(self.sink.write, rows), owner, rows, position, following)
        elif rows:
            self._tried(self._paced(self.sink.write, rows), rows)
        self.positions[partition] = following
        if partition in self._passed:
            self._passed[partition] = frozenset(at for at in self._passed[partition] if at >= following)

    def _held_up(self, error: SamzaError) -> SamzaError:
        # A row that was committed is not left out: whoever reads the place counts on its order.
        pass_it = ""
        if isinstance(error, RowRefused | SerdeError) and self._refusals is not None:
            pass_it = ", or let such rows pass (on_error=dead_letter('name') or skip, where the output is written)"
        return SamzaError(
            f"{error}. Rows of the output {self.name!r} at {self._output.site} wait for it in the stream "
            f"{self.stream!r}, in order: mend what refuses it{pass_it}, and run the application again"
        )

    def _pass_over(self, refusals: Refusals, partition: int, found: Sequence[tuple[SinkRow, int, RowRefused]]) -> None:
        """Make dead letters of rows at offsets, or none, as the policy says; the sink may pass them over then."""
        policy = refusals.policy
        if isinstance(policy, DeadLetterPolicy):
            letters = [self._letter(refusals, policy, partition, *one) for one in found]
            before = self._passed_in(partition)
            self._passed[partition] = before | {offset for _, offset, _ in found}
            try:
                refusals.keep(self._owners[partition].generation, letters)
            except BaseException:
                self._passed[partition] = before  # else a later commit would say that the letters are there
                raise
        whither = f"a dead letter in {policy.stream!r}" if isinstance(policy, DeadLetterPolicy) else "skipped"
        for *_, refused in found:
            self.refused += 1
            if self.refused & (self.refused - 1) == 0:
                words = "%s. It is %s, as on_error= of %r says: %d so far"
                _log.warning(words, self._told(refused), whither, refusals.operator, self.refused)

    def _letter(
        self,
        refusals: Refusals,
        policy: DeadLetterPolicy,
        partition: int,
        row: SinkRow,
        offset: int,
        refused: RowRefused,
    ) -> Append:
        where = {"stream": self.stream.encode(), "partition": b"%d" % partition, "offset": b"%d" % offset}
        value = None if row.value is None else self._output.value.encode(row.value)
        key = row.key if row.key is None or self._output.key is None else self._output.key.encode(row.key)
        headers = {**where, "operator": refusals.operator.encode(), "error": self._told(refused).encode()}
        times = None if row.timestamp_ms is None else [row.timestamp_ms]
        return Append(policy.stream, 0, Batch([value], [key], times, headers=[headers]))

    def _told(self, refused: RowRefused) -> str:
        return f"{refused}; it is of the output {self.name!r} at {self._output.site}"

    def _passed_in(self, partition: int) -> frozenset[int]:
        return self._passed.get(partition, frozenset())

    @staticmethod
    def _leave_out(rows: list[SinkRow], offsets: list[int], places: Sequence[int]) -> None:
        """Take rows at places, which rise, out of a delivery."""
        if places:
            gone = frozenset(places)
            rows[:] = [row for place, row in enumerate(rows) if place not in gone]
            offsets[:] = [offset for place, offset in enumerate(offsets) if place not in gone]

    def counts(self) -> Iterator[OperatorMetrics]:
        """Yield the rows that were passed over, as a count of the operator that has written them."""
        if self._refusals is not None and self.refused:
            operator, is_kept = self._refusals.operator, isinstance(self._refusals.policy, DeadLetterPolicy)
            dead_lettered, skipped = (self.refused, 0) if is_kept else (0, self.refused)
            yield OperatorMetrics(operator=operator, task=0, dead_lettered=dead_lettered, skipped=skipped)

    def end(self) -> None:
        """Leave rows that are paced to the next run, from now on; may be called from a signal handler."""
        self._is_to_end.set()

    def empty(self, positions: dict[int, int], generation: int, identity: int) -> None:
        """Drop what the sink has of an application that begins anew, where it can, and what waits for it."""
        if isinstance(self.sink, PositionedSink):
            for partition in positions:
                self._tried(self.sink.empty, SinkOwner(self._app, self.name, partition, generation, identity))
        else:
            _log.warning("%s keeps what application %r has written there, which begins anew", self.where, self._app)
        self._environment.delete_stream(self.stream)

    def close(self) -> None:
        """Close the sink; a second call does nothing."""
        if not self._closing.is_set():
            self._closing.set()
            self.sink.close()

    def _least(self, partition: int, whole: bool) -> int:
        """Return how many rows of a partition are to wait before these are written."""
        batching = self.batching
        if batching is None or whole:
            return 0
        now_ms, waiting = monotonic_ms(), self._end(partition) - self.positions[partition]
        since_ms = self._since_ms.setdefault(partition, now_ms) if waiting else self._since_ms.pop(partition, now_ms)
        return 0 if now_ms - since_ms >= batching.ms else batching.rows

    def _end(self, partition: int) -> int:
        return self._environment.offsets(self.stream, partition).end

    def _rows(self, partition: int, least: int) -> Iterator[tuple[list[SinkRow], list[int]]]:
        """Yield rows of a partition from its position on, at least so many, with their offsets and that behind them."""
        if self._end(partition) - self.positions[partition] < least:
            return
        rows: list[SinkRow] = []
        offsets: list[int] = []
        offset, most = self.positions[partition], self._most
        # On brokers a read returns what is known to be there: they are asked first.
        end = self._environment.offsets(self.stream, partition).end
        while offset < end:
            read = self._environment.read(self.stream, partition, offset, most - len(rows))
            if read is None:
                break
            rows += rows_of_batch(read.batch, self._output, None if self._is_known else self._id_of(partition))
            assert read.batch.offsets is not None, "what was read has offsets"
            offsets += read.batch.offsets
            offset = read.next_offset
            if len(rows) >= most:
                self._since_ms.pop(partition, None)
                yield rows, [*offsets, offset]
                rows, offsets = [], []
        if offset > self.positions[partition] and len(rows) >= least:
            self._since_ms.pop(partition, None)
            yield rows, [*offsets, offset]

    @property
    def _is_known(self) -> bool:
        """Whether the sink itself knows which rows it has."""
        return isinstance(self.sink, PositionedSink)

    def _id_of(self, partition: int) -> str:
        """Return what begins the ids of a partition's rows: an application that begins anew has others."""
        return f"{self._owners[partition].identity:x}-{partition}-"

    @property
    def _most(self) -> int:
        """The rows that are handed over at a time: of a sink at a pace no more than those of a second."""
        if self.batching is not None:
            return self.batching.rows
        rate = self.sink.rows_per_second
        return self.sink.batch_rows if rate is None else min(self.sink.batch_rows, max(int(rate), 1))

    @property
    def turn_ms(self) -> float:
        """The ms until more rows may be handed over, as the sink's pace has it."""
        return max(self._turn_at_ms - monotonic_ms(), 0.0)

    @property
    def look_ms(self) -> float:
        """The ms until rows may be due that wait here for others, or for their turn; infinity where none ever do."""
        gathered_ms = math.inf if self.batching is None else self.batching.ms / 4
        rate = self.sink.rows_per_second
        paced_ms = math.inf if rate is None else self.turn_ms or self._most * 250 / rate
        return min(gathered_ms, paced_ms)

    def _has_turn(self, whole: bool) -> bool:
        """Whether more rows may be handed over now; waits for that where all are to be, and the run does not end."""
        if self.sink.rows_per_second is None:
            return True
        left_ms = self.turn_ms
        if left_ms > 0 and whole:
            return not self._is_to_end.wait(left_ms / 1_000)
        return not (left_ms > 0 or self._is_to_end.is_set())

    def _paced(self, write: Callable[..., None], rows: Sequence[SinkRow]) -> Callable[..., None]:
        """Return a sink's function that takes note of when more rows may come, each time that it is called."""

        def written(*given: object) -> None:
            if self.sink.rows_per_second is not None:
                turn_at_ms = max(self._turn_at_ms, monotonic_ms())
                self._turn_at_ms = turn_at_ms + len(rows) * 1_000 / self.sink.rows_per_second
            write(*given)

        return written

    def _tried(self, function: Callable[..., R], *arguments: object) -> R:
        """Call a sink, again after a pause where that may help; anything else that it raises ends the run."""
        words = Words(
            self.where,
            f"{self.where} failed as it took rows of {self.name!r}",
            f"{self.where} can't be written",
            f". Rows of {self.name!r} wait in the stream {self.stream!r}, and are written when the application is run "
            "again",
        )

        def wait(pause_s: float) -> bool:
            # A place that fails is given no more than one that does not; but nobody who ends a run waits for long.
            return self._closing.wait(max(pause_s, min(self.turn_ms / 1_000, LONGEST_ASKED_S)))

        return tried(partial(function, *arguments), words, wait)


def _are_places(named: Sequence[object], rows: int) -> bool:
    """Whether rows are named once each and in order: a sink of a user's own may name any.

    >>> _are_places([0, 2], 3), _are_places([2, 0], 3), _are_places([-1], 3), _are_places([None], 3)
    (True, False, False, False)
    """
    numbers = [place for place in named if type(place) is int and 0 <= place < rows]
    return len(numbers) == len(named) and numbers == sorted({*numbers})


def _offsets_noted(passed: Mapping[str, int], identity: int) -> dict[int, frozenset[int]]:
    """Return the offsets of rows that a checkpoint has as dead letters, by partition.

    >>> _offsets_noted({"5-0+7": 9, "5-1+3": 4, "6-0+1": 2}, 5) == {0: frozenset({7, 8}), 1: frozenset({3})}
    True
    """
    found: dict[int, frozenset[int]] = {}
    for name, end in passed.items():
        of, _, place = name.partition("-")
        partition, is_run, start = place.partition("+")
        # Of another identity the same offsets are other rows. Former versions have noted the last row alone.
        if of == f"{identity:x}":
            offsets = range(int(start), end) if is_run else (end,)
            found[int(partition)] = found.get(int(partition), frozenset()) | frozenset(offsets)
    return found


class CutBackSink(Sink):
    """An output that is written before each commit, which records its position, and cut back to that after a crash.

    Invariant: positions never go back but by `recover`, so that a sink that has less than was committed has lost it.
    """

    columns = frozenset({"keys", "timestamps"})
    partitions = 1

    def __init__(self, sink: TransactionalSink, output: Output) -> None:
        self._sink = sink
        self._output = output
        self._is_closed = False
        self.name = sink.name

    def serde(self, declared: Serde) -> Serde:
        """Return a serde as the declared one is: rows are handed over as the pipeline has them."""
        return ReadBack(declared, type_of_values(declared))

    def recover(self, position: int) -> None:
        self._sink.recover(position)
        # A place that was restored from an older copy has nothing to cut: its own position is what tells that.
        if position and (found := self._flushed()) < position:
            raise Damaged(
                f"{self.name} has rows of {self._output.stream!r} up to position {found:,}, and the last commit those "
                f"up to {position:,}: it has lost some, or was restored from an older copy. Restore it from the same "
                "time, or from a later one; or reset the application, which writes all of it again"
            )

    @tells(lambda known: known["self"]._output.stream)
    def write(self, batch: Batch) -> None:
        self._sink.write(rows_of_batch(batch, self._output))

    @tells(lambda known: known["self"]._output.stream)
    def flush(self) -> int:
        return self._flushed()

    def _flushed(self) -> int:
        position = self._sink.flush()
        if type(position) is not int:
            raise SamzaError(f"{self.name}: flush() returned {position!r}, and a position is a whole number")
        return position

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._sink.close()


def outbox_of(app: str, output: str, where: str) -> str:
    """Return the stream in which rows of an output wait for a sink: another place has another one.

    >>> outbox_of("shop", "orders", "shop.db")
    'shop.outbox.orders.44e81dc2'
    """
    return f"{app}.outbox.{output}.{zlib.crc32(where.encode()):08x}"


def is_outbox_of(app: str, output: str, stream: str) -> bool:
    """Whether an output is written to a stream from which another process, or this one, delivers it to a sink.

    >>> is_outbox_of("shop", "orders", outbox_of("shop", "orders", "shop.db")), is_outbox_of("shop", "orders", "orders")
    (True, False)
    """
    return stream.startswith(f"{app}.outbox.{output}.")


def rows_of_batch(batch: Batch, output: Output, ids: str | None = None) -> list[SinkRow]:
    """Return stored rows as a sink takes them: values and keys as the pipeline had them, with `ids` that begin so."""
    none: Sequence[None] = [None] * len(batch)
    values = _all_decoded(output.value, batch.values)
    keys: Sequence[Any] = batch.keys or none
    if output.key is not None:
        keys = _all_decoded(output.key, keys)
    if ids is None:
        return list(map(SinkRow, values, keys, batch.timestamps or none))
    assert batch.offsets is not None, "what was read has offsets"
    return list(map(SinkRow, values, keys, batch.timestamps or none, [f"{ids}{offset}" for offset in batch.offsets]))


def _all_decoded(serde: Serde, column: Sequence[Any]) -> Sequence[Any]:
    if has_none(column):
        return [None if value is None else serde.decode(value) for value in column]
    return decoded(serde, column)
