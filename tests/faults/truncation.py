"""Cuts the ledger's files short at any length, and reads what a verification then finds no fault with."""

import os
import random
from pathlib import Path

from tests.faults.bit_flip import FILES, damaged
from tests.faults.trials import Order, Verdict

SAFEGUARD = "pages are checked"


def campaign(order: Order) -> Verdict:
    """Truncate files: LMDB's pages beyond the end kill the process that looks for them."""
    return damaged(order, SAFEGUARD if order.broken else None, truncate)


def truncate(chance: random.Random, data: Path) -> str:
    """Cut a file short: mostly the data file."""
    file = chance.choices([data / name for name in FILES], [20, 1, 1, 1])[0]
    length = chance.randrange(file.stat().st_size)
    os.truncate(file, length)
    return f"{file.name} ends at byte {length}"
