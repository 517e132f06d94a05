"""How generated source finds the row of a table that a message is joined with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from operators.base import Key, Serde
from operators.table_join import TableContents
from runtime.keys import KeySerde


def lookups(contents: TableContents, key: Serde, keys: KeySerde) -> dict[str, Callable[[Any], Any]]:
    """Return what finds a row by what `on` gave for a message, and by the message's own key.

    `key` is the serde of the table's keys, `keys` that of the messages'.
    """
    get, encode, encode_held = contents.store.get, key.encode, keys.encode

    def lookup(on: Any) -> Any:
        return None if on is None else get(encode(on))

    def lookup_key(key: Key | None) -> Any:
        if key is None:
            raise ValueError("a record has no key, and this join needs one; partition_by(...) first")
        return get(encode_held(key))

    return {"lookup": lookup, "lookup_key": lookup_key}
