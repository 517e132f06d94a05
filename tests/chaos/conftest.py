"""Chaos is for the long tier: on a busy machine brokers may be away for longer than anybody waits for them."""

from tests.scale import SCALE

collect_ignore = [] if SCALE == "long" else ["test_kafka.py"]
