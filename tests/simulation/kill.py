"""Kills the main job with kill -9 and restarts it: the command of the fault kill-9."""

import sys

from tests.faults.kill_9 import main

if __name__ == "__main__":
    sys.exit(main() > 0)
