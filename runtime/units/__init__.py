"""Units of work for a batch engine: programs, splits, shuffled rows and staged files."""
