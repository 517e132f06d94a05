"""Runs a plan: the event loop, completion and commit, stores, and the systems where streams live."""
