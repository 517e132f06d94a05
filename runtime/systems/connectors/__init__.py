"""Connectors of users at work: sources that are polled, sinks, the outbox in front of them, and schemes of URLs."""
