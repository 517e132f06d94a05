"""Queries of committed state, by key and by range, from this process, another one, or over HTTP."""
