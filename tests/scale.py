"""How much a test does: quick by default, more in CI, as much as one likes in the long tier."""

import os

SCALES = ("quick", "ci", "long")
SCALE = os.environ.get("SAMZA_DSL_SCALE", "quick")

assert SCALE in SCALES, f"SAMZA_DSL_SCALE is {SCALE!r}; it is one of {', '.join(SCALES)}"


def scale(quick: int, ci: int, long: int) -> int:
    """Return the number that belongs to the tier that runs."""
    return {"quick": quick, "ci": ci, "long": long}[SCALE]
