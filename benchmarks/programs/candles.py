"""Trades to candles: open, high, low, close and volume of each symbol, by the second, the minute and the hour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from benchmarks.programs.kit.hand import Hand
from benchmarks.programs.kit.program import Program, Stream
from samza_dsl import App, Pane, aggregate, first, last, maximum, minimum, total, tumbling

SYMBOLS = 200
DISORDER = 500
LENGTHS = {"seconds": 1_000, "minutes": 60_000, "hours": 3_600_000}


class Trade(Struct, frozen=True):
    """Something was sold."""

    at_ms: int
    symbol: str
    cents: int
    pieces: int


class Prices(Struct, frozen=True):
    """What was paid, from the trade that came first to the one that came last."""

    open: int
    high: int
    low: int
    close: int
    volume: int


class Candle(Struct, frozen=True):
    """The prices of a symbol in some time."""

    symbol: str
    start: int
    prices: Prices


def generate(messages: int, seed: int) -> dict[str, list[Trade]]:
    """Make trades 5 ms apart, up to half a second out of order."""
    chance = Random(seed)
    prices = [chance.randrange(1_000, 50_000) for _ in range(SYMBOLS)]
    trades = []
    for number in range(messages):
        symbol = int(chance.triangular(0, SYMBOLS, 0))
        prices[symbol] += chance.randrange(-20, 21)
        at = number * 5 + DISORDER - chance.randrange(DISORDER)
        trades.append(Trade(at, f"SYM{symbol:03}", prices[symbol], chance.randrange(1, 500)))
    return {"trades": trades}


def candle(pane: Pane[str, Prices]) -> Candle:
    return Candle(pane.key, pane.start, pane.value)


def pipeline(workspace: Path) -> App:
    app = App("candles")
    trades = app.input("trades", key=str, value=Trade, timestamp=lambda trade: trade.at_ms, max_disorder_ms=DISORDER)
    prices = aggregate(
        Prices,
        open=first(lambda trade: trade.cents),
        high=maximum(lambda trade: trade.cents),
        low=minimum(lambda trade: trade.cents),
        close=last(lambda trade: trade.cents),
        volume=total(lambda trade: trade.pieces),
    )
    for name, windows in (
        ("seconds", tumbling(seconds=1)),
        ("minutes", tumbling(minutes=1)),
        ("hours", tumbling(hours=1)),
    ):
        (
            trades.window(windows, prices, op_id=name)
            .map(candle, op_id=f"{name}-candle")
            .send_to(app.output(f"candles-of-{name}", value=Candle))
        )
    return app


class ByHand(Hand):
    """For each of the three lengths, the prices of each open candle by its start and symbol."""

    keeps = ("candles",)

    def __init__(self) -> None:
        super().__init__()
        self.candles: dict[str, dict[int, dict[str, list[int]]]] = {name: {} for name in LENGTHS}
        self.out |= {f"candles-of-{name}": [] for name in LENGTHS}

    def takes(self) -> dict[str, Callable[[list[Any], int], int]]:
        return {"trades": self.take}

    def take(self, trades: list[Trade], watermark: int) -> int:
        lengths = [(self.candles[name], length) for name, length in LENGTHS.items()]
        for trade in trades:
            at, symbol, cents, pieces = trade.at_ms, trade.symbol, trade.cents, trade.pieces
            for candles, length in lengths:
                start = at - at % length
                symbols = candles.get(start)
                if symbols is None:
                    if start + length <= watermark:
                        continue  # late
                    symbols = candles[start] = {}
                prices = symbols.get(symbol)
                if prices is None:
                    symbols[symbol] = [cents, cents, cents, cents, pieces]
                else:
                    if cents > prices[1]:
                        prices[1] = cents
                    if cents < prices[2]:
                        prices[2] = cents
                    prices[3] = cents
                    prices[4] += pieces
            if at - DISORDER > watermark:
                watermark = at - DISORDER
        return watermark

    def advance(self, watermark: int) -> None:
        for name, length in LENGTHS.items():
            candles, out = self.candles[name], self.out[f"candles-of-{name}"]
            for start in sorted(start for start in candles if start + length <= watermark):
                out += [Candle(symbol, start, Prices(*prices)) for symbol, prices in candles.pop(start).items()]


PROGRAM = Program(
    name="candles",
    title="trades to candles of a second, a minute and an hour",
    messages=300_000,
    streams={"trades": Stream(Trade, key=lambda trade: trade.symbol, carried=True)},
    outputs=tuple(f"candles-of-{name}" for name in LENGTHS),
    generate=generate,
    pipeline=pipeline,
    by_hand=lambda workspace: ByHand(),
)
