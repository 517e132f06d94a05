"""The common part of operators on which event time has no effect: they emit at once or never."""

from __future__ import annotations

from operators.core.base import NEVER, Batch, Store


class NothingFires:
    """An operator on which event time has no effect."""

    late: Batch | None = None

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Nothing fires."""
        return None

    def drop_due(self) -> Batch:
        """Nothing is due."""
        return Batch([])

    def next_due(self) -> int:
        """Nothing fires."""
        return NEVER

    def lowest_stamp(self) -> int:
        """Nothing waits."""
        return NEVER


class Untimed(NothingFires):
    """An operator on which event time has no effect, and whose state is all in its store."""

    store: Store
    unwritten = 0

    def write_back(self) -> None:
        """All is in the store."""

    def forget(self) -> None:
        """Nothing is held beside the store."""
