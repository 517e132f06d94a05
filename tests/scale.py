"""The size of a test: quick by default, more in CI, as much as one likes in the long tier."""

import os

SCALES = ("quick", "ci", "long")
SCALE = os.environ.get("SAMZA_TESTS_SCALE", "quick")
CI_SHARE = 0.4
"""The share of the examples that a test asks for which CI tries; Hypothesis draws the same ones there in each run."""
QUICK_SHARE = 6
"""Of how many examples that a test asks for the quick tier tries one."""

# A variable that begins so says a setting of the command line, and this is none.
assert "SAMZA_DSL_SCALE" not in os.environ, "the variable is SAMZA_TESTS_SCALE"
assert SCALE in SCALES, f"SAMZA_TESTS_SCALE is {SCALE!r}; it is one of {', '.join(SCALES)}"


def scale(quick: int, ci: int, long: int) -> int:
    """Return the number that belongs to the tier that runs."""
    return {"quick": quick, "ci": ci, "long": long}[SCALE]


def examples(asked: int, long: int) -> int:
    """Return how many examples or seeds the tier that runs tries, of so many that are asked for below the long one.

    A test that finds its bug of `tests.bite` only with more says so by `scale`.
    """
    return scale(max(2, asked // QUICK_SHARE), max(2, int(asked * CI_SHARE)), long)


def positive(text: str) -> int:
    """Return the number in an argument that says how often; raises ValueError when it is not at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
