"""The size of a test: quick by default, more in CI, as much as one likes in the long tier."""

import os

SCALES = ("quick", "ci", "long")
SCALE = os.environ.get("SAMZA_TESTS_SCALE", "quick")
QUICK_SHARE = 6
"""Of how many examples that CI tries the quick tier tries one; with those of CI all bugs of `tests.bite` are caught."""

# A variable that begins so says a setting of the command line, and this is none.
assert "SAMZA_DSL_SCALE" not in os.environ, "the variable is SAMZA_TESTS_SCALE"
assert SCALE in SCALES, f"SAMZA_TESTS_SCALE is {SCALE!r}; it is one of {', '.join(SCALES)}"


def scale(quick: int, ci: int, long: int) -> int:
    """Return the number that belongs to the tier that runs."""
    return {"quick": quick, "ci": ci, "long": long}[SCALE]


def examples(ci: int, long: int) -> int:
    """Return how many examples or seeds the tier that runs tries, of so many in CI."""
    return scale(max(2, ci // QUICK_SHARE), ci, long)


def positive(text: str) -> int:
    """Return the number in an argument that says how often; raises ValueError when it is not at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
