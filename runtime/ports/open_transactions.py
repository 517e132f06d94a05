"""The wait of a run that is to end for transactions that others have left open."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.model.errors import HeldBack
from runtime.ports.live_streams import OpenTransaction

HELD_MS, LOOK_MS = 75_000.0, 500.0
"""The ms that a run waits for them, and the ms between two looks at them.

Brokers roll one back that is older than it may be, a minute by default, and look for these every ten seconds.
"""


def held_back_error(held: Sequence[tuple[int, OpenTransaction]]) -> HeldBack:
    """Return the error for when a run ends before the offsets at which it was to end."""
    number = sum(end - found.first for end, found in held)
    places = [
        f"  {found.where}: {end - found.first:,} offsets from {found.first:,} on, "
        f"for {found.for_ms / 1_000:.0f} s by now. {found.advice}"
        for end, found in held
    ]
    listed = "\n".join(places)
    return HeldBack(
        f"{number:,} offsets were not read that the inputs held when this run began, since transactions that others "
        f"have left open hold them back:\n{listed}\nWhat was read before them is committed: run this again when they "
        "have ended."
    )
