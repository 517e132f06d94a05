"""The operators: frozen specs, and the pure state machines that they build."""
