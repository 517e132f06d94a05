"""Aggregations whose accumulators are kept as the bytes of a serde that the user declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from operators.aggregations.aggregation import Aggregation
from operators.core.base import Serde


class Codec(NamedTuple):
    """The stored form of accumulators: `dump` makes it, and `load` makes the accumulator again."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


def kept_by(aggregation: Aggregation[Any, Any], serde: Serde) -> Aggregation[Any, Any]:
    """Return an aggregation that keeps values, or the user's accumulator, as bytes of a serde.

    Counts, sums and sketches keep numbers, and are left as they are.

    >>> from operators.aggregations.aggregation import collect, over
    >>> class Hex:
    ...     def encode(self, value): return b"%x" % value
    ...     def decode(self, data): return int(data, 16)
    >>> kept_by(collect(), Hex()).add((), [10, 255]), over(kept_by(collect(), Hex()), [10, 255])
    ((b'a', b'ff'), [10, 255])
    """
    dump, load = _codec(aggregation, serde)
    init, add, merge, finish, remove = (
        getattr(aggregation, name) for name in ("init", "add", "merge", "finish", "remove")
    )
    return replace(
        aggregation,
        name=f"{aggregation} kept by {type(serde).__qualname__}",
        init=lambda: dump(init()),
        add=lambda state, values: dump(add(load(state), values)),
        merge=lambda a, b: dump(merge(load(a), load(b))),
        finish=lambda state: finish(load(state)),
        remove=None if remove is None else lambda state, values: dump(remove(load(state), values)),
        remake=lambda ready: kept_by(aggregation.made_of(ready), serde),
        counts=False,
        parts=(),
    )


def of_bytes(aggregation: Aggregation[Any, Any], serde: Serde) -> Aggregation[Any, Any]:
    """Return an aggregation over values that are given as bytes of a serde, as sliding windows keep messages.

    It can't remove: so these windows keep nothing but the messages, and compute each pane of them.

    >>> from operators.aggregations.aggregation import collect, over
    >>> class Hex:
    ...     def encode(self, value): return b"%x" % value
    ...     def decode(self, data): return int(data, 16)
    >>> over(of_bytes(collect(), Hex()), [b"a", b"ff"])
    [10, 255]
    """
    decode, add = serde.decode, aggregation.add
    return replace(
        aggregation,
        name=f"{aggregation} of messages as {type(serde).__qualname__}",
        add=lambda state, values: add(state, [*map(decode, values)]),
        remove=None,
        remake=lambda ready: of_bytes(aggregation.made_of(ready), serde),
        counts=False,
        parts=(),
    )


def _codec(aggregation: Aggregation[Any, Any], serde: Serde) -> Codec:
    encode, decode = serde.encode, serde.decode
    if aggregation.parts:
        each = [_codec(part, serde) for part in aggregation.parts]
        return Codec(
            lambda state: tuple(codec.dump(part) for codec, part in zip(each, state, strict=True)),
            lambda state: tuple(codec.load(part) for codec, part in zip(each, state, strict=True)),
        )
    if aggregation.keeps == "values":
        return Codec(lambda state: tuple(map(encode, state)), lambda state: tuple(map(decode, state)))
    if aggregation.keeps == "a value":
        return Codec(
            lambda state: None if state is None else encode(state),
            lambda state: None if state is None else decode(state),
        )
    return Codec(encode, decode) if aggregation.keeps == "the user's" else Codec(_as_it_is, _as_it_is)


def _as_it_is(state: Any) -> Any:
    return state
