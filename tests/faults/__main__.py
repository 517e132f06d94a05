"""Tries the library against real faults: python -m tests.faults NAME --times N --seed S."""

import sys

from tests.faults.command import main

if __name__ == "__main__":
    sys.exit(main() > 0)
