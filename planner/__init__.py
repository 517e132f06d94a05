"""The planner: from operator specs, by named passes, to a frozen plan."""
