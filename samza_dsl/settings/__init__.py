"""The settings of a run without code: files, environment variables, quantities with units, secrets, and the log."""
