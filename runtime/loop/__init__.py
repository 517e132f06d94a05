"""The event loop: choosing what to read, feeding tasks, and the threads beside it."""
