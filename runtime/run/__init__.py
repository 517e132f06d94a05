"""A run: its driver, its rebalances and its measurement."""
