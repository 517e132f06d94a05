"""A unit at work in a batch engine's worker process."""
