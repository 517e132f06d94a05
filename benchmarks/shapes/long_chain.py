"""C1: what one more operator costs in a long chain, over what one more function call costs in the hand loop."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.run import run_blocking
from runtime.systems.lists import ListSink, ListSource
from runtime.systems.memory import MemoryEnvironment
from samza_dsl import App

SHORT, LONG = 30, 60

Loop = Callable[[list[int]], list[int]]


class LongChain(Shape):
    """From 30 to 60 maps, whose function is of two statements, so that it is called."""

    description = ShapeDescription(
        name="C1", title="an operator more in a chain of 30 ÷ a function call more in the loop", bar=1.2, rounds=5
    )

    def figures(self) -> Figures:
        numbers = list(range(self.scaled(200_000)))
        loops = {"hand": (by_hand(SHORT), by_hand(LONG)), "ours": (pipeline(SHORT), pipeline(LONG))}
        slopes: dict[str, list[float]] = {side: [] for side in loops}
        for _ in range(self.rounds + 1):  # the first does not count: what is lazy is done there
            for side, (short, long) in loops.items():
                slopes[side].append((timed(long, numbers, LONG) - timed(short, numbers, SHORT)) / (LONG - SHORT))
        each = {side: median(found[1:]) / len(numbers) * 1e9 for side, found in slopes.items()}
        ratio = median(ours / hand for hand, ours in zip(slopes["hand"][1:], slopes["ours"][1:], strict=True))
        return Figures(ratio, {"ns by hand": each["hand"], "ns ours": each["ours"]})


def one_more(number: int) -> int:
    number += 1
    return number


def by_hand(length: int) -> Loop:
    """Return the loop that calls the function so many times in a row, as it would be written down."""
    calls = "        number = one_more(number)\n" * length
    source = f"def loop(numbers):\n    results = []\n    for number in numbers:\n{calls}"
    names: dict[str, Loop] = {"one_more": one_more}  # type: ignore[dict-item]
    exec(f"{source}        results.append(number)\n    return results\n", names)
    return names["loop"]


def pipeline(length: int) -> Loop:
    def loop(numbers: list[int]) -> list[int]:
        app = App("long-chain")
        chain = app.input("numbers")
        for _ in range(length):
            chain = chain.map(one_more)
        chain.send_to(app.output("results"))
        sink = ListSink()
        bind = {"numbers": ListSource(numbers), "results": sink}
        run_blocking(app.graph(), app.options, app.around, MemoryEnvironment(), bind=bind)
        return sink.values

    return loop


def timed(loop: Loop, numbers: list[int], length: int) -> float:
    began = perf_counter()
    results = loop(numbers)
    seconds = perf_counter() - began
    if results != [number + length for number in numbers]:
        raise AssertionError(f"a chain of {length} did not come to what it should")
    return seconds
