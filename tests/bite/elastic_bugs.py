"""Bugs of elasticity: virtual tasks that are split and merged, and what their keys and readers make of it."""

from __future__ import annotations

from tests.bite.seeded import Bug, Simulated, Tested

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
BEGUN_ANEW = Tested(f"{ELASTIC}test_a_run_that_begins_anew_keeps_the_size_that_was_asked_of_it")
SAID_ONCE = Tested(
    "tests/runtime/test_told_between_commits.py::test_tasks_that_commit_at_once_say_once_how_far_event_time_is"
)
TOLD = Tested(
    "tests/runtime/test_commit.py::test_of_virtual_tasks_that_share_a_partition_all_are_told_in_memory_or_none"
)
SIZES = Tested("tests/runtime/test_sizes_asked.py")
COUNTED = Tested(f"{SPLIT_ON_DISK}test_whoever_has_the_tasks_copies_their_entries_and_tells_how_many")
LATER_COPY = Tested(
    "tests/runtime/test_standby.py::test_a_copy_that_comes_later_has_what_was_read_for_another_one_of_its_partition"
)
LEDGER = "tests/runtime/test_kafka_ledger.py::test_w"
KIN = Tested(f"{LEDGER}hat_a_task_has_is_what_all_have_written_who_had_keys_of_it")
NEWER = Tested(f"{LEDGER}ho_looks_again_never_takes_an_older_checkpoint_for_a_newer_one")
SPREAD = Tested(
    "tests/operators/test_partition_by.py::test_keys_are_spread_evenly_within_each_partition_of_the_partitioner"
)
GROWING = "tests/runtime/test_growing_topics.py::test_"
KEYLESS = Tested(f"{GROWING}what_has_no_key_passes_where_it_is")
FIRED = Tested(f"{GROWING}a_window_that_has_fired_does_not_fire_again_behind_the_stream_that_comes_between")
UNREAD = Tested(f"{GROWING}what_lay_unread_as_a_stream_was_given_more_partitions_is_read_before_what_came_then")
NEVER_THERE = Tested(f"{GROWING}a_record_of_a_new_partition_is_not_late_by_one_in_which_its_key_never_was")
ELASTIC_BUGS = (
    Bug(
        "read on before the state of keys that writers put themselves lies behind the stream that comes between",
        "runtime/opening/former_layout.py",
        "            if stream in regrouped and anew:\n",
        "            if False:\n",
        UNREAD,
    ),
    Bug(
        "take records of a new partition for late by event time of keys that do not come there",
        "runtime/stored_state/repartitioning.py",
        " and stream not in regrouped_streams(self.graph)",
        "",
        NEVER_THERE,
    ),
    Bug(
        "read a topic that was given more partitions as it lies, though state lies by its keys",
        "runtime/opening/regrouping.py",
        "        found.append(id)\n",
        "        found += ()\n",
        KEYLESS,
    ),
    Bug(
        "leave state where the writers of an input had put its keys by a hash of their own",
        "runtime/stored_state/repartitioning.py",
        "self.astray |= {id for id in self.anew if self._is_astray(id, had[id])}",
        "self.astray |= set()",
        FIRED,
    ),
    Bug(
        "begin event time anew behind the stream that comes between an input and its state",
        "runtime/stored_state/repartitioning.py",
        "yield replace(one, watermark=max(one.watermark, floors.get(one.partition, MIN_TIMESTAMP)))",
        "yield one",
        FIRED,
    ),
    Bug(
        "forget what size was asked of a run where it begins anew",
        "runtime/opening/opening.py",
        "is_of_run = asked.since(since).factor is not None",
        "is_of_run = False",
        BEGUN_ANEW,
    ),
    Bug(
        "take the factor of a run before for one that was asked with a number of containers",
        "runtime/model/assignment.py",
        "(former.factor, former.factor_by) if",
        "(former.factor, number) if",
        SIZES,
    ),
    Bug(
        "forget what number of containers was asked of a run where it begins anew",
        "runtime/containers/supervisor.py",
        "self._number = self._asked.since(self.since).containers or self._number",
        "pass",
        SIZES,
    ),
    Bug(
        "forget what size was asked while state moved",
        "runtime/run/run.py",
        "        made = keeping_size(partial(Run, pipeline, data))\n        run =",
        "        made = partial(Run, pipeline, data)\n        run =",
        SIZES,
    ),
    Bug(
        "count entries that a host copies as none",
        "runtime/systems/kafka/state/task_state.py",
        "sum(map(_entries, new))",
        "0",
        COUNTED,
    ),
    Bug(
        "end a run that is to begin anew as if it had been asked to stop",
        "runtime/run/run.py",
        "        return self._is_to_stop\n",
        "        return self._loop.stopping\n",
        BEGUN_ANEW,
    ),
    Bug(
        "share the keys of virtual tasks out by the partitioner's own hash",
        "operators/partition_by.py",
        "(offset if key is None else crc32(key) >> 16)",
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
        "at least once, a merge begins where the furthest is of those that commit by themselves",
        "runtime/opening/rescaling.py",
        "last = min(own.values(), ",
        "last = max(own.values(), ",
        ONCE_EACH,
    ),
    Bug(
        "a merge of tasks that commit by themselves forgets who has read further",
        "runtime/opening/rescaling.py",
        "return [*first, *(one for _, one in sorted(furthest.items()) if share_of(one.bucket, task.base).meets(task))]",
        "return first",
        ONCE_EACH,
    ),
    Bug(
        "all virtual tasks that commit by themselves have what has no key",
        "runtime/reading/sieve.py",
        "        return 0 if self._share.by_key else offset",
        "        return self._share.task.bucket",
        ONCE_EACH,
    ),
    Bug(
        "forget what one task's commit tells of event time where another one commits at once",
        "runtime/commit/commit.py",
        "self._words[task.number] = self._controls(task, among)",
        "self._words = {task.number: self._controls(task, among)}",
        SAID_ONCE,
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
        TOLD,
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
        "settle(streams, app, lambda claim: claim.run < generation)",
        "settle(streams, app, lambda claim: False)",
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
        '(one for one in found if one[0][:1] == b"t" or owns(one[0]))',
        SPLIT_LIVE,
    ),
)
