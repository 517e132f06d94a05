"""Window types, triggers, and the operators that fold values into panes."""
