"""Joins of streams and tables, by key, by time and by window."""
