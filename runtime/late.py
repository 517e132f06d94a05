"""Where messages go that are late at a window or a join: counted, and where the user says so, to dead letters."""

from __future__ import annotations

from collections.abc import Callable

from operators.base import Batch
from runtime.keys import KeySerde
from runtime.outputs import Outputs
from runtime.serdes import Tagged


def late_exit(
    id: str, to: str | None, count: Callable[[int], None], outputs: Outputs, keys: KeySerde
) -> Callable[[Batch], None]:
    """Return what takes the late messages of the operator `id`: it counts them, and writes them `to` a stream."""

    def on_late(late: Batch) -> None:
        count(len(late))
        for row, value in enumerate(late.values if to is not None else ()):
            assert to is not None
            headers = {**_whence(late, row), "operator": id.encode(), "error": b"late"}
            if late.signs is not None and late.signs[row] == -1:
                headers["withdrawn"] = b"yes"
            one = Batch([Tagged().encode(value)], late.keys and keys.encode_all([late.keys[row]]))
            outputs.dead_letter(to, one, headers)

    return on_late


def _whence(batch: Batch, row: int) -> dict[str, bytes]:
    """Return what a dead letter says of where a row came from."""
    place = (batch.headers and batch.headers[row]) or {}
    offset = batch.offsets[row] if batch.offsets is not None else None
    return {**place} if offset is None else {**place, "offset": b"%d" % offset}
