"""Kills the main job with kill -9 while lookups are in flight, as tests.simulation.kill does."""

from tests.faults.trials import Order, Verdict
from tests.simulation import kill

SAFEGUARD = "one transaction per commit"


def campaign(order: Order) -> Verdict:
    """Kill the job; whether a kill did harm is known at the end of its run, so a run counts as a whole."""
    failed = kill.campaign(order.work, order.times, order.seed, None, SAFEGUARD if order.broken else None)
    return Verdict(order.times, failed)
