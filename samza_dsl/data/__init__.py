"""Streams from Python: write records, list streams, and move positions."""
