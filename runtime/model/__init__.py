"""Values that the whole runtime shares: errors, time, metrics, checkpoints and assignments."""
