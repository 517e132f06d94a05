"""The content of a stream, as the values that were written to it."""

from __future__ import annotations

from typing import Any

from operators.core.base import Serde
from operators.core.wording import words_of
from runtime.model.errors import SamzaError, SerdeError
from runtime.ports.environment import Environment


def values_of(environment: Environment, stream: str, serde: Serde | None) -> list[Any]:
    """Return all values of a stream, partition by partition: bytes without a `serde`, None where there is no value.

    Raises SamzaError where there is no such stream, and for a value that is not what the serde reads.
    """
    streams = environment.streams()
    if stream not in streams:
        raise SamzaError(f"there is no stream {stream!r} in the environment: it has {', '.join(sorted(streams))}")
    # By the offsets that reads return, and not by a count: a control of a producer takes an offset, and has no row.
    values: list[Any] = []
    for partition in range(streams[stream].partitions):
        offset = environment.offsets(stream, partition).start
        while (read := environment.read(stream, partition, offset)) is not None:
            rows = zip(read.batch.values, read.batch.offsets or (), strict=True)
            values += [_decoded(serde, value, f"{stream}/{partition} at {place}") for value, place in rows]
            offset = read.next_offset
    return values


def _decoded(serde: Serde | None, value: bytes | None, where: str) -> Any:
    if value is None or serde is None:
        return value
    try:
        return serde.decode(value)
    except Exception as error:
        raise SerdeError(
            f"{where} is not what {serde} reads: {words_of(error)}; it was written with another value= of "
            "app.output(...), or by somebody else"
        ) from error
