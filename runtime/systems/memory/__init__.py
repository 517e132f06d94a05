"""An environment in memory, and Python lists as inputs and outputs."""
