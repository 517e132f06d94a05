"""Bugs that are seeded one at a time into a copy of the source, each with what must catch it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.simulation.scenario import Kind


@dataclass(frozen=True)
class Simulated:
    """Seeds of the simulation."""

    kind: Kind = "crashes"
    seeds: int = 10_000


@dataclass(frozen=True)
class Tested:
    """Tests, as pytest names them."""

    tests: str


@dataclass(frozen=True)
class Bug:
    """A small change of one file, `old` text for `new`, and what catches it."""

    name: str
    file: str
    old: str
    new: str
    caught_by: Simulated | Tested = Simulated()

    def seed(self, root: Path) -> None:
        """Put the bug into the source under `root`; raises Changed where that is not what it was made for."""
        path = root / self.file
        source = path.read_text()
        found = source.count(self.old)
        if found != 1:
            raise Changed(f"{self.file} has this {found} times, and the bug {self.name!r} wants it once:\n{self.old}")
        path.write_text(source.replace(self.old, self.new))


class Changed(Exception):
    """The source is not what a bug was made for: make it anew."""


ON_KAFKA = Tested("tests/runtime/test_laws_on_kafka.py::test_a_run_comes_to_what_its_records_say_whatever_brokers_do")
REMEMBERED = "tests/runtime/test_remembered.py::"
READ_BY_ALL = Tested(
    "tests/runtime/test_laws_on_kafka.py::test_what_was_written_can_be_read_by_all_when_its_writer_has_closed"
)
AMONG_ON_KAFKA = Tested("tests/runtime/test_laws_on_kafka.py::test_so_do_containers_that_come_and_die_and_fall_silent")
GROWN = Tested(
    "tests/runtime/test_repartitioning.py::test_an_application_that_did_not_run_meanwhile_takes_each_growth_up_in_turn"
)
STRUCK = Tested("tests/runtime/test_repartitioning_on_kafka.py::test_wherever_it_is_struck_a_move_is_completed")
ELASTIC = "tests/runtime/test_elasticity.py::"
TOGETHER = Tested("tests/runtime/test_shared_reads.py::test_siblings_take_together_what_each_takes_alone")
SPLIT_ON_DISK = "tests/runtime/test_split_on_disk.py::"
COPIED = Tested(f"{SPLIT_ON_DISK}test_no_key_is_lost_in_a_copy_however_far_each_part_of_a_task_has_followed")
CLAIMED = Tested(f"{SPLIT_ON_DISK}test_a_parent_commits_nothing_once_its_children_are_claimed")
SPLIT_LIVE = Tested(f"{ELASTIC}test_tasks_that_are_split_and_merged_while_they_run_come_to_what_the_records_say")
ONCE_EACH = Tested(f"{ELASTIC}test_whatever_is_split_and_merged_wherever_tasks_are_each_record_is_processed_once")
EVENT_TIME = Tested(f"{ELASTIC}test_event_time_never_falls_nor_runs_ahead_while_producers_are_split_and_merged")
AS_STORED = Tested(
    f"{ELASTIC}test_where_a_task_is_after_a_split_is_what_its_checkpoint_says_and_not_what_one_of_its_name_had_read"
)
OWN_ENTRIES = Tested(f"{ELASTIC}test_virtual_tasks_that_keep_their_entries_in_one_place_find_and_drop_their_own")
SAID_AGAIN = Tested(
    f"{ELASTIC}test_a_task_says_again_how_far_event_time_is_where_one_of_its_name_has_said_so_before_a_merge"
)
LATER_COPY = Tested(
    "tests/runtime/test_standby.py::test_a_copy_that_comes_later_has_what_was_read_for_another_one_of_its_partition"
)
LEDGER = "tests/runtime/test_kafka_ledger.py::test_w"
KIN = Tested(f"{LEDGER}hat_a_task_has_is_what_all_have_written_who_had_keys_of_it")
NEWER = Tested(f"{LEDGER}ho_looks_again_never_takes_an_older_checkpoint_for_a_newer_one")
SPREAD = Tested(
    "tests/operators/test_partition_by.py::test_keys_are_spread_evenly_within_each_partition_of_the_partitioner"
)
BUGS = (
    Bug(
        "commit the highest completed",
        "runtime/reading/completion.py",
        """        while entries and not entries[0].holds:
            done = entries.popleft()
""",
        """        for done in [entry for entry in entries if not entry.holds]:
            entries.remove(done)
""",
    ),
    Bug(
        "commit effects beyond the cut: positions are those of one commit ago",
        "runtime/commit/commit.py",
        "Checkpoint(self.generation, positions, meanings=to_note(task.kinds))\n",
        "Checkpoint(self.generation, self.__dict__.setdefault('old', {}).get(task.number, positions))\n"
        "            self.__dict__['old'][task.number] = positions\n",
    ),
    Bug(
        "commit before a bound file is flushed",
        "runtime/commit/commit.py",
        """                positions[self._bindings.places[stream]] = sink.flush()
""",
        """                place = self._bindings.places[stream]
                positions[place] = self._positions[place] + sum(map(len, batches))
""",
    ),
    Bug(
        "skip the drain",
        "runtime/commit/schedule.py",
        """        if self._options.guarantee == "exactly_once" or at_once:
            return all(task.at_cut for task in self.tasks)
""",
        "",
    ),
    Bug(
        "drop on cancel: a call that somebody cancels counts as done",
        "runtime/functions/calls.py",
        """self._settle(worker, RuntimeError("the call was cancelled, and not by the run"))""",
        "(self._tell(worker.asked, worker.row, []), self._replace(worker))",
    ),
    Bug(
        "a call that times out counts as done",
        "runtime/functions/calls.py",
        """self._settle(worker, TimeoutError(f"no result after timeout_ms={self._timeout_ms:,}"))""",
        "(self._tell(worker.asked, worker.row, []), self._replace(worker))",
    ),
    Bug(
        "calls time out once, and never again",
        "runtime/functions/calls.py",
        "        if self._workers:\n            earliest = ",
        "        if self._timer is not None:\n            earliest = ",
    ),
    Bug(
        "start all calls as soon as they are asked for",
        "runtime/functions/calls.py",
        "range(min(calls, self._room))",
        "range(calls)",
    ),
    Bug(
        "forget one branch's terminal: a message takes effect at its first exit alone",
        "runtime/task/task.py",
        "    for exit in sorted(by_exit):\n",
        "    for exit in sorted(by_exit)[:1]:\n",
    ),
    Bug(
        "a message is complete when its first call is",
        "runtime/task/in_flight.py",
        """            if self._settled(operator, call):
""",
        """            self._settled(operator, call)
            if call.unit in self._unapplied and call.unit not in done:
""",
    ),
    Bug(
        "a task is called again before what its last call has left is there",
        "runtime/assembly/awaiting.py",
        "        lane.limit = units.most_begun = lane.width\n",
        "        lane.limit = lane.width\n",
        Tested(
            "tests/runtime/test_tasks.py::test_a_task_that_takes_one_message_at_a_time_finds_what_the_one_before_has_left"
        ),
    ),
    Bug(
        "what a process emits into an await does not hold its parent back",
        "runtime/task/task.py",
        "                entry.hold(len(stops))\n",
        "                entry.hold(0)\n",
    ),
    Bug(
        "send a watermark past an in-flight stamp",
        "runtime/commit/commit.py",
        "    return reached if lowest is None else min(reached, lowest)\n",
        "    return reached\n",
    ),
    Bug(
        "checkpoint the watermark of now, not that of the position",
        "runtime/reading/reader.py",
        """{"watermark": watermark,""",
        """{"watermark": self._mark,""",
    ),
    Bug(
        "stale cache after an abort: what was changed in place stays",
        "runtime/stores/cache.py",
        "                self._clean.pop(key, None)\n",
        "",
    ),
    Bug(
        "an abort leaves what was written to outputs",
        "runtime/stage/error_policy.py",
        "            self._outputs.rollback()\n",
        "            self._outputs.release()\n",
    ),
    Bug(
        "break the order of a key where calls are retried",
        "runtime/task/in_flight.py",
        "                if len(queue) > 1:\n",
        "                if len(queue) > 1 and not any(pool.retried for pool in self.pools.values()):\n",
    ),
    Bug(
        "write dead letters outside of the commit",
        "runtime/commit/commit.py",
        "        self._bindings.environment.commit(commit)\n",
        """        letters = [append for append in commit.appends if append.batch.headers]
        self._bindings.environment.append(letters)
        rest = [append for append in commit.appends if not append.batch.headers]
        self._bindings.environment.commit(commit._replace(appends=rest))
""",
    ),
    Bug(
        "close users' objects twice",
        "runtime/functions/user_functions.py",
        "                    await _done(thing.close())\n",
        "                    await _done(thing.close())\n                    await _done(thing.close())\n",
    ),
    Bug(
        "leave checksums unchecked",
        "runtime/systems/log/records.py",
        " or CRC.unpack_from(record)[0] != crc32(data, crc32(key)):",
        ":",
        Tested("tests/runtime/test_log_faults.py::test_no_flipped_bit_goes_unnoticed"),
    ),
    Bug(
        "leave the generation unchecked: no fence",
        "runtime/systems/log/environment.py",
        "        if current != generation:\n",
        "        if current < generation:\n",
    ),
    Bug(
        "go on before the commit is durable",
        "runtime/commit/schedule.py",
        "            await asyncio.shield(writing)\n            cut.is_writing = False\n            for task in tasks:",
        "            cut.is_writing = False\n            for task in tasks:",
    ),
    Bug(
        "ask again for what has an answer",
        "runtime/functions/answers.py",
        "        data = self._found.pop(question, None)\n",
        "        data = None\n",
        Tested(f"{REMEMBERED}test_a_changed_function_asks_anew_and_so_does_another_word"),
    ),
    Bug(
        "forget answers before they were asked for again",
        "runtime/functions/answers.py",
        "if is_past or _is_behind(place, reached)]",
        "if place]",
        Tested(f"{REMEMBERED}test_what_an_earlier_run_left_is_there_until_a_commit_is_behind_it"),
    ),
    Bug(
        "begin calls while answers are not kept",
        "runtime/functions/calls.py",
        "        return self._max_in_flight - len(self._workers) - unkept\n",
        "        return self._max_in_flight - len(self._workers) - 0 * unkept\n",
        Tested(f"{REMEMBERED}test_calls_wait_for_answers_to_be_kept"),
    ),
    Bug(
        "never start the next message of a key",
        "runtime/task/in_flight.py",
        "            if queue:\n                self._begin(queue[0])\n",
        "            if queue:\n                pass\n",
    ),
    Bug(
        "take the last of what is not complete for the first, where messages go on as columns",
        "runtime/reading/completion.py",
        "        first = min(self.outstanding)\n",
        "        first = max(self.outstanding)\n",
    ),
    Bug(
        "leave the next message of a key waiting where messages go on as columns",
        "runtime/task/calls_in_flight.py",
        "                self.pool.go_on(waiting.popleft())\n",
        "                waiting.popleft()\n",
    ),
    Bug(
        "start all messages of a key whose messages go on as columns",
        "runtime/task/calls_in_flight.py",
        "                rows = self._in_turn(flight)\n",
        "                self._in_turn(flight)\n",
    ),
    Bug(
        "always serve the first partition first",
        "runtime/loop/chooser.py",
        "            for _ in range(len(group)):\n                what = group[0]\n                group.rotate(-1)\n",
        "            for what in sorted(group, key=lambda one: one[0].number):\n",
    ),
    Bug(
        "never serve a lower priority while a higher one has something",
        "runtime/loop/chooser.py",
        "lower and self._turn % PATIENCE == PATIENCE - 1 else 0",
        "False else 0",
    ),
    Bug(
        "call timers by the wall clock",
        "runtime/task/task.py",
        "        now = self._clock.elapsed_ms()\n        return [timer",
        "        now = self._clock.now_ms() - self._clock.start_ms\n        return [timer",
        Simulated("clock", 200),
    ),
    Bug(
        "leave calls running when the run is cancelled",
        "runtime/loop/loop.py",
        "        if futures:\n            await asyncio.wait(futures, timeout=PATIENCE_S)\n",
        "",
        Simulated("cancellations", 1_000),
    ),
    Bug(
        "swallow a cancellation",
        "runtime/loop/loop.py",
        "        with suppress(TimeoutError):\n",
        "        with suppress(TimeoutError, asyncio.CancelledError):\n",
        Simulated("cancellations", 1_000),
    ),
    Bug(
        "store nothing of what waits in memory for the next stage",
        "runtime/commit/commit.py",
        "            if relay\n",
        "            if relay and not relay\n",
        Tested("tests/runtime/test_laws.py"),
    ),
    Bug(
        "keep what was stored in memory, too",
        "runtime/commit/commit.py",
        "            relay.clear()\n",
        "            pass\n",
        Tested(
            "tests/runtime/test_laws.py::test_no_commit_holds_an_effect_of_what_lies_beyond_its_cut_nor_lacks_one_before_it"
        ),
    ),
    Bug(
        "believe that all states are in hand when some were let go",
        "operators/state/key_cache.py",
        "            self.clean.clear()\n            self._has_all = False\n",
        "            self.clean.clear()\n",
        Tested("tests/operators/test_scan.py"),
    ),
    Bug(
        "what an idle partition sends later fires again what has fired without it",
        "runtime/reading/watermarks.py",
        "        return stamps if floor == MIN_TIMESTAMP else [max(stamp, floor) for stamp in stamps]\n",
        "        return stamps\n",
        Tested("tests/runtime/test_idle.py"),
    ),
    Bug(
        "what an alarm emits is told behind the end of the inputs",
        "runtime/stage/chain.py",
        "            lowest = min(lowest, max(alarm, self._told))  # before the end is told all alarms go off\n",
        "            pass\n",
        Tested("tests/runtime/test_state_in_time.py"),
    ),
    Bug(
        "a timer waits for the watermark whatever its key has had since",
        "operators/process.py",
        "                if (times := times_of(key)) is not None and times[0] <= stamp:\n"
        "                    self._fire_before(key, stamp, out)\n",
        "",
        Tested("tests/runtime/test_state_in_time.py"),
    ),
    Bug(
        "say on Kafka what is done before the transaction that does it",
        "runtime/systems/kafka/coordination/owner.py",
        "        pending[ledger_of(commit.app), 0] = said\n",
        "        streams.write(ledger_of(commit.app), said)\n",
        ON_KAFKA,
    ),
    Bug(
        "replay a changelog from one record too late",
        "runtime/systems/kafka/state/changelog.py",
        "(rows.offsets or (), begun)",
        "(rows.offsets or (), begun + 1)",
        ON_KAFKA,
    ),
    Bug(
        "end on Kafka before all can read what was committed",
        "runtime/systems/kafka/streams/streams.py",
        "        stop(self._thread, self._until_seen())\n",
        "",
        READ_BY_ALL,
    ),
    Bug(
        "read on Kafka what was rolled back",
        "runtime/systems/kafka/streams/fetcher.py",
        'isolation_level="read_committed",\n            fetch_max',
        'isolation_level="read_uncommitted",\n            fetch_max',
        ON_KAFKA,
    ),
    Bug(
        "a container of an application on Kafka takes tasks, and lets who had them go on",
        "runtime/systems/kafka/state/ledger.py",
        "    await ended(await streams.producer(writer))",
        "    return",
        AMONG_ON_KAFKA,
    ),
    Bug(
        "leave out what is made and not read, whatever it is that makes it",
        "planner/codegen/scalars.py",
        "key in needed or not isinstance(part, ast.Constant | ast.Name)",
        "key in needed",
        Tested("tests/planner/test_scalars.py::test_loops_come_to_the_same"),
    ),
    Bug(
        "of several that are nearest join the one that came last",
        "operators/joins/asof_join.py",
        "if self._rank(row) > self._rank(rows[place])",
        "if True",
    ),
    Bug(
        "forget too soon what may be nearest",
        "operators/joins/asof_join.py",
        '        self._rows = RowsByTime(store, keys, b"n", self._width, sum(reach))\n',
        '        self._rows = RowsByTime(store, keys, b"n", self._width, -self._width)\n',
        Tested("tests/operators/test_asof_join.py"),
    ),
    Bug(
        "share the keys of virtual tasks out by the partitioner's own hash",
        "operators/partition_by.py",
        "(offset if key is None else crc32(key))",
        "(offset if key is None else murmur2(key))",
        SPREAD,
    ),
    Bug(
        "a merge of virtual tasks begins where the first of them is",
        "runtime/opening/rescaling.py",
        "last = min(own.values(), ",
        "last = max(own.values(), ",
        ONCE_EACH,
    ),
    Bug(
        "a merge of virtual tasks begins at the minimum, and forgets who has read further",
        "runtime/opening/rescaling.py",
        "return [*first, *(one for _, one in sorted(furthest.items()) if share_of(one.bucket, task.base).meets(task))]",
        "return first",
        ONCE_EACH,
    ),
    Bug(
        "a split of virtual tasks forgets who had read further before the merge",
        "runtime/opening/rescaling.py",
        "for one in sorted((*ahead, *further), key=",
        "for one in sorted(ahead, key=",
        ONCE_EACH,
    ),
    Bug(
        "forget one record too soon which virtual tasks have read further",
        "runtime/reading/sieve.py",
        "if one.offset > offset]",
        "if one.offset > offset + 1]",
        ONCE_EACH,
    ),
    Bug(
        "all virtual tasks have what has no key",
        "runtime/reading/sieve.py",
        "        return 0 if self._share.by_key else offset",
        "        return self._share.task.bucket",
        ONCE_EACH,
    ),
    Bug(
        "forget the heirs of virtual tasks that tell of event time",
        "runtime/opening/rescaling.py",
        "    return tuple(one.name for one in among if one.meets(task))",
        "    return ()",
        SPLIT_LIVE,
    ),
    Bug(
        "the heir of several virtual tasks is as far as the first of them",
        "runtime/reading/watermarks.py",
        "known[heir] = min(reached, known.get(heir, reached))",
        "known[heir] = max(reached, known.get(heir, reached))",
        EVENT_TIME,
    ),
    Bug(
        "virtual tasks find the state of each other's keys",
        "runtime/stores/cache.py",
        "return found if owns is None else (one for one in found if owns(one[0]))",
        "return found",
        SPLIT_LIVE,
    ),
    Bug(
        "virtual tasks drop the state of each other's keys",
        "runtime/stores/cache.py",
        "committed = (key for key, _ in self._committed(start, end))",
        "committed = (key for key, _ in self._environment.state_range(self._app, self._name, self._task, start, end))",
        OWN_ENTRIES,
    ),
    Bug(
        "purge what one virtual task has read, and its siblings have not",
        "runtime/commit/commit.py",
        "state, consumed = _together(state), self._consumed_by_all(tasks, together, consumed)",
        "state = _together(state)",
        SPLIT_LIVE,
    ),
    Bug(
        "take a virtual task to be where one of its name was before a merge",
        "runtime/commit/commit.py",
        "        self.reached = {}\n        for name in filter(is_task, found):\n",
        "        for name in filter(is_task, found):\n",
        AS_STORED,
    ),
    Bug(
        "take what one of its name has told of event time before a merge for what a virtual task has told",
        "runtime/commit/commit.py",
        "        self._told = {}\n        # A task",
        "        # A task",
        SAID_AGAIN,
    ),
    Bug(
        "go on with a copy from where others of its changelog's partition are",
        "runtime/systems/kafka/state/standby.py",
        "self._followed, self._assigned = {}, {}",
        "self._followed = {}",
        LATER_COPY,
    ),
    Bug(
        "count the entries of a task as they were before others had its keys",
        "runtime/systems/kafka/state/changelog.py",
        "found[place] = ChangelogEnd(end.end)",
        "found[place] = end",
        KIN,
    ),
    Bug(
        "take the stores of a task that is split for those of none of its parts",
        "runtime/systems/kafka/state/changelog.py",
        "return frozenset().union(*(self.kept.get(one, ()) for one in kin(task, self._factors)))",
        "return frozenset(self.kept.get(task, ()))",
        KIN,
    ),
    Bug(
        "take an older checkpoint of a sibling for a newer one",
        "runtime/systems/kafka/state/ledger.py",
        "return all(offsets.get(place, -1) >= at for place, at in before.items()) and offsets != before",
        "return offsets != before",
        NEWER,
    ),
    Bug(
        "take a virtual task to be where others were that it was merged from",
        "runtime/commit/commit.py",
        "(one for one in positions if one.bucket == WHOLE)",
        "positions",
        AS_STORED,
    ),
    Bug(
        "of virtual tasks that keep their state in one place one alone writes",
        "runtime/commit/commit.py",
        "        found.setdefault((store, task), []).extend(items)\n",
        "        found[store, task] = [*items]\n",
        SPLIT_LIVE,
    ),
    Bug(
        "tell some virtual tasks of a partition of event time in memory, and others never",
        "runtime/commit/commit.py",
        "if isinstance(relay, SplitRelay) and len(readers) < len(relay.shares):",
        "if isinstance(relay, SplitRelay) and not readers:",
        SPLIT_LIVE,
    ),
    Bug(
        "bucket the rows of a broadcast table by their keys",
        "runtime/assembly/assembly.py",
        "self.reader(spec, stream, partition, StartPoint(), functions)",
        "self.reader(spec, stream, partition, StartPoint(share=KeyShare(self.plan.virtual(0))), functions)",
        SPLIT_LIVE,
    ),
    Bug(
        "lose a dirty key in the copy of a task's state: what one of its parts had not followed yet",
        "runtime/systems/kafka/state/shared_state.py",
        "outputs = {place: min(said.outputs[place], found.outputs[place]) for place in both}",
        "outputs = {place: max(said.outputs[place], found.outputs[place]) for place in both}",
        COPIED,
    ),
    Bug(
        "a child of a task that is split reads below the cut",
        "runtime/opening/rescaling.py",
        "first = [replace(last, producers=heard)]",
        "first = [replace(last, offset=max(last.offset - 1, 0), producers=heard)]",
        ONCE_EACH,
    ),
    Bug(
        "a child that reads together with its siblings takes what lies below the cut",
        "runtime/reading/reader.py",
        "first, last = bisect_left(offsets, self.next_offset), len(offsets)",
        "first, last = 0, len(offsets)",
        TOGETHER,
    ),
    Bug(
        "a parent that is fenced commits after the claim of its children",
        "runtime/systems/kafka/coordination/owner.py",
        "settle(streams, app, table, lambda claim: claim.run < generation)",
        "settle(streams, app, table, lambda claim: False)",
        CLAIMED,
    ),
    Bug(
        "a parent whose lock is gone commits beside its children on the log",
        "runtime/systems/log/environment.py",
        "            self._check_generation(transaction, app, commit.generation)\n            if commit.tasks:\n",
        "            if commit.tasks:\n",
        Simulated("rescaling"),
    ),
    Bug(
        "copy a timer to both children of the task that had it",
        "runtime/stores/cache.py",
        "(one for one in found if owns(one[0]))",
        "(one for one in found if one[0][:1] == b\"t\" or owns(one[0]))",
        SPLIT_LIVE,
    ),
    Bug(
        "commit what was read or written by an outdated number of partitions",
        "runtime/systems/log/environment.py",
        "            check_among(commit.among, ",
        "            check_among({}, ",
        Tested(
            "tests/conformance/test_growing_environment.py::test_whoever_chose_among_fewer_partitions_writes_nothing"
        ),
    ),
    Bug(
        "take a stream that grew twice for one that grew once",
        "runtime/opening/former_layout.py",
        "len(grown[step + 1]) if step + 1 < len(grown) else existing[stream].partitions",
        "existing[stream].partitions",
        GROWN,
    ),
    Bug(
        "move state before what lay by the former partitions was read",
        "runtime/opening/former_layout.py",
        "ends |= {(stream, partition): at for",
        "ends |= {(stream, partition): 0 for",
        GROWN,
    ),
    Bug(
        "leave the group of a topic behind where a move has left its partitions",
        "runtime/systems/kafka/coordination/owner.py",
        "    found = dict.fromkeys(left, 0)\n",
        "    found: dict[tuple[str, int], int] = {}\n",
        STRUCK,
    ),
)
