"""The vocabulary of all operators: batches, specs, ports, policies, durations, and the user's lines."""
