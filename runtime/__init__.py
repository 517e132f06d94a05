"""The runtime: loop, tasks, commits, stores and systems that run a plan."""
