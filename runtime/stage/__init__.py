"""One stage in one task: the chain of operators, its outputs and its error policies."""
