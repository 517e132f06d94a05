"""The values that one stage hands to the next in memory: as the objects they are, where no one else may change them."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any, Literal

import msgspec

from operators.core.base import Key, Serde
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import decoded, encode_all
from runtime.encoding.storable import check_kept

LOOKED_AT = 16
"""Values of which it is looked, at the first ones that are handed on as they are, whether they have bytes at all."""
AsItIs = Literal["all", "unchangeable", "nothing"]
UNCHANGEABLE = frozenset({int, float, str, bytes, bool, complex, type(None)})
"""The types of which every value is one that nobody can change."""


class OwnValues:
    """Makes the values of one stage the next one's own, as they would be if a stream had kept them in between.

    Of what goes on `as_it_is`, all or what is unchangeable, only what a cut leaves is encoded. All else is encoded and
    decoded at once. One thread at a time uses it, the one that is at work in the task.
    """

    def __init__(self, serde: Serde, as_it_is: AsItIs = "nothing") -> None:
        self.serde = KeySerde(serde)
        self._as_it_is = as_it_is
        self._looks = 0 if as_it_is == "nothing" else LOOKED_AT

    def own(self, values: list[Any]) -> list[Any]:
        """Return the values for the next stage; raises SerdeError for one that has no bytes, if it is encoded."""
        if self._looks:
            check_kept(self.serde.serde, values[: self._looks])
            self._looks = max(self._looks - len(values), 0)
        if self._as_it_is == "all" or self.serde.are_plain(values):
            return values
        if self._as_it_is == "unchangeable" and are_unchangeable(values):
            return values
        serde = self.serde.serde
        data = encode_all(serde, values)
        some = [one for one in data if one is not None]
        if len(some) == len(data):
            return decoded(serde, some)
        return [None if one is None else serde.decode(one) for one in data]

    def own_groups(self, group: dict[Key, list[object]]) -> None:
        """Make the values of each key of a group the next stage's own, as `own` does."""
        values = [*chain.from_iterable(group.values())]
        owned = self.own(values)
        if owned is not values:
            parts = iter(owned)
            for key, found in group.items():
                group[key] = [*islice(parts, len(found))]


def are_unchangeable(values: list[Any]) -> bool:
    """Whether nobody can change any of these values in place.

    >>> are_unchangeable([(1, "a"), (2, None)]), are_unchangeable([(1, []), (2, [])])
    (True, False)
    """
    for kind in set(map(type, values)) - UNCHANGEABLE:
        read = _parts_of(kind)
        if read is None:
            return False
        of_kind = [value for value in values if type(value) is kind]
        if kind is tuple:
            if not all(isinstance(value, tuple) and are_unchangeable([*value]) for value in of_kind):
                return False
        elif not all(are_unchangeable([*map(part, of_kind)]) for part in read):
            return False
    return True


@lru_cache(maxsize=256)
def _parts_of(kind: type) -> tuple[Any, ...] | None:
    """Return what reads each part of a value that is unchangeable if its parts are; None for any other kind."""
    if kind is tuple:
        return ()
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple(itemgetter(place) for place, _ in enumerate(getattr(kind, "_fields", ())))
    if issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen:
        return tuple(map(attrgetter, kind.__struct_fields__))
    return None
