"""Prints for the commands: text that steers no terminal, and rows in even columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samza_dsl.view.readable import safe

ROWS_AT_ONCE = 1_000
"""The rows that are looked at before the first is printed, so that no listing is held in memory."""
GAP = "  "


class Column(NamedTuple):
    """The heading of a column, and whether it holds numbers."""

    heading: str
    right: bool = False


def say(text: str) -> None:
    """Print lines."""
    print("\n".join(map(safe, text.split("\n"))))


def print_rows(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, heading: bool = True) -> None:
    """Print rows below their headings; on a terminal the last column is folded where it is too long."""
    console = Console(highlight=False)
    remaining = iter(rows)
    headings = [column.heading for column in columns]
    widths = [0] * len(columns)
    while True:
        block = [[safe(cell) for cell in row] for row in islice(remaining, ROWS_AT_ONCE)]
        if not block and not heading:
            return
        shown = [headings, *block] if heading else block
        # Columns only grow from block to block: what is printed stays where it is.
        widths = [max(width, *(cell_len(row[place]) for row in shown)) for place, width in enumerate(widths)]
        if console.is_terminal:
            console.print(_table(columns, widths, block, heading))
        else:
            # Flushed, as what follows a stream is piped on line by line.
            print("\n".join(_line(columns, widths, row) for row in shown), flush=True)
        heading = False


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str]) -> str:
    padding = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
    cells = [
        pad + cell if column.right else cell + pad for column, pad, cell in zip(columns, padding, row, strict=True)
    ]
    return GAP.join(cells).rstrip()


def _table(columns: Sequence[Column], widths: Sequence[int], rows: Sequence[Sequence[str]], heading: bool) -> Table:
    table = Table.grid(padding=(0, len(GAP), 0, 0))
    last = len(columns) - 1
    for place, (column, width) in enumerate(zip(columns, widths, strict=True)):
        table.add_column(
            justify="right" if column.right else "left",
            min_width=None if place == last else width,
            no_wrap=place != last,
            overflow="fold",
        )
    if heading:
        table.add_row(*(Text(column.heading, "bold") for column in columns))
    for row in rows:
        table.add_row(*map(Text, row))
    return table
