"""The levers that make a pipeline cheap, each of which benchmarks and tests can leave out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Levers:
    """The levers in use: without any one of them a pipeline has the same results, and costs more.

    `fusion` writes stateless operators into one loop, `keyed` those that keep state by key as well, `reading` also
    the reading of keys, `folding` that of keys and times, and windows; `inlining` writes expressions in the place
    of calls, and `scalars` has loops make nothing that they only read part by part. `columns` carries only what
    something downstream reads. `batches` takes in many messages at once, and completes them at once. `hot_state`
    keeps states as plain dicts until the commit. `relays` hands on in memory what one stage writes for the next.
    `joint` runs a stage that is handed its messages in memory once for all tasks. `flights` keeps messages as
    columns while they await. `gathering` lets what calls have come to wait a moment for more of it. `together`
    encodes at once what nobody's code has seen. `trust` takes it that what is kept or handed on comes back as it
    was: else it is encoded, decoded and compared at once, as in tests.

    Not an option of users, who can only switch off `inline`.
    """

    # Each is a choice between passes, or of what a task is assembled from: no loop asks for it.
    fusion: bool = True
    keyed: bool = True
    reading: bool = True
    folding: bool = True
    inlining: bool = True
    scalars: bool = True
    columns: bool = True
    batches: bool = True
    hot_state: bool = True
    relays: bool = True
    joint: bool = True
    flights: bool = True
    gathering: bool = True
    together: bool = True
    trust: bool = True


ALL = Levers()
