"""The small applications that the testing kit is tried on."""

from samza_dsl import App, count, dead_letter, tumbling
from tests.simulation.loop import rest


def add_up(n, context):
    context.state += n
    return [context.state]


def summing(name="summing", factor=1, store="lmdb"):
    app = App(name)
    numbers = app.input("numbers", value=int, key=str)
    sums = numbers.map(lambda n: n * factor).process(add_up, init=int, op_id="sum", store=store)
    sums.send_to(app.output("sums", value=int))
    return app


def looking_up(order="none", **how):
    async def look_up(n):
        await rest(n * 1_000)
        return [n]

    app = App("looking-up")
    numbers = app.input("numbers", value=int)
    found = numbers.async_flat_map(look_up, op_id="look-up", order=order, timeout_ms=5_000, **how)
    found.send_to(app.output("found", value=int))
    return app


def windowing(partitions=1, store="lmdb"):
    app = App("windowing")
    numbers = app.input("numbers", value=int, key=str, timestamp=lambda n: n, partitions=partitions)
    numbers.window(tumbling(seconds=1), count(), late=dead_letter("late"), op_id="per-second", store=store).map(
        lambda pane: (pane.key, pane.start, pane.value)
    ).send_to(app.output("counts"))
    return app
