"""The graph of specs and the frozen plan that the passes make of it."""
