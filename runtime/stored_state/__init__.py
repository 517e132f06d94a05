"""The stored state of operators as typed entries: they are looked at, written to files, and replaced."""
