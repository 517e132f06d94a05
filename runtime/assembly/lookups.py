"""The look-ups of a table join: a row by what `on` gives for a message, or by the message's own key."""

from __future__ import annotations

from typing import Any, cast

from operators.core.base import Key, Serde
from operators.joins.match_counts import Meetings
from operators.joins.table_join import ABSENT, TableContents
from runtime.encoding.keys import KeySerde, bytes_of_key, plain_types


def lookups(contents: TableContents, key: Serde, keys: KeySerde, meetings: Meetings) -> dict[str, Any]:
    """Return what finds a row by what `on` gave for a message, and by the message's own key.

    `key` is the serde of the table's keys, `keys` that of the messages'. What is not among the rows in use is looked
    up in the store, and is in use from then on. `meetings` are told each miss, and of what is found the type of its key
    when it is looked up in the store.

    >>> from operators.core.base import Batch
    >>> from runtime.encoding.serdes import Tagged
    >>> from runtime.stores.memory import MemoryStore
    >>> contents, keys, meetings = TableContents(MemoryStore(), KeySerde(Tagged())), KeySerde(Tagged()), Meetings()
    >>> _ = contents.process(Batch(["row"], keys=[7]))
    >>> look_up = lookups(contents, Tagged(), keys, meetings)["lookup"]
    >>> look_up(7), look_up("7"), meetings.kinds(["messages"])
    ('row', None, {'messages': {'str': 1, 'int': 0}})
    """
    get, encode_held, in_use, use = contents.store.get, keys.encode, contents.in_use, contents.use
    # What `on` returns is a key as held where it is of these kinds, and the table's own keys are held in the same way.
    own_keys = cast(KeySerde, contents.keys)
    own = own_keys.serde
    held_kinds = plain_types(key) if own == key else frozenset[type]()
    by_key = own == keys.serde

    def lookup(on: object) -> object:
        if on is None:
            meetings.missed += 1
            return None
        if type(on) in held_kinds:
            held, version = cast(Key, on), contents.version
            row = in_use.get(held, ABSENT)
            if row is ABSENT:
                row = use(held, get(bytes_of_key(key, on)), version)
        else:
            held = place = bytes_of_key(key, on)
            row = get(place)
        if row is None:
            own_keys.seek(held)
        return meetings.looked_up(held, row)

    def lookup_key(held: Key | None) -> object:
        if held is None:
            raise ValueError("a record has no key, and this join needs one; partition_by(...) first")
        version, row = contents.version, in_use.get(held, ABSENT) if by_key else ABSENT
        if row is ABSENT:
            row = get(encode_held(held))
            if by_key:
                use(held, row, version)
        if row is None and by_key:
            own_keys.seek(held)
        return meetings.looked_up(held, row)

    return {
        "lookup": lookup,
        "in_use": in_use.get,
        "held_kinds": held_kinds,
        "lookup_key": lookup_key,
        # Where the two write keys in other ways, bytes held of one may stand for another key of the other.
        "in_use_by_key": in_use.get if by_key else {}.get,
    }
