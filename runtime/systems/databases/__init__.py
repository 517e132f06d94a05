"""Databases as sinks that keep our positions in their own transactions."""
