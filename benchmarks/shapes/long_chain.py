"""C1: what one more operator costs in a long chain, over what one more function call costs in the hand loop."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

from benchmarks.figures import Chart
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App

SHORT, LONG = 30, 60
LENGTHS = (1, 15, SHORT, 45, LONG)

Loop = Callable[[list[int]], list[int]]


class LongChain(Shape):
    """From 30 to 60 maps, whose function is of two statements, so that it is called."""

    description = ShapeDescription(
        name="C1", title="an operator more in a chain of 30 ÷ a function call more in the loop", bar=1.2, rounds=7
    )

    def figures(self) -> Figures:
        numbers = list(range(self.scaled(200_000)))
        loops = {(side, length): make(length) for side, make in SIDES.items() for length in LENGTHS}
        seconds: dict[tuple[str, int], list[float]] = {which: [] for which in loops}
        for _ in range(self.rounds):
            for which, loop in loops.items():
                seconds[which].append(timed(loop, numbers, which[1]))
        quickest = {which: min(found) for which, found in seconds.items()}  # a difference has the noise of both
        added = {side: (quickest[side, LONG] - quickest[side, SHORT]) / (LONG - SHORT) for side in SIDES}
        curve = {f"ns {side}": more / len(numbers) * 1e9 for side, more in added.items()}
        each = 1e9 / len(numbers)
        lines = {side: [(float(n), round(quickest[side, n] * each, 1)) for n in LENGTHS] for side in SIDES}
        return Figures(
            added["ours"] / added["by hand"], curve, Chart("operators", "ns of a processor per message", lines)
        )


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
        sink = ListSink(columns=())
        bind = {"numbers": ListSource(numbers), "results": sink}
        run_blocking(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind))
        return sink.values

    return loop


def timed(loop: Loop, numbers: list[int], length: int) -> float:
    """Return the processor's seconds, which other processes hardly change."""
    began = process_time()
    results = loop(numbers)
    seconds = process_time() - began
    if results != [number + length for number in numbers]:
        raise AssertionError(f"a chain of {length} did not come to what it should")
    return seconds


SIDES = {"by hand": by_hand, "ours": pipeline}
