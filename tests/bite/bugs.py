"""Bugs that are seeded one at a time into a copy of the source, each with what must catch it."""

from __future__ import annotations

from tests.bite.elastic_bugs import ELASTIC_BUGS
from tests.bite.seeded import Bug, Simulated, Tested

ON_KAFKA = Tested("tests/runtime/test_laws_on_kafka.py::test_a_run_comes_to_what_its_records_say_whatever_brokers_do")
REMEMBERED = "tests/runtime/test_remembered.py::"
READ_BY_ALL = Tested(
    "tests/runtime/test_laws_on_kafka.py::test_what_was_written_can_be_read_by_all_when_its_writer_has_closed"
)
FENCED = Tested("tests/runtime/test_kafka_ledger.py::test_who_takes_a_task_fences_the_one_that_had_it")
STORED_ONCE = Tested("tests/runtime/test_commit.py::test_what_waits_in_memory_for_the_next_stage_is_stored_once")
GROWN = Tested(
    "tests/runtime/test_repartitioning.py::test_an_application_that_did_not_run_meanwhile_takes_each_growth_up_in_turn"
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
        """                self.generation, positions, unread, meanings=to_note(task.kinds), due=due
            )
""",
        """                self.generation, self.__dict__.setdefault('old', {}).get(task.number, positions)
            )
            self.__dict__['old'][task.number] = positions
""",
    ),
    Bug(
        "commit before a bound file is flushed",
        "runtime/commit/commit.py",
        """            return sink.flush()
""",
        """            written = sum(len(batch) for _, batch in found)
            return self._positions.get(self._bindings.places[stream], 0) + written
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
        Tested("tests/runtime/test_commit.py::test_a_watermark_is_held_back_by_what_is_in_flight_or_still_to_fire"),
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
        "                    await _done(context, thing.close)\n",
        "                    await _done(context, thing.close)\n" * 2,
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
        "        return self._max_in_flight - len(self._workers) - max(unkept, self._for_answers)\n",
        "        return self._max_in_flight - len(self._workers) - self._for_answers\n",
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
        "runtime/loop/waiting.py",
        "            with suppress(TimeoutError):\n",
        "            with suppress(TimeoutError, asyncio.CancelledError):\n",
        Simulated("cancellations", 1_000),
    ),
    Bug(
        "store nothing of what waits in memory for the next stage",
        "runtime/commit/commit.py",
        "            if relay\n",
        "            if relay and not relay\n",
        STORED_ONCE,
    ),
    Bug(
        "keep what was stored in memory, too",
        "runtime/commit/commit.py",
        "            relay.clear()\n",
        "            pass\n",
        STORED_ONCE,
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
        "                    self._fire_before(key, stamp, out)\n"
        "                    context = self.context\n",
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
        FENCED,
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
        Tested(
            "tests/runtime/test_kafka_ledger.py::test_a_task_that_is_gone_for_good_leaves_no_checkpoint_that_seems_lost"
        ),
    ),
    *ELASTIC_BUGS,
)
