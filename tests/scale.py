"""How much a test does: quick by default, more in CI, as much as one likes in the long tier."""

import os

SCALES = ("quick", "ci", "long")
SCALE = os.environ.get("SAMZA_DSL_SCALE", "quick")

assert SCALE in SCALES, f"SAMZA_DSL_SCALE is {SCALE!r}; it is one of {', '.join(SCALES)}"


def scale(quick: int, ci: int, long: int) -> int:
    """Return the number that belongs to the tier that runs."""
    return {"quick": quick, "ci": ci, "long": long}[SCALE]


def positive(text: str) -> int:
    """Return the number in an argument that says how often; raises ValueError when it is not at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
